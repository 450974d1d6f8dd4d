// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/operator/message"
)

// Users and groups that API servers know nodes by; see k8s.io/apiserver/pkg/authentication/user, and bootstrap tokens.
const (
	nodeUserPrefix       = "system:node:"
	nodesGroup           = "system:nodes"
	authenticatedGroup   = "system:authenticated"
	bootstrapTokenPrefix = "system:bootstrap:"
	bootstrappersGroup   = "system:bootstrappers"
)

// otherBootstrappers are users beside bootstrap tokens that machines ask for their first certificate as, with their groups:
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
	// content is nil where it can't be decoded.
	content *x509.CertificateRequest
	// malformed says what is wrong with the content, beside what the rules look at.
	malformed error
}

func newRequest(object *certificatesv1.CertificateSigningRequest) request {
	r := request{CertificateSigningRequest: object}
	r.content, r.malformed = decode(object.Spec.Request)
	return r
}

// maxRequestBytes bounds a PEM block that is parsed. A kubelet's request with an RSA key of 4096 bits is below 3 KiB.
const maxRequestBytes = 16 << 10

// decode is strict: it refuses what a signer might copy into the certificate and no rule checks.
func decode(data []byte) (*x509.CertificateRequest, error) {
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
	if err := content.CheckSignature(); err != nil {
		return content, fmt.Errorf("its signature isn't of its own key: %w", err)
	}
	found := false
	for _, extension := range content.Extensions {
		if found || !extension.Id.Equal(subjectAltName) {
			return content, fmt.Errorf("it asks for the extension %s, and a kubelet asks for one subjectAltName at most", extension.Id)
		}
		found = true
		if err := checkAltNames(extension.Value); err != nil {
			return content, err
		}
	}
	return content, nil
}

// checkAltNames refuses subject alternative names of kinds that the x509 package leaves out.
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

// requester is the node that made the request; false where no node did.
func (r request) requester() (string, bool) {
	return strings.CutPrefix(r.Spec.Username, nodeUserPrefix)
}

// subject is the node that the certificate is to be for; false where it is for something else.
func (r request) subject() (string, bool) {
	if r.content == nil {
		return "", false
	}
	return strings.CutPrefix(r.content.Subject.CommonName, nodeUserPrefix)
}

// nodes are those that the request names: what is new about one of them may decide it.
func (r request) nodes() []string {
	nodes := sets.New[string]()
	for _, named := range []func() (string, bool){r.requester, r.subject} {
		if node, ok := named(); ok {
			nodes.Insert(node)
		}
	}
	return sets.List(nodes)
}

// bootstraps is true where it is the first request of a machine, which has no certificate yet.
func (r request) bootstraps() bool {
	_, byNode := r.requester()
	return !byNode && r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName
}

// byBootstrapper is true where the user and the groups are those of a machine without a certificate.
func (r request) byBootstrapper() bool {
	groups := sets.New(r.Spec.Groups...)
	if exactly, ok := otherBootstrappers[r.Spec.Username]; ok {
		return groups.Equal(exactly)
	}
	return strings.HasPrefix(r.Spec.Username, bootstrapTokenPrefix) && groups.Has(bootstrappersGroup) && r.onlyGroups(authenticatedGroup)
}

// byNodeGroups is true where the groups are a node's. Those of bootstrappers come on top where nodes authenticate by a cloud's
// identities instead of certificates, as in EKS; all that they allow is to ask.
func (r request) byNodeGroups() bool { return r.onlyGroups(nodesGroup, authenticatedGroup) }

// onlyGroups is true where all of these groups are there, and beside them those of bootstrappers only.
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

// decided is true once somebody has approved or denied it, or the signer has failed.
func decided(object *certificatesv1.CertificateSigningRequest) bool {
	return len(object.Status.Conditions) > 0 || len(object.Status.Certificate) > 0
}

func hasCondition(object *certificatesv1.CertificateSigningRequest, conditionType certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(object.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == conditionType
	})
}

// kubelets tells whether a signer is one of those that sign for kubelets.
func kubelets(signer string) bool {
	return signer == certificatesv1.KubeAPIServerClientKubeletSignerName || signer == certificatesv1.KubeletServingSignerName
}
