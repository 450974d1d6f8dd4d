// SPDX-License-Identifier: Apache-2.0

package wanted_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/wanted"
)

type inTime struct{}

// planner plays Karpenter core and the lease.
type planner struct {
	now, later scheduling.Results
	err        error
	// simulated counts plans, and each takes so long.
	simulated  int
	takes      time.Duration
	short      bool
	canReclaim bool
	pending    int
	wanted     map[capacity.Machine]int64
	clock      *clocktesting.FakeClock
}

func (p *planner) controller() *wanted.Controller {
	p.clock = clocktesting.NewFakeClock(time.Now())
	return wanted.New(wanted.Config{
		Short:      func() bool { return p.short },
		CanReclaim: func() bool { return p.canReclaim },
		Pending:    func(context.Context) (int, error) { return p.pending, nil },
		Simulate: func(ctx context.Context) (scheduling.Results, error) {
			p.simulated++
			p.clock.Step(p.takes)
			if ctx.Value(inTime{}) != nil {
				return p.later, p.err
			}
			return p.now, p.err
		},
		InTime: func(ctx context.Context) context.Context { return context.WithValue(ctx, inTime{}, true) },
		MachineOf: func(nodeClass, instanceType string, _ *karpcloudprovider.Offering) (capacity.Machine, bool) {
			return capacity.Machine{Offering: capacity.Offering{InstanceType: instanceType, Catalog: nodeClass}}, instanceType != "gone"
		},
		Want:  func(machines map[capacity.Machine]int64) { p.wanted = machines },
		Clock: p.clock,
	})
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

func instanceType(name string, price float64, available bool) *karpcloudprovider.InstanceType {
	return &karpcloudprovider.InstanceType{Name: name, Offerings: karpcloudprovider.Offerings{{
		Requirements: karpscheduling.NewLabelRequirements(map[string]string{corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand}),
		Price:        price, Available: available,
	}}}
}

// claim is one that Karpenter core plans for pods.
func claim(instanceTypes []*karpcloudprovider.InstanceType, pods ...*corev1.Pod) *scheduling.NodeClaim {
	c := &scheduling.NodeClaim{Pods: pods}
	c.InstanceTypeOptions, c.Requirements = instanceTypes, karpscheduling.NewRequirements()
	c.Spec.NodeClassRef = &karpv1.NodeClassReference{Name: "shared"}
	return c
}

func TestWanted(t *testing.T) {
	waits, fits := pod("waits"), pod("fits")
	sizes := []*karpcloudprovider.InstanceType{instanceType("dear", 2, true), instanceType("cheap", 1, true), instanceType("closed", 0.5, false)}
	want := map[capacity.Machine]int64{{Offering: capacity.Offering{InstanceType: "cheap", Catalog: "shared"}}: 1}
	for _, tc := range []struct {
		name    string
		planner planner
		want    map[capacity.Machine]int64
		// simulated is how many plans it takes.
		simulated int
	}{
		{"When a pod fits only once more is granted, it should request the cheapest machine for it", planner{
			short: true, pending: 2,
			now:   scheduling.Results{PodErrors: map[*corev1.Pod]error{waits: errors.New("no offering")}, NewNodeClaims: []*scheduling.NodeClaim{claim(sizes, fits)}},
			later: scheduling.Results{NewNodeClaims: []*scheduling.NodeClaim{claim(sizes, fits), claim(sizes, waits.DeepCopy())}},
		}, want, 2},
		{"When all pods get a node now, it should request nothing", planner{
			short: true, pending: 1, now: scheduling.Results{NewNodeClaims: []*scheduling.NodeClaim{claim(sizes, fits)}},
		}, nil, 1},
		{"When a pod waits for a node that isn't initialized, it should request nothing", planner{
			short: true, pending: 1,
			now: scheduling.Results{PodErrors: map[*corev1.Pod]error{fits: errors.New("uninitialized")}, ExistingNodes: []*scheduling.ExistingNode{{Pods: []*corev1.Pod{fits}}}},
		}, nil, 1},
		{"When Karpenter core waits for a reservation that it has just planned with, it should request nothing", planner{
			short: true, pending: 1, now: scheduling.Results{PodErrors: map[*corev1.Pod]error{waits: scheduling.NewReservedOfferingError(errors.New("limited"))}},
		}, nil, 1},
		{"When a reservation is full that other clusters have to return, it should request it", planner{
			short: true, canReclaim: true, pending: 1,
			now:   scheduling.Results{PodErrors: map[*corev1.Pod]error{waits: scheduling.NewReservedOfferingError(errors.New("full"))}},
			later: scheduling.Results{NewNodeClaims: []*scheduling.NodeClaim{claim(sizes, waits)}},
		}, want, 2},
		{"When the node class offers it no longer, it should request nothing", planner{
			short: true, pending: 1,
			now:   scheduling.Results{PodErrors: map[*corev1.Pod]error{waits: errors.New("no offering")}},
			later: scheduling.Results{NewNodeClaims: []*scheduling.NodeClaim{claim([]*karpcloudprovider.InstanceType{instanceType("gone", 1, true)}, waits)}},
		}, map[capacity.Machine]int64{}, 2},
		{"When the lease has room for everything, it should plan nothing", planner{pending: 1}, nil, 0},
		{"When no pod waits, it should plan nothing", planner{short: true}, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			result, err := tc.planner.controller().Reconcile(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(Equal(10 * time.Second))
			g.Expect(tc.planner.wanted).To(Equal(tc.want))
			g.Expect(tc.planner.simulated).To(Equal(tc.simulated))
		})
	}
	t.Run("When plans take long, it should plan less often, but before requests expire", func(t *testing.T) {
		g := NewWithT(t)
		p := &planner{short: true, pending: 1, takes: 3 * time.Second}
		c := p.controller()
		g.Expect(c.Reconcile(t.Context())).To(HaveField("RequeueAfter", 15*time.Second))
		p.takes = time.Minute
		g.Expect(c.Reconcile(t.Context())).To(HaveField("RequeueAfter", BeNumerically("<", division.LeftTTL)))
	})
	t.Run("When Karpenter core's state lags, it should look again soon, before requests expire", func(t *testing.T) {
		p := &planner{short: true, pending: 1, err: fmt.Errorf("planning: %w", wanted.ErrUnsynced)}
		NewWithT(t).Expect(p.controller().Reconcile(t.Context())).To(HaveField("RequeueAfter", time.Second))
	})
	t.Run("When Karpenter core can't plan, it should say so", func(t *testing.T) {
		p := &planner{short: true, pending: 1, err: errors.New("away")}
		_, err := p.controller().Reconcile(t.Context())
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("away")))
	})
}
