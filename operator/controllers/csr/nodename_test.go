// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// minted is the first request of a machine that Karpenter minted the token k3v9qd for.
func minted(node string, age time.Duration) ask {
	return first(node).but(func(a *ask) {
		a.user, a.age = bootstrapTokenPrefix+"k3v9qd", age
		a.groups = []string{bootstrappersGroup, v1alpha1.BootstrapTokenGroup, authenticatedGroup}
	})
}

// madeFor are the inputs of a machine's request for a name that nothing of ours has.
func madeFor(machine string, addresses ...string) inputs {
	return inputs{madeWith: &partyOf(machine, addresses...).with("k3v9qd").machines[0]}
}

// TestNodeName is a machine whose node has another name than Karpenter expects: it never joins.
func TestNodeName(t *testing.T) {
	validateAll(t, map[string]validation{
		// https://github.com/rancher/rancher/issues/34997
		"When the host name ends at the first dot of the Machine's, it should be denied, with both names": {
			ask: minted("gpu", nameGrace), inputs: madeFor("gpu.large-4qmgt", "10.0.0.1"), want: denied, reason: v1beta1.NodeNameMismatchReason,
			message: "Machine gpu.large-4qmgt requests node gpu, and its node has to be called gpu.large-4qmgt: correct the machine's host name or the kubelet's hostname-override; host names end at the first dot",
		},
		// https://github.com/syself/cluster-api-provider-hetzner/issues/985
		"When the host name is fully qualified, it should be denied, with both names": {
			ask: minted("general-x7k2p.corp.example", nameGrace), inputs: madeFor("general-x7k2p", "10.0.0.1"), want: denied, reason: v1beta1.NodeNameMismatchReason,
			message: "Machine general-x7k2p requests node general-x7k2p.corp.example, and its node has to be called general-x7k2p:",
		},
		// https://github.com/kubernetes-sigs/cluster-api-provider-vsphere/issues/1044
		"When the kubelet's hostname-override is another name, it should be denied, with all names": {
			ask: minted("template", nameGrace), inputs: madeFor("general-x7k2p", "10.0.0.1", "ip-10-0-0-1.internal"), want: denied, reason: v1beta1.NodeNameMismatchReason,
			message: "Machine general-x7k2p requests node template, and its node has to be called general-x7k2p or ip-10-0-0-1.internal:",
		},
		"When the name is the Machine's in another case, it should be denied: it would be another node": {
			ask: minted("General-X7K2P", nameGrace), inputs: madeFor("general-x7k2p", "10.0.0.1"), want: denied, reason: v1beta1.NodeNameMismatchReason,
		},
		"When no Machine has the token, it should be denied": {
			ask: minted("gpu", 0), want: denied, reason: v1beta1.NodeNameMismatchReason, message: `bootstrap token "k3v9qd", which Karpenter minted for one machine, requests node gpu`,
		},
		"When a token that Karpenter minted requests to be no node, it should be denied": {
			ask: minted("gpu", 0).but(func(a *ask) { a.subject.CommonName = "jane" }), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the infrastructure reports no address yet, it should wait for the name": {
			ask: minted("ip-10-0-0-1.internal", maxAge), inputs: madeFor("general-x7k2p"), want: waiting, reason: "AddressesUnknown",
			message: "Machine general-x7k2p requests node ip-10-0-0-1.internal and has no address yet",
		},
		"When it never reports one, it should be denied at last": {
			ask: minted("ip-10-0-0-1.internal", maxAge+time.Second), inputs: madeFor("general-x7k2p"), want: denied, reason: v1beta1.NodeNameMismatchReason,
		},
		"When the infrastructure reports an address and the name may follow, it should wait for a moment": {
			ask: minted("ip-10-0-0-1.internal", time.Second), inputs: madeFor("general-x7k2p", "10.0.0.1"), want: waiting, reason: "NameUnknown", requeueAfter: nameGrace - time.Second,
		},
		"When only the cache lacks the name, it should wait": {
			ask: minted("ip-10-0-0-1.internal", maxAge), inputs: madeFor("general-x7k2p", "10.0.0.1", "ip-10-0-0-1.internal"), want: waiting, reason: "NameUnknown", requeueAfter: nameGrace,
		},
		"When a machine makes a request with its own token for another Machine's node, it should be denied, with both names": {
			ask: minted("web-1", 0), inputs: inputs{subject: web1().with("abcdef"), madeWith: madeFor("general-x7k2p").madeWith},
			want: denied, reason: v1beta1.RequesterMismatchReason, message: "isn't the bootstrap token that Machine web-1 was made with; it is that of Machine general-x7k2p, which requests another's name",
		},
	})

	t.Run("When it is denied, the Machine, the NodeClaim and the HostedCluster should have one event each", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", minted("gpu", nameGrace)), named(t, "two", minted("gpu", nameGrace)))
		s.owns(t, "k3v9qd", "10.0.0.1")
		s.reconcile(t, "one")
		g.Expect(s.decision(t, "one")).To(Equal(v1beta1.NodeNameMismatchReason))
		recorder := s.Recorder.(*events.FakeRecorder)
		const message = "Machine web-1 requests node gpu, and its node has to be called web-1"
		g.Expect(recorder.Events).To(Receive(ContainSubstring("denied certificate request one in the guest: " + message)))
		g.Expect(recorder.Events).To(Receive(HavePrefix("Warning NodeNameMismatch " + message)))

		s.reconcile(t, "two")
		list := &eventsv1.EventList{}
		g.Expect(s.guest.List(t.Context(), list)).To(Succeed())
		g.Expect(list.Items).To(ConsistOf(And(
			HaveField("Regarding.Kind", "NodeClaim"), HaveField("Regarding.Name", "web-1"), HaveField("Regarding.UID", BeEquivalentTo("uid-of-web-1")),
			HaveField("Type", "Warning"), HaveField("Reason", v1beta1.NodeNameMismatchReason), HaveField("Note", ContainSubstring(message)),
		)))
	})

	t.Run("When the infrastructure reports the name that a machine has asked for, the request should be validated again and approved", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "early", minted("ip-10-0-0-1.internal", 0)))
		before := s.owns(t, "k3v9qd")
		s.reconcile(t, "early")
		g.Expect(s.decision(t, "early")).To(BeEmpty())
		after := s.owns(t, "k3v9qd", "10.0.0.1", "ip-10-0-0-1.internal")
		s.onMachine().Update(t.Context(), event.TypedUpdateEvent[*clusterv1.Machine]{ObjectOld: before, ObjectNew: after}, s.queue)
		key, _ := s.queue.Get()
		s.reconcile(t, key.Name)
		g.Expect(s.decision(t, "early")).To(Equal(v1beta1.NodeIdentityConfirmedReason))
	})

	t.Run("When only the Machine's address is new, a request for a name that it doesn't report should be validated again all the same", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "early", minted("gpu", nameGrace)))
		before := s.owns(t, "k3v9qd")
		s.reconcile(t, "early")
		g.Expect(s.decision(t, "early")).To(BeEmpty())
		after := s.owns(t, "k3v9qd", "10.0.0.1")
		s.onMachine().Update(t.Context(), event.TypedUpdateEvent[*clusterv1.Machine]{ObjectOld: before, ObjectNew: after}, s.queue)
		g.Expect(s.queue.Len()).To(Equal(1))
	})
}

