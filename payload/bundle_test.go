// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"

	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/payload/payloadtest"
)

const (
	issuer      = "https://issuer.example"
	releaser    = "release@platform.example"
	builder     = "builder@builders.example"
	untrustedBy = "none of its signatures is by a key that the platform trusts"
)

const identities = `
- {issuer: "https://issuer.example", subject: release@platform.example}
- {issuer: "https://issuer.example", subjectRegExp: '[a-z]+@builders\.example|[a-z]+@makers\.example'}
`

// platform is what a platform trusts, and what signs for it.
type platform struct {
	signers
	sigstore, foreign *payloadtest.Sigstore
}

func newPlatform(t *testing.T) platform {
	t.Helper()
	return platform{newSigners(t), payloadtest.NewSigstore(t), payloadtest.NewSigstore(t)}
}

func (p platform) verifier(t *testing.T, keys ...crypto.Signer) *Verifier {
	t.Helper()
	g := NewWithT(t)
	keyless, err := NewKeyless([]byte(identities), p.sigstore.TrustedRoot(t, false))
	g.Expect(err).NotTo(HaveOccurred())
	var file []byte
	if len(keys) > 0 {
		file = payloadtest.PublicPEM(t, keys...)
	}
	v, err := NewVerifier(file, keyless, true)
	g.Expect(err).NotTo(HaveOccurred())
	return v
}

// keyless is the platform's bundle, changed.
func (p platform) keyless(t *testing.T, by, digest string, change ...func(*protobundle.Bundle)) []byte {
	t.Helper()
	b := keylessBundle(t, p.sigstore, issuer, by, inToto(digest, cosignPredicate), time.Now().Add(5*time.Minute))
	for _, c := range change {
		c(b)
	}
	return encodeBundle(t, b)
}

func withoutTimestamps(b *protobundle.Bundle) { b.VerificationMaterial.TimestampVerificationData = nil }

func withoutPromise(b *protobundle.Bundle) {
	b.VerificationMaterial.TlogEntries[0].InclusionPromise = nil
}

// bundleCase is an image's bundles, and whether they are accepted.
type bundleCase struct {
	name     string
	bundles  func(t *testing.T, digest string, manifest []byte) []byte
	unsigned bool
}

