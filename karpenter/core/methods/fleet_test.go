// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/reclaim"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

const pool = "reservation/cr-1"

// reclaimProvider offers one instance type.
type reclaimProvider struct{ classed }

func (reclaimProvider) Name() string                                     { return "test" }
func (reclaimProvider) RepairPolicies() []karpcloudprovider.RepairPolicy { return nil }

func (reclaimProvider) GetInstanceTypes(context.Context, *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	requirements := karpscheduling.NewLabelRequirements(map[string]string{corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand})
	return []*karpcloudprovider.InstanceType{{
		Name: "c4", Capacity: room("4"), Overhead: &karpcloudprovider.InstanceTypeOverhead{},
		Requirements: karpscheduling.NewLabelRequirements(map[string]string{corev1.LabelInstanceTypeStable: "c4", corev1.LabelTopologyZone: "a"}),
		Offerings:    karpcloudprovider.Offerings{{Requirements: requirements, Price: 1, Available: true}},
	}}, nil
}

// guest has five nodes, n0 to n4, whose machines take one of the pool each, unless taken has another amount. n0 has the most pods, n4 none.
type guest struct {
	budget string
	taken  map[string]int64
	steps  []division.Reclaim
	// pdb: no pod may be evicted. change changes a node, its NodeClaim and each of its pods.
	pdb    bool
	change func(name string, node *corev1.Node, claim *karpv1.NodeClaim, pod *corev1.Pod)
}

func (g *guest) objects() []client.Object {
	objects := []client.Object{newPool(g.budget)}
	for i := range 5 {
		name := fmt.Sprintf("n%d", i)
		node, claim := newNode(name, "c4", karpv1.CapacityTypeOnDemand, room("4"))
		for j := range 4 - i {
			pod := newPod(name, fmt.Sprintf("%s-%d", name, j))
			pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
			if g.change != nil {
				g.change(name, node, claim, pod)
			}
			objects = append(objects, pod)
		}
		objects = append(objects, node, claim)
	}
	if g.pdb {
		objects = append(objects, evictsNone())
	}
	return objects
}

// removed runs Karpenter core's disruption controller once at a time, and returns the NodeClaims that it has deleted.
func (g *guest) removed(t *testing.T, now time.Time) ([]karpv1.NodeClaim, *environment.Recorder) {
	t.Helper()
	expect, objects, recorder := NewWithT(t), g.objects(), &environment.Recorder{}
	cluster := newGuest(objects...)
	core := newCore(t, coreConfig{Guest: cluster, CloudProvider: reclaimProvider{}, Recorder: recorder, Clock: clocktesting.NewFakeClock(now)}, objects)
	reclaiming := reclaim.New(reclaim.Config{
		Core: methods.Core{Guest: cluster, Cluster: core.State, Recorder: recorder, Clock: core.Clock},
		Reclaims: func() (string, division.Reclaims) {
			if g.steps == nil {
				return "", nil
			}
			return "production", division.Reclaims{pool: g.steps}
		},
		Taken: func(nodeClaim string) division.Amounts {
			if amount, ok := g.taken[nodeClaim]; ok {
				return division.Amounts{pool: amount}
			}
			return division.Amounts{pool: 1}
		},
	})
	for _, command := range core.disrupt(t, []disruption.Method{reclaiming}) {
		expect.Expect(command.Reason()).To(Equal(reclaim.CapacityReclaimed))
		expect.Expect(command.Replacements).To(BeEmpty())
	}
	all := &karpv1.NodeClaimList{}
	expect.Expect(cluster.List(t.Context(), all)).To(Succeed())
	return slices.DeleteFunc(all.Items, func(c karpv1.NodeClaim) bool { return c.DeletionTimestamp == nil }), recorder
}

