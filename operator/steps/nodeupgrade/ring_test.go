// SPDX-License-Identifier: Apache-2.0

package nodeupgrade_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeupgrade"
)

const day = 24 * time.Hour

// after waits for the HostedClusters of a ring, for a day.
func after(ring string) v1beta1.NodeUpgradeAfter {
	return v1beta1.NodeUpgradeAfter{
		HostedClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"ring": ring}},
		SoakDuration:          scalar.Duration{Duration: day},
	}
}

// member is a HostedCluster of a ring with three nodes, which waits for others.
func member(name, ring string, rings ...v1beta1.NodeUpgradeAfter) *v1beta1.HostedCluster {
	return &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Labels: map[string]string{"ring": ring}},
		Spec:       v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{NodeUpgrade: &v1beta1.NodeUpgrade{After: rings}}},
		Status: v1beta1.HostedClusterStatus{
			AutoNode: &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateEnabled, NodeCount: ptr.To[int32](3)}, Version: &v1beta1.VersionStatus{},
		},
	}
}

// completes has it complete a release at a time, and be Ready from another one on.
func completes(t *testing.T, hostedCluster *v1beta1.HostedCluster, image, when, ready string) {
	t.Helper()
	entry := completed(image, "1.37.1")
	entry.CompletionTime = ptr.To(scalar.NewTime(at(t, when)))
	hostedCluster.Status.Version.History = []v1beta1.UpdateHistory{entry}
	hostedCluster.Status.Conditions = []metav1.Condition{{Type: v1beta1.Ready, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(t, ready))}}
}