func keylessCases(p platform) []bundleCase {
	other, soon := "sha256:"+strings.Repeat("0", 64), func() time.Time { return time.Now().Add(5 * time.Minute) }
	signed := func(by string, change ...func(*protobundle.Bundle)) func(*testing.T, string, []byte) []byte {
		return func(t *testing.T, d string, _ []byte) []byte { return p.keyless(t, by, d, change...) }
	}
	stated := func(s *payloadtest.Sigstore, issuer, predicate string, at func() time.Time) func(*testing.T, string, []byte) []byte {
		return func(t *testing.T, d string, _ []byte) []byte {
			return encodeBundle(t, keylessBundle(t, s, issuer, releaser, inToto(d, predicate), at()))
		}
	}
	return []bundleCase{
		{"When an identity signed it, it should accept it", signed(releaser), false},
		{"When a subject matches the expression, it should accept it", signed(builder), false},
		{"When the log alone has a time, it should accept it", signed(releaser, withoutTimestamps), false},
		{"When the timestamp authority alone has a time, it should accept it", signed(releaser, withoutPromise), false},
		{"When another digest was signed, it should reject it", func(t *testing.T, _ string, _ []byte) []byte { return p.keyless(t, releaser, other) }, true},
		{"When another issuer vouches for the subject, it should reject it", stated(p.sigstore, issuer+".evil.example", cosignPredicate, soon), true},
		{"When another subject signed it, it should reject it", signed("someone@platform.example"), true},
		{"When a subject begins with the expression, it should reject it", signed(builder + ".evil.example"), true},
		{"When a subject ends with the expression, it should reject it", signed("0" + builder), true},
		{"When the log has a time after the certificate expired, it should reject it",
			stated(p.sigstore, issuer, cosignPredicate, func() time.Time { return time.Now().Add(time.Hour / 2) }), true},
		{"When nothing has a time, it should reject it", signed(releaser, withoutTimestamps, withoutPromise), true},
		{"When it isn't in the log, it should reject it", signed(releaser, func(b *protobundle.Bundle) { b.VerificationMaterial.TlogEntries = nil }), true},
		{"When another signature is in the log, it should reject it", func(t *testing.T, d string, _ []byte) []byte {
			logged := keylessBundle(t, p.sigstore, issuer, releaser, inToto(other, cosignPredicate), soon())
			return p.keyless(t, releaser, d, func(b *protobundle.Bundle) {
				b.VerificationMaterial.TlogEntries = logged.VerificationMaterial.TlogEntries
			})
		}, true},
		{"When another trusted root's authority issued the certificate, it should reject it", stated(p.foreign, issuer, cosignPredicate, soon), true},
		{"When the identity attested something else, it should reject it", stated(p.sigstore, issuer, "https://cosign.sigstore.dev/attestation/vuln/v1", soon), true},
		{"When the statement was replaced under the signature, it should reject it", func(t *testing.T, d string, _ []byte) []byte {
			return p.keyless(t, releaser, other, func(b *protobundle.Bundle) {
				b.GetDsseEnvelope().Payload = []byte(inToto(d, cosignPredicate))
			})
		}, true},
		{"When the bundle is of an older format, it should reject it", signed(releaser, func(b *protobundle.Bundle) {
			b.MediaType = "application/vnd.dev.sigstore.bundle+json;version=0.1"
		}), true},
		{"When the bundle is too large, it should reject it", func(t *testing.T, d string, _ []byte) []byte {
			return append(p.keyless(t, releaser, d), bytes.Repeat([]byte(" "), maxBundleBytes)...)
		}, true},
		{"When the bundle isn't JSON, it should reject it", func(t *testing.T, d string, _ []byte) []byte { return p.keyless(t, releaser, d)[1:] }, true},
		{"When the bundle is empty, it should reject it", func(*testing.T, string, []byte) []byte { return []byte("{}") }, true},
		{"When the bundle has no envelope, it should reject it", signed(releaser, func(b *protobundle.Bundle) { b.Content = &protobundle.Bundle_DsseEnvelope{} }), true},
	}
}

func keyCases(p platform) []bundleCase {
	other := "sha256:" + strings.Repeat("0", 64)
	enveloped := func(by crypto.Signer, predicate string) func(*testing.T, string, []byte) []byte {
		return func(t *testing.T, d string, _ []byte) []byte {
			return encodeBundle(t, keyBundle(t, inToto(d, predicate), by))
		}
	}
	message := func(by crypto.Signer, message string) func(*testing.T, string, []byte) []byte {
		return func(t *testing.T, d string, manifest []byte) []byte {
			if message == "manifest" {
				return encodeBundle(t, messageBundle(t, manifest, d, by))
			}
			return encodeBundle(t, messageBundle(t, []byte(message), d, by))
		}
	}
	return []bundleCase{
		{"When a P-256 key signed it, it should accept it", enveloped(p.p256, cosignPredicate), false},
		{"When an RSA key signed it, it should accept it", enveloped(p.rsa, cosignPredicate), false},
		{"When an Ed25519 key signed it, it should accept it", enveloped(p.ed25519, cosignPredicate), false},
		{"When a P-256 key signed the manifest, it should accept it", message(p.p256, "manifest"), false},
		{"When an RSA key signed the manifest, it should accept it", message(p.rsa, "manifest"), false},
		{"When another key signed it, it should reject it", enveloped(p.stranger, cosignPredicate), true},
		{"When another key signed the manifest, it should reject it", message(p.stranger, "manifest"), true},
		{"When the key signed another digest, it should reject it", func(t *testing.T, _ string, _ []byte) []byte {
			return encodeBundle(t, keyBundle(t, inToto(other, cosignPredicate), p.p256))
		}, true},
		{"When the key attested something else, it should reject it", enveloped(p.p256, "https://slsa.dev/provenance/v1"), true},
		{"When the key signed another message, it should reject it", message(p.p256, "{}"), true},
		{"When an Ed25519 key signed the empty message, it should reject it", message(p.ed25519, ""), true},
		{"When a certificate stands beside the key's signature, it should reject it", func(t *testing.T, d string, _ []byte) []byte {
			b := keyBundle(t, inToto(d, cosignPredicate), p.p256)
			foreign := keylessBundle(t, p.foreign, issuer, releaser, inToto(d, cosignPredicate), time.Now())
			b.VerificationMaterial = foreign.VerificationMaterial
			return encodeBundle(t, b)
		}, true},
	}
}

