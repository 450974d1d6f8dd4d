// SPDX-License-Identifier: Apache-2.0

package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/pki"
)

func parse(g *WithT, pair pki.Pair) *x509.Certificate {
	_, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	g.Expect(err).NotTo(HaveOccurred(), "the key must belong to the certificate")
	block, _ := pem.Decode(pair.Certificate)
	certificate, err := x509.ParseCertificate(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())
	return certificate
}

func TestAuthority(t *testing.T) {
	authority, err := pki.NewAuthority("blue")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Certificate)

	t.Run("When a serving certificate is issued, it should be valid for its hosts and for nothing else", func(t *testing.T) {
		g := NewWithT(t)
		pair, err := authority.Server("kube-apiserver", "127.0.0.1", "localhost")
		g.Expect(err).NotTo(HaveOccurred())
		certificate := parse(g, pair)
		for _, host := range []string{"127.0.0.1", "localhost"} {
			_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
			g.Expect(err).NotTo(HaveOccurred(), host)
		}
		_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: "example.com"})
		g.Expect(err).To(HaveOccurred())
		_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		g.Expect(err).To(HaveOccurred())
	})
}
