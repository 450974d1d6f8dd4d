// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

var (
	now        = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	nodeGroups = []string{nodesGroup, authenticatedGroup}
	tokenUser  = bootstrapTokenPrefix + "abcdef"
	tokenGroup = []string{bootstrappersGroup, bootstrappersGroup + ":kubeadm:default-node-token", authenticatedGroup}
)

// ask is a request in the making; its zero value with a node is a machine's first.
type ask struct {
	name    string
	signer  string
	user    string
	groups  []string
	usages  []certificatesv1.KeyUsage
	subject pkix.Name
	content x509.CertificateRequest // beside the subject
	age     time.Duration
	raw     []byte // instead of all of that
}

// first is what the kubelet of a machine that joins requests.
func first(node string) ask {
	return ask{
		signer: clientSigner, user: tokenUser, groups: tokenGroup, subject: subjectOf(node),
		usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
}

// renewal is what a node's kubelet requests when its certificate is about to expire.
func renewal(node string) ask {
	a := first(node)
	a.user, a.groups = nodeUserPrefix+node, nodeGroups
	return a
}

// servingOf is what a node's kubelet requests to serve logs and metrics.
func servingOf(node string, addresses ...string) ask {
	a := renewal(node)
	a.signer = servingSigner
	a.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			a.content.IPAddresses = append(a.content.IPAddresses, ip)
		} else {
			a.content.DNSNames = append(a.content.DNSNames, address)
		}
	}
	return a
}

func subjectOf(node string) pkix.Name {
	return pkix.Name{CommonName: nodeUserPrefix + node, Organization: []string{nodesGroup}}
}

func verifiedRequest(object *certificatesv1.CertificateSigningRequest) request {
	return verified(object, (*x509.CertificateRequest).CheckSignature)
}

func (a ask) but(change func(*ask)) ask {
	change(&a)
	return a
}

// old makes a request that has waited for an address.
func old(a *ask) { a.age = nameGrace }

func (a ask) object(t testing.TB) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	data := a.raw
	if data == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		content := a.content
		content.Subject = a.subject
		der, err := x509.CreateCertificateRequest(rand.Reader, &content, key)
		if err != nil {
			t.Fatal(err)
		}
		data = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, UID: "this", CreationTimestamp: metav1.NewTime(now.Add(-a.age))},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: data, SignerName: a.signer, Username: a.user, Groups: a.groups, Usages: a.usages,
		},
	}
}

// machineOf is a Machine that was made for the NodeClaim of its name.
func machineOf(name string, addresses ...string) clusterv1.Machine {
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: name, Labels: map[string]string{
		clusterv1.ClusterNameLabel: "blue", v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-of-" + name,
	}}}
	for _, address := range addresses {
		kind := clusterv1.MachineInternalDNS
		if net.ParseIP(address) != nil {
			kind = clusterv1.MachineInternalIP
		}
		machine.Status.Addresses = append(machine.Status.Addresses, clusterv1.MachineAddress{Type: kind, Address: address})
	}
	return machine
}

func partyOf(name string, addresses ...string) party {
	claim := scopetest.NodeClaim(name)
	claim.UID = types.UID("uid-of-" + name)
	return party{machines: []clusterv1.Machine{machineOf(name, addresses...)}, claim: claim}
}

// with fixes the bootstrap token that a party's Machine was made with.
func (p party) with(tokenID string) party {
	p.machines[0].Annotations = map[string]string{v1alpha1.BootstrapTokenIDAnnotation: tokenID}
	return p
}

func (i inputs) but(change func(*inputs)) inputs {
	change(&i)
	return i
}

// deleting marks the subject's Machine as being deleted.
func deleting(i *inputs) { i.subject.machines[0].DeletionTimestamp = &metav1.Time{Time: now} }

// validation is a request with its inputs, and the expected decision.
type validation struct {
	ask          ask
	inputs       inputs
	want         action
	reason       string
	message      string // a part of it
	requeueAfter time.Duration
}

// validateAll validates each request in a subtest.
func validateAll(t *testing.T, validations map[string]validation) {
	t.Helper()
	for name, test := range validations {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := validate(verifiedRequest(test.ask.object(t)), test.inputs, now)
			g.Expect(got.action).To(Equal(test.want), got.message)
			if test.reason != "" {
				g.Expect(got.reason).To(Equal(test.reason), got.message)
			}
			g.Expect(got.message).To(ContainSubstring(test.message))
			g.Expect(got.requeueAfter).To(Equal(test.requeueAfter))
		})
	}
}

func web1() party { return partyOf("web-1", "10.0.0.1", "fd00::1", "ip-10-0-0-1.internal") }

