// SPDX-License-Identifier: Apache-2.0

package release

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

const (
	bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// signPredicate is the type of a statement that is a signature and nothing else.
	signPredicate = "https://sigstore.dev/cosign/sign/v1"
)

// Signer makes Sigstore bundles as version 3 of cosign does with a key. Its signatures are deterministic.
type Signer struct {
	key  *ecdsa.PrivateKey
	hint string
}

// NewSigner takes a private key in PEM as `cosign generate-key-pair` writes it: ECDSA P-256, encrypted with the password.
func NewSigner(key, password []byte) (*Signer, error) {
	loaded, err := cryptoutils.UnmarshalPEMToPrivateKey(key, cryptoutils.StaticPasswordFunc(password))
	if err != nil {
		return nil, fmt.Errorf("decoding the private key: %w", err)
	}
	private, ok := loaded.(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return nil, errors.New("the private key isn't an ECDSA key of the curve P-256, as `cosign generate-key-pair` makes it")
	}
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding the public key: %w", err)
	}
	sum := sha256.Sum256(public)
	return &Signer{key: private, hint: base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// sign signs a message's hash.
func (s *Signer) sign(sum [sha256.Size]byte) ([]byte, error) {
	signed, err := s.key.Sign(nil, sum[:], crypto.SHA256) // without a source of randomness, by RFC 6979
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return signed, nil
}

// statement returns the bundle of an in-toto statement.
func (s *Signer) statement(content []byte) ([]byte, error) {
	signed, err := s.sign(sha256.Sum256(dsse.PAE(inTotoMediaType, content)))
	if err != nil {
		return nil, err
	}
	return s.bundle(&protobundle.Bundle{Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
		Payload: content, PayloadType: inTotoMediaType, Signatures: []*protodsse.Signature{{Sig: signed}},
	}}})
}

// file returns the bundle of a file.
func (s *Signer) file(content []byte) ([]byte, error) {
	sum := sha256.Sum256(content)
	signed, err := s.sign(sum)
	if err != nil {
		return nil, err
	}
	return s.bundle(&protobundle.Bundle{Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
		MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum[:]}, Signature: signed,
	}}})
}

func (s *Signer) bundle(b *protobundle.Bundle) ([]byte, error) {
	b.MediaType = bundleMediaType
	b.VerificationMaterial = &protobundle.VerificationMaterial{Content: &protobundle.VerificationMaterial_PublicKey{
		PublicKey: &protocommon.PublicKeyIdentifier{Hint: s.hint},
	}}
	return encode(b)
}
