// SPDX-License-Identifier: Apache-2.0

package unneeded_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
)

// fixture is a NodePool with one NodeClaim whose machine was launched and hasn't joined.
type fixture struct {
	*environment.Environment
	*WithT
	t         *testing.T
	nodeClaim *karpv1.NodeClaim
	needed    sets.Set[string]
	asked     int
	failing   error
	suspended bool
	clock     *clocktesting.FakeClock
	recorder  *environment.Recorder
	*unneeded.Controller
}

func newFixture(t *testing.T, change func(*karpv1.NodePool, *karpv1.NodeClaim)) *fixture {
	t.Helper()
	f := &fixture{Environment: environment.New(t), WithT: NewWithT(t), t: t, clock: clocktesting.NewFakeClock(time.Now()), recorder: &environment.Recorder{}}
	nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: f.Namespace}}
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	nodePool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1h")
	f.nodeClaim = f.NodeClaim(t.Context(), "waits")
	f.nodeClaim.Labels[karpv1.NodePoolLabelKey] = nodePool.Name
	change(nodePool, f.nodeClaim)
	f.Expect(f.Admin.Create(t.Context(), nodePool)).To(Succeed())
	t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), nodePool) })
	status := f.nodeClaim.Status.DeepCopy()
	f.Expect(f.Admin.Update(t.Context(), f.nodeClaim)).To(Succeed())
	f.nodeClaim.Status = *status
	f.update(f.nodeClaim, karpv1.ConditionTypeLaunched)
	f.needed = sets.New[string]()
	f.Controller = unneeded.New(unneeded.Config{
		Guest: f.Admin,
		Needed: func(_ context.Context, waiting []*karpv1.NodeClaim) (sets.Set[string], error) {
			for _, nodeClaim := range waiting {
				if nodeClaim.Name == f.nodeClaim.Name {
					f.asked++
				}
			}
			return f.needed, f.failing
		},
		Suspended: func() bool { return f.suspended },
		Recorder:  f.recorder,
		Clock:     f.clock,
	})
	return f
}

// update sets conditions of a NodeClaim.
func (f *fixture) update(nodeClaim *karpv1.NodeClaim, conditions ...string) {
	f.t.Helper()
	for _, condition := range conditions {
		nodeClaim.StatusConditions().SetTrue(condition)
	}
	f.Expect(f.Admin.Status().Update(f.t.Context(), nodeClaim)).To(Succeed())
}

// pass lets time pass, with a look every ten seconds.
func (f *fixture) pass(d time.Duration) {
	f.t.Helper()
	for ; d > 0; d -= 10 * time.Second {
		f.clock.Step(10 * time.Second)
		_, err := f.Reconcile(f.t.Context(), reconcile.Request{})
		if err != nil && !errors.Is(err, f.failing) {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) gone() bool {
	f.t.Helper()
	err := f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), &karpv1.NodeClaim{})
	if client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	return apierrors.IsNotFound(err)
}

func TestSurplus(t *testing.T) {
	unchanged := func(*karpv1.NodePool, *karpv1.NodeClaim) {}

	t.Run("When no pod waits for a NodeClaim whose node hasn't joined, it should be given up within a minute, and not at once", func(t *testing.T) {
		f := newFixture(t, unchanged)
		f.pass(30 * time.Second)
		f.Expect(f.gone()).To(BeFalse())
		f.pass(30 * time.Second)
		f.Expect(f.gone()).To(BeTrue())
		f.Expect(f.recorder.Reasons()).To(Equal([]string{unneeded.NotNeededReason}))
		// kubernetes-sigs/cluster-api#7237: the node may have joined, and its Machine have no provider ID yet.
		f.Expect(f.recorder.Messages()).To(ConsistOf(ContainSubstring("Karpenter hasn't registered its node")))
	})

	t.Run("When a pod waits for it now and then, it should stay", func(t *testing.T) {
		f := newFixture(t, unchanged)
		for range 6 {
			f.needed = sets.New(f.nodeClaim.Name)
			f.pass(10 * time.Second)
			f.needed = sets.New[string]()
			f.pass(20 * time.Second)
		}
		f.Expect(f.gone()).To(BeFalse())
		f.Expect(f.asked).To(BeNumerically(">", 10))
	})

	t.Run("When the scheduler can't be asked, it should stay, and go once it can", func(t *testing.T) {
		f := newFixture(t, unchanged)
		f.failing = errors.New("no answer")
		f.pass(5 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
		f.failing = nil
		f.pass(30 * time.Second)
		f.Expect(f.gone()).To(BeTrue())
	})

	t.Run("When another process may decide by now, it should stay", func(t *testing.T) {
		f := newFixture(t, unchanged)
		f.suspended = true
		f.pass(5 * time.Minute)
		f.Expect(f.gone()).To(BeFalse())
	})

	t.Run("When its node joins just then, it should stay", func(t *testing.T) {
		f := newFixture(t, unchanged)
		f.pass(30 * time.Second)
		f.Expect(f.gone()).To(BeFalse())
		f.Controller.Guest = lagging{f.Admin, f.nodeClaim.DeepCopy()}
		f.update(f.nodeClaim, karpv1.ConditionTypeRegistered)
		f.pass(time.Minute)
		f.Expect(f.gone()).To(BeFalse())
	})

	for name, change := range map[string]func(*karpv1.NodePool, *karpv1.NodeClaim){
		"its NodePool is static": func(p *karpv1.NodePool, _ *karpv1.NodeClaim) { p.Spec.Replicas = ptr.To(int64(1)) },
		"its NodePool never consolidates": func(p *karpv1.NodePool, _ *karpv1.NodeClaim) {
			p.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
		},
		"its NodePool is another provider's": func(p *karpv1.NodePool, _ *karpv1.NodeClaim) {
			p.Spec.Template.Spec.NodeClassRef.Group = "karpenter.k8s.aws"
		},
		"it has no NodePool": func(_ *karpv1.NodePool, c *karpv1.NodeClaim) { delete(c.Labels, karpv1.NodePoolLabelKey) },
		"an annotation forbids its disruption": func(_ *karpv1.NodePool, c *karpv1.NodeClaim) {
			c.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
		},
	} {
		t.Run("When "+name+", it should stay", func(t *testing.T) {
			f := newFixture(t, change)
			f.pass(2 * time.Minute)
			f.Expect(f.gone()).To(BeFalse())
			f.Expect(f.asked).To(BeZero())
		})
	}
}

// lagging is a client whose cache hasn't seen what happened to a NodeClaim.
type lagging struct {
	client.Client
	seen *karpv1.NodeClaim
}

// List implements client.Reader.
func (l lagging) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if claims, ok := list.(*karpv1.NodeClaimList); ok {
		claims.Items = []karpv1.NodeClaim{*l.seen}
		return nil
	}
	return l.Client.List(ctx, list, opts...)
}
