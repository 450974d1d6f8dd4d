// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	certutil "k8s.io/client-go/util/cert"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	kubeadm "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
)

// Discovery is a machine's first way to reach its cluster.
type Discovery struct {
	// Server is the URL of the API server.
	Server string
	// Token is the bootstrap token that it requests its certificate with. It is a secret.
	Token string
	// pins are the hashes of the public keys that the cluster's CA may have; empty for any.
	pins []string
}

// readDiscovery returns nil where there is no bootstrap token. A discovery file isn't among what a machine here can read.
func readDiscovery(discovery kubeadm.Discovery) (*Discovery, error) {
	by := discovery.BootstrapToken
	if by == nil {
		return nil, nil
	}
	found := &Discovery{
		Server: "https://" + by.APIServerEndpoint, Token: cmp.Or(discovery.TLSBootstrapToken, by.Token), pins: by.CACertHashes,
	}
	switch {
	case by.APIServerEndpoint == "":
		return nil, errors.New("discovery.bootstrapToken.apiServerEndpoint is missing")
	case !bootstraputil.IsValidBootstrapToken(found.Token):
		return nil, errors.New("discovery.bootstrapToken.token is no bootstrap token")
	case len(found.pins) == 0 && !by.UnsafeSkipCAVerification: // kubeadm requires either
		return nil, errors.New("discovery.bootstrapToken has neither caCertHashes nor unsafeSkipCAVerification")
	}
	return found, nil
}

// Trusts returns an error unless one of the CA certificates, PEM, is one that the machine's bootstrap data has.
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
