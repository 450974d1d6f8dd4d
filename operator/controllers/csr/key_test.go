// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// withRSA is a request with an RSA key of so many bits, which isn't a product of primes, and a signature that isn't one.
func withRSA(t testing.TB, bits uint, exponent int) []byte {
	t.Helper()
	modulus := new(big.Int).Lsh(big.NewInt(1), bits-1)
	modulus.SetBit(modulus, 0, 1)
	marshal := func(value any) []byte {
		der, err := asn1.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	key := marshal(struct {
		N *big.Int
		E int
	}{modulus, exponent})
	algorithm := func(last int) pkix.AlgorithmIdentifier {
		return pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, last}, Parameters: asn1.RawValue{Tag: asn1.TagNull}}
	}
	type publicKey struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	info := marshal(struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  publicKey
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}{0, asn1.RawValue{FullBytes: marshal(subjectOf("web-1").ToRDNSequence())}, publicKey{algorithm(1), asn1.BitString{Bytes: key, BitLength: 8 * len(key)}}, nil})
	der := marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: info}, algorithm(11), asn1.BitString{Bytes: make([]byte, bits/8), BitLength: int(bits)}})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestKeys(t *testing.T) {
	curve := func(t *testing.T, curve elliptic.Curve) []byte {
		t.Helper()
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subjectOf("web-1")}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	for name, test := range map[string]struct {
		raw      []byte
		verifies bool
		message  string
	}{
		"RSA with 47,104 bits":             {withRSA(t, 47_104, 65537), false, "RSA key has 47104 bits"},
		"RSA with 8,200 bits":              {withRSA(t, 8200, 65537), false, "RSA key has 8200 bits"},
		"RSA with a large exponent":        {withRSA(t, 4096, 1<<31-1), false, "the exponent 2147483647"},
		"RSA with 8,192 bits":              {withRSA(t, 8192, 65537), true, "signature"},
		"ECDSA with P-224":                 {curve(t, elliptic.P224()), false, "another curve"},
		"ECDSA with the curve of kubelets": {curve(t, elliptic.P256()), true, ""},
	} {
		t.Run("When a request has a key of "+name+", its signature should be verified only if that is cheap", func(t *testing.T) {
			g := NewWithT(t)
			tried := 0
			verify := func(content *x509.CertificateRequest) error {
				tried++
				return content.CheckSignature()
			}
			object := first("web-1").but(func(a *ask) { a.raw = test.raw }).object(t)
			r := verified(object, verify)
			g.Expect(tried > 0).To(Equal(test.verifies))
			if test.message == "" {
				g.Expect(r.malformed).NotTo(HaveOccurred())
				return
			}
			got := validate(r, only(), now)
			g.Expect(got.action).To(Equal(denied))
			g.Expect(got.reason).To(Equal(v1beta1.RequestMalformedReason))
			g.Expect(got.message).To(ContainSubstring(test.message))
		})
	}

	t.Run("When a request comes again, its signature should not be verified again, whether it was valid or not", func(t *testing.T) {
		g := NewWithT(t)
		tried := 0
		var result error
		s := newSignatures(func(*x509.CertificateRequest) error { tried++; return result })
		for n, want := range []error{nil, errors.New("forged")} {
			object := first("web-1").object(t)
			result = want
			for range 3 {
				g.Expect(errors.Is(verified(object, s.check).malformed, want)).To(BeTrue())
			}
			g.Expect(tried).To(Equal(n + 1))
		}
	})

	t.Run("When an approved request is indexed, in the watch's goroutine, its signature should not matter", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").but(func(a *ask) { a.raw = withRSA(t, 8192, 65537) }).object(t)
		object.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved}}
		g.Expect(indexRequest(object)).To(ConsistOf(firstCertificate("web-1")))
	})
}

// BenchmarkLargestKey costs what the largest key that is accepted does.
func BenchmarkLargestKey(b *testing.B) {
	object := &certificatesv1.CertificateSigningRequest{}
	object.Spec.Request = withRSA(b, maxRSABits, maxRSAExponent)
	for b.Loop() {
		verifiedRequest(object)
	}
}
