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
	for _, test := range []struct {
		name, policy, file, message string
	}{
		{"When the policy is misspelled, it should name the valid ones", "enforced", keys, `"enforced" isn't a policy; use off, warn or enforce`},
		{"When there is no file of keys, it should ask for one", SignaturesWarn, "", "policy warn needs a file of public keys"},
		{"When the file is missing, it should say so", SignaturesEnforce, keys + "x", "reading the public keys: open " + keys + "x"},
		{"When the file has no key, it should name it", SignaturesEnforce, empty, "file " + empty + ": 0 of 0 public keys"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := newVerifier(test.policy, test.file)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
	t.Run("When the policy is off, it should read no keys", func(t *testing.T) {
		g := NewWithT(t)
		for _, policy := range []string{"", SignaturesOff} {
			verifier, err := newVerifier(policy, "missing")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(verifier).To(BeNil())
		}
	})
	t.Run("When there are keys, it should verify", func(t *testing.T) {
		g := NewWithT(t)
		for _, policy := range []string{SignaturesWarn, SignaturesEnforce} {
			g.Expect(newVerifier(policy, keys)).NotTo(BeNil())
		}
	})
}
