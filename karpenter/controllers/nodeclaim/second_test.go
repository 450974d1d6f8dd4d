// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/launchtime"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

var elsewhere = offering.Key{InstanceType: "c4-large", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}

// slow is a fixture with a NodePool, whose NodeClaim waits for its machine.
type slow struct {
	*fixture
	nodePool *karpv1.NodePool
	// template is the template source of the machines; other tests' have another one.
	template   string
	rejections *offering.Rejections
	// What the controller is told.
	alternative, replacement bool
	vacancies                int
	usage                    corev1.ResourceList
}

func newSlow(t *testing.T, changes ...func(*slow)) *slow {
	t.Helper()
	f := &slow{fixture: newFixture(t), alternative: true}
	f.template = "TestMachineTemplate/" + f.Namespace
	f.rejections = offering.NewRejections(f.clock)
	f.nodePool = &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
	f.nodePool.Spec.Template.Spec.NodeClassRef = f.nodeClaim.Spec.NodeClassRef
	f.nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	f.nodePool.Spec.Template.Labels = map[string]string{"example.com/team": "web"}
	f.nodePool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1h")
	f.nodeClaim.Labels = map[string]string{
		karpv1.NodePoolLabelKey: f.nodePool.Name, "example.com/team": "web",
		corev1.LabelInstanceTypeStable: "c4-large", corev1.LabelTopologyZone: "a",
	}
	f.nodeClaim.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: "4711", v1alpha1.MachineAnnotation: "a/b"}
	for _, change := range changes {
		change(f)
	}
	f.Expect(f.Admin.Create(t.Context(), f.nodePool)).To(Succeed())
	t.Cleanup(f.clear)
	f.Settle(f.Guest, f.nodePool)
	f.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
	f.launched()
	f.say(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.TemplateSourceAnnotation] = f.template })
	f.clock.SetTime(f.machine.CreationTimestamp.Time)
	f.config.Second = &nodeclaim.SecondLaunches{
		Alternative: func(_ context.Context, _ *karpv1.NodeClaim, first offering.Key) (offering.Key, corev1.ResourceList, bool) {
			f.Expect(first).To(Equal(onDemand))
			return elsewhere, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, f.alternative
		},
		IsReplacement: func(string) bool { return f.replacement },
		Vacancies:     func(string) int { return f.vacancies },
		Usage:         func(string) corev1.ResourceList { return f.usage },
		Rejections:    f.rejections,
	}
	f.controller = nodeclaim.New(f.config)
	return f
}