func inMemory(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// ringed is blue, which wants release C after a ring of green and teal. These have completed it 27 and 25 hours ago.
type ringed struct {
	*fixture
	blue, green, teal *v1beta1.HostedCluster
}

func newRinged(t *testing.T) *ringed {
	t.Helper()
	f := proving(t)
	f.HostedCluster.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{After: []v1beta1.NodeUpgradeAfter{after("canary")}}
	f.HostedCluster.Status.Version.Desired = &v1beta1.DesiredVersion{Version: "4.20.1", NodeVersion: "1.37.1", Image: releaseC}
	r := &ringed{fixture: f, blue: f.HostedCluster, green: member("green", "canary"), teal: member("teal", "canary")}
	completes(t, r.green, "mirror.example/release@sha256:cccc", "2026-11-24T09:00:00Z", "2026-11-23T09:00:00Z")
	completes(t, r.teal, releaseC, "2026-11-24T11:00:00Z", "2026-11-23T09:00:00Z")
	return r
}

func (r *ringed) reconcile(t *testing.T) scope.Result {
	t.Helper()
	other := member("elsewhere", "canary")
	other.Namespace = "others"
	r.step.Management = inMemory(t, r.green, r.teal, other, member("violet", "late"))
	return r.fixture.reconcile(t)
}

func TestRing(t *testing.T) {
	const waits = "release 4.20.1 waits for its ring: "
	none := waits + "no HostedCluster with ring=canary has nodes and isn't deleted, paused, asleep or halted by pods"
	both := func(change func(*v1beta1.HostedCluster)) func(*testing.T, *ringed) {
		return func(_ *testing.T, r *ringed) {
			change(r.green)
			change(r.teal)
		}
	}
	halted := func(failed ...string) func(*testing.T, *ringed) {
		return func(_ *testing.T, r *ringed) {
			r.teal.Status.Version = &v1beta1.VersionStatus{NodeUpgrade: status(releaseC, v1alpha1.NodeUpgradeHalted, failed...)}
		}
	}
	for _, c := range []struct {
		name    string
		change  func(*testing.T, *ringed)
		waits   string
		requeue time.Duration
	}{
		{name: "When each has completed it and soaked, nodes should get it", change: func(*testing.T, *ringed) {}},
		{name: "When one hasn't completed it, it should name that", waits: waits + "HostedCluster teal hasn't completed it", requeue: 10 * time.Minute, change: func(_ *testing.T, r *ringed) {
			r.teal.Status.Version.History = []v1beta1.UpdateHistory{partial(releaseC), completed(releaseA, "1.36.3")}
		}},
		{name: "When one has completed it less than a soak ago, it should wake at its end", waits: waits + "HostedCluster teal soaks until Wed 25 Nov 12:05:00 UTC", requeue: 5 * time.Minute, change: func(t *testing.T, r *ringed) {
			completes(t, r.teal, releaseC, "2026-11-24T12:05:00Z", "2026-11-23T09:00:00Z")
		}},
		{name: "When one became Ready after it, the soak should begin then", waits: waits + "HostedCluster teal soaks until Thu 26 Nov 11:00:00 UTC", requeue: 10 * time.Minute, change: func(t *testing.T, r *ringed) {
			completes(t, r.teal, releaseC, "2026-11-24T09:00:00Z", "2026-11-25T11:00:00Z")
		}},
		{name: "When one isn't Ready, it should say so", waits: waits + "HostedCluster teal isn't Ready", requeue: 10 * time.Minute, change: func(_ *testing.T, r *ringed) {
			r.teal.Status.Conditions[0].Status = metav1.ConditionFalse
		}},
		{name: "When one went on after the soak, it should have proved it, whatever is with the next release", change: func(t *testing.T, r *ringed) {
			next := partial("next")
			next.StartedTime = scalar.NewTime(at(t, "2026-11-25T11:00:00Z"))
			r.teal.Status.Version.History = append([]v1beta1.UpdateHistory{next}, r.teal.Status.Version.History...)
			r.teal.Status.Conditions[0].Status = metav1.ConditionFalse
		}},
		{name: "When one went on before the soak's end, it should not have proved it", waits: waits + "HostedCluster teal went on to another release before it had soaked", requeue: 10 * time.Minute, change: func(t *testing.T, r *ringed) {
			next := partial("next")
			next.StartedTime = scalar.NewTime(at(t, "2026-11-25T10:59:59Z"))
			r.teal.Status.Version.History = append([]v1beta1.UpdateHistory{next}, r.teal.Status.Version.History...)
		}},
		{name: "When one went back after the soak, it should not have proved it", waits: waits + "HostedCluster teal went back from it to release ", requeue: 10 * time.Minute, change: func(t *testing.T, r *ringed) {
			back := partial(releaseA)
			back.StartedTime = scalar.NewTime(at(t, "2026-11-25T11:00:00Z"))
			r.teal.Status.Version.History = append(append([]v1beta1.UpdateHistory{back}, r.teal.Status.Version.History...), completed(releaseA, "1.36.3"))
		}},
		{name: "When failed nodes halt one, it should name the first", waits: waits + "HostedCluster teal hasn't completed it: failed are a/LaunchTimeout and 1 more", requeue: 10 * time.Minute, change: halted("a/LaunchTimeout", "b/LaunchTimeout")},
		{name: "When pods halt one, the others should decide", change: halted()},
		{name: "When another release is halted by pods after the soak, it should have proved it", change: func(_ *testing.T, r *ringed) {
			r.teal.Status.Version.NodeUpgrade = status("next", v1alpha1.NodeUpgradeHalted)
		}},
		{name: "When all are halted by pods, it should wait", waits: none, requeue: 10 * time.Minute, change: func(t *testing.T, r *ringed) {
			halted()(t, r)
			r.green.Status.Version = r.teal.Status.Version
		}},
		{name: "When none uses AutoNode, it should wait", waits: none, requeue: 10 * time.Minute, change: both(func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = nil })},
		{name: "When none has nodes, it should wait", waits: none, requeue: 10 * time.Minute, change: both(func(hc *v1beta1.HostedCluster) { hc.Status.AutoNode.NodeCount = ptr.To[int32](0) })},
		{name: "When all are asleep, it should wait", waits: none, requeue: 10 * time.Minute, change: both(func(hc *v1beta1.HostedCluster) { hc.Status.AutoNode.Sleep = &v1beta1.SleepStatus{} })},
		{name: "When all are being deleted, it should wait", waits: none, requeue: 10 * time.Minute, change: both(func(hc *v1beta1.HostedCluster) {
			hc.DeletionTimestamp, hc.Finalizers = ptr.To(metav1.Now()), []string{v1beta1.HostedClusterFinalizer}
		})},
		{name: "When all are new, it should wait", waits: none, requeue: 10 * time.Minute, change: both(func(hc *v1beta1.HostedCluster) { hc.Status = v1beta1.HostedClusterStatus{} })},
		{name: "When one is paused, the others should decide", change: func(_ *testing.T, r *ringed) {
			r.teal.Status.Version, r.teal.Status.AutoNode.State = nil, v1beta1.AutoNodeStatePaused
		}},
		{name: "When one ring of two lacks it, it should name both rings' problems", requeue: 5 * time.Minute, waits: waits + "HostedCluster teal soaks until Wed 25 Nov 12:05:00 UTC; HostedCluster violet hasn't completed it", change: func(t *testing.T, r *ringed) {
			completes(t, r.teal, releaseC, "2026-11-24T12:05:00Z", "2026-11-23T09:00:00Z")
			r.blue.Spec.AutoNode.NodeUpgrade.After = append(r.blue.Spec.AutoNode.NodeUpgrade.After, after("late"))
		}},
		{name: "When it has completed the release itself, it should wait for none", change: func(t *testing.T, r *ringed) {
			r.green.Status, r.teal.Status = v1beta1.HostedClusterStatus{}, v1beta1.HostedClusterStatus{}
			r.blue.Status.Version.History = append(r.blue.Status.Version.History, completed(releaseC, "1.37.1"))
		}},
		{name: "When it is its first release, it should wait for none", change: func(t *testing.T, r *ringed) {
			r.green.Status, r.teal.Status = v1beta1.HostedClusterStatus{}, v1beta1.HostedClusterStatus{}
			r.blue.Status.Version.History = []v1beta1.UpdateHistory{partial(releaseC)}
		}},
		{name: "When releases are the operator's default, their versions should count", waits: waits + "HostedCluster teal hasn't completed it", requeue: 10 * time.Minute, change: func(t *testing.T, r *ringed) {
			r.blue.Status.Version.Desired.Source = v1beta1.ReleaseSourceDefault
			r.green.Status.Version.History[0].Version, r.teal.Status.Version.History[0].Version = "4.20.1", "4.20.0"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, r := NewWithT(t), newRinged(t)
			c.change(t, r)
			result := r.reconcile(t)
			g.Expect(result.Wait).To(BeFalse())
			g.Expect(r.NodeUpgrade.Waits).To(Equal(c.waits))
			g.Expect(r.NodeUpgrade.Ring).To(Equal(c.waits != ""))
			g.Expect(r.NodeUpgrade.Hold).To(Equal(c.waits != ""))
			g.Expect(result.RequeueAfter).To(Equal(c.requeue))
			if c.waits == "" {
				r.gives("1.37.1")(g)
				g.Expect(r.NodeUpgrade.Plan).To(BeNil(), "it has nothing to prove")
			} else {
				r.gives("1.36.3")(g)
				from := upgradeplan.Release{Image: releaseA, Version: "1.36.3"}
				g.Expect(r.NodeUpgrade.Plan).To(And(HaveField("To", from), HaveField("From", from)))
			}
			g.Expect(r.step.Observe(t.Context(), r.Scope)).To(Succeed())
			g.Expect(r.NodeUpgrade.Waits).To(Equal(c.waits), "also while a step before waits")
		})
	}
}

