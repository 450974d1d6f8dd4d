// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore/pkg/signature"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/autonode-io/autonode/payload/payloadtest"
)

// Media types and predicate of version 3 of cosign.
const (
	cosignMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	cosignPredicate = "https://sigstore.dev/cosign/sign/v1"
	inTotoMediaType = "application/vnd.in-toto+json"
)

// inToto is the statement that cosign 3 signs.
func inToto(digest, predicate string) string {
	_, hexadecimal, _ := bytes.Cut([]byte(digest), []byte(":"))
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		hexadecimal, predicate)
}

// keylessBundle returns an instance's keyless signature of a statement. A certificate is valid for ten minutes from now.
func keylessBundle(t *testing.T, s *payloadtest.Sigstore, issuer, subject, statement string, logged time.Time) *protobundle.Bundle {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	entity, err := s.AttestAtTime(subject, issuer, []byte(statement), logged, true)
	check(err)
	verification, err := entity.VerificationContent()
	check(err)
	content, err := entity.SignatureContent()
	check(err)
	timestamps, err := entity.Timestamps()
	check(err)
	entries, err := entity.TlogEntries()
	check(err)
	entry := entries[0].TransparencyLogEntry()
	entry.KindVersion = &protorekor.KindVersion{Kind: "intoto", Version: "0.0.2"}
	promise, err := s.RekorSignPayload(tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(entry.CanonicalizedBody), IntegratedTime: entry.IntegratedTime,
		LogIndex: entry.LogIndex, LogID: hex.EncodeToString(entry.LogId.KeyId),
	})
	check(err)
	entry.InclusionPromise = &protorekor.InclusionPromise{SignedEntryTimestamp: promise}
	signed, err := base64.StdEncoding.DecodeString(content.EnvelopeContent().RawEnvelope().Signatures[0].Sig)
	check(err)
	return &protobundle.Bundle{
		MediaType: cosignMediaType,
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_Certificate{
				Certificate: &protocommon.X509Certificate{RawBytes: verification.Certificate().Raw},
			},
			TlogEntries: []*protorekor.TransparencyLogEntry{entry},
			TimestampVerificationData: &protobundle.TimestampVerificationData{
				Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: timestamps[0]}},
			},
		},
		Content: envelope(statement, signed),
	}
}

func envelope(statement string, signed []byte) *protobundle.Bundle_DsseEnvelope {
	return &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
		Payload: []byte(statement), PayloadType: inTotoMediaType, Signatures: []*protodsse.Signature{{Sig: signed}},
	}}
}

// keyBundle returns a key's signature of a statement.
func keyBundle(t *testing.T, statement string, by crypto.Signer) *protobundle.Bundle {
	t.Helper()
	return &protobundle.Bundle{
		MediaType: cosignMediaType, VerificationMaterial: hint(),
		Content: envelope(statement, signMessage(t, dsse.PAE(inTotoMediaType, []byte(statement)), by)),
	}
}

// messageBundle returns a key's signature of a message, which claims to be of the content with that digest.
func messageBundle(t *testing.T, message []byte, digest string, by crypto.Signer) *protobundle.Bundle {
	t.Helper()
	hash, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := hex.DecodeString(hash.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return &protobundle.Bundle{
		MediaType: cosignMediaType, VerificationMaterial: hint(),
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum},
			Signature:     signMessage(t, message, by),
		}},
	}
}

func hint() *protobundle.VerificationMaterial {
	return &protobundle.VerificationMaterial{Content: &protobundle.VerificationMaterial_PublicKey{
		PublicKey: &protocommon.PublicKeyIdentifier{Hint: "payload"},
	}}
}

func signMessage(t *testing.T, message []byte, by crypto.Signer) []byte {
	t.Helper()
	signer, err := signature.LoadSigner(by, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.SignMessage(bytes.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// encodeBundle returns a bundle as cosign stores it.
func encodeBundle(t *testing.T, b *protobundle.Bundle) []byte {
	t.Helper()
	content, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// referrer is an image manifest with the artifact type that the library's lacks.
type referrer struct {
	v1.Manifest
	ArtifactType string `json:"artifactType"`
}

// RawManifest implements remote.Taggable.
func (r referrer) RawManifest() ([]byte, error) { return json.Marshal(r) }

// MediaType implements remote.Taggable.
func (r referrer) MediaType() (types.MediaType, error) { return r.Manifest.MediaType, nil }

// attach pushes bundles as cosign does for an image by digest: into its registry's referrers, or the tag that stands for them.
func attach(t *testing.T, ref string, bundles ...[]byte) {
	t.Helper()
	digest, err := name.NewDigest(ref)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := v1.NewHash(digest.DigestStr())
	if err != nil {
		t.Fatal(err)
	}
	describe := func(content []byte, mediaType types.MediaType) v1.Descriptor {
		if err := remote.WriteLayer(digest.Context(), static.NewLayer(content, mediaType)); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		return v1.Descriptor{
			MediaType: mediaType, Size: int64(len(content)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])},
		}
	}
	for i, content := range bundles {
		manifest := referrer{ArtifactType: cosignMediaType, Manifest: v1.Manifest{
			SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: describe([]byte("{}"), "application/vnd.oci.empty.v1+json"),
			Layers:  []v1.Descriptor{describe(content, cosignMediaType)},
			Subject: &v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: subject},
			// Equal bundles are images of their own, as those that were made at other times.
			Annotations: map[string]string{"org.opencontainers.image.created": fmt.Sprint(i)},
		}}
		raw, err := manifest.RawManifest()
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Put(digest.Context().Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(raw))), manifest); err != nil {
			t.Fatal(err)
		}
	}
}
