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
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
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

// first is what the kubelet of a machine that joins asks for.
func first(node string) ask {
	return ask{
		signer: clientSigner, user: tokenUser, groups: tokenGroup, subject: subjectOf(node),
		usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
}

// renewal is what a node's kubelet asks for when its certificate is about to expire.
func renewal(node string) ask {
	a := first(node)
	a.user, a.groups = nodeUserPrefix+node, nodeGroups
	return a
}

// servingOf is what a node's kubelet asks for to serve logs and metrics.
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

func (a ask) but(change func(*ask)) ask {
	change(&a)
	return a
}

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
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.UID = name, types.UID("uid-of-"+name)
	return party{machines: []clusterv1.Machine{machineOf(name, addresses...)}, claim: claim}
}

// with fixes the bootstrap token that a party's Machine was made with.
func (p party) with(tokenID string) party {
	p.machines[0].Annotations = map[string]string{v1alpha1.BootstrapTokenIDAnnotation: tokenID}
	return p
}

func TestJudge(t *testing.T) {
	extension := func(id asn1.ObjectIdentifier, value []byte) func(*ask) {
		return func(a *ask) { a.content.ExtraExtensions = []pkix.Extension{{Id: id, Value: value}} }
	}
	// otherName is a name of a kind that the x509 package leaves out, beside one of the machine's own.
	otherName, err := asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("web-1")},
		{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42, 3}},
	})
	if err != nil {
		t.Fatal(err)
	}
	web1 := func() party { return partyOf("web-1", "10.0.0.1", "fd00::1", "ip-10-0-0-1.internal") }
	web2 := func() party { return partyOf("web-2", "10.0.0.2") }
	both := func() evidence { return evidence{requester: web1(), subject: web1()} }
	only := func() evidence { return evidence{subject: web1()} }
	asked := func(others ...other) evidence { return evidence{requester: web1(), subject: web1(), others: others} }

	for name, test := range map[string]struct {
		ask      ask
		evidence evidence
		want     decision
		reason   string
		message  string // a part of it
		again    time.Duration
	}{
		"When a machine asks with the token that Karpenter minted for it, it should be approved": {
			ask:      first("web-1").but(func(a *ask) { a.groups = append([]string{v1alpha1.BootstrapTokenGroup}, tokenGroup...) }),
			evidence: evidence{subject: web1().with("abcdef")}, want: approved, reason: v1beta1.NodeIdentityConfirmedReason,
		},
		"When a machine asks for its first certificate with its token, it should be approved": {
			ask: first("web-1"), evidence: evidence{subject: web1().with("abcdef")},
			want: approved, reason: v1beta1.NodeIdentityConfirmedReason, message: "NodeClaim web-1 and Machine clusters-blue/web-1",
		},
		"When nobody knows which token the machine got, a bootstrap token should do": {
			ask: first("web-1"), evidence: only(), want: approved,
		},
		"When HyperShift's bootstrap certificate asks, it should be approved": {
			ask: first("web-1").but(func(a *ask) {
				a.user, a.groups = "system:bootstrapper", []string{bootstrappersGroup, authenticatedGroup}
			}),
			evidence: only(), want: approved,
		},
		"When OpenShift's ServiceAccount for bootstraps asks, it should be approved": {
			ask: first("web-1").but(func(a *ask) {
				a.user = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"
				a.groups = []string{"system:serviceaccounts", "system:serviceaccounts:openshift-machine-config-operator", authenticatedGroup}
			}),
			evidence: only(), want: approved,
		},
		"When the key is RSA, key encipherment should be allowed": {
			ask:      first("web-1").but(func(a *ask) { a.usages = append(a.usages, certificatesv1.UsageKeyEncipherment) }),
			evidence: only(), want: approved,
		},
		"When a node renews its certificate, it should be approved, though it has joined": {
			ask: renewal("web-1"), evidence: both(), want: approved,
		},
		"When a node asks for a serving certificate for some of its addresses, it should be approved": {
			ask: servingOf("web-1", "web-1", "IP-10-0-0-1.internal", "10.0.0.1", "fd00::1"), evidence: both(), want: approved,
		},
		"When nodes authenticate by a cloud's identities, they should be nodes all the same": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.groups = append([]string{bootstrappersGroup}, nodeGroups...) }),
			evidence: both(), want: approved,
		},

		"When neither name is ours, it should be left alone": {
			ask: first("theirs"), want: ignored, reason: "NotOurs",
		},
		"When a stranger's request is malformed, it should be left alone": {
			ask: first("").but(func(a *ask) { a.raw = []byte("nonsense") }), want: ignored,
		},
		"When a person asks for something that is no node, it should be left alone": {
			ask: first("").but(func(a *ask) { a.user, a.subject.CommonName = "jane", "jane" }), want: ignored,
		},
		"When the Machine's addresses aren't known yet, it should wait": {
			ask: servingOf("web-1", "10.0.0.1"), evidence: evidence{requester: partyOf("web-1"), subject: partyOf("web-1")},
			want: waiting, reason: "AddressesUnknown", message: "Machine web-1 has no IP address yet",
		},

		"When a node of ours asks for another name (wrong CN), it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.subject = subjectOf("web-9") }), evidence: evidence{requester: web1()},
			want: denied, reason: v1beta1.SubjectMismatchReason, message: `node web-1 asks for a certificate of "system:node:web-9"`,
		},
		"When a node of ours asks to be the controller manager (wrong CN), it should be denied": {
			ask:      renewal("web-1").but(func(a *ask) { a.subject.CommonName = "system:kube-controller-manager" }),
			evidence: evidence{requester: web1()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When a node of ours asks for another node's certificate, it should be denied": {
			ask:      renewal("web-1").but(func(a *ask) { a.subject = subjectOf("web-2") }),
			evidence: evidence{requester: web1(), subject: web2()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When a node of ours asks to be in a stronger group, it should be denied": {
			ask:      renewal("web-1").but(func(a *ask) { a.subject.Organization = []string{"system:masters"} }),
			evidence: both(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When a machine asks to be in a stronger group as well, it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.subject.Organization = []string{nodesGroup, "system:masters"} }),
			evidence: only(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the subject holds more than a kubelet's, it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.subject.OrganizationalUnit = []string{"x"} }),
			evidence: only(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the subject is a node with the user's name in another case, it should be denied": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.subject = subjectOf("WEB-1") }),
			evidence: evidence{requester: web1()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When another node asks for a certificate of ours, it should be denied": {
			ask: renewal("theirs").but(func(a *ask) { a.subject = subjectOf("web-1") }), evidence: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: `user "system:node:theirs" asks for a certificate of node web-1`,
		},
		"When an administrator asks for a node's certificate, it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.user, a.groups = "kubernetes-admin", []string{"system:masters", authenticatedGroup} }),
			evidence: only(), want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a pod's ServiceAccount asks for a node's certificate, it should be denied": {
			ask: first("web-1").but(func(a *ask) {
				a.user, a.groups = "system:serviceaccount:default:web", []string{"system:serviceaccounts", "system:serviceaccounts:default", authenticatedGroup}
			}),
			evidence: only(), want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a user only calls itself a bootstrap token, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = []string{authenticatedGroup} }), evidence: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a bootstrap token is in other groups as well, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = append([]string{"system:masters"}, tokenGroup...) }), evidence: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a user only calls itself the node, it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.groups = []string{authenticatedGroup} }), evidence: both(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a machine asks with another machine's token, it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: web1().with("zyxwvu")},
			want: denied, reason: v1beta1.RequesterMismatchReason, message: `user "system:bootstrap:abcdef" isn't the bootstrap token that Machine web-1 was made with`,
		},
		"When Karpenter has minted a token for another machine than one that was made with none, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = append([]string{v1alpha1.BootstrapTokenGroup}, tokenGroup...) }), evidence: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: "was made with none",
		},
		"When a machine asks with its own token after it has joined, it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: web1().with("abcdef"), joined: true},
			want: denied, reason: v1beta1.AlreadyJoinedReason,
		},
		"When a machine that is being deleted asks with its own token, it should be denied": {
			ask: first("web-1"), evidence: func() evidence {
				e := evidence{subject: web1().with("abcdef")}
				e.subject.machines[0].DeletionTimestamp = &metav1.Time{Time: now}
				return e
			}(),
			want: denied, reason: v1beta1.MachineMissingReason,
		},
		"When a machine asks with an empty token, it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.user = bootstrapTokenPrefix }),
			evidence: evidence{subject: web1().with("abcdef")}, want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a machine asks for a serving certificate by its token, it should be denied": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.user, a.groups = tokenUser, tokenGroup }),
			evidence: only(), want: denied, reason: v1beta1.RequesterMismatchReason,
		},

		"When a NodeClaim has no Machine, it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: party{claim: web1().claim}},
			want: denied, reason: v1beta1.MachineMissingReason, message: "no Machine was made for NodeClaim web-1",
		},
		"When a Machine has no NodeClaim, it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: party{machines: web1().machines}},
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When the NodeClaim is a later one of the same name, it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: party{machines: web1().machines, claim: web2().claim}},
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When two Machines go by the name and neither is called so, it should wait, with a reason": {
			ask: first("web-1"), evidence: evidence{subject: party{machines: append(web1().machines, web2().machines...), claim: web1().claim}},
			want: waiting, reason: "NameShared", message: "Machines web-1 and web-2 both", again: recheckClaims,
		},
		"When the Machine is being deleted, it should not join any more": {
			ask: first("web-1"), evidence: func() evidence {
				e := only()
				e.subject.machines[0].DeletionTimestamp = &metav1.Time{Time: now}
				return e
			}(),
			want: denied, reason: v1beta1.MachineMissingReason,
		},
		"When the Machine is being deleted, its node should go on with a new certificate until it is drained": {
			ask: renewal("web-1"), evidence: func() evidence {
				e := both()
				e.subject.machines[0].DeletionTimestamp = &metav1.Time{Time: now}
				return e
			}(),
			want: approved,
		},

		"When a token is used again after its node has joined (replay), it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: web1(), joined: true},
			want: denied, reason: v1beta1.AlreadyJoinedReason, message: "delete NodeClaim web-1",
		},
		"When the Node was deleted after it had joined, the token should not do again (replay)": {
			ask: first("web-1"), evidence: func() evidence {
				e := only()
				e.subject.claim.Status.NodeName = "web-1"
				return e
			}(),
			want: denied, reason: v1beta1.AlreadyJoinedReason,
		},
		"When Cluster API has seen the Node, the token should not do again (replay)": {
			ask: first("web-1"), evidence: func() evidence {
				e := only()
				e.subject.machines[0].Status.NodeRef.Name = "web-1"
				return e
			}(),
			want: denied, reason: v1beta1.AlreadyJoinedReason,
		},
		"When a second request comes before the node has joined (replay), it should be denied": {
			ask: first("web-1"), evidence: evidence{subject: web1(), rival: "node-csr-1"},
			want: denied, reason: v1beta1.AlreadyRequestedReason, message: "node-csr-1",
		},
		"When the request is old, it should be denied, so that the kubelet asks again": {
			ask: first("web-1").but(func(a *ask) { a.age = maxAge + time.Second }), evidence: only(),
			want: denied, reason: v1beta1.RequestExpiredReason, message: "it was made 1h0m1s ago",
		},
		"When the request is nearly too old, it should be approved": {
			ask: first("web-1").but(func(a *ask) { a.age = maxAge }), evidence: only(), want: approved,
		},

		"When a node has another request that is approved and not issued, it should wait": {
			ask:      renewal("web-1").but(func(a *ask) { a.name = "b" }),
			evidence: asked(other{name: "a", made: now.Add(-time.Minute), approved: true}),
			want:     waiting, reason: "EarlierRequestLive", message: "certificate request a, which the node made before", again: liveFor - time.Minute,
		},
		"When the other request's certificate is issued, it should be approved": {
			ask:      renewal("web-1").but(func(a *ask) { a.name = "b" }),
			evidence: asked(other{name: "a", made: now.Add(-time.Minute), approved: true, issued: true}), want: approved,
		},
		"When the other request was approved so long ago that no kubelet waits for it, it should be approved": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.name = "b" }),
			evidence: asked(other{name: "a", made: now.Add(-liveFor), approved: true}), want: approved,
		},
		"When the other request is undecided and older, the later one should be approved": {
			ask:      renewal("web-1").but(func(a *ask) { a.name = "b" }),
			evidence: asked(other{name: "a", made: now.Add(-time.Minute)}), want: approved,
		},
		"When the node has asked again since, the older request should be denied": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.name, a.age = "b", time.Minute }),
			evidence: asked(other{name: "a", made: now}),
			want:     denied, reason: v1beta1.RequestSupersededReason, message: "by certificate request a",
		},
		"When the node has asked again since, and that is issued, the older request should be denied all the same": {
			ask:      renewal("web-1").but(func(a *ask) { a.name, a.age = "b", time.Minute }),
			evidence: asked(other{name: "a", made: now, approved: true, issued: true}), want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When two were made in the same second, one should be the later": {
			ask:      renewal("web-1").but(func(a *ask) { a.name = "a" }),
			evidence: asked(other{name: "b", made: now}), want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When a request that waits for addresses was made before another one, it should be denied": {
			ask: servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.age = time.Minute }), evidence: evidence{
				requester: partyOf("web-1"), subject: partyOf("web-1"), others: []other{{name: "later", made: now}},
			},
			want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When a forged request was made before another one, it should be denied for what is wrong with it": {
			ask:      servingOf("web-1", "10.0.0.2").but(func(a *ask) { a.age = time.Minute }),
			evidence: asked(other{name: "later", made: now}), want: denied, reason: v1beta1.AddressMismatchReason,
		},

		"When a serving certificate is for another machine's address, it should be denied": {
			ask: servingOf("web-1", "10.0.0.1", "10.0.0.2"), evidence: both(),
			want: denied, reason: v1beta1.AddressMismatchReason, message: "IP address 10.0.0.2 isn't one of Machine web-1: 10.0.0.1, fd00::1",
		},
		"When a serving certificate is for another name too (extra SAN), it should be denied": {
			ask: servingOf("web-1", "web-1", "10.0.0.1", "kubernetes.default.svc"), evidence: both(),
			want: denied, reason: v1beta1.AddressMismatchReason, message: `DNS name "kubernetes.default.svc" isn't one of Machine web-1`,
		},
		"When a serving certificate is for a wildcard, it should be denied": {
			ask: servingOf("web-1", "*.internal"), evidence: both(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When a serving certificate is for nothing, it should be denied": {
			ask: servingOf("web-1"), evidence: both(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When a serving certificate is for a mail address (extra SAN), it should be denied": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.EmailAddresses = []string{"root@web-1"} }),
			evidence: both(), want: denied, reason: v1beta1.AddressMismatchReason, message: "root@web-1",
		},
		"When a client certificate is for a URI (extra SAN), it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.content.URIs = []*url.URL{{Scheme: "spiffe", Host: "web"}} }),
			evidence: only(), want: denied, reason: v1beta1.AddressMismatchReason, message: "spiffe://web",
		},
		"When a client certificate is for the machine's own address (extra SAN), it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.content.IPAddresses = []net.IP{net.ParseIP("10.0.0.1")} }),
			evidence: only(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When a name is of a kind that nobody looks at (extra SAN), it should be denied": {
			ask: servingOf("web-1").but(extension(subjectAltName, otherName)), evidence: both(),
			want: denied, reason: v1beta1.RequestMalformedReason, message: "unknown kind 8",
		},
		"When the request has another extension, such as that of a certificate authority, it should be denied": {
			ask: first("web-1").but(extension(asn1.ObjectIdentifier{2, 5, 29, 19}, []byte{0x30, 3, 1, 1, 0xff})), evidence: only(),
			want: denied, reason: v1beta1.RequestMalformedReason, message: "2.5.29.19",
		},
		"When a node of ours sends nonsense, it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.raw = []byte("nonsense") }), evidence: evidence{requester: web1()},
			want: denied, reason: v1beta1.RequestMalformedReason,
		},

		"When a client certificate is to serve as well (usages), it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.usages = append(a.usages, certificatesv1.UsageServerAuth) }),
			evidence: only(), want: denied, reason: v1beta1.UsageMismatchReason, message: "server auth",
		},
		"When a serving certificate is to be a client's (usages), it should be denied": {
			ask:      servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.usages = first("web-1").usages }),
			evidence: both(), want: denied, reason: v1beta1.UsageMismatchReason,
		},
		"When a certificate is to sign others (usages), it should be denied": {
			ask:      first("web-1").but(func(a *ask) { a.usages = append(a.usages, certificatesv1.UsageCertSign) }),
			evidence: only(), want: denied, reason: v1beta1.UsageMismatchReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := judge(newRequest(test.ask.object(t)), test.evidence, now)
			g.Expect(got.decision).To(Equal(test.want), got.message)
			if test.reason != "" {
				g.Expect(got.reason).To(Equal(test.reason), got.message)
			}
			g.Expect(got.message).To(ContainSubstring(test.message))
			g.Expect(got.again).To(Equal(test.again))
		})
	}

	t.Run("When the content was changed after it was signed, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").object(t)
		block, _ := pem.Decode(object.Spec.Request)
		block.Bytes[len(block.Bytes)-1] ^= 1
		object.Spec.Request = pem.EncodeToMemory(block)
		got := judge(newRequest(object), only(), now)
		g.Expect(got.decision).To(Equal(denied))
		g.Expect(got.reason).To(Equal(v1beta1.RequestMalformedReason))
	})

	t.Run("When a request has a second block, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").object(t)
		object.Spec.Request = append(object.Spec.Request, object.Spec.Request...)
		g.Expect(judge(newRequest(object), only(), now).reason).To(Equal(v1beta1.RequestMalformedReason))
	})

	t.Run("When the requester's words are many, the message should not be", func(t *testing.T) {
		g := NewWithT(t)
		got := judge(newRequest(servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.EmailAddresses = []string{strings.Repeat("x", 5000)} }).object(t)), both(), now)
		g.Expect(got.decision).To(Equal(denied))
		g.Expect(len(got.message)).To(BeNumerically("<", 1024))
	})
}

func TestNodeNames(t *testing.T) {
	t.Run("When a Machine was made for a NodeClaim, its node should have its name or one that the provider knows", func(t *testing.T) {
		g := NewWithT(t)
		machine := machineOf("web-1", "10.0.0.1", "IP-10-0-0-1.internal")
		machine.Status.Addresses = append(machine.Status.Addresses,
			clusterv1.MachineAddress{Type: clusterv1.MachineExternalDNS, Address: "public.example"},
			clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: "10.0.0.9"})
		g.Expect(nodeNames(&machine)).To(Equal([]string{"ip-10-0-0-1.internal", "web-1"}))
		shrunk, err := shrinkMachine(&machine)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodeNames(shrunk.(*clusterv1.Machine))).To(Equal([]string{"ip-10-0-0-1.internal", "web-1"}))
	})
	t.Run("When a Machine is a copy of such a one, it should have none", func(t *testing.T) {
		machine := machineOf("web-1")
		machine.Name = "copy"
		NewWithT(t).Expect(nodeNames(&machine)).To(BeEmpty())
	})
}