func TestReclaims(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	now := time.Unix(1_000_000, 0)
	before, after := now.Add(10*time.Minute), now.Add(-time.Minute)
	keep := func(amount int64, by time.Time) []division.Reclaim {
		return []division.Reclaim{{Limit: amount, By: by, For: []string{"clusters/blue"}}}
	}
	annotated := func(name string, _ *corev1.Node, _ *karpv1.NodeClaim, pod *corev1.Pod) {
		if name == "n3" {
			pod.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
		}
	}
	heldNode := func(name string, node *corev1.Node, _ *karpv1.NodeClaim, _ *corev1.Pod) {
		if name == "n3" {
			node.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
		}
	}
	leaving := func(name string, node *corev1.Node, claim *karpv1.NodeClaim, _ *corev1.Pod) {
		if name == "n0" {
			claim.DeletionTimestamp = &metav1.Time{Time: now}
		}
	}
	for _, tc := range []struct {
		name  string
		guest guest
		want  []string
	}{
		{"When nothing is to be returned, it should remove none", guest{budget: "5"}, nil},
		{"When the cluster keeps no more than it may, it should remove none", guest{budget: "5", steps: keep(5, before)}, nil},
		{"When it keeps more, it should remove the nodes that are the cheapest to disrupt, and no more", guest{budget: "5", steps: keep(3, before)}, []string{"n3", "n4"}},
		{"When the NodePool's budget allows one, it should remove one", guest{budget: "1", steps: keep(3, before)}, []string{"n4"}},
		{"When a node is being removed already, it should count as returned", guest{budget: "5", steps: keep(3, before), change: leaving}, []string{"n0", "n4"}},
		{"When a PodDisruptionBudget blocks pods, their nodes should stay before the deadline", guest{budget: "5", steps: keep(3, before), pdb: true}, []string{"n4"}},
		{"When a pod may not be disrupted, its node should stay before the deadline", guest{budget: "5", steps: keep(3, before), change: annotated}, []string{"n2", "n4"}},
		{"When a node may not be disrupted, it should stay before the deadline", guest{budget: "5", steps: keep(3, before), change: heldNode}, []string{"n2", "n4"}},
		{"When the deadline has passed, blocked nodes should go too, beyond the budget", guest{budget: "0", steps: keep(3, after), pdb: true}, []string{"n3", "n4"}},
		{"When the deadline has passed for a part, only that should go by force",
			guest{budget: "0", steps: append(keep(4, after), keep(2, before)...)}, []string{"n4"}},
		{"When a machine takes more than is to be returned, it should remove those that take less", guest{budget: "5", steps: keep(11, before),
			taken: map[string]int64{"claim-n4": 8}}, []string{"n3"}},
		{"When each takes more than is to be returned, it should remove the one that takes the least", guest{budget: "5", steps: keep(20, before),
			taken: map[string]int64{"claim-n0": 4, "claim-n1": 3, "claim-n2": 4, "claim-n3": 4, "claim-n4": 8}}, []string{"n1"}},
		{"When a machine takes nothing of the pool, it should stay", guest{budget: "5", steps: keep(3, before), taken: map[string]int64{"claim-n4": 0}}, []string{"n3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			removed, recorder := tc.guest.removed(t, now)
			var names []string
			for i := range removed {
				names = append(names, removed[i].Status.NodeName)
			}
			g.Expect(names).To(ConsistOf(tc.want))
			if tc.guest.steps != nil && len(tc.want) > 0 {
				g.Expect(recorder.Reasons()).To(ContainElement(string(reclaim.CapacityReclaimed)))
				g.Expect(recorder.Messages()).To(ContainElement(And(ContainSubstring("clusters/blue"), ContainSubstring(pool), ContainSubstring("production"))))
			}
		})
	}
	t.Run("When nodes are blocked before the deadline, events should say when they go by force, and what blocks them", func(t *testing.T) {
		_, recorder := (&guest{budget: "5", steps: keep(3, before), pdb: true}).removed(t, now)
		NewWithT(t).Expect(recorder.Messages()).To(ContainElement(And(ContainSubstring("by force after "+before.UTC().Format(time.RFC3339)), ContainSubstring("pdb prevents pod evictions"), ContainSubstring("clusters/blue"))))
	})
	ends := func(t *testing.T, of guest) time.Time {
		t.Helper()
		removed, _ := of.removed(t, now)
		NewWithT(t).Expect(removed).To(HaveLen(1))
		at, err := time.Parse(time.RFC3339, removed[0].Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return at
	}
	grace := 30 * time.Second
	taken := map[string]int64{"claim-n4": 0}
	t.Run("When a drain begins before the deadline, it should end by force, and no pod be deleted earlier", func(t *testing.T) {
		at := ends(t, guest{budget: "1", steps: keep(3, before), taken: taken})
		NewWithT(t).Expect(at.Add(-grace)).To(And(BeTemporally(">=", before), BeTemporally("<", before.Add(5*time.Second))))
	})
	t.Run("When the deadline has passed, pods should have their own grace period", func(t *testing.T) {
		at := ends(t, guest{budget: "0", steps: keep(3, after), taken: taken, pdb: true})
		NewWithT(t).Expect(at.Add(-grace)).To(And(BeTemporally(">=", now), BeTemporally("<", now.Add(5*time.Second))))
	})
	t.Run("When pods want days to end, they should have an hour", func(t *testing.T) {
		at := ends(t, guest{budget: "0", steps: keep(3, after), taken: taken, change: func(_ string, _ *corev1.Node, _ *karpv1.NodeClaim, pod *corev1.Pod) {
			pod.Spec.TerminationGracePeriodSeconds = new(int64(1_000_000))
		}})
		NewWithT(t).Expect(at).To(BeTemporally("~", now.Add(time.Hour), 5*time.Second))
	})
	t.Run("When the NodePool has a shorter grace period of its own, that should apply", func(t *testing.T) {
		at := ends(t, guest{budget: "1", steps: keep(3, before), taken: taken, change: func(_ string, _ *corev1.Node, claim *karpv1.NodeClaim, _ *corev1.Pod) {
			claim.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Minute}
		}})
		NewWithT(t).Expect(at).To(BeTemporally("~", now.Add(time.Minute), 5*time.Second))
	})
}

