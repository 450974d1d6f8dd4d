// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates and keys of the local world's clusters.
package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity of what an authority issues: a world is for an afternoon, but may be left running over a holiday.
const validity = 365 * 24 * time.Hour

// clockSkew is the time by which certificates are valid before their creation, for clients whose clock is behind.
const clockSkew = 5 * time.Minute

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Certificate []byte
	Key         []byte
}

// Authority is a certificate authority.
type Authority struct {
	Pair
	certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes a self-signed certificate authority.
func NewAuthority(commonName string) (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", commonName, err)
	}
	certificate, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: commonName, NotBefore: time.Now().Add(-clockSkew)}, key)
	if err != nil {
		return nil, fmt.Errorf("signing %s: %w", commonName, err)
	}
	return &Authority{Pair: Pair{Certificate: encode(certificate.Raw), Key: keyPEM}, certificate: certificate, key: key}, nil
}

// Server issues a serving certificate for hosts, each an IP address or a DNS name.
func (a *Authority) Server(commonName string, hosts ...string) (Pair, error) {
	return a.issue(pkix.Name{CommonName: commonName}, hosts, x509.ExtKeyUsageServerAuth)
}

// Client issues a client certificate; Kubernetes takes the common name for the user and the organizations for its
// groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	return a.issue(pkix.Name{CommonName: user, Organization: groups}, nil, x509.ExtKeyUsageClientAuth)
}

func (a *Authority) issue(subject pkix.Name, hosts []string, usage x509.ExtKeyUsage) (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, fmt.Errorf("making the key of %s: %w", subject.CommonName, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Pair{}, fmt.Errorf("making a serial number: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing %s: %w", subject.CommonName, err)
	}
	return Pair{Certificate: encode(der), Key: keyPEM}, nil
}

// newKey makes a private key, also as PEM.
func newKey() (crypto.Signer, []byte, error) {
	encoded, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.ParsePrivateKeyPEM(encoded)
	if err != nil {
		return nil, nil, err
	}
	return key.(crypto.Signer), encoded, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}
