// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/payload/payloadtest"
)

// signers are keys of each kind.
type signers struct {
	p256, stranger crypto.Signer
	rsa            *rsa.PrivateKey
	ed25519        ed25519.PrivateKey
}

// theSigners are the same for all tests, because it takes long to make them. None changes them.
var theSigners = sync.OnceValues(func() (s signers, err error) {
	if s.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return s, err
	}
	_, s.ed25519, err = ed25519.GenerateKey(rand.Reader)
	return s, err
})

func newSigners(t *testing.T) signers {
	t.Helper()
	s, err := theSigners()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s.p256, s.stranger = payloadtest.Key(t), payloadtest.Key(t)
	return s
}

func verifier(t *testing.T, enforce bool, keys ...crypto.Signer) *Verifier {
	t.Helper()
	v, err := NewVerifier(payloadtest.PublicPEM(t, keys...), nil, enforce)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return v
}

func TestSignatures(t *testing.T) {
	keys := newSigners(t)
	otherDigest := "sha256:" + strings.Repeat("0", 64)
	strangers := func(n int, digest string) []payloadtest.Signature {
		var layers []payloadtest.Signature
		for range n {
			layers = append(layers, payloadtest.Signature{Statement: payloadtest.Statement("", digest), By: keys.stranger})
		}
		return layers
	}
	const none = "none of its signatures is by a key that the platform trusts"
	tests := []struct {
		name     string
		by       crypto.Signer // the platform's key; nil is P-256
		layers   func(digest string) []payloadtest.Signature
		unsigned string // empty for an image that is accepted
	}{
		{"When an ECDSA P-256 key signed it, it should accept it", keys.p256, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.p256}}
		}, ""},
		{"When an RSA key signed it, it should accept it", keys.rsa, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.rsa}}
		}, ""},
		{"When an Ed25519 key signed it, it should accept it", keys.ed25519, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.ed25519}}
		}, ""},
		{"When an Ed25519 key signed its hash, it should accept it", keys.ed25519, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.ed25519, Prehashed: true}}
		}, ""},
		{"When the statement names another repository, as behind a mirror, it should accept it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("elsewhere.example/release", d), By: keys.p256}}
		}, ""},
		{"When malformed and strangers' signatures precede the platform's, it should accept it", nil, func(d string) []payloadtest.Signature {
			return append(strangers(maxSignatures-3, d), payloadtest.Signature{Statement: payloadtest.Statement("", d), Encoded: "!"},
				payloadtest.Signature{Statement: "{", By: keys.p256}, payloadtest.Signature{Statement: payloadtest.Statement("", d), By: keys.p256})
		}, ""},
		{"When it has no signature, it should reject it", nil, nil, "it has no signature"},
		{"When another key signed it, it should reject it", nil, func(d string) []payloadtest.Signature { return strangers(1, d) }, none},
		{"When another platform's kind of key signed it, it should reject it", keys.rsa, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.p256}}
		}, none},
		{"When the signature is a replay of another image's, it should reject it", nil, func(string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", otherDigest), By: keys.p256}}
		}, none},
		{"When the statement was replaced under the signature, it should reject it", nil, func(d string) []payloadtest.Signature {
			theirs := payloadtest.Signature{Statement: payloadtest.Statement("", otherDigest), By: keys.p256}
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), Encoded: theirs.Encode(t)}}
		}, none},
		{"When the key signed another type of statement, it should reject it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: strings.ReplaceAll(payloadtest.Statement("", d), statementType, "attestation"), By: keys.p256}}
		}, none},
		{"When the key signed the bare digest, it should reject it", nil, func(d string) []payloadtest.Signature { return []payloadtest.Signature{{Statement: d, By: keys.p256}} }, none},
		{"When the statement has another media type, it should reject it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), By: keys.p256, MediaType: types.OCILayer}}
		}, none},
		{"When the statement is too large, it should reject it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d) + strings.Repeat(" ", maxStatementBytes), By: keys.p256}}
		}, none},
		{"When the signature isn't base64, it should reject it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), Encoded: "%%%"}}
		}, none},
		{"When the signature is too large, it should reject it", nil, func(d string) []payloadtest.Signature {
			return []payloadtest.Signature{{Statement: payloadtest.Statement("", d), Encoded: strings.Repeat("A", maxSignatureBytes+4)}}
		}, none},
		{"When the platform's signature follows too many others, it should reject it", nil, func(d string) []payloadtest.Signature {
			return append(strangers(maxSignatures, d), payloadtest.Signature{Statement: payloadtest.Statement("", d), By: keys.p256})
		}, "none of its first 32 signatures, of 33, is by a key that the platform trusts"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, s := NewWithT(t), newServer(t, nil)
			ref, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
			if test.layers != nil {
				payloadtest.Sign(t, s.host+"/release@"+digest, test.layers(digest)...)
			}
			key := test.by
			if key == nil {
				key = keys.p256
			}
			for _, ref := range []string{ref, s.host + "/release@" + digest} {
				before := s.count("GET /v2/release/blobs/")
				release, err := Read(t.Context(), ref, Options{Verifier: verifier(t, true, key)})
				warned, werr := Read(t.Context(), ref, Options{Verifier: verifier(t, false, key)})
				g.Expect(werr).NotTo(HaveOccurred())
				if test.unsigned == "" {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect([]Reason{release.Unverified, warned.Unverified}).To(HaveEach(Reason("")))
					continue
				}
				expectError(t, err, ReasonPayloadUnsigned, "verifying the signature of ", test.unsigned)
				g.Expect(warned.Unverified).To(Equal(ReasonPayloadUnsigned))
				packed, err := warned.Pack()
				g.Expect(err).NotTo(HaveOccurred())
				again, err := packed.Release()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(again.Unverified).To(Equal(ReasonPayloadUnsigned))
				// Strangers' statements are one blob: the bound is twice it, for both policies, and the payload's layer once.
				g.Expect(s.count("GET /v2/release/blobs/")-before).To(BeNumerically("<=", 3), "%v", s.requests)
			}
		})
	}
}

