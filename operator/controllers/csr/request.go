// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/message"
)

// Users and groups of nodes in API servers; see k8s.io/apiserver/pkg/authentication/user, and bootstrap tokens.
const (
	nodeUserPrefix       = "system:node:"
	nodesGroup           = "system:nodes"
	authenticatedGroup   = "system:authenticated"
	bootstrapTokenPrefix = "system:bootstrap:"
	bootstrappersGroup   = "system:bootstrappers"
)

// otherBootstrappers are the other users that machines request their first certificate as, with their groups:
// HyperShift's certificate and OpenShift's ServiceAccount.
var otherBootstrappers = map[string]sets.Set[string]{
	"system:bootstrapper": sets.New(bootstrappersGroup, authenticatedGroup),
	"system:serviceaccount:openshift-machine-config-operator:node-bootstrapper": sets.New(
		"system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator", authenticatedGroup),
}

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// request is a certificate request with its content decoded.
type request struct {
	*certificatesv1.CertificateSigningRequest
	// content is nil if it can't be decoded.
	content *x509.CertificateRequest
	// malformed is a fault of the content that no rule checks.
	malformed error
}

// unverified returns a request whose signature isn't verified.
func unverified(object *certificatesv1.CertificateSigningRequest) request {
	r := request{CertificateSigningRequest: object}
	r.content, r.malformed = parse(object.Spec.Request)
	return r
}

// verified returns a request whose signature is verified by verify, if nothing else is wrong with it.
func verified(object *certificatesv1.CertificateSigningRequest, verify func(*x509.CertificateRequest) error) request {
	r := unverified(object)
	if r.malformed == nil {
		if err := verify(r.content); err != nil {
			r.malformed = fmt.Errorf("its signature isn't of its own key: %w", err)
		}
	}
	return r
}

// signatures remembers which requests have valid signatures: to verify one costs more than all other rules.
type signatures struct {
	verify func(*x509.CertificateRequest) error
	known  lru.Cache[[sha256.Size]byte, error] // by the hash of the request
}

// signaturesKnown is how many results are remembered.
const signaturesKnown = 1 << 14

func newSignatures(verify func(*x509.CertificateRequest) error) *signatures {
	return &signatures{verify: verify, known: lru.New[[sha256.Size]byte, error](signaturesKnown)}
}

// check verifies a signature, once for each request.
func (s *signatures) check(content *x509.CertificateRequest) error {
	key := sha256.Sum256(content.Raw)
	if err, ok := s.known.Get(key); ok {
		return err
	}
	err := s.verify(content)
	s.known.Add(key, err)
	return err
}

const (
	// maxRequestBytes limits a PEM block. A kubelet's request with a 4096-bit RSA key is below 3 KiB.
	maxRequestBytes = 16 << 10
	// maxRSABits and maxRSAExponent limit the cost of verifying a signature: it grows with the square of the one and the
	// logarithm of the other. crypto/tls has the same limit of bits.
	maxRSABits     = 8192
	maxRSAExponent = 65537
)

// parse is strict: it rejects content that a signer might copy into the certificate and no rule checks, and keys whose
// signatures are costly to verify. It verifies none.
func parse(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > maxRequestBytes {
		return nil, fmt.Errorf("it is larger than %d bytes", maxRequestBytes)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("it holds no PEM block of the type CERTIFICATE REQUEST")
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	switch {
	case err != nil:
		return nil, message.Error(err)
	case len(strings.TrimSpace(string(rest))) > 0:
		return content, errors.New("it holds more than one PEM block")
	}
	if err := checkKey(content.PublicKey); err != nil {
		return content, err
	}
	found := false
	for _, extension := range content.Extensions {
		if found || !extension.Id.Equal(subjectAltName) {
			return content, fmt.Errorf("it requests the extension %s, and a kubelet requests one subjectAltName at most", extension.Id)
		}
		found = true
		if err := checkAltNames(extension.Value); err != nil {
			return content, err
		}
	}
	return content, nil
}

// checkKey rejects keys of a size or a kind that no kubelet has.
func checkKey(key any) error {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() > maxRSABits || k.E > maxRSAExponent {
			return fmt.Errorf("its RSA key has %d bits and the exponent %d, and may have %d bits and the exponent %d",
				k.N.BitLen(), k.E, maxRSABits, maxRSAExponent)
		}
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, k.Curve) {
			return errors.New("its ECDSA key has another curve than P-256, P-384 or P-521")
		}
	case ed25519.PublicKey:
	default:
		return errors.New("its key is neither RSA nor ECDSA nor Ed25519")
	}
	return nil
}

