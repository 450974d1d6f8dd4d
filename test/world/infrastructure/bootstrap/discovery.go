// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	certutil "k8s.io/client-go/util/cert"
)

// Discovery is a machine's first way to reach its cluster.
type Discovery struct {
	// Server is the URL of the API server.
	Server string
	// Token is the bootstrap token that it asks for its certificate with. It is a secret.
	Token string
	// pins are the hashes of the public keys that the cluster's CA may have; empty for any.
	pins []string
}

// discovery is that of kubeadm's JoinConfiguration. A discovery file isn't among what a machine here can read.
type discovery struct {
	BootstrapToken *struct {
		Token             string   `json:"token"`
		APIServerEndpoint string   `json:"apiServerEndpoint"`
		CACertHashes      []string `json:"caCertHashes"`
		// UnsafeSkipCAVerification is required by kubeadm if there are no hashes.
		UnsafeSkipCAVerification bool `json:"unsafeSkipCAVerification"`
	} `json:"bootstrapToken"`
	TLSBootstrapToken string `json:"tlsBootstrapToken"`
}

var tokenPattern = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`) // k8s.io/cluster-bootstrap/token/api

// read returns nil where there is no bootstrap token.
func (d discovery) read() (*Discovery, error) {
	if d.BootstrapToken == nil {
		return nil, nil
	}
	found := &Discovery{Server: "https://" + d.BootstrapToken.APIServerEndpoint, Token: d.TLSBootstrapToken, pins: d.BootstrapToken.CACertHashes}
	if found.Token == "" {
		found.Token = d.BootstrapToken.Token
	}
	switch {
	case d.BootstrapToken.APIServerEndpoint == "":
		return nil, errors.New("discovery.bootstrapToken.apiServerEndpoint is missing")
	case !tokenPattern.MatchString(found.Token):
		return nil, errors.New("discovery.bootstrapToken.token is no bootstrap token")
	case len(found.pins) == 0 && !d.BootstrapToken.UnsafeSkipCAVerification:
		return nil, errors.New("discovery.bootstrapToken has neither caCertHashes nor unsafeSkipCAVerification")
	}
	for _, pin := range found.pins {
		if algorithm, hash, _ := strings.Cut(pin, ":"); algorithm != "sha256" || len(hash) != hex.EncodedLen(sha256.Size) {
			return nil, fmt.Errorf("discovery.bootstrapToken.caCertHashes: %q is no sha256:<hash>", pin)
		}
	}
	return found, nil
}

// Trusts returns an error unless one of the CA certificates, PEM, is one that the machine was told of.
func (d *Discovery) Trusts(ca []byte) error {
	if len(d.pins) == 0 {
		return nil
	}
	certificates, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return fmt.Errorf("reading the guest's CA: %w", err)
	}
	for _, certificate := range certificates {
		sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
		for _, pin := range d.pins {
			if strings.EqualFold(pin, "sha256:"+hex.EncodeToString(sum[:])) {
				return nil
			}
		}
	}
	return errors.New("discovery.bootstrapToken.caCertHashes: the guest's CA has none of these hashes")
}