// TestRingStory restarts the operator, which has no memory, before each step.
func TestRingStory(t *testing.T) {
	r := newRinged(t)
	r.blue.Spec.AutoNode.NodeUpgrade.Policy = v1beta1.NodeUpgradeManual
	r.blue.Spec.AutoNode.NodeUpgrade.Canary = &v1beta1.NodeUpgradeCanary{Nodes: 1}
	r.teal.Status.Version.History = []v1beta1.UpdateHistory{partial(releaseC)}
	from, to := upgradeplan.Release{Image: releaseA, Version: "1.36.3"}, upgradeplan.Release{Image: releaseC, Version: "1.37.1"}
	step := func(name string, change func(t *testing.T), expect func(g *WithT)) {
		t.Run(name, func(t *testing.T) {
			config := r.step.Config
			r.step = nodeupgrade.New(config)
			change(t)
			r.reconcile(t)
			expect(NewWithT(t))
		})
	}
	held := func(g *WithT, waits string) {
		r.gives("1.36.3")(g)
		g.Expect(r.NodeUpgrade.Waits).To(ContainSubstring(waits))
		g.Expect(r.NodeUpgrade.Plan.To).To(Equal(from))
		g.Expect(r.blue.Status.Version.NodeUpgrade).To(BeNil())
	}
	reports := func(phase v1alpha1.NodeUpgradePhase, failed ...string) {
		r.reports(provider.NodeClassReport{Default: true, Upgrade: status(releaseC, phase, failed...)})
	}
	step("When the version isn't approved, it should wait for that first", func(*testing.T) {}, func(g *WithT) { held(g, "approve with") })
	step("When it is approved, it should wait for the ring", func(*testing.T) { r.approve("1.37.1") }, func(g *WithT) { held(g, "teal hasn't completed it") })
	step("When the ring has completed it, it should wait for the soak", func(t *testing.T) {
		completes(t, r.teal, releaseC, "2026-11-25T12:00:00Z", "2026-11-23T09:00:00Z")
	}, func(g *WithT) { held(g, "teal soaks until Thu 26 Nov 12:00:00 UTC") })
	step("When the ring has soaked, its canaries should begin", func(*testing.T) { r.clock.SetTime(r.clock.Now().Add(day)) }, func(g *WithT) {
		r.gives("1.37.1")(g)
		g.Expect(r.NodeUpgrade.Ring).To(BeFalse())
		g.Expect(r.NodeUpgrade.Plan).To(And(HaveField("To", to), HaveField("From", from), HaveField("Canaries", 1)))
	})
	step("When its canaries fail, it should halt", func(*testing.T) { reports(v1alpha1.NodeUpgradeHalted, "general-a/LaunchTimeout") }, func(g *WithT) {
		g.Expect(r.NodeUpgrade.Progress.Phase).To(Equal(v1alpha1.NodeUpgradeHalted))
	})
	step("When the ring fails after that, it should keep its own halt", func(*testing.T) { r.teal.Status.Conditions[0].Status = metav1.ConditionFalse }, func(g *WithT) {
		g.Expect(r.NodeUpgrade.Ring).To(BeFalse())
		g.Expect(r.blue.Status.Version.NodeUpgrade.FailedNodes).To(HaveLen(1))
	})
	step("When it is completed, nothing should be left to wait for", func(*testing.T) {
		reports(v1alpha1.NodeUpgradeRolling)
		r.blue.Status.Version.History[0] = completed(releaseC, "1.37.1")
	}, func(g *WithT) {
		r.gives("1.37.1")(g)
		g.Expect(r.NodeUpgrade.Ring).To(BeFalse())
		g.Expect(r.blue.Status.Version.NodeUpgrade).To(BeNil())
	})
}