// checkAltNames rejects kinds of subject alternative names that the x509 package ignores.
func checkAltNames(der []byte) error {
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(der, &names); err != nil || len(rest) > 0 {
		return errors.New("its subjectAltName can't be read")
	}
	for _, name := range names {
		// GeneralName in RFC 5280: rfc822Name, dNSName, uniformResourceIdentifier, iPAddress.
		if name.Class != asn1.ClassContextSpecific || !slices.Contains([]int{1, 2, 6, 7}, name.Tag) {
			return fmt.Errorf("its subjectAltName holds a name of the unknown kind %d", name.Tag)
		}
	}
	return nil
}

// requester returns the requesting node; false if the requester isn't a node.
func (r request) requester() (string, bool) {
	return strings.CutPrefix(r.Spec.Username, nodeUserPrefix)
}

// token returns the public part of the requester's bootstrap token; false if the requester has none.
func (r request) token() (string, bool) {
	return strings.CutPrefix(r.Spec.Username, bootstrapTokenPrefix)
}

// minted reports whether the requester's token is one that Karpenter minted for one machine.
func (r request) minted() bool {
	_, byToken := r.token()
	return byToken && slices.Contains(r.Spec.Groups, v1alpha1.BootstrapTokenGroup)
}

// subject returns the node that the certificate is for; false if it is for something else.
func (r request) subject() (string, bool) {
	if r.content == nil {
		return "", false
	}
	return strings.CutPrefix(r.content.Subject.CommonName, nodeUserPrefix)
}

// nodes returns the nodes that the request names, and the user of a bootstrap token. A change of one of their Machines may
// decide it.
func (r request) nodes() []string {
	nodes := sets.New[string]()
	for _, named := range []func() (string, bool){r.requester, r.subject} {
		if node, ok := named(); ok {
			nodes.Insert(node)
		}
	}
	if _, byToken := r.token(); byToken && r.bootstraps() {
		nodes.Insert(r.Spec.Username)
	}
	return sets.List(nodes)
}

// bootstraps reports whether it is a machine's first request, without a certificate.
func (r request) bootstraps() bool {
	_, byNode := r.requester()
	return !byNode && r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName
}

// byBootstrapper reports whether the user and the groups are those of a machine without a certificate.
func (r request) byBootstrapper() bool {
	groups := sets.New(r.Spec.Groups...)
	if exactly, ok := otherBootstrappers[r.Spec.Username]; ok {
		return groups.Equal(exactly)
	}
	return strings.HasPrefix(r.Spec.Username, bootstrapTokenPrefix) && groups.Has(bootstrappersGroup) && r.onlyGroups(authenticatedGroup)
}

// byNodeGroups reports whether the groups are a node's. If nodes authenticate by cloud identities instead of
// certificates, as in EKS, they also have the bootstrappers' groups, which only allow requests.
func (r request) byNodeGroups() bool { return r.onlyGroups(nodesGroup, authenticatedGroup) }

// onlyGroups reports whether all these groups are present, and otherwise only those of bootstrappers.
func (r request) onlyGroups(wanted ...string) bool {
	groups := sets.New(r.Spec.Groups...)
	if !groups.HasAll(wanted...) {
		return false
	}
	for group := range groups.Delete(wanted...) {
		if group != bootstrappersGroup && !strings.HasPrefix(group, bootstrappersGroup+":") {
			return false
		}
	}
	return true
}

// decided reports whether the request has been approved or denied, or the signer has failed.
func decided(object *certificatesv1.CertificateSigningRequest) bool {
	return len(object.Status.Conditions) > 0 || len(object.Status.Certificate) > 0
}

func hasCondition(object *certificatesv1.CertificateSigningRequest, conditionType certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(object.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == conditionType
	})
}

// kubelets reports whether a signer signs for kubelets.
func kubelets(signer string) bool {
	return signer == certificatesv1.KubeAPIServerClientKubeletSignerName || signer == certificatesv1.KubeletServingSignerName
}