// clear removes what the guest of all tests has of this one.
func (f *slow) clear() {
	ctx := context.WithoutCancel(f.t.Context())
	nodeClaims := &karpv1.NodeClaimList{}
	f.Expect(f.Admin.List(ctx, nodeClaims, client.MatchingLabels{karpv1.NodePoolLabelKey: f.nodePool.Name})).To(Succeed())
	for i := range nodeClaims.Items {
		_ = f.Admin.Patch(ctx, &nodeClaims.Items[i], client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		_ = f.Admin.Delete(ctx, &nodeClaims.Items[i])
	}
	_ = f.Admin.Delete(ctx, f.nodePool)
}

// look reconciles a NodeClaim as the API server has it, and returns when it is to do so again.
func (f *slow) look(nodeClaim *karpv1.NodeClaim) time.Duration {
	f.t.Helper()
	stored := &karpv1.NodeClaim{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(nodeClaim), stored)).To(Succeed())
	result, err := f.controller.Reconcile(f.t.Context(), stored)
	f.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

// all returns the NodeClaims of the NodePool, once the cache has them as they are.
func (f *slow) all() (found []*karpv1.NodeClaim) {
	f.t.Helper()
	live := &karpv1.NodeClaimList{}
	f.Expect(f.Admin.List(f.t.Context(), live, client.MatchingLabels{karpv1.NodePoolLabelKey: f.nodePool.Name})).To(Succeed())
	f.Eventually(func(g Gomega) {
		cached := &karpv1.NodeClaimList{}
		g.Expect(f.Guest.GetClient().List(f.t.Context(), cached, client.MatchingLabels{karpv1.NodePoolLabelKey: f.nodePool.Name})).To(Succeed())
		versions := func(list *karpv1.NodeClaimList) map[string]string {
			all := map[string]string{}
			for _, n := range list.Items {
				all[n.Name] = n.ResourceVersion
			}
			return all
		}
		g.Expect(versions(cached)).To(Equal(versions(live)))
	}).Should(Succeed())
	for i := range live.Items {
		found = append(found, &live.Items[i])
	}
	return found
}

// begun lets the first launch become slow, and returns the NodeClaim beside it, launched.
func (f *slow) begun() *karpv1.NodeClaim {
	f.t.Helper()
	f.clock.SetTime(f.machine.CreationTimestamp.Add(launchtime.MaxSlow))
	f.look(f.nodeClaim)
	return f.launchedBeside()
}

// launchedBeside launches the second NodeClaim as Karpenter core does.
func (f *slow) launchedBeside() *karpv1.NodeClaim {
	f.t.Helper()
	var second *karpv1.NodeClaim
	for _, n := range f.all() {
		if n.Name != f.nodeClaim.Name && n.DeletionTimestamp == nil {
			f.Expect(second).To(BeNil())
			second = n
		}
	}
	f.Expect(second).NotTo(BeNil())
	second.Finalizers = []string{karpv1.TerminationFinalizer}
	f.Expect(f.Admin.Update(f.t.Context(), second)).To(Succeed())
	m := f.machineOf(second)
	f.Settle(f.Management, m)
	second.Status.ProviderID = machine.SyntheticProviderID(client.ObjectKeyFromObject(m))
	f.update(second, karpv1.ConditionTypeLaunched)
	f.all()
	return second
}

// provisions gives a NodeClaim's Machine a provider ID.
func (f *slow) provisions(nodeClaim *karpv1.NodeClaim) {
	f.t.Helper()
	m, err := f.config.Machines.ForNodeClaim(f.t.Context(), nodeClaim.UID)
	f.Expect(err).NotTo(HaveOccurred())
	m = m.DeepCopy()
	before := m.DeepCopy()
	m.Spec.ProviderID = "cloud://" + m.Name
	f.Expect(f.Admin.Patch(f.t.Context(), m, client.MergeFrom(before))).To(Succeed())
	f.Settle(f.Management, m)
}

// remaining are the names of the NodeClaims that aren't being deleted.
func (f *slow) remaining() (names []string) {
	f.t.Helper()
	for _, n := range f.all() {
		if n.DeletionTimestamp == nil {
			names = append(names, n.Name)
		}
	}
	return names
}

// ended returns how many second launches of the template ended so.
func (f *slow) ended(outcome string) (count float64) {
	f.t.Helper()
	for _, metric := range measured(f, "karpenter_clusterapi_second_launches_total", map[string]string{"outcome": outcome, "template_source": f.template}) {
		count += metric.GetCounter().GetValue()
	}
	return count
}

func TestSecondLaunch(t *testing.T) {
	t.Run("When a launch is slow, another offering should be launched beside it once, for the same pods, and both should say so", func(t *testing.T) {
		f := newSlow(t)
		f.Expect(f.look(f.nodeClaim)).To(BeNumerically("<=", launchtime.MaxSlow))
		f.clock.Step(launchtime.MaxSlow - time.Second)
		f.Expect(f.look(f.nodeClaim)).To(Equal(time.Second))
		f.Expect(f.all()).To(HaveLen(1))
		second := f.begun()
		f.Expect(second.Spec).To(Equal(f.nodeClaim.Spec))
		f.Expect(second.Labels).To(Equal(map[string]string{karpv1.NodePoolLabelKey: f.nodePool.Name, "example.com/team": "web"}))
		f.Expect(second.Annotations).To(Equal(map[string]string{karpv1.NodePoolHashAnnotationKey: "4711", v1alpha1.SecondOfAnnotation: f.nodeClaim.Name}))
		f.Expect(second.Name).To(MatchRegexp("^" + f.nodePool.Name + "-[a-z0-9]{5}$"))
		for range 2 { // once each reports why it waits, and once Karpenter's timeout is extended
			f.clock.Step(10 * time.Second)
			f.look(f.nodeClaim)
			f.look(second)
		}
		versions := func() (all []string) {
			for _, n := range f.all() {
				all = append(all, n.ResourceVersion)
			}
			return all
		}
		before := versions()
		for range 3 {
			f.clock.Step(time.Second)
			f.look(f.nodeClaim)
			f.look(second)
		}
		f.Expect(versions()).To(Equal(before), "nothing changed, so nothing is written")
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchSlowReason}))
		said := "no provider ID for 10m0s (on-demand c4-large in zone a), where machines of template " + f.template + " usually take less: none has been seen yet; " +
			"also launching on-demand c4-large in zone b as NodeClaim " + second.Name
		f.Expect(f.recorder.Messages()[0]).To(Equal(said + "; the one whose machine comes first stays"))
		for _, n := range f.all() {
			condition := n.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned)
			f.Expect(condition).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", nodeclaim.LaunchSlowReason)))
			f.Expect(condition.Message).To(Equal(map[string]string{
				f.nodeClaim.Name: said,
				second.Name:      "launched beside NodeClaim " + f.nodeClaim.Name + ", whose machine takes longer than usual; the one whose machine comes first stays",
			}[n.Name]))
		}
	})

	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("When machines of the template usually come sooner, a launch should be slow sooner; after a restart: %t", restarted), func(t *testing.T) {
			f := newSlow(t)
			usual := f.NodeClaim(t.Context(), "usual")
			m := f.machineOf(usual)
			f.update(usual, karpv1.ConditionTypeLaunched)
			if restarted {
				f.clock.Step(24 * time.Hour)
				f.controller = nodeclaim.New(f.config)
			}
			before := m.DeepCopy()
			m.Spec.ProviderID, m.Annotations[v1alpha1.TemplateSourceAnnotation] = "cloud://usual", f.template
			f.Expect(f.Admin.Patch(t.Context(), m, client.MergeFrom(before))).To(Succeed())
			m.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready",
				LastTransitionTime: metav1.NewTime(m.CreationTimestamp.Add(80 * time.Second)),
			}}
			f.Expect(f.Admin.Status().Update(t.Context(), m)).To(Succeed())
			f.Settle(f.Management, m)
			f.clock.SetTime(m.CreationTimestamp.Add(map[bool]time.Duration{false: 80 * time.Second, true: 24 * time.Hour}[restarted]))
			f.look(usual)
			f.clock.SetTime(f.machine.CreationTimestamp.Time)
			f.Expect(f.look(f.nodeClaim)).To(Equal(4 * time.Minute))
			f.clock.Step(4*time.Minute + 12*time.Second)
			f.look(f.nodeClaim)
			f.Expect(f.recorder.Messages()).To(ConsistOf(And(ContainSubstring("no provider ID for 4m12s"), ContainSubstring("usually take 1m20s"))))
		})
	}

	t.Run("When the second machine comes first, the first should go, and its offering rest for the NodePool", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.provisions(second)
		f.look(second)
		f.Expect(f.remaining()).To(Equal([]string{second.Name}))
		entry, closed := f.rejections.Entry(f.nodePool.Name, onDemand)
		f.Expect(closed).To(BeTrue())
		f.Expect(entry.Reason).To(Equal(nodeclaim.LaunchSlowReason))
		f.Expect(f.unavailable.Has(onDemand)).To(BeFalse())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchSlowReason, nodeclaim.LaunchSlowReason}))
		f.Expect(f.recorder.Messages()[1]).To(And(ContainSubstring(second.Name), ContainSubstring("on-demand c4-large in zone a; not tried again before"), HaveSuffix("for NodePool "+f.nodePool.Name)))
		f.Expect(f.ended("second_won")).To(Equal(1.0))
		f.look(second)
		f.Expect(f.ended("second_won")).To(Equal(1.0))
	})

	t.Run("When an offering is slow three times in a row, it should rest for all NodePools", func(t *testing.T) {
		f := newSlow(t)
		for range offering.FailureThreshold - 1 {
			f.unavailable.CountFailure(onDemand, nodeclaim.LaunchSlowReason)
		}
		second := f.begun()
		f.provisions(second)
		f.look(second)
		f.Expect(f.unavailable.Has(onDemand)).To(BeTrue())
	})

	t.Run("When the first machine comes first, the second should go, and no offering rest", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.provisions(f.nodeClaim)
		f.look(f.nodeClaim)
		f.Expect(f.remaining()).To(Equal([]string{f.nodeClaim.Name}))
		f.Expect(f.rejections.Entries()).To(BeEmpty())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchSlowReason, nodeclaim.NotNeededReason}))
		f.Expect(f.recorder.Messages()[1]).To(ContainSubstring(f.nodeClaim.Name))
		f.Expect(f.ended("first_won")).To(Equal(1.0))
		f.Expect(second.Name).NotTo(BeEmpty())
	})

	t.Run("When the first fails at last, the second should stay", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.say(infrastructure(metav1.ConditionFalse, "InsufficientInstanceCapacity", ""))
		f.look(f.nodeClaim)
		f.provisions(second)
		f.look(second)
		f.Expect(f.remaining()).To(Equal([]string{second.Name}))
	})
}

