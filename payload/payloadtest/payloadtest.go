// SPDX-License-Identifier: Apache-2.0

// Package payloadtest signs release images in tests, as "cosign sign --key" does, and as an attacker would.
package payloadtest

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// cosign's media type of a layer, and the type in its statement.
const (
	StatementMediaType types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	StatementType      string          = "cosign container image signature"
)

// Signature is one layer of an image of signatures.
type Signature struct {
	Statement string
	// MediaType is StatementMediaType if it is empty.
	MediaType types.MediaType
	By        crypto.Signer
	// Prehashed is Ed25519's variant that signs a hash.
	Prehashed bool
	// Encoded is written instead of By's signature.
	Encoded string
}

// Statement is the text that cosign signs.
func Statement(repository, digest string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`,
		repository, digest, StatementType)
}

// Encode returns the signature in base64.
func (s Signature) Encode(t testing.TB) string {
	t.Helper()
	if s.Encoded != "" {
		return s.Encoded
	}
	sum := sha256.Sum256([]byte(s.Statement))
	message, options := sum[:], crypto.SignerOpts(crypto.SHA256)
	if _, ok := s.By.(ed25519.PrivateKey); ok {
		message, options = []byte(s.Statement), crypto.Hash(0)
		if s.Prehashed {
			long := sha512.Sum512(message)
			message, options = long[:], crypto.SHA512
		}
	}
	signature, err := s.By.Sign(rand.Reader, message, options)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(signature)
}

// Sign pushes signatures to where cosign looks for those of an image by digest.
func Sign(t testing.TB, ref string, signatures ...Signature) {
	t.Helper()
	digest, err := name.NewDigest(ref)
	if err != nil {
		t.Fatal(err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, s := range signatures {
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:       static.NewLayer([]byte(s.Statement), cmp.Or(s.MediaType, StatementMediaType)),
			Annotations: map[string]string{"dev.cosignproject.cosign/signature": s.Encode(t)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Write(digest.Context().Tag(strings.ReplaceAll(digest.DigestStr(), ":", "-")+".sig"), image); err != nil {
		t.Fatal(err)
	}
}

// SignWith pushes cosign's signature by one key.
func SignWith(t testing.TB, ref string, key crypto.Signer) {
	t.Helper()
	_, digest, _ := strings.Cut(ref, "@")
	Sign(t, ref, Signature{Statement: Statement("", digest), By: key})
}

// Key returns a key as "cosign generate-key-pair" does.
func Key(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// PublicPEM returns the public keys.
func PublicPEM(t testing.TB, keys ...crypto.Signer) []byte {
	t.Helper()
	var all []byte
	for _, key := range keys {
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	return all
}