func web2() party { return partyOf("web-2", "10.0.0.2") }

// both are the inputs of a node's own request.
func both() inputs { return inputs{requester: web1(), subject: web1()} }

// only are the inputs of a machine without a certificate.
func only() inputs { return inputs{subject: web1()} }

// asked are the inputs of a node with other requests.
func asked(others ...other) inputs {
	return inputs{requester: web1(), subject: web1(), others: others}
}

func TestValidateApproves(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a machine makes a request with the token that Karpenter minted for it, it should be approved": {
			ask:    first("web-1").but(func(a *ask) { a.groups = append([]string{v1alpha1.BootstrapTokenGroup}, tokenGroup...) }),
			inputs: inputs{subject: web1().with("abcdef")}, want: approved, reason: v1beta1.NodeIdentityConfirmedReason,
		},
		"When a machine requests its first certificate with its token, it should be approved": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("abcdef")},
			want: approved, reason: v1beta1.NodeIdentityConfirmedReason, message: "NodeClaim web-1 and Machine clusters-blue/web-1",
		},
		"When the token of the machine is unknown, any bootstrap token should do": {
			ask: first("web-1"), inputs: only(), want: approved,
		},
		"When HyperShift's bootstrap certificate makes a request, it should be approved": {
			ask: first("web-1").but(func(a *ask) {
				a.user, a.groups = "system:bootstrapper", []string{bootstrappersGroup, authenticatedGroup}
			}),
			inputs: only(), want: approved,
		},
		"When OpenShift's ServiceAccount for bootstraps makes a request, it should be approved": {
			ask: first("web-1").but(func(a *ask) {
				a.user = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"
				a.groups = []string{"system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator", authenticatedGroup}
			}),
			inputs: only(), want: approved,
		},
		"When the key is RSA, key encipherment should be allowed": {
			ask:    first("web-1").but(func(a *ask) { a.usages = append(a.usages, certificatesv1.UsageKeyEncipherment) }),
			inputs: only(), want: approved,
		},
		"When a node requests a serving certificate for some of its addresses, it should be approved": {
			ask: servingOf("web-1", "web-1", "IP-10-0-0-1.internal", "10.0.0.1", "fd00::1"), inputs: both(), want: approved,
		},
		"When nodes authenticate by a cloud's identities, they should be nodes all the same": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.groups = append([]string{bootstrappersGroup}, nodeGroups...) }),
			inputs: both(), want: approved,
		},
	})
}

func TestValidateDecidesNothing(t *testing.T) {
	validateAll(t, map[string]validation{
		"When neither name is ours, it should be left alone": {
			ask: first("theirs"), want: ignored, reason: "NotOurs",
		},
		"When a stranger's request is malformed, it should be left alone": {
			ask: first("").but(func(a *ask) { a.raw = []byte("nonsense") }), want: ignored,
		},
		"When a person requests something that is no node, it should be left alone": {
			ask: first("").but(func(a *ask) { a.user, a.subject.CommonName = "jane", "jane" }), want: ignored,
		},
		"When a node renews its client certificate, it should be left to kube-controller-manager": {
			ask: renewal("web-1"), inputs: both(), want: ignored, reason: "Renewal",
		},
		"When the Machine's addresses aren't known yet, it should wait": {
			ask: servingOf("web-1", "10.0.0.1"), inputs: inputs{requester: partyOf("web-1"), subject: partyOf("web-1")},
			want: waiting, reason: "AddressesUnknown", message: "Machine web-1 has no IP address yet",
		},
	})
}

func TestNodeNames(t *testing.T) {
	t.Run("When a Machine was made for a NodeClaim, its node should have its name or one that the provider reports", func(t *testing.T) {
		g := NewWithT(t)
		machine := machineOf("web-1", "10.0.0.1", "IP-10-0-0-1.internal")
		machine.Status.Addresses = append(machine.Status.Addresses,
			clusterv1.MachineAddress{Type: clusterv1.MachineExternalDNS, Address: "public.example"},
			clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: "10.0.0.9"})
		g.Expect(nodeNames(nil)(&machine)).To(Equal([]string{"ip-10-0-0-1.internal", "web-1"}))
		shrunk, err := shrinkMachine(nil)(&machine)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodeNames(nil)(shrunk.(*clusterv1.Machine))).To(Equal([]string{"ip-10-0-0-1.internal", "web-1"}))
	})
	t.Run("When a Machine is a copy of such a one, no node should be its", func(t *testing.T) {
		machine := machineOf("web-1")
		machine.Name = "copy"
		NewWithT(t).Expect(party{machines: []clusterv1.Machine{machine}}.ours()).To(BeFalse())
	})
}