func TestBundles(t *testing.T) {
	p := newPlatform(t)
	for _, test := range append(keylessCases(p), keyCases(p)...) {
		t.Run(test.name, func(t *testing.T) {
			g, s, image := NewWithT(t), newServer(t, nil), build(t, goodSpec())
			_, digest := s.push(t, "release:1.36.3", image)
			manifest, err := image.RawManifest()
			g.Expect(err).NotTo(HaveOccurred())
			ref := s.host + "/release@" + digest
			attach(t, ref, test.bundles(t, digest, manifest))
			opts := Options{Verifier: p.verifier(t, p.p256, p.rsa, p.ed25519)}
			release, err := Read(t.Context(), ref, opts)
			if !test.unsigned {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(release.Unverified).To(BeEmpty())
				return
			}
			expectError(t, err, ReasonPayloadUnsigned, "verifying the signature of ", untrustedBy)
			// A good one beside it counts.
			attach(t, ref, p.keyless(t, releaser, digest))
			g.Expect(Verify(t.Context(), ref, opts)).To(Succeed())
		})
	}
}

func TestBundleSources(t *testing.T) {
	p := newPlatform(t)
	setup := func(t *testing.T, bundles int) (*server, string) {
		t.Helper()
		s := newServer(t, nil)
		_, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
		for range bundles {
			attach(t, s.host+"/release@"+digest, p.keyless(t, releaser, digest))
		}
		return s, digest
	}
	check := func(t *testing.T, s *server, digest string, verifier *Verifier) error {
		t.Helper()
		return Verify(t.Context(), s.host+"/release@"+digest, Options{Verifier: verifier, Discreet: true})
	}
	instead := func(s *server, path string, status int, mediaType types.MediaType, body string) {
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, path) {
				return false
			}
			w.Header().Set("Content-Type", string(mediaType))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return true
		})
	}

	t.Run("When there is only the tag or only a bundle, it should accept either", func(t *testing.T) {
		g := NewWithT(t)
		s, digest := setup(t, 0)
		payloadtest.SignWith(t, s.host+"/release@"+digest, p.p256)
		g.Expect(check(t, s, digest, p.verifier(t, p.p256))).To(Succeed())
		expectError(t, check(t, s, digest, p.verifier(t)), ReasonPayloadUnsigned, "it has no signature")

		s, digest = setup(t, 1)
		g.Expect(check(t, s, digest, p.verifier(t, p.p256))).To(Succeed())
		expectError(t, check(t, s, digest, verifier(t, true, p.p256)), ReasonPayloadUnsigned, untrustedBy)
		g.Expect(check(t, s, digest, p.verifier(t))).To(Succeed())
		g.Expect(s.count("GET /v2/release/manifests/"+strings.ReplaceAll(digest, ":", "-")+".sig")).To(Equal(2), "without keys no tag is read")
	})

	t.Run("When the registry lists referrers, it should find the bundle there", func(t *testing.T) {
		g := NewWithT(t)
		listening := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
		t.Cleanup(listening.Close)
		s := &server{host: strings.TrimPrefix(listening.URL, "http://")}
		_, digest := s.push(t, "release:1.36.3", build(t, goodSpec()))
		expectError(t, check(t, s, digest, p.verifier(t)), ReasonPayloadUnsigned, "it has no signature")
		attach(t, s.host+"/release@"+digest, p.keyless(t, releaser, digest))
		g.Expect(check(t, s, digest, p.verifier(t))).To(Succeed())
		fallback, err := name.NewTag(s.host + "/release:" + strings.ReplaceAll(digest, ":", "-"))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = remote.Head(fallback)
		g.Expect(err).To(HaveOccurred(), "there is no tag instead of the list")
	})

	t.Run("When a mirror has neither referrers nor the tag, it should find the bundle at the source", func(t *testing.T) {
		g := NewWithT(t)
		s, digest := setup(t, 1)
		mirror := newServer(t, nil)
		mirror.push(t, "copy:1.36.3", build(t, goodSpec()))
		release, err := Read(t.Context(), s.host+"/release@"+digest, Options{
			Verifier:            p.verifier(t),
			ImageContentSources: []ImageContentSource{{Source: s.host + "/release", Mirrors: []string{mirror.host + "/copy"}}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(release.ServedBy).To(Equal(mirror.host + "/copy"))
	})

	for path, status := range map[string]int{"/referrers/": http.StatusServiceUnavailable, "/manifests/sha256-": http.StatusBadGateway, "/blobs/": http.StatusBadGateway} {
		t.Run("When the registry has an error for "+path+", nothing should say that the payload is unsigned", func(t *testing.T) {
			s, digest := setup(t, 1)
			instead(s, path, status, "", "")
			expectError(t, check(t, s, digest, p.verifier(t)), ReasonRegistryUnreachable)
		})
	}

	for what, body := range map[string]string{
		"malformed": "none", "too large": `{"manifests":[{}` + strings.Repeat(",{}", lenient.MaxElements) + `]}`,
	} {
		t.Run("When the list of referrers is "+what+", it should reject the payload", func(t *testing.T) {
			s, digest := setup(t, 1)
			instead(s, "/referrers/", http.StatusOK, types.OCIImageIndex, body)
			expectError(t, check(t, s, digest, p.verifier(t)), ReasonPayloadUnsigned, "the list of its signatures is "+what)
		})
	}

	t.Run("When it has too many bundles, it should read a bounded number, and nothing of the payload", func(t *testing.T) {
		g := NewWithT(t)
		s, digest := setup(t, 0)
		var many [][]byte
		for range maxBundles + 1 {
			many = append(many, []byte("{}"))
		}
		attach(t, s.host+"/release@"+digest, many...)
		before := s.count("GET /v2/release/manifests/sha256:")
		_, err := ReadDigest(t.Context(), s.host+"/release@"+digest, Options{Verifier: p.verifier(t)})
		expectError(t, err, ReasonPayloadUnsigned, fmt.Sprintf("none of its first %d signatures, of %d, is by a key", maxBundles, maxBundles+1))
		g.Expect(s.count("GET /v2/release/manifests/sha256:") - before).To(Equal(maxBundles))
		g.Expect(s.count("GET /v2/release/manifests/" + digest)).To(BeZero())
	})

	t.Run("When the trusted root has a log of certificates, it should reject one that isn't logged", func(t *testing.T) {
		s, digest := setup(t, 1)
		keyless, err := NewKeyless([]byte(identities), p.sigstore.TrustedRoot(t, true))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		logged, err := NewVerifier(nil, keyless, true)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		expectError(t, check(t, s, digest, logged), ReasonPayloadUnsigned, untrustedBy)
	})
}

func TestNewKeyless(t *testing.T) {
	root := string(payloadtest.NewSigstore(t).TrustedRoot(t, false))
	const good = "- {issuer: i, subject: s}\n"
	for _, test := range []struct{ name, identities, root, message string }{
		{"When there is no identity, it should reject them", "", root, "identities: 0 entries, not 1 to 16"},
		{"When there are too many, it should reject them", strings.Repeat(good, maxIdentities+1), root, "identities: 17 entries, not 1 to 16"},
		{"When it isn't a list, it should reject it", "issuer: i", root, "identities: "},
		{"When a field is misspelled, it should name it", "- {issuer: i, subjectRegex: s}", root, `unknown field "subjectRegex"`},
		{"When an entry has no issuer, it should say which", good + "- {subject: s}", root, "entry 2 needs an issuer, and either subject or subjectRegExp"},
		{"When an entry has no subject, it should say which", "- {issuer: i}", root, "entry 1 needs an issuer"},
		{"When an entry has both, it should say which", "- {issuer: i, subject: s, subjectRegExp: s}", root, "entry 1 needs an issuer"},
		{"When an expression leaves the anchors, it should reject it", "- {issuer: i, subjectRegExp: 'a)|(?:b'}", root, "entry 1: subjectRegExp: "},
		{"When they are too large, it should reject them", strings.Repeat("#", maxIdentitiesBytes+1), root, "identities: more than 65536 bytes"},
		{"When the trusted root isn't JSON, it should reject it", good, "{", "trusted root: "},
		{"When the trusted root is of another type, it should reject it", good, "{}", "trusted root: unsupported TrustedRoot media type"},
		{"When the trusted root has no authority, it should reject it", good,
			`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`, "trusted root: it needs a certificate authority and a transparency log"},
		{"When the trusted root is too large, it should reject it", good, strings.Repeat(" ", maxTrustedRootBytes+1), "trusted root: more than 1048576 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewKeyless([]byte(test.identities), []byte(test.root))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}

// TestHostileBundles is about bundles that no client writes: none ends the process.
func TestHostileBundles(t *testing.T) {
	p := newPlatform(t)
	v, image := p.verifier(t, p.p256, p.ed25519), v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	verify := func(b any) bool {
		content, err := json.Marshal(b)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return v.bundled(content, image)
	}
	var whole map[string]any
	NewWithT(t).Expect(json.Unmarshal(p.keyless(t, releaser, image.String()), &whole)).To(Succeed())
	NewWithT(t).Expect(verify(whole)).To(BeTrue())
	entry := whole["verificationMaterial"].(map[string]any)["tlogEntries"].([]any)[0].(map[string]any)
	logged, err := base64.StdEncoding.DecodeString(entry["canonicalizedBody"].(string))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	t.Run("When a value of a bundle is missing or of another type, it should not panic", func(t *testing.T) {
		NewWithT(t).Expect(disturb(whole, func() { verify(whole) })).To(BeNumerically(">", 20))
	})

	for name, body := range map[string]string{
		"intoto 0.0.2":       string(logged),
		"hashedrekord 0.0.1": `{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":"sha256","value":"00"}},"signature":{"content":"AAAA","publicKey":{"content":"AAAA"}}}}`,
		"dsse 0.0.1":         `{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"00"},"payloadHash":{"algorithm":"sha256","value":"00"},"signatures":[{"signature":"AAAA","verifier":"AAAA"}]}}`,
		"hashedrekord 0.0.2": `{"apiVersion":"0.0.2","kind":"hashedrekord","spec":{"hashedRekordV002":{"data":{"algorithm":"SHA2_256","digest":"AAAA"},"signature":{"content":"AAAA","verifier":{"keyDetails":"PKIX_ECDSA_P256_SHA_256","publicKey":{"rawBytes":"AAAA"}}}}}}`,
		"dsse 0.0.2":         `{"apiVersion":"0.0.2","kind":"dsse","spec":{"dsseV002":{"payloadHash":{"algorithm":"SHA2_256","digest":"AAAA"},"signatures":[{"content":"AAAA","verifier":{"keyDetails":"PKIX_ECDSA_P256_SHA_256","x509Certificate":{"rawBytes":"AAAA"}}}]}}}`,
	} {
		t.Run("When a value of a log entry of the kind "+name+" is missing or of another type, it should not panic", func(t *testing.T) {
			g := NewWithT(t)
			var decoded map[string]any
			g.Expect(json.Unmarshal([]byte(body), &decoded)).To(Succeed())
			kind, version, _ := strings.Cut(name, " ")
			entry["kindVersion"] = map[string]any{"kind": kind, "version": version}
			g.Expect(disturb(decoded, func() {
				content, err := json.Marshal(decoded)
				g.Expect(err).NotTo(HaveOccurred())
				entry["canonicalizedBody"] = content
				verify(whole)
			})).To(BeNumerically(">", 6))
		})
	}
}

// disturb calls try with each value in a JSON document replaced by others, and without it. It returns how many values there are.
func disturb(node any, try func()) int {
	values := 0
	each := func(old any, set func(value any)) {
		for _, value := range []any{nil, map[string]any{}, []any{}, []any{nil}, "", "AAAA", -1, true} {
			set(value)
			try()
		}
		set(old)
		values += 1 + disturb(old, try)
	}
	switch typed := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(typed)) {
			old := typed[key]
			delete(typed, key)
			try()
			each(old, func(value any) { typed[key] = value })
		}
	case []any:
		for i, old := range typed {
			each(old, func(value any) { typed[i] = value })
		}
	}
	return values
}
