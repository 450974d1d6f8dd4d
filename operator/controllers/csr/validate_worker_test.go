// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// workerOf is a MachineDeployment's Machine.
func workerOf(name string, addresses ...string) clusterv1.Machine {
	machine := machineOf(name, addresses...)
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "blue", clusterv1.MachineDeploymentNameLabel: "workers"}
	return machine
}

// joining are the inputs of a first request for a Machine, which each change alters first.
func joining(changes ...func(*clusterv1.Machine)) inputs {
	machine := workerOf("md-1", "10.0.0.1")
	for _, change := range changes {
		change(&machine)
	}
	return inputs{subject: party{machines: []clusterv1.Machine{machine}}}
}

// running are the inputs of a worker node's own request.
func running(addresses ...string) inputs {
	p := party{machines: []clusterv1.Machine{workerOf("md-1", addresses...)}}
	return inputs{requester: p, subject: p}
}

func label(key, value string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, key, value) }
}

func withAnnotation(key, value string) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value) }
}

func readyFor(age time.Duration) func(*clusterv1.Machine) {
	return func(m *clusterv1.Machine) {
		m.Status.Conditions = []metav1.Condition{{Type: clusterv1.InfrastructureReadyCondition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-age))}}
	}
}

func byKarpenter(a *ask) { a.groups = append([]string{v1alpha1.BootstrapTokenGroup}, tokenGroup...) }

func TestValidateWorkers(t *testing.T) {
	long := func(m *clusterv1.Machine) { m.CreationTimestamp = metav1.NewTime(now.Add(-72 * time.Hour)) }
	validateAll(t, map[string]validation{
		"When a MachineDeployment's machine joins, it should be approved": {
			ask: first("md-1"), inputs: joining(), want: approved, reason: v1beta1.NodeIdentityConfirmedReason, message: "matches Machine clusters-blue/md-1",
		},
		"When its node is called like the infrastructure machine, it should be approved": {
			ask: first("vm-7"), inputs: joining(func(m *clusterv1.Machine) { m.Spec.InfrastructureRef.Name = "vm-7" }), want: approved,
		},
		"When it has waited for bare metal for days, it should be approved": {
			ask: first("md-1"), inputs: joining(long, readyFor(time.Hour)), want: approved,
		},
		"When its infrastructure has been ready for more than a day, it should wait for another approver": {
			ask: first("md-1"), inputs: joining(long, readyFor(joinWithin+time.Second)), want: waiting, reason: "MachineOverdue", requeueAfter: nameGrace,
		},
		"When the Machine is being deleted, it should not join": {
			ask: first("md-1"), inputs: joining().but(deleting), want: waiting, reason: v1beta1.MachineMissingReason, requeueAfter: nameGrace,
		},
		"When Cluster API has seen its Node, no second one should join (replay)": {
			ask: first("md-1"), inputs: joining(func(m *clusterv1.Machine) { m.Status.NodeRef.Name = "md-1" }), want: waiting, reason: v1beta1.AlreadyJoinedReason,
		},
		"When its Node exists, no second one should join (replay)": {
			ask: first("md-1"), inputs: joining().but(func(i *inputs) { i.joined = true }), want: waiting, reason: v1beta1.AlreadyJoinedReason, message: "delete Machine md-1",
		},
		"When an earlier request was approved, a second one should not be (replay)": {
			ask: first("md-1"), inputs: joining().but(func(i *inputs) { i.conflicting = "node-csr-1" }), want: waiting, reason: v1beta1.AlreadyRequestedReason,
		},
		"When the request is an hour old, it should not be approved": {
			ask: first("md-1").but(func(a *ask) { a.age = maxAge + time.Second }), inputs: joining(), want: waiting, reason: v1beta1.RequestExpiredReason,
		},
		"When a user is no machine that joins, it should wait for another approver": {
			ask: first("md-1").but(func(a *ask) { a.groups = []string{authenticatedGroup} }), inputs: joining(), want: waiting, reason: v1beta1.RequesterMismatchReason, requeueAfter: nameGrace,
		},
		"When its node requests the addresses of its Machine, the serving certificate should be approved": {
			ask: servingOf("md-1", "md-1", "10.0.0.1"), inputs: running("10.0.0.1"), want: approved,
		},
		"When its node requests another address, it should be left to another approver, and not be denied": {
			ask: servingOf("md-1", "10.0.0.2").but(old), inputs: running("10.0.0.1"), want: waiting, reason: v1beta1.AddressMismatchReason,
		},
		"When it requests another worker's name as a node, it should not get it": {
			ask:    renewal("md-1").but(func(a *ask) { a.subject = subjectOf("md-2") }),
			inputs: inputs{requester: joining().subject, subject: party{machines: []clusterv1.Machine{workerOf("md-2")}}},
			want:   waiting, reason: v1beta1.SubjectMismatchReason, requeueAfter: nameGrace,
		},
		"When the platform leaves it to another approver, it should wait": {
			ask: first("md-1"), inputs: joining().but(func(i *inputs) { i.karpentersOnly = true }),
			want: waiting, reason: "LeftToAnother", message: "Karpenter didn't make Machine md-1", requeueAfter: nameGrace,
		},
		"When the platform leaves workers to another approver, Karpenter's own should be approved all the same": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("abcdef"), karpentersOnly: true}, want: approved,
		},
	})
}