func TestSecondLaunchRaces(t *testing.T) {
	t.Run("When both machines come at once, and both NodeClaims are reconciled together, the first should stay", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.provisions(f.nodeClaim)
		f.provisions(second)
		var both sync.WaitGroup
		for range 3 {
			for _, n := range f.all() {
				if n.DeletionTimestamp == nil {
					both.Go(func() { _, _ = f.controller.Reconcile(t.Context(), n) })
				}
			}
			both.Wait()
		}
		f.Expect(f.remaining()).To(Equal([]string{f.nodeClaim.Name}))
	})

	t.Run("When the winner is being deleted and the cache doesn't know, the other should stay", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.provisions(second)
		// The identity is known, so that this reconciliation decides about the two and writes nothing before.
		second.Status.ProviderID = "cloud://" + second.Name
		f.update(second, nodeclaim.ConditionMachineProvisioned)
		stale := f.all()
		f.Expect(f.Admin.Delete(t.Context(), second)).To(Succeed())
		for _, n := range stale {
			if n.Name == second.Name {
				_, err := f.controller.Reconcile(t.Context(), n)
				f.Expect(err).NotTo(HaveOccurred())
			}
		}
		f.Expect(f.remaining()).To(Equal([]string{f.nodeClaim.Name}))
	})

	t.Run("When both nodes have joined, both should stay", func(t *testing.T) {
		f := newSlow(t)
		second := f.begun()
		f.update(f.stored(), karpv1.ConditionTypeRegistered)
		f.all()
		f.provisions(second)
		f.look(second)
		f.Expect(f.remaining()).To(HaveLen(2))
	})

	t.Run("When several launches are slow, one should get another beside it at a time, also after a restart", func(t *testing.T) {
		f := newSlow(t)
		other := f.NodeClaim(t.Context(), "other")
		other.Labels[karpv1.NodePoolLabelKey] = f.nodePool.Name
		f.Expect(f.Admin.Update(t.Context(), other)).To(Succeed())
		m := f.machineOf(other)
		f.Settle(f.Management, m)
		f.update(other, karpv1.ConditionTypeLaunched)
		f.clock.SetTime(m.CreationTimestamp.Add(launchtime.MaxSlow))
		f.look(f.nodeClaim)
		f.Expect(f.look(other)).To(BeNumerically("<=", time.Minute), "the cache may not have the second NodeClaim yet")
		f.Expect(f.all()).To(HaveLen(3))
		f.controller = nodeclaim.New(f.config)
		f.look(other)
		f.Expect(f.all()).To(HaveLen(3))
		for _, n := range f.all() {
			if n.Annotations[v1alpha1.SecondOfAnnotation] != "" {
				f.Expect(f.Admin.Delete(t.Context(), n)).To(Succeed())
			}
		}
		f.Expect(f.all()).To(HaveLen(2))
		f.look(other)
		f.Expect(f.all()).To(HaveLen(3))
	})

	t.Run("When launches beside it fail, it should get three, one after the other", func(t *testing.T) {
		f := newSlow(t)
		f.clock.SetTime(f.machine.CreationTimestamp.Add(launchtime.MaxSlow))
		names := map[string]bool{}
		for range 5 {
			f.look(f.nodeClaim)
			for _, n := range f.all() {
				if n.Name != f.nodeClaim.Name {
					names[n.Name] = true
					f.Expect(f.Admin.Delete(t.Context(), n)).To(Succeed())
				}
			}
			f.all()
		}
		f.Expect(names).To(HaveLen(3))
		f.Expect(strings.Fields(f.stored().Annotations[v1alpha1.SecondLaunchesAnnotation])).To(HaveLen(3))
	})
}