func TestRingOfOneVersion(t *testing.T) {
	t.Run("When only the images of the release are others, launches should still get the former's, and a begun roll stop without going back", func(t *testing.T) {
		g, r := NewWithT(t), newRinged(t)
		r.blue.Status.Version.NodeVersion = "1.37.1"
		r.blue.Status.Version.History[2].NodeVersion = "1.37.1"
		r.teal.Status.Version = nil
		r.reconcile(t)
		r.gives("1.37.1")(g)
		g.Expect(r.NodeUpgrade.Plan.To.Image).To(Equal(releaseA))

		r.blue.Status.Version.History[2].NodeVersion = "1.36.3"
		r.reconcile(t)
		r.gives("1.37.1")(g)
		g.Expect(r.NodeUpgrade.Plan).To(BeNil())
		g.Expect(r.NodeUpgrade.Hold).To(BeTrue())
	})
	t.Run("When a completed release comes back while the window is closed, nodes should keep their version", func(t *testing.T) {
		g, f := NewWithT(t), proving(t)
		f.HostedCluster.Spec.AutoNode.NodeUpgrade = window()
		f.HostedCluster.Spec.AutoNode.NodeUpgrade.Canary = &v1beta1.NodeUpgradeCanary{Nodes: 1}
		f.HostedCluster.Status.Version.History = append(f.HostedCluster.Status.Version.History, completed(releaseC, "1.37.1"))
		f.reconcile(t)
		f.gives("1.36.3")(g)
		g.Expect(f.NodeUpgrade.Plan).To(BeNil())
	})
}

