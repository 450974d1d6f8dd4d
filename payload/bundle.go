// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	"sigs.k8s.io/yaml"
)

// Version 3 of "cosign sign" stores each signature as a Sigstore bundle, in an image whose subject is the signed one.
// https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md
const (
	bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// emptyMediaType is the artifact type of such an image in lists that clients keep for a registry without referrers.
	emptyMediaType = "application/vnd.oci.empty.v1+json"
	// signPredicate distinguishes a signature from attestations, such as the report of a scan.
	signPredicate = "https://sigstore.dev/cosign/sign/v1"
)

// Bounds of bundles, and of the files that say whose are trusted.
const (
	maxBundles          = 32
	maxBundleBytes      = 64 << 10
	maxIdentities       = 16
	maxIdentitiesBytes  = 64 << 10
	maxTrustedRootBytes = 1 << 20
)

// bundleVerifier verifies bundles by one key, or by the certificates of one trusted root.
type bundleVerifier struct {
	verifier *verify.Verifier
	signers  []verify.PolicyOption
	// envelopes is whether it verifies DSSE envelopes alone.
	envelopes bool
}

// Keyless verifies signatures by short-lived certificates.
type Keyless struct{ bundleVerifier }

// identity is who a certificate was issued to.
type identity struct {
	Issuer        string `json:"issuer"`
	Subject       string `json:"subject,omitempty"`
	SubjectRegExp string `json:"subjectRegExp,omitempty"`
}

// NewKeyless takes a YAML list of 1 to 16 identities, {issuer, subject} or {issuer, subjectRegExp}, and Sigstore's trusted
// root in JSON. A regular expression has to match the whole subject. Verification makes no request to Sigstore.
func NewKeyless(identities, trustedRoot []byte) (*Keyless, error) {
	signers, err := parseIdentities(identities)
	if err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	verifier, err := newRootVerifier(trustedRoot)
	if err != nil {
		return nil, fmt.Errorf("trusted root: %w", err)
	}
	return &Keyless{bundleVerifier{verifier: verifier, signers: signers}}, nil
}

func parseIdentities(content []byte) ([]verify.PolicyOption, error) {
	if len(content) > maxIdentitiesBytes {
		return nil, fmt.Errorf("more than %d bytes", maxIdentitiesBytes)
	}
	var list []identity
	if err := yaml.UnmarshalStrict(content, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > maxIdentities {
		return nil, fmt.Errorf("%d entries, not 1 to %d", len(list), maxIdentities)
	}
	var signers []verify.PolicyOption
	for i, id := range list {
		if id.Issuer == "" || (id.Subject == "") == (id.SubjectRegExp == "") {
			return nil, fmt.Errorf("entry %d needs an issuer, and either subject or subjectRegExp", i+1)
		}
		anchored := ""
		if id.SubjectRegExp != "" {
			// Compiled alone first: "a)|(b" is only valid between parentheses.
			if _, err := regexp.Compile(id.SubjectRegExp); err != nil {
				return nil, fmt.Errorf("entry %d: subjectRegExp: %w", i+1, err)
			}
			anchored = `\A(?:` + id.SubjectRegExp + `)\z`
		}
		certificate, err := verify.NewShortCertificateIdentity(id.Issuer, "", id.Subject, anchored)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		signers = append(signers, verify.WithCertificateIdentity(certificate))
	}
	return signers, nil
}

func newRootVerifier(content []byte) (*verify.Verifier, error) {
	if len(content) > maxTrustedRootBytes {
		return nil, fmt.Errorf("more than %d bytes", maxTrustedRootBytes)
	}
	trusted, err := root.NewTrustedRootFromJSON(content)
	if err != nil {
		return nil, err
	}
	if len(trusted.FulcioCertificateAuthorities()) == 0 || len(trusted.RekorLogs()) == 0 {
		return nil, errors.New("it needs a certificate authority and a transparency log")
	}
	options := []verify.VerifierOption{verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1)}
	if len(trusted.CTLogs()) > 0 {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	return verify.NewVerifier(trusted, options...)
}

// newKeyVerifier returns a verifier of bundles by one key. A bundle's hint names none of them reliably, so each is tried.
func newKeyVerifier(key signature.Verifier) (bundleVerifier, error) {
	material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(key, time.Time{}, time.Time{}), nil
	})
	verifier, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
	if err != nil {
		return bundleVerifier{}, err
	}
	// Ed25519 signs messages, not digests. The library would verify a signature of the empty message for any digest.
	_, pure := key.(*signature.ED25519Verifier)
	return bundleVerifier{verifier: verifier, signers: []verify.PolicyOption{verify.WithKey()}, envelopes: pure}, nil
}