func TestNoSecondLaunch(t *testing.T) {
	for name, change := range map[string]func(*slow){
		"there is no other offering": func(f *slow) { f.alternative = false },
		"the NodePool's limit leaves too little": func(f *slow) {
			f.nodePool.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("6")}
			f.usage = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		},
		"the NodePool's limit of nodes is reached": func(f *slow) {
			f.nodePool.Spec.Limits = karpv1.Limits{"nodes": resource.MustParse("1")}
			f.usage = corev1.ResourceList{"nodes": resource.MustParse("1")}
		},
		"the NodePool is static":                 func(f *slow) { f.nodePool.Spec.Replicas = ptr.To(int64(1)) },
		"the NodeClaim has no NodePool":          func(f *slow) { delete(f.nodeClaim.Labels, karpv1.NodePoolLabelKey) },
		"it may not be disrupted":                func(f *slow) { f.nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" },
		"it replaces a running node":             func(f *slow) { f.replacement = true },
		"replacements wait for terminated nodes": func(f *slow) { f.vacancies = 1 },
		"the machine is reserved": func(f *slow) {
			f.say(func(m *clusterv1.Machine) { m.Labels[v1alpha1.ReservationIDLabel] = "block" })
		},
		"it fills a vacancy": func(f *slow) {
			f.say(func(m *clusterv1.Machine) { m.Annotations[v1alpha1.ReplacesAnnotation] = "gone" })
		},
		"bootstrap data is missing": func(f *slow) { f.say(bootstrap("WaitingForControlPlane", "")) },
		"the Machine is paused": func(f *slow) {
			f.say(func(m *clusterv1.Machine) {
				m.Status.Conditions = []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: "Paused", LastTransitionTime: metav1.Now()}}
			})
		},
		"the Cluster's infrastructure isn't ready": func(f *slow) {
			f.infrastructure(metav1.ConditionFalse, "VCenterUnreachable", loginFailed)
		},
	} {
		t.Run("When "+name+", nothing should be launched beside a slow launch", func(t *testing.T) {
			f := newSlow(t, change)
			f.clock.SetTime(f.machine.CreationTimestamp.Add(launchtime.MaxSlow + time.Minute))
			f.look(f.nodeClaim)
			f.look(f.nodeClaim)
			all := &karpv1.NodeClaimList{}
			f.Expect(f.Admin.List(t.Context(), all)).To(Succeed())
			for _, n := range all.Items {
				f.Expect(n.Annotations[v1alpha1.SecondOfAnnotation]).NotTo(Equal(f.nodeClaim.Name))
			}
			f.Expect(f.stored().Annotations).NotTo(HaveKey(v1alpha1.SecondLaunchesAnnotation))
		})
	}

	t.Run("When Karpenter gives a launch up before it is slow, nothing should be launched beside it", func(t *testing.T) {
		f := newSlow(t)
		nodeClass := f.NodeClass(t.Context())
		nodeClass.Spec.Deadlines = minutes(5, 20)
		f.Expect(f.Admin.Update(t.Context(), nodeClass)).To(Succeed())
		f.Settle(f.Guest, nodeClass)
		f.Expect(f.look(f.nodeClaim)).To(BeNumerically("<=", 5*time.Minute))
		f.clock.Step(4*time.Minute + 59*time.Second)
		f.look(f.nodeClaim)
		f.Expect(f.all()).To(HaveLen(1))
	})

	t.Run("When the management cluster was away, the launch should have its time from then", func(t *testing.T) {
		f := newSlow(t)
		f.clock.Step(launchtime.MaxSlow - time.Minute)
		f.suspended = true
		f.look(f.nodeClaim)
		f.suspended = false
		f.clock.Step(2 * time.Minute)
		f.look(f.nodeClaim)
		f.Expect(f.all()).To(HaveLen(1))
	})
}

