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
	enforce := func(keys, identities, root string) Options {
		return Options{PayloadSignatures: SignaturesEnforce, PayloadKeysFile: keys, PayloadIdentitiesFile: identities, PayloadTrustedRootFile: root}
	}
	for _, test := range []struct {
		name    string
		options Options
		message string // empty if it verifies
	}{
		{"When the policy is misspelled, it should name the valid ones", Options{PayloadSignatures: "enforced", PayloadKeysFile: keys}, `"enforced" isn't a policy; use off, warn or enforce`},
		{"When the file of keys is missing, it should say so", enforce(keys+"x", "", ""), "reading the public keys: open " + keys + "x"},
		{"When the file has no key, it should name it", enforce(empty, "", ""), "file " + empty + ": 0 of 0 public keys"},
		{"When the file has no key beside identities, it should name it", enforce(empty, identities, root), "file " + empty + ": 0 of 0 public keys"},
		{"When the file of identities is missing, it should say so", enforce(keys, identities+"x", root), "reading the identities: open " + identities + "x"},
		{"When the trusted root is missing, it should say so", enforce(keys, identities, root+"x"), "reading the trusted root: open " + root + "x"},
		{"When a file is malformed, it should name it", enforce(keys, identities, empty), "files " + identities + " and " + empty + ": trusted root: "},
		{"When there are keys, it should verify", enforce(keys, "", ""), ""},
		{"When the platform only warns, it should verify, too", Options{PayloadSignatures: SignaturesWarn, PayloadKeysFile: keys}, ""},
		{"When there are identities and a trusted root, it should verify", enforce("", identities, root), ""},
		{"When there are these and keys, it should verify", enforce(keys, identities, root), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			verifier, err := newVerifier(test.options)
			if test.message != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.message)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(verifier).NotTo(BeNil())
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
}