func TestCheckRings(t *testing.T) {
	const field = "spec.autoNode.nodeUpgrade.after[0].hostedClusterSelector: "
	everything := after("")
	everything.HostedClusterSelector = metav1.LabelSelector{}
	unequal := after("")
	unequal.HostedClusterSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "ring", Operator: "Equals"}}}
	for _, c := range []struct {
		name   string
		blue   *v1beta1.HostedCluster
		others []*v1beta1.HostedCluster
		want   string
	}{
		{name: "When it waits for one that waits for another, it should be valid", blue: member("blue", "c", after("b")), others: []*v1beta1.HostedCluster{member("green", "b", after("a")), member("teal", "a")}},
		{name: "When it waits for a cycle of others, these should be invalid, and not it", blue: member("blue", "c", after("b")), others: []*v1beta1.HostedCluster{member("green", "b", after("a")), member("teal", "a", after("b"))}},
		{name: "When another one's selector can't be read, it should be valid", blue: member("blue", "c", after("b")), others: []*v1beta1.HostedCluster{member("green", "b", unequal, everything)}},
		{name: "When it selects itself, it should say so", blue: member("blue", "a", after("a")), want: "spec.autoNode.nodeUpgrade.after is a cycle, as HostedCluster blue waits for this one"},
		{
			name: "When one that it waits for waits for it, it should name that", blue: member("blue", "c", after("b")), want: "spec.autoNode.nodeUpgrade.after is a cycle, as HostedCluster teal waits for this one",
			others: []*v1beta1.HostedCluster{member("green", "b", after("a")), member("teal", "a", after("x"), after("c"))},
		},
		{name: "When the selector is empty, it should say so", blue: member("blue", "a", everything), want: field + "it may not be empty"},
		{name: "When the selector can't be read, it should say so", blue: member("blue", "a", unequal), want: field + `"Equals" is not a valid label selector operator`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, management := NewWithT(t), inMemory(t, c.blue)
			for _, other := range c.others {
				g.Expect(management.Create(t.Context(), other)).To(Succeed())
			}
			err := nodeupgrade.Check(t.Context(), management, c.blue, &provider.Profile{HoldsUpgrades: true})
			if c.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			}
		})
	}
}

func TestRingChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1beta1.HostedCluster)
		want   bool
	}{
		"When a release is completed, it should wake those that wait": {func(hc *v1beta1.HostedCluster) {
			completes(t, hc, releaseC, "2026-11-24T09:00:00Z", "2026-11-24T09:00:00Z")
		}, true},
		"When its labels change, it should wake those that wait": {func(hc *v1beta1.HostedCluster) { hc.Labels["ring"] = "late" }, true},
		"When it waits for others, it should wake those that wait": {func(hc *v1beta1.HostedCluster) {
			hc.Spec.AutoNode.NodeUpgrade.After = []v1beta1.NodeUpgradeAfter{after("a")}
		}, true},
		"When its last node goes, it should wake those that wait": {func(hc *v1beta1.HostedCluster) { hc.Status.AutoNode.NodeCount = nil }, true},
		"When it becomes Ready, it should wake those that wait": {func(hc *v1beta1.HostedCluster) {
			hc.Status.Conditions = []metav1.Condition{{Type: v1beta1.Ready, Status: "True"}}
		}, true},
		"When it has a node more, it should wake none":                 {func(hc *v1beta1.HostedCluster) { *hc.Status.AutoNode.NodeCount++ }, false},
		"When the message of a condition changes, it should wake none": {func(hc *v1beta1.HostedCluster) { hc.Status.AutoNode.Message = "3 of 4" }, false},
		"When another field of its spec changes, it should wake none":  {func(hc *v1beta1.HostedCluster) { hc.Spec.InfraID = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := member("green", "canary")
			now := before.DeepCopy()
			c.change(now)
			NewWithT(t).Expect(nodeupgrade.RingChanged(before, now)).To(Equal(c.want))
		})
	}
}