// TestValidateWeakerRule has attempts to be approved by the rule of the other machines.
func TestValidateWeakerRule(t *testing.T) {
	karpenters := new(machineOf("web-1"))
	validateAll(t, map[string]validation{
		"When a token that Karpenter minted requests a MachineDeployment's machine, it should be denied": {
			ask: first("md-1").but(byKarpenter), inputs: joining(), want: denied, reason: v1beta1.RequesterMismatchReason, message: "was made with none",
		},
		"When the token of a Machine of Karpenter's does, it should be denied, and be named": {
			ask: first("md-1"), inputs: joining().but(func(i *inputs) { i.madeWith = karpenters }),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: "it is that of Machine web-1",
		},
		"When another token requests a machine of Karpenter's, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("zyxwvu")}, want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a node of a MachineDeployment requests a machine of Karpenter's, it should be denied": {
			ask:    renewal("md-1").but(func(a *ask) { a.subject = subjectOf("web-1") }),
			inputs: inputs{requester: joining().subject, subject: web1()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the NodeClaim of Karpenter's Machine is missing, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: party{machines: web1().machines}}, want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When a NodeClaim has the name of the Machine, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: party{machines: []clusterv1.Machine{workerOf("web-1")}, claim: web1().claim}},
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When only one of the labels of Karpenter's Machine is left, it should be denied": {
			ask: first("web-1"), inputs: joining(label(v1alpha1.NodeClaimUIDLabel, "uid-of-web-1")).but(func(i *inputs) { i.subject.claim = web1().claim }),
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When the Machine has Karpenter's label alone, it should be left alone": {
			ask: first("md-1"), inputs: joining(label(v1alpha1.NodeClaimLabel, "web-1")), want: ignored,
		},
		"When the Machine has the UID of a NodeClaim alone, it should be left alone": {
			ask: first("md-1"), inputs: joining(label(v1alpha1.NodeClaimUIDLabel, "uid")), want: ignored,
		},
		"When the Machine has lost its labels, and not its token, it should be left alone": {
			ask: first("md-1"), inputs: joining(withAnnotation(v1alpha1.BootstrapTokenIDAnnotation, "abcdef")), want: ignored,
		},
		"When the Machine has lost its labels, and not its NodeClaim's name, it should be left alone": {
			ask: first("md-1"), inputs: joining(withAnnotation(v1alpha1.NodeClaimNameAnnotation, "web-1")), want: ignored,
		},
		"When the Machine is of the control plane, it should be left alone": {
			ask: first("md-1"), inputs: joining(label(clusterv1.MachineControlPlaneLabel, "")), want: ignored,
		},
		"When a token that Karpenter minted requests a machine of the control plane, it should be denied": {
			ask: first("md-1").but(byKarpenter), inputs: joining(label(clusterv1.MachineControlPlaneLabel, "")).but(func(i *inputs) { i.madeWith = karpenters }),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: "which isn't Karpenter's",
		},
	})

	t.Run("When a worker reports the name of a Machine of Karpenter's, the name should be Karpenter's", func(t *testing.T) {
		g := NewWithT(t)
		reported := []clusterv1.Machine{workerOf("md-1", "shared.example"), machineOf("web-1", "shared.example")}
		g.Expect(called(reported, "shared.example")).To(ConsistOf(HaveField("Name", "web-1")))
		g.Expect(called(append(reported, workerOf("shared.example")), "shared.example")).To(ConsistOf(HaveField("Name", "shared.example")))
	})
}

// TestWorkersPending has requests that the operator leaves to another approver.
func TestWorkersPending(t *testing.T) {
	stageWorker := func(t *testing.T, change func(*v1beta1.CertificateApproval)) (*staged, func() string) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", first("md-1")))
		machine := workerOf("md-1")
		g.Expect(s.management.Create(t.Context(), &machine)).To(Succeed())
		blue := scopetest.Get(t.Context(), g, s.management, "clusters", "blue", &v1beta1.HostedCluster{})
		blue.Spec.AutoNode = &v1beta1.AutoNode{CertificateApproval: &v1beta1.CertificateApproval{}}
		change(blue.Spec.AutoNode.CertificateApproval)
		g.Expect(s.management.Update(t.Context(), blue)).To(Succeed())
		return s, func() string {
			reason, text, _, _ := s.ApprovedByOthers(blue)
			return reason + ": " + text
		}
	}
	t.Run("When the scope is Karpenter, the request should be reported after a minute, and approved when the scope is Cluster again", func(t *testing.T) {
		g := NewWithT(t)
		s, reported := stageWorker(t, func(c *v1beta1.CertificateApproval) { c.Scope = v1beta1.CertificateApprovalScopeKarpenter })
		g.Expect(s.reconcile(t, "one")).To(Equal(nameGrace))
		g.Expect(reported()).To(Equal(": "))
		s.clock.SetTime(now.Add(nameGrace))
		s.reconcile(t, "one")
		g.Expect(reported()).To(Equal(v1beta1.ApprovalPendingReason + ": certificate request one waits for another approver: " +
			"spec.autoNode.certificateApproval.scope is Karpenter, and Karpenter didn't make Machine md-1"))
		s.clock.SetTime(now.Add(maxAge))
		g.Expect(reported()).To(Equal(": "), "no kubelet waits for it any more")

		s.clock.SetTime(now.Add(nameGrace))
		before := scopetest.Get(t.Context(), g, s.management, "clusters", "blue", &v1beta1.HostedCluster{})
		after := before.DeepCopy()
		after.Spec.AutoNode.CertificateApproval = nil
		g.Expect(s.management.Update(t.Context(), after)).To(Succeed())
		s.onHostedCluster().Update(t.Context(), event.TypedUpdateEvent[*v1beta1.HostedCluster]{ObjectOld: before, ObjectNew: after}, s.queue)
		g.Expect(s.queue.Len()).To(Equal(1))
		s.reconcile(t, "one")
		g.Expect(hasCondition(scopetest.Get(t.Context(), g, s.guest, "", "one", &certificatesv1.CertificateSigningRequest{}), certificatesv1.CertificateApproved)).To(BeTrue())
		s.reconcile(t, "one")
		g.Expect(reported()).To(Equal(": "))
	})
	t.Run("When the Machine's infrastructure was ready long ago, which only the API server knows, it should not be approved", func(t *testing.T) {
		g := NewWithT(t)
		s, _ := stageWorker(t, func(*v1beta1.CertificateApproval) {})
		machine := workerOf("md-1")
		g.Expect(s.management.Delete(t.Context(), &machine)).To(Succeed())
		machine = workerOf("md-1")
		readyFor(joinWithin + time.Second)(&machine)
		g.Expect(s.management.Create(t.Context(), &machine)).To(Succeed())
		g.Expect(s.reconcile(t, "one")).To(Equal(nameGrace))
	})
	t.Run("When another token asks a second time at once, one request should be approved", func(t *testing.T) {
		g := NewWithT(t)
		s, _ := stageWorker(t, func(*v1beta1.CertificateApproval) {})
		s.grant(blue("before"), &evaluation{request: unverified(named(t, "before", first("md-1")))}, "")
		s.reconcile(t, "one")
		g.Expect(scopetest.Get(t.Context(), g, s.guest, "", "one", &certificatesv1.CertificateSigningRequest{}).Status.Conditions).To(BeEmpty())
	})
}

