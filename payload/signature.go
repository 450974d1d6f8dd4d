// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// "cosign sign --key" stores signatures as an image beside the signed one. Each layer is a statement of the signed digest,
// with the signature in an annotation.
// https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
const (
	statementMediaType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	statementType       = "cosign container image signature"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

// Bounds of the content that is read to verify an image.
const (
	maxSignatures     = 32
	maxStatementBytes = 16 << 10
	maxSignatureBytes = 8 << 10
	maxKeys           = 16
	maxKeysBytes      = 64 << 10
)

// Verifier verifies signatures of release images.
type Verifier struct {
	keys    []signature.Verifier
	bundles []bundleVerifier
	enforce bool
}

// NewVerifier takes 1 to 16 public keys in PEM (ECDSA P-256, Ed25519, or RSA of 2048, 3072 or 4096 bits), or keyless, or
// both. With enforce, Read rejects an image without a signature that one of them accepts; otherwise Release.Unverified
// reports it.
func NewVerifier(keys []byte, keyless *Keyless, enforce bool) (*Verifier, error) {
	v := &Verifier{enforce: enforce}
	if keyless != nil {
		v.bundles = append(v.bundles, keyless.bundleVerifier)
		if keys == nil {
			return v, nil
		}
	}
	if len(keys) > maxKeysBytes {
		return nil, fmt.Errorf("the public keys have more than %d bytes", maxKeysBytes)
	}
	count := 0
	for block, rest := pem.Decode(keys); block != nil; block, rest = pem.Decode(rest) {
		if count++; count > maxKeys {
			return nil, fmt.Errorf("more than %d public keys", maxKeys)
		}
		loaded, err := load(block)
		if err != nil {
			return nil, fmt.Errorf("public key %d: %w", count, err)
		}
		v.keys = append(v.keys, loaded...)
	}
	for _, key := range v.keys {
		bundles, err := newKeyVerifier(key)
		if err != nil {
			return nil, err
		}
		v.bundles = append(v.bundles, bundles)
	}
	// pem.Decode skips malformed blocks.
	if begun := bytes.Count(keys, []byte("-----BEGIN ")); count != begun || count == 0 {
		return nil, fmt.Errorf("%d of %d public keys are valid PEM", count, begun)
	}
	return v, nil
}

// load returns the verifiers of one key.
func load(block *pem.Block) ([]signature.Verifier, error) {
	if block.Type != string(cryptoutils.PublicKeyPEMType) {
		return nil, fmt.Errorf("a PEM block of type %q isn't a %s", shorten(block.Type), cryptoutils.PublicKeyPEMType)
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(pem.EncodeToMemory(block))
	if err != nil {
		return nil, err
	}
	//nolint:staticcheck // its successor needs all of boulder, to find weak keys in what strangers submit; these are the platform's own
	if err := cryptoutils.ValidatePubKey(key); err != nil {
		return nil, err
	}
	// Versions of cosign differ in the hash for other curves.
	if k, ok := key.(*ecdsa.PublicKey); ok && k.Curve != elliptic.P256() {
		return nil, fmt.Errorf("curve %s isn't supported, only P-256", k.Curve.Params().Name)
	}
	verifier, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		return nil, err
	}
	verifiers := []signature.Verifier{verifier}
	if k, ok := key.(ed25519.PublicKey); ok {
		// Newer versions of cosign sign a hash: https://github.com/sigstore/cosign/pull/3479.
		prehashed, err := signature.LoadED25519phVerifier(k)
		if err != nil {
			return nil, err
		}
		verifiers = append(verifiers, prehashed)
	}
	return verifiers, nil
}

// signed reports whether one of the keys signed the statement.
func (v *Verifier) signed(statement, decoded []byte) bool {
	for _, key := range v.keys {
		if key.VerifySignature(bytes.NewReader(decoded), bytes.NewReader(statement)) == nil {
			return true
		}
	}
	return false
}

// Verify looks for a signature of ref, which names a digest, in its mirrors and its source. The *Error's Reason is
// ReasonPayloadUnsigned if there is none; any other Reason means that a registry didn't say. Without a Verifier it
// returns nil.
func Verify(ctx context.Context, ref string, opts Options) error {
	reference, err := parseReference(opVerifying, ref)
	if err != nil {
		return err
	}
	digest, ok := reference.(name.Digest)
	if !ok {
		return &Error{Reason: ReasonInvalidReference, Op: opVerifying, Ref: ref, Detail: "it doesn't name a digest"}
	}
	return opts.verify(ctx, digest)
}

func (o Options) verify(ctx context.Context, reference name.Digest) error {
	if o.Verifier == nil {
		return nil
	}
	return o.each(ctx, opVerifying, reference, func(ctx context.Context, s *session) error {
		return s.verify(ctx, o.Verifier, reference.DigestStr())
	})
}

// verified returns reference by digest, and the Reason why no signature of it was verified, if that isn't an error.
func (o Options) verified(ctx context.Context, reference name.Reference) (name.Reference, Reason, error) {
	if o.Verifier == nil {
		return reference, "", nil
	}
	ref, err := Resolve(ctx, reference.Name(), o)
	if err != nil {
		return nil, "", err
	}
	digest, err := name.NewDigest(ref)
	if err != nil {
		return nil, "", &Error{Reason: ReasonInvalidReference, Op: opVerifying, Ref: shorten(ref), Detail: shorten(err.Error()), Err: err}
	}
	// A registry that doesn't answer for signatures leaves time to read an image that doesn't need one.
	verifying := o
	verifying.Timeout = o.timeout() / 2
	switch err := verifying.verify(ctx, digest); {
	case err == nil:
		return digest, "", nil
	case !o.Verifier.enforce:
		return digest, cmp.Or(ReasonFor(err), ReasonRegistryUnreachable), nil
	case ReasonFor(err) == ReasonPayloadUnsigned:
		// A reference to a missing image needs another correction.
		if missing := o.find(ctx, digest); ReasonFor(missing) == ReasonImageNotFound {
			return nil, "", missing
		}
		return nil, "", err
	default:
		return nil, "", err
	}
}

// find returns an *Error if the registries don't have the image.
func (o Options) find(ctx context.Context, reference name.Digest) error {
	return o.each(ctx, opPulling, reference, func(ctx context.Context, s *session) error {
		_, err := s.digest(ctx)
		return err
	})
}

// verify looks for a signature in one repository.
func (s *session) verify(ctx context.Context, verifier *Verifier, digest string) error {
	tagged := unsigned(noSignature)
	if len(verifier.keys) > 0 {
		if tagged = s.verifyTag(ctx, verifier, digest); tagged == nil {
			return nil
		}
	}
	bundled := s.verifyBundles(ctx, verifier, digest)
	// A registry that doesn't answer for one of both reports nothing about signatures.
	var none *Error
	if bundled == nil || ReasonFor(tagged) == ReasonPayloadUnsigned &&
		(ReasonFor(bundled) != ReasonPayloadUnsigned || errors.As(tagged, &none) && none.Detail == noSignature) {
		return bundled
	}
	return tagged
}

// verifyTag looks for a signature in the image that a tag names after the digest.
func (s *session) verifyTag(ctx context.Context, verifier *Verifier, digest string) error {
	top, err := s.get(withBodyLimit(ctx, maxManifestBytes), s.repository.Tag(strings.ReplaceAll(digest, ":", "-")+".sig"))
	switch reason := ReasonFor(err); {
	case err == nil:
	case reason == ReasonImageNotFound:
		return unsigned(noSignature)
	case reason == ReasonPayloadTooLarge:
		return unsigned("the manifest of its signatures is too large")
	default:
		return err
	}
	manifest, err := parseManifest(top.Manifest)
	if err != nil {
		return unsigned("the manifest of its signatures is malformed")
	}
	signatures := manifest.Layers
	if len(signatures) > maxSignatures {
		signatures = signatures[:maxSignatures]
	}
	// Cosign signs the same statement with each key.
	statements := map[v1.Hash][]byte{}
	var unread error
	for _, layer := range signatures {
		encoded := layer.Annotations[signatureAnnotation]
		if layer.MediaType != statementMediaType || layer.Size < 0 || layer.Size > maxStatementBytes || len(encoded) > maxSignatureBytes {
			continue
		}
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(decoded) == 0 {
			continue
		}
		statement, ok := statements[layer.Digest]
		if !ok {
			if statement, err = s.blob(ctx, layer, maxStatementBytes, "as the statement of a signature"); err != nil {
				if reason := ReasonFor(err); reason != ReasonImageNotFound && reason != ReasonPayloadTooLarge {
					unread = err
				}
				continue
			}
			statements[layer.Digest] = statement
		}
		if states(statement, digest) && verifier.signed(statement, decoded) {
			return nil
		}
	}
	if unread != nil {
		return unread
	}
	return untrusted(maxSignatures, len(manifest.Layers))
}

const noSignature = "it has no signature"

// untrusted reports that none of the signatures that were read, limit at most, is good.
func untrusted(limit, count int) error {
	if count > limit {
		return unsigned("none of its first %d signatures, of %d, is by a key that the platform trusts", limit, count)
	}
	return unsigned("none of its signatures is by a key that the platform trusts")
}

func unsigned(format string, args ...any) error {
	return &Error{Reason: ReasonPayloadUnsigned, Detail: fmt.Sprintf(format, args...)}
}

// blob reads a layer of at most limit bytes.
func (s *session) blob(ctx context.Context, layer v1.Descriptor, limit int64, what string) ([]byte, error) {
	blob, err := s.puller.Layer(withBodyLimit(ctx, limit), s.repository.Digest(layer.Digest.String()))
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	body, err := blob.Compressed()
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	defer body.Close()
	remaining := limit
	content, err := io.ReadAll(&budget{r: body, remaining: &remaining, limit: limit, what: what})
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return content, nil
}

// states reports whether a statement is about the image with that digest. As in cosign, the repository in it doesn't
// matter: mirrors have other names.
func states(statement []byte, digest string) bool {
	var content struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	return json.Unmarshal(statement, &content) == nil && content.Critical.Type == statementType && content.Critical.Image.Digest == digest
}