// TestSignatureSources is about what registries answer.
func TestSignatureSources(t *testing.T) {
	keys := newSigners(t)
	read := func(t *testing.T, s *server, digest string, enforce bool, sources ...ImageContentSource) (*Release, error) {
		t.Helper()
		return ReadDigest(t.Context(), s.host+"/release@"+digest, Options{Verifier: verifier(t, enforce, keys.p256), ImageContentSources: sources, Discreet: true})
	}
	setup := func(t *testing.T) (*server, string) {
		t.Helper()
		s := newServer(t, nil)
		_, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
		payloadtest.SignWith(t, s.host+"/release@"+digest, keys.p256)
		return s, digest
	}
	// instead answers requests for signatures.
	instead := func(s *server, path string, answer http.HandlerFunc) {
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, path) {
				return false
			}
			answer(w, req)
			return true
		})
	}
	statusOf := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	statement := func(digest string) string {
		return fmt.Sprintf("/blobs/sha256:%x", sha256.Sum256([]byte(payloadtest.Statement("", digest))))
	}

	for name, broken := range map[string]func(s *server, digest string){
		"When the registry has an error, nothing should say that the payload is unsigned":                   func(s *server, _ string) { instead(s, ".sig", statusOf(http.StatusServiceUnavailable)) },
		"When the registry has an error for the statement, nothing should say that the payload is unsigned": func(s *server, d string) { instead(s, statement(d), statusOf(http.StatusBadGateway)) },
		"When the registry serves another statement, nothing should say that the payload is unsigned": func(s *server, d string) {
			instead(s, statement(d), func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(bytes.Repeat([]byte("x"), len(payloadtest.Statement("", d))))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, digest := setup(t)
			broken(s, digest)
			_, err := read(t, s, digest, true)
			expectError(t, err, ReasonRegistryUnreachable)
			release, err := read(t, s, digest, false)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(release.Unverified).To(Equal(ReasonRegistryUnreachable))
		})
	}

	t.Run("When the registry requires credentials for signatures, it should say so", func(t *testing.T) {
		s, digest := setup(t)
		instead(s, ".sig", statusOf(http.StatusForbidden))
		_, err := read(t, s, digest, true)
		expectError(t, err, ReasonImagePullUnauthorized)
	})

	for name, answer := range map[string]http.HandlerFunc{
		"When the manifest of signatures never ends, it should reject the payload": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for range 2 * maxManifestBytes / 1024 {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1024)); err != nil {
					return
				}
			}
		},
		"When the manifest of signatures has too many layers, it should reject the payload": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = w.Write([]byte(`{"layers":[{}` + strings.Repeat(",{}", lenient.MaxElements) + `]}`))
		},
		"When the manifest of signatures isn't JSON, it should reject the payload": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = w.Write([]byte("none"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, digest := setup(t)
			instead(s, ".sig", answer)
			_, err := read(t, s, digest, true)
			expectError(t, err, ReasonPayloadUnsigned, "the manifest of its signatures is ")
		})
	}

	t.Run("When the image is missing, it should say that rather than that it is unsigned", func(t *testing.T) {
		s, _ := setup(t)
		_, err := read(t, s, "sha256:"+strings.Repeat("0", 64), true)
		expectError(t, err, ReasonImageNotFound)
	})

	t.Run("When the payload is rejected, nothing of it should have been read", func(t *testing.T) {
		g, s := NewWithT(t), newServer(t, nil)
		_, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
		_, err := read(t, s, digest, true)
		expectError(t, err, ReasonPayloadUnsigned)
		g.Expect(s.count("GET /v2/release/manifests/sha256:")).To(BeZero())
		g.Expect(s.count("GET /v2/release/blobs/")).To(BeZero())
	})

	t.Run("When a mirror lacks the signatures, it should find them at the source", func(t *testing.T) {
		g := NewWithT(t)
		s, digest := setup(t)
		mirror := newServer(t, nil)
		mirror.push(t, "copy:1.36.3", build(t, goodSpec()))
		sources := ImageContentSource{Source: s.host + "/release", Mirrors: []string{mirror.host + "/copy"}}
		release, err := read(t, s, digest, true, sources)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(release.ServedBy).To(Equal(mirror.host + "/copy"))

		instead(s, ".sig", statusOf(http.StatusServiceUnavailable))
		_, err = read(t, s, digest, true, sources)
		expectError(t, err, ReasonRegistryUnreachable, "it has no signature")
	})
}

