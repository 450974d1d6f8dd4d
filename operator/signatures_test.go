// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/payload/payloadtest"
)

func TestNewVerifier(t *testing.T) {
	g := NewWithT(t)
	folder := t.TempDir()
	keys, empty := filepath.Join(folder, "keys.pub"), filepath.Join(folder, "empty.pub")
	g.Expect(os.WriteFile(keys, payloadtest.PublicPEM(t, payloadtest.Key(t)), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(empty, nil, 0o600)).To(Succeed())
	identities, root := filepath.Join(folder, "identities.yaml"), filepath.Join(folder, "root.json")
	g.Expect(os.WriteFile(identities, []byte("- {issuer: https://issuer.example, subject: release@platform.example}\n"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(root, payloadtest.NewSigstore(t).TrustedRoot(t, false), 0o600)).To(Succeed())
	for _, test := range []struct {
		name, policy, file, message string
	}{
		{"When the policy is misspelled, it should name the valid ones", "enforced", keys, `"enforced" isn't a policy; use off, warn or enforce`},
		{"When there is no file of keys, it should ask for one", SignaturesWarn, "", "policy warn needs a file of public keys"},
		{"When the file is missing, it should say so", SignaturesEnforce, keys + "x", "reading the public keys: open " + keys + "x"},
		{"When the file has no key, it should name it", SignaturesEnforce, empty, "file " + empty + ": 0 of 0 public keys"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := newVerifier(Options{PayloadSignatures: test.policy, PayloadKeysFile: test.file})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
	t.Run("When the policy is off, it should read no keys", func(t *testing.T) {
		g := NewWithT(t)
		for _, policy := range []string{"", SignaturesOff} {
			verifier, err := newVerifier(Options{PayloadSignatures: policy, PayloadKeysFile: "missing", PayloadIdentitiesFile: "missing"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(verifier).To(BeNil())
		}
	})
	t.Run("When there are keys, it should verify", func(t *testing.T) {
		g := NewWithT(t)
		for _, policy := range []string{SignaturesWarn, SignaturesEnforce} {
			g.Expect(newVerifier(Options{PayloadSignatures: policy, PayloadKeysFile: keys})).NotTo(BeNil())
		}
	})
	for _, test := range []struct {
		name, identities, root, message string
	}{
		{"When there are identities without a trusted root, it should ask for both", identities, "", "need both a file of identities and one of a trusted root"},
		{"When there is a trusted root without identities, it should ask for both", "", root, "need both a file of identities and one of a trusted root"},
		{"When the file of identities is missing, it should say so", identities + "x", root, "reading the identities: open " + identities + "x"},
		{"When the trusted root is missing, it should say so", identities, root + "x", "reading the trusted root: open " + root + "x"},
		{"When a file is malformed, it should name it", identities, empty, "files " + identities + " and " + empty + ": trusted root: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := newVerifier(Options{PayloadSignatures: SignaturesEnforce, PayloadKeysFile: keys, PayloadIdentitiesFile: test.identities, PayloadTrustedRootFile: test.root})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
	t.Run("When there are identities and a trusted root, it should verify with or without keys", func(t *testing.T) {
		g := NewWithT(t)
		for _, file := range []string{"", keys} {
			g.Expect(newVerifier(Options{
				PayloadSignatures: SignaturesEnforce, PayloadKeysFile: file, PayloadIdentitiesFile: identities, PayloadTrustedRootFile: root,
			})).NotTo(BeNil())
		}
		_, err := newVerifier(Options{PayloadSignatures: SignaturesEnforce, PayloadKeysFile: empty, PayloadIdentitiesFile: identities, PayloadTrustedRootFile: root})
		g.Expect(err).To(MatchError(ContainSubstring("file " + empty + ": 0 of 0 public keys")))
	})
}
