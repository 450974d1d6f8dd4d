// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	. "github.com/onsi/gomega"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/verify"
)

// What follows was written by real instances of Sigstore: testdata/sigstore/README.md.

func recorded(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "sigstore", file))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

func trusting(t *testing.T, identities, trustedRoot string) (*Keyless, *Verifier) {
	t.Helper()
	g := NewWithT(t)
	k, err := NewKeyless([]byte(identities), recorded(t, trustedRoot))
	g.Expect(err).NotTo(HaveOccurred())
	v, err := NewVerifier(nil, k, true)
	g.Expect(err).NotTo(HaveOccurred())
	return k, v
}

func TestPublicGood(t *testing.T) {
	const (
		root     = "public-good-trusted-root.json"
		workflow = `[{issuer: "https://token.actions.githubusercontent.com", ` +
			`subjectRegExp: 'https://github\.com/sigstore/sigstore-js/\.github/workflows/release\.yml@refs/heads/main'}]`
		other = `[{issuer: "https://token.actions.githubusercontent.com", subject: "https://github.com/example/release/.github/workflows/release.yml@refs/heads/main"}]`
	)
	// The digest of the npm package that the bundle is of.
	image := v1.Hash{Algorithm: "sha512", Hex: "46d4e2f74c4877316640000a6fdf8a8b59f1e0847667973e9859f774dd31b8f1e0937813b777fb66a2ac67d50540fe34640966eee9fc2ccca387082b4c85cd3c"}
	digest, err := hex.DecodeString(image.Hex)
	if err != nil {
		t.Fatal(err)
	}
	// The bundle's version is 0.1; nothing that is signed states it.
	var fields map[string]any
	if err := json.Unmarshal(recorded(t, "public-good-bundle.json"), &fields); err != nil {
		t.Fatal(err)
	}
	fields["mediaType"] = bundleMediaType
	material := fields["verificationMaterial"].(map[string]any)
	material["certificate"] = material["x509CertificateChain"].(map[string]any)["certificates"].([]any)[0]
	delete(material, "x509CertificateChain")
	current, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	check := func(k *Keyless, content []byte, digest []byte) error {
		var signed bundle.Bundle
		if err := signed.UnmarshalJSON(content); err != nil {
			return err
		}
		_, err := k.verifier.Verify(&signed, verify.NewPolicy(verify.WithArtifactDigest("sha512", digest), k.signers...))
		return err
	}
	t.Run("When a workflow signed it, the public instance's trusted root and the identity should verify it", func(t *testing.T) {
		g := NewWithT(t)
		trusted, _ := trusting(t, workflow, root)
		g.Expect(check(trusted, recorded(t, "public-good-bundle.json"), digest)).To(Succeed())
		g.Expect(check(trusted, current, digest)).To(Succeed())
	})
	t.Run("When another identity is trusted, or another artifact is there, it should not verify it", func(t *testing.T) {
		g := NewWithT(t)
		stranger, _ := trusting(t, other, root)
		g.Expect(check(stranger, current, digest)).To(MatchError(ContainSubstring("no matching CertificateIdentity")))
		trusted, _ := trusting(t, workflow, root)
		g.Expect(check(trusted, current, make([]byte, len(digest)))).NotTo(Succeed())
		foreign, _ := trusting(t, workflow, "scaffolding-trusted-root.json")
		g.Expect(check(foreign, current, digest)).NotTo(Succeed())
	})
	t.Run("When it is provenance, it should not count as a signature", func(t *testing.T) {
		_, verifier := trusting(t, workflow, root)
		NewWithT(t).Expect(verifier.bundled(current, image)).To(BeFalse())
	})
}

func TestScaffolding(t *testing.T) {
	const (
		root   = "scaffolding-trusted-root.json"
		signer = `[{issuer: "http://oidc.local:8080", subject: "foo!oidc.local"}]`
	)
	content := recorded(t, "scaffolding-bundle.json")
	var signed struct {
		MessageSignature struct {
			MessageDigest struct{ Digest string } `json:"messageDigest"`
		} `json:"messageSignature"`
	}
	if err := json.Unmarshal(content, &signed); err != nil {
		t.Fatal(err)
	}
	digest, err := base64.StdEncoding.DecodeString(signed.MessageSignature.MessageDigest.Digest)
	if err != nil {
		t.Fatal(err)
	}
	image := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(digest)}
	for name, test := range map[string]struct {
		identities string
		root       string
		image      v1.Hash
		want       bool
	}{
		"When the identity signed it, it should accept it":            {signer, root, image, true},
		"When another identity is trusted, it should reject it":       {`[{issuer: "http://oidc.local:8080", subject: "bar!oidc.local"}]`, root, image, false},
		"When another issuer is trusted, it should reject it":         {`[{issuer: "https://oidc.local:8080", subject: "foo!oidc.local"}]`, root, image, false},
		"When the signature is of another image, it should reject it": {signer, root, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(make([]byte, 32))}, false},
		"When another instance is trusted, it should reject it":       {signer, "public-good-trusted-root.json", image, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, verifier := trusting(t, test.identities, test.root)
			NewWithT(t).Expect(verifier.bundled(content, test.image)).To(Equal(test.want))
		})
	}
}
