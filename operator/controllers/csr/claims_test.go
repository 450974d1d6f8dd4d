// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// TestClaims is a machine whose root reports addresses of its choice, as guest tools let it.
func TestClaims(t *testing.T) {
	cluster := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example.com", Port: 6443},
		ClusterNetwork:       clusterv1.ClusterNetwork{Services: clusterv1.NetworkRanges{CIDRBlocks: []string{"10.96.0.0/12", "no range"}}},
	}}
	reserved := networkOf(cluster, "https://172.30.0.9:443")
	for name, c := range map[string]struct {
		address string // which the machine reports, and requests
		other   clusterv1.Machine
		want    action
		reason  string
	}{
		"When it reports an address of its own, it should be approved":                                  {"10.0.0.7", machineOf("web-2", "10.0.0.8"), approved, ""},
		"When it reports an address of a Service, it should be denied":                                  {"10.96.0.10", machineOf("web-2"), denied, "10.96.0.0/12"},
		"When it reports a Service's address in IPv6's form, it should be denied":                       {"::ffff:10.96.0.10", machineOf("web-2"), denied, "10.96.0.0/12"},
		"When it reports the API server's name, it should be denied":                                    {"API.example.com", machineOf("web-2"), denied, "the API server"},
		"When it reports the address by which the operator reaches the API server, it should be denied": {"172.30.0.9", machineOf("web-2"), denied, "the API server"},
		"When it reports the API server's name in the cluster, it should be denied":                     {"kubernetes.default.svc.cluster.local", machineOf("web-2"), denied, "the API server"},
		"When it reports loopback, it should be denied":                                                 {"127.0.0.1", machineOf("web-2"), denied, "no machine"},
		"When it reports another Machine's name, it should be denied":                                   {"web-2", machineOf("web-2"), denied, "Machine web-2"},
		"When another Machine reports the same address, it should wait, because either may lie":         {"10.0.0.8", machineOf("web-2", "10.0.0.8"), waiting, "both report"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			subject := partyOf("web-1", c.address)
			holders := map[string]*clusterv1.Machine{}
			for _, address := range addresses(&c.other) {
				holders[address] = &c.other
			}
			r := verifiedRequest(servingOf("web-1", c.address).object(t))
			v := validate(r, inputs{requester: subject, subject: subject, holders: holders, network: reserved}, now)
			g.Expect(v.action).To(Equal(c.want), "%s: %s", v.reason, v.message)
			g.Expect(v.message).To(ContainSubstring(c.reason))
		})
	}

	t.Run("When a machine claims another's name, the victim's request should be approved, and the claimant's be denied", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "victim", servingOf("web-1", "web-1")), named(t, "claim", servingOf("claimant", "web-1")))
		g.Expect(s.guest.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}})).To(Succeed())
		claimant := machineOf("claimant", "10.0.0.66", "web-1")
		g.Expect(s.management.Create(t.Context(), &claimant)).To(Succeed())
		g.Expect(s.guest.Create(t.Context(), partyOf("claimant").claim)).To(Succeed())
		for request, want := range map[string]certificatesv1.RequestConditionType{
			"victim": certificatesv1.CertificateApproved, "claim": certificatesv1.CertificateDenied,
		} {
			s.reconcile(t, request)
			read := scopetest.Get(t.Context(), g, s.guest, "", request, &certificatesv1.CertificateSigningRequest{})
			g.Expect(read.Status.Conditions).To(ConsistOf(HaveField("Type", want)), request)
		}
	})

	t.Run("When two Machines report a name that is neither's, that of the node which joined under it should have it", func(t *testing.T) {
		g := NewWithT(t)
		a, b := machineOf("a", "ip-1.internal"), machineOf("b", "ip-1.internal")
		g.Expect(called([]clusterv1.Machine{a, b}, "ip-1.internal")).To(HaveLen(2))
		b.Status.NodeRef.Name = "ip-1.internal"
		g.Expect(called([]clusterv1.Machine{a, b}, "ip-1.internal")).To(ConsistOf(HaveField("Name", "b")))
	})

	t.Run("When a request is as large as an API server takes, it should be denied unread, and the cache hold no more of it than the bound", func(t *testing.T) {
		g := NewWithT(t)
		a := servingOf("web-1", "10.0.0.1")
		for range 2000 {
			a.content.DNSNames = append(a.content.DNSNames, "flooded-name.example.com")
		}
		object := a.object(t)
		object.Annotations = map[string]string{"a": string(make([]byte, 200<<10))}
		object.Spec.Extra = map[string]certificatesv1.ExtraValue{"a": {string(make([]byte, 200<<10))}}
		shrunk, err := shrinkRequest(object)
		g.Expect(err).NotTo(HaveOccurred())
		object = shrunk.(*certificatesv1.CertificateSigningRequest)
		g.Expect(object.Size()).To(BeNumerically("<", maxRequestBytes+1<<10))
		subject := partyOf("web-1", "10.0.0.1")
		v := validate(verifiedRequest(object), inputs{requester: subject, subject: subject}, now)
		g.Expect(v.action).To(Equal(denied))
		g.Expect(v.message).To(ContainSubstring("larger than 16384 bytes"))
	})

	t.Run("When a request is to another signer, the cache should keep its name alone", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").but(func(a *ask) { a.signer = "example.com/signer"; a.name = "other" }).object(t)
		object.Labels = map[string]string{v1alpha1.NodeClaimLabel: "a"}
		shrunk, err := shrinkRequest(object)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(shrunk.(*certificatesv1.CertificateSigningRequest).Size()).To(BeNumerically("<", 100))
	})
}