// dies lets a process begin a second launch, and another one end it, of which a call fails each. It returns how many calls there were.
func dies(t *testing.T, calls *environment.Calls) int64 {
	t.Helper()
	f := newSlow(t)
	failing := f.config
	failing.Guest, failing.GuestLive = calls.Client(f.Guest.GetClient()), calls.Client(f.Admin)
	f.clock.SetTime(f.machine.CreationTimestamp.Add(launchtime.MaxSlow))
	attempt := func(nodeClaim *karpv1.NodeClaim) {
		stored := &karpv1.NodeClaim{}
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), stored)).To(Succeed())
		_, _ = nodeclaim.New(failing).Reconcile(t.Context(), stored)
		f.all()
	}
	attempt(f.nodeClaim)
	for range 2 { // other processes
		f.controller = nodeclaim.New(f.config)
		f.look(f.nodeClaim)
		f.all()
	}
	second := f.launchedBeside()
	f.Expect(f.all()).To(HaveLen(2))
	f.provisions(second)
	attempt(second)
	if len(f.remaining()) > 1 {
		f.look(second)
	}
	f.Expect(f.remaining()).To(Equal([]string{second.Name}))
	return calls.Count()
}

func TestSecondLaunchReplay(t *testing.T) {
	for _, lost := range []bool{false, true} {
		what := map[bool]string{false: "fails", true: "takes place and its answer is lost"}[lost]
		t.Run(fmt.Sprintf("When any call %s and the process dies, the next should find one second launch, and end with one NodeClaim", what), func(t *testing.T) {
			calls := int64(1)
			for failAt := int64(1); failAt <= calls; failAt++ {
				t.Run(fmt.Sprint(failAt), func(t *testing.T) { calls = dies(t, &environment.Calls{FailAt: failAt, Lost: lost}) })
			}
			NewWithT(t).Expect(calls).To(BeNumerically(">", 10), "calls of an attempt")
		})
	}

	t.Run("When the process dies after it has named the second NodeClaim and the machine comes, nothing should be launched", func(t *testing.T) {
		f := newSlow(t)
		named := f.stored()
		metav1.SetMetaDataAnnotation(&named.ObjectMeta, v1alpha1.SecondLaunchesAnnotation, f.nodePool.Name+"-abcde")
		f.Expect(f.Admin.Update(t.Context(), named)).To(Succeed())
		f.clock.SetTime(f.machine.CreationTimestamp.Add(launchtime.MaxSlow))
		f.provisions(f.nodeClaim)
		f.look(f.nodeClaim)
		f.Expect(f.all()).To(HaveLen(1))
	})
}