// bundled reports whether a bundle is a signature, which the platform trusts, of the image with that digest.
func (v *Verifier) bundled(content []byte, image v1.Hash) (trusted bool) {
	defer func() {
		// The library decodes log entries before it verifies them, and dereferences fields that some lack.
		if recover() != nil {
			trusted = false
		}
	}()
	var signed bundle.Bundle
	if signed.UnmarshalJSON(content) != nil || signed.GetMediaType() != bundleMediaType {
		return false
	}
	digest, err := hex.DecodeString(image.Hex)
	if err != nil {
		return false
	}
	for _, by := range v.bundles {
		if by.envelopes && signed.GetDsseEnvelope() == nil {
			continue
		}
		result, err := by.verifier.Verify(&signed, verify.NewPolicy(verify.WithArtifactDigest(image.Algorithm, digest), by.signers...))
		if err == nil && (signed.GetDsseEnvelope() == nil || result.Statement.GetPredicateType() == signPredicate) {
			return true
		}
	}
	return false
}

// verifyBundles looks for a bundle in one repository.
func (s *session) verifyBundles(ctx context.Context, verifier *Verifier, digest string) error {
	image, err := v1.NewHash(digest)
	if err != nil {
		return &Error{Reason: ReasonInvalidReference, Detail: shorten(err.Error()), Err: err}
	}
	candidates, err := s.referrers(ctx, s.repository.Digest(digest))
	if err != nil {
		return err
	}
	count := len(candidates)
	var found bool
	var unread error
	for _, candidate := range candidates[:min(count, maxBundles)] {
		content, err := s.bundle(ctx, candidate)
		switch reason := ReasonFor(err); {
		case err != nil && reason != ReasonImageNotFound && reason != ReasonPayloadTooLarge && reason != ReasonPayloadMalformed:
			unread = err
		case err != nil || content != nil:
			found = true
		}
		if content != nil && verifier.bundled(content, image) {
			return nil
		}
	}
	switch {
	case unread != nil:
		return unread
	case found || count > maxBundles:
		return untrusted(maxBundles, count)
	default:
		return unsigned(noSignature)
	}
}

// referrers returns descriptors that may be bundles, those first that are listed as such.
func (s *session) referrers(ctx context.Context, image name.Digest) ([]v1.Descriptor, error) {
	index, err := remote.Referrers(image, remote.Reuse(s.puller), remote.WithContext(withBodyLimit(ctx, maxManifestBytes)))
	if err != nil {
		if err = s.explain(ctx, err); ReasonFor(err) == ReasonPayloadTooLarge {
			return nil, unsigned("the list of its signatures is too large")
		}
		return nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, unsigned("the list of its signatures is malformed")
	}
	types := []string{bundleMediaType, emptyMediaType, ""}
	candidates := slices.DeleteFunc(list.Manifests, func(d v1.Descriptor) bool {
		return d.Digest == v1.Hash{} || !slices.Contains(types, d.ArtifactType)
	})
	slices.SortStableFunc(candidates, func(a, b v1.Descriptor) int {
		return cmp.Compare(slices.Index(types, a.ArtifactType), slices.Index(types, b.ArtifactType))
	})
	return candidates, nil
}

// bundle returns the bundle in an image, or nil if it has none.
func (s *session) bundle(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	top, err := s.get(withBodyLimit(ctx, maxManifestBytes), s.repository.Digest(d.Digest.String()))
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(top.Manifest))
	if err != nil {
		return nil, refuse(err, "a signature's manifest: %v", err)
	}
	if len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != bundleMediaType || manifest.Layers[0].Digest == (v1.Hash{}) {
		return nil, nil
	}
	layer := manifest.Layers[0]
	if layer.Size < 0 || layer.Size > maxBundleBytes {
		return nil, refuse(tooMany(maxBundleBytes, "bytes"), "a signature has more than %d bytes", maxBundleBytes)
	}
	return s.blob(ctx, layer, maxBundleBytes, "as the bundle of a signature")
}