// owns gives the staged Machine a token and addresses.
func (s *staged) owns(t *testing.T, token string, reported ...string) *clusterv1.Machine {
	t.Helper()
	g := NewWithT(t)
	machine := scopetest.Get(t.Context(), g, s.management, "clusters-blue", "web-1", &clusterv1.Machine{})
	machine.Annotations = map[string]string{v1alpha1.BootstrapTokenIDAnnotation: token}
	g.Expect(s.management.Update(t.Context(), machine)).To(Succeed())
	machine.Status.Addresses = machineOf("web-1", reported...).Status.Addresses
	g.Expect(s.management.Status().Update(t.Context(), machine)).To(Succeed())
	return machine
}

// decision returns a request's reason; empty while it is undecided.
func (s *staged) decision(t *testing.T, name string) string {
	t.Helper()
	object := scopetest.Get(t.Context(), NewWithT(t), s.guest, "", name, &certificatesv1.CertificateSigningRequest{})
	if len(object.Status.Conditions) == 0 {
		return ""
	}
	return object.Status.Conditions[0].Reason
}

// TestInstanceNames: KubeVirt and others name the host after the infrastructure machine, whose name carries the Cluster's hash.
func TestInstanceNames(t *testing.T) {
	instance := v1alpha1.InstanceName("uid-of-blue", "web-1")
	named := func(name, instance string) clusterv1.Machine {
		machine := machineOf(name)
		machine.Spec.InfrastructureRef.Name = instance
		return *shrunk(nil, &machine)
	}

	t.Run("When a node is called like its Machine or its infrastructure machine, it should be that Machine's", func(t *testing.T) {
		g := NewWithT(t)
		machine := named("web-1", instance)
		g.Expect(nodeNames(nil)(&machine)).To(ConsistOf("web-1", instance))
		g.Expect(addresses(&machine)).To(ConsistOf("web-1", instance))
		g.Expect(v1alpha1.NodeClaimOf(&machine)).To(Equal("web-1"))
	})

	t.Run("When a Machine is called like another's instance, a node of that name should be the Machine's that has it", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(called([]clusterv1.Machine{named("web-1", instance), named(instance, "other")}, instance)).To(ConsistOf(HaveField("Name", instance)))
		g.Expect(called([]clusterv1.Machine{named("web-1", instance), named("web-2", "other")}, instance)).To(ConsistOf(HaveField("Name", "web-1")))
	})

	t.Run("When the Machine is named after its Cluster too, its NodeClaim should be found", func(t *testing.T) {
		g := NewWithT(t)
		machine := named(instance, instance)
		machine.Labels[v1alpha1.NodeClaimLabel] = "web-1"
		g.Expect(nodeNames(nil)(&machine)).To(ConsistOf(instance))
		g.Expect(v1alpha1.NodeClaimOf(&machine)).To(Equal("web-1"))
	})
}