func TestValidateLateAddresses(t *testing.T) {
	other := workerOf("md-2", "10.0.0.2")
	secondary := func(addresses ...string) inputs {
		return running(addresses...).but(func(i *inputs) {
			i.network.nodes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}
			i.network.services = []netip.Prefix{netip.MustParsePrefix("10.0.96.0/20")}
			i.holders = map[string]*clusterv1.Machine{"10.0.0.2": &other}
		})
	}
	rows := map[string]validation{
		"When it has another Machine's address, it should be denied at once": {
			ask: servingOf("web-1", "10.0.0.2"), inputs: both().but(func(i *inputs) { i.holders = map[string]*clusterv1.Machine{"10.0.0.2": &other} }),
			want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When the platform allows addresses of the subnet, they should be approved": {
			ask: servingOf("md-1", "10.0.0.1", "10.0.0.77", "fd00::7"), inputs: secondary("10.0.0.1"), want: approved,
		},
		"When the address of the subnet is another Machine's, it should not be approved": {
			ask: servingOf("md-1", "10.0.0.2").but(old), inputs: secondary("10.0.0.1"), want: waiting, reason: v1beta1.AddressMismatchReason,
		},
		"When the address of the subnet is a Service's, it should not be approved": {
			ask: servingOf("md-1", "10.0.96.1").but(old), inputs: secondary("10.0.0.1"), want: waiting, reason: v1beta1.AddressMismatchReason,
		},
	}
	for name, reported := range map[string]string{"the link-local address": "fe80::1", "one family": "fd00::1", "DHCP's": "10.9.9.9"} {
		p := partyOf("web-1", reported)
		row := validation{ask: servingOf("web-1", "10.0.0.1"), inputs: inputs{requester: p, subject: p}, want: waiting, reason: "AddressUnknown", requeueAfter: nameGrace}
		rows["When "+name+" comes first, it should wait for the others"] = row
		row.ask.age, row.want, row.reason, row.requeueAfter = nameGrace, denied, v1beta1.AddressMismatchReason, 0
		rows["When "+name+" is alone for a minute, it should be denied"] = row
	}
	validateAll(t, rows)
}