func TestVerify(t *testing.T) {
	keys := newSigners(t)
	g, s := NewWithT(t), newServer(t, nil)
	ref, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
	pinned, opts := s.host+"/release@"+digest, Options{Verifier: verifier(t, false, keys.p256)}
	expectError(t, Verify(t.Context(), pinned, opts), ReasonPayloadUnsigned)
	expectError(t, Verify(t.Context(), ref, opts), ReasonInvalidReference)
	g.Expect(Verify(t.Context(), pinned, Options{})).To(Succeed())
	payloadtest.SignWith(t, s.host+"/release@"+digest, keys.p256)
	g.Expect(Verify(t.Context(), pinned, opts)).To(Succeed())
}

func TestVerifierKeys(t *testing.T) {
	keys := newSigners(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	good := payloadtest.PublicPEM(t, keys.p256)
	weak, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).Rsh(keys.rsa.N, 1024), E: 65537})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, test := range []struct {
		name, content, message string
	}{
		{"When there is no key, it should reject them", "", "0 of 0 public keys"},
		{"When it isn't PEM, it should reject them", "cosign.pub", "0 of 0 public keys"},
		{"When a malformed key precedes a good one, it should reject them", "-----BEGIN PUBLIC KEY-----\n%%%\n-----END PUBLIC KEY-----\n" + string(good), "1 of 2 public keys"},
		{"When a key is cut off, it should reject them", string(good) + string(good[:len(good)/2]), "1 of 2 public keys"},
		{"When the content isn't a key, it should reject them", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "public key 1: "},
		{"When it is a private key, it should reject them", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", `"PRIVATE KEY" isn't a PUBLIC KEY`},
		{"When a curve isn't P-256, it should reject them", string(payloadtest.PublicPEM(t, p384)), "curve P-384 isn't supported"},
		{"When an RSA key is short, it should reject them", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: weak})), "1024"},
		{"When there are too many, it should reject them", strings.Repeat(string(good), maxKeys+1), "more than 16 public keys"},
		{"When they are too large, it should reject them", strings.Repeat("#", maxKeysBytes+1), "more than 65536 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewVerifier([]byte(test.content), nil, true)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
	t.Run("When there are several keys with comments, it should take each", func(t *testing.T) {
		g := NewWithT(t)
		v, err := NewVerifier(append([]byte("# 2026\n"), payloadtest.PublicPEM(t, keys.p256, keys.stranger, keys.ed25519)...), nil, true)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.keys).To(HaveLen(4), "Ed25519 has two schemes")
	})
}