func TestClocks(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	t.Run("When the operator's clock is wrong, Karpenter should break a PodDisruptionBudget neither before nor after the grace period by its own", func(t *testing.T) {
		now := time.Unix(1_000_000, 0)
		lease := func(name string, used int64, requests ...division.Request) *division.Lease {
			amounts := division.Amounts{pool: used}
			return &division.Lease{ID: name, Sequence: 1, Limit: amounts, Report: division.Report{Sequence: 1, Reserved: amounts, Used: amounts, Requests: requests}}
		}
		for _, off := range []time.Duration{-time.Hour, -16 * time.Minute, 0, 16 * time.Minute, time.Hour} {
			decision := division.Decide(division.Account{
				Limits: division.Amounts{pool: 5}, Now: now.Add(off), First: 1,
				Members: map[string]division.Member{
					"blue":  {Guaranteed: division.Amounts{pool: 3}, Lease: lease("blue", 0, division.Request{Charges: division.Amounts{pool: 1}, Count: 3})},
					"green": {Used: division.Amounts{pool: 5}, Lease: lease("green", 5)},
				},
			})
			g := &guest{budget: "0", pdb: true, steps: division.Follow(nil, decision.Reclaims["green"], now, division.DefaultReclaimGracePeriod)[pool]}
			for after, want := range map[time.Duration]int{0: 0, division.DefaultReclaimGracePeriod - time.Second: 0, division.DefaultReclaimGracePeriod + time.Minute: 3} {
				if removed, _ := g.removed(t, now.Add(after)); len(removed) != want {
					t.Errorf("the operator's clock is %s off: %d nodes are removed after %s, want %d", off, len(removed), after, want)
				}
			}
		}
	})
}
