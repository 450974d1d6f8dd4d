// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// nodes makes n nodes of a NodePool, with a NodeClaim for each.
func (i inventory) with(pool, class, version string, n int) inventory {
	for range n {
		name := fmt.Sprintf("%s-%d", pool, len(i.nodes))
		i.nodes = append(i.nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool}},
			Status: corev1.NodeStatus{
				NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version},
				Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			},
		})
		i.claims = append(i.claims, karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelInstanceTypeStable: pool + "-type"}},
			Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: class}},
			Status:     karpv1.NodeClaimStatus{NodeName: name},
		})
	}
	return i
}

func (i inventory) budget(pool string, budgets ...karpv1.Budget) inventory {
	i.pools[pool] = &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: karpv1.NodePoolSpec{Disruption: karpv1.Disruption{Budgets: budgets}}}
	return i
}

// static makes a NodePool with budgets one of so many replicas.
func (i inventory) static(pool string, replicas int64, limit string) inventory {
	i.pools[pool].Spec.Replicas = &replicas
	i.pools[pool].Spec.Limits = karpv1.Limits{"nodes": resource.MustParse(limit)}
	return i
}

func (i inventory) pin(class, version string) inventory {
	i.pinned[class] = version
	return i
}

// image has the nodes of a NodePool and a node class boot from an older image.
func (i inventory) image(pool, class, version string) inventory {
	i.images[kind{class, pool + "-type"}] = provider.OlderImage{Template: "KwokMachineTemplate/" + pool, InstanceType: pool + "-type", Version: version}
	return i
}

// drift has Karpenter replace each node.
func (i inventory) drift() inventory {
	for c := range i.claims {
		i.claims[c].StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
	}
	return i
}

func empty() inventory {
	return inventory{images: map[kind]provider.OlderImage{}, pools: map[string]*karpv1.NodePool{}, pinned: map[string]string{}, group: v1alpha1.Group}
}

// waits is the decision that some nodes are outdated, and why.
func waits(outdated int32, reason, message string) decision {
	return decision{outdated: outdated, status: metav1.ConditionFalse, reason: reason, message: message}
}

// fine is the decision that no node is.
func fine(message string) decision {
	return decision{status: metav1.ConditionTrue, reason: v1beta1.AsExpectedReason, message: message}
}

// decisionCase is what is decided of nodes that should run 1.36.3, at noon.
type decisionCase struct {
	inventory inventory
	server    string // the API server's version, if it isn't that one
	upgrade   scope.NodeUpgrade
	want      decision
}

func expectDecisions(t *testing.T, cases map[string]decisionCase) {
	t.Helper()
	noon := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	for name, c := range cases {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			g := NewWithT(t)
			if c.server == "" {
				c.server = "1.36.3"
			}
			got := decide(c.inventory, "1.36.3", c.server, c.upgrade, noon)
			g.Expect(cmp.Diff(c.want, got, cmp.AllowUnexported(decision{}))).To(BeEmpty())
		})
	}
}

func TestDecision(t *testing.T) {
	night := karpv1.Budget{Nodes: "0", Schedule: ptr.To("0 6 * * *"), Duration: &metav1.Duration{Duration: 12 * time.Hour}}
	expectDecisions(t, map[string]decisionCase{
		"there are no nodes": {
			inventory: empty(),
			want:      fine(""),
		},
		"all nodes run the payload's version": {
			inventory: empty().with("general", "default", "v1.36.3", 3),
			want:      fine("all nodes run 1.36.3"),
		},
		"a distribution appends its build": {
			inventory: empty().with("general", "default", "v1.36.3+0a1b2c", 1),
			want:      fine("all nodes run 1.36.3"),
		},
		"a budget limits the replacement": {
			inventory: empty().with("general", "default", "v1.36.2", 5).with("general", "default", "v1.36.3", 3).budget("general", karpv1.Budget{Nodes: "1"}),
			want:      waits(5, v1beta1.NodesOutdatedReason, `5 of 8 nodes still run 1.36.2; NodePool "general" allows 1 disruption at a time`),
		},
		"a percentage limits the replacement": {
			inventory: empty().with("general", "default", "v1.36.2", 20).budget("general", karpv1.Budget{Nodes: "10%"}),
			want:      waits(20, v1beta1.NodesOutdatedReason, `20 of 20 nodes still run 1.36.2; NodePool "general" allows 2 disruptions at a time`),
		},
		"a schedule forbids the replacement now": {
			inventory: empty().with("general", "default", "v1.36.2", 1).budget("general", night),
			want:      waits(1, v1beta1.NodesOutdatedReason, `1 of 1 node still runs 1.36.2; NodePool "general" allows no disruption now`),
		},
		"a budget is for another reason": {
			inventory: empty().with("general", "default", "v1.36.2", 2).
				budget("general", karpv1.Budget{Nodes: "0", Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty}}),
			want: waits(2, v1beta1.NodesOutdatedReason, "2 of 2 nodes still run 1.36.2"),
		},
		"several NodePools limit it": {
			inventory: empty().with("a", "default", "v1.36.2", 4).with("b", "default", "v1.36.1", 6).
				budget("a", karpv1.Budget{Nodes: "2"}).budget("b", karpv1.Budget{Nodes: "1"}),
			want: waits(10, v1beta1.NodesOutdatedReason, `10 of 10 nodes still run 1.36.2 (4), 1.36.1 (6); NodePool "b" allows 1 disruption at a time`),
		},
		"a static NodePool has no room for a replacement": {
			inventory: empty().with("a", "default", "v1.36.2", 1).with("fixed", "default", "v1.36.2", 3).
				budget("a", karpv1.Budget{Nodes: "1"}).budget("fixed", karpv1.Budget{Nodes: "1"}).static("fixed", 3, "3"),
			want: waits(4, v1beta1.NodesOutdatedReason, `4 of 4 nodes still run 1.36.2; NodePool "fixed" allows 1 disruption at a time, `+
				`and terminates nodes before it launches their replacements: spec.limits.nodes 3 isn't above spec.replicas 3`),
		},
		"a static NodePool has room for a replacement": {
			inventory: empty().with("fixed", "default", "v1.36.2", 3).budget("fixed", karpv1.Budget{Nodes: "1"}).static("fixed", 3, "4"),
			want:      waits(3, v1beta1.NodesOutdatedReason, `3 of 3 nodes still run 1.36.2; NodePool "fixed" allows 1 disruption at a time`),
		},
		"the NodePool of a node is gone": {
			inventory: empty().with("gone", "default", "v1.36.2", 1),
			want:      waits(1, v1beta1.NodesOutdatedReason, "1 of 1 node still runs 1.36.2"),
		},
		"the control plane is older than the payload": {
			inventory: empty().with("general", "default", "v1.36.2", 3), server: "1.36.2",
			want: waits(3, v1beta1.ControlPlaneOlderReason, "nodes stay on 1.36.2 until the control plane is upgraded to 1.36.3"),
		},
		"the control plane is newer than the payload": {
			inventory: empty().with("general", "default", "v1.36.3", 3), server: "1.37.0",
			want: fine("all nodes run 1.36.3"),
		},
		"a node class pins its version": {
			inventory: empty().with("old", "pinned", "v1.35.0", 2).with("general", "default", "v1.36.3", 1).pin("pinned", "1.35.0"),
			want:      fine("all 3 nodes run the version that they should"),
		},
		"nodes wait for a maintenance window": {
			inventory: empty().with("general", "default", "v1.36.2", 5).with("general", "default", "v1.36.3", 3).budget("general", karpv1.Budget{Nodes: "1"}),
			upgrade:   scope.NodeUpgrade{Version: "v1.36.2", Waits: "to be upgraded from Sat 28 Nov 02:00 CET on"},
			want:      waits(5, v1beta1.NodeUpgradeHeldReason, "5 of 8 nodes run 1.36.2 rather than 1.36.3; to be upgraded from Sat 28 Nov 02:00 CET on"),
		},
		"a window closes in the middle of a rollout": {
			inventory: empty().with("general", "default", "v1.36.2", 1).with("general", "default", "v1.36.3", 3),
			upgrade:   scope.NodeUpgrade{Version: "1.36.3", Waits: "to be upgraded from Sat 28 Nov 02:00 CET on"},
			want:      waits(1, v1beta1.NodeUpgradeHeldReason, "1 of 4 nodes runs 1.36.2 rather than 1.36.3; to be upgraded from Sat 28 Nov 02:00 CET on"),
		},
		"there are no nodes, and new ones wait for approval": {
			inventory: empty(), upgrade: scope.NodeUpgrade{Version: "1.36.2", Waits: "approve it"},
			want: waits(0, v1beta1.NodeUpgradeHeldReason, "new nodes get 1.36.2 rather than 1.36.3; approve it"),
		},
		"nothing is left to wait for": {
			inventory: empty().with("general", "default", "v1.36.3", 3), upgrade: scope.NodeUpgrade{Version: "1.36.3", Waits: "approve it"},
			want: fine("all nodes run 1.36.3"),
		},
		"the control plane doesn't support the nodes that are held": {
			inventory: empty().with("general", "default", "v1.32.9", 1), upgrade: scope.NodeUpgrade{Version: "1.36.3", Hold: true, Waits: "approve it"},
			want: waits(1, v1beta1.NodeVersionUnsupportedReason, "1 of 1 node runs 1.32.9 rather than 1.36.3; approve it; the control plane, at 1.36.3, doesn't support nodes that old"),
		},
		"nodes wait both for the control plane and for approval": {
			inventory: empty().with("general", "default", "v1.36.1", 1), server: "1.36.2", upgrade: scope.NodeUpgrade{Version: "1.36.1", Waits: "approve it"},
			want: waits(1, v1beta1.ControlPlaneOlderReason, "new nodes get 1.36.1; 1.36.3 comes once the control plane is upgraded to it; approve it"),
		},
		"nodes wait for a ring": {
			inventory: empty().with("general", "default", "v1.36.2", 2).with("more", "default", "v1.36.3", 1),
			upgrade:   scope.NodeUpgrade{Version: "1.36.2", Ring: true, Waits: "the ring soaks"},
			want:      waits(2, v1beta1.WaitsForRingReason, "1 of 3 nodes are on 1.36.3; the ring soaks"),
		},
		"only the images of the release are others, and nodes wait for a ring": {
			inventory: empty().with("general", "default", "v1.36.3", 1), upgrade: scope.NodeUpgrade{Version: "1.36.3", Ring: true, Waits: "the ring soaks"},
			want: waits(0, v1beta1.WaitsForRingReason, "1 of 1 node is on 1.36.3; the ring soaks"),
		},
		"a node hasn't reported its version": {
			inventory: empty().with("general", "default", "", 1),
			want:      waits(1, v1beta1.NodesOutdatedReason, "1 of 1 node still runs unknown"),
		},
	})
}

func TestImageDecision(t *testing.T) {
	expectDecisions(t, map[string]decisionCase{
		"the image of all nodes is older": {
			inventory: empty().with("general", "default", "v1.36.2", 3).image("general", "default", "1.36.2").budget("general", karpv1.Budget{Nodes: "1"}),
			want:      waits(3, v1beta1.NodeImageOlderReason, `3 of 3 nodes run 1.36.2: the image of machine template "KwokMachineTemplate/general" still has 1.36.2; provide a template whose image has 1.36.3`),
		},
		"the images of several templates are older, and other nodes are up to date": {
			inventory: empty().with("a", "default", "v1.36.2", 1).with("b", "default", "v1.36.1", 2).with("c", "default", "v1.36.3", 1).
				image("a", "default", "1.36.2").image("b", "default", "v1.36.1+k3s1"),
			want: waits(3, v1beta1.NodeImageOlderReason, `3 of 4 nodes run 1.36.2 (1), 1.36.1 (2): the image of machine template "KwokMachineTemplate/b" still has 1.36.1, and 1 other template's image is older; provide a template whose image has 1.36.3`),
		},
		"some nodes wait for an image, and others are replaced": {
			inventory: empty().with("a", "default", "v1.36.2", 1).with("b", "default", "v1.36.2", 2).image("a", "default", "1.36.2").
				budget("a", karpv1.Budget{Nodes: "0"}).budget("b", karpv1.Budget{Nodes: "1"}),
			want: waits(3, v1beta1.NodesOutdatedReason, `3 of 3 nodes still run 1.36.2; NodePool "b" allows 1 disruption at a time; 1 of them waits for an image: `+
				`the image of machine template "KwokMachineTemplate/a" still has 1.36.2; provide a template whose image has 1.36.3`),
		},
		"some nodes wait for an image, and all for a window": {
			inventory: empty().with("a", "default", "v1.36.2", 1).with("b", "default", "v1.36.2", 2).image("a", "default", "1.36.2"),
			upgrade:   scope.NodeUpgrade{Version: "1.36.3", Waits: "approve it"},
			want: waits(3, v1beta1.NodeUpgradeHeldReason, `3 of 3 nodes run 1.36.2 rather than 1.36.3; approve it; 1 of them waits for an image: `+
				`the image of machine template "KwokMachineTemplate/a" still has 1.36.2; provide a template whose image has 1.36.3`),
		},
		"the image of all nodes is older, and a window has closed": {
			inventory: empty().with("general", "default", "v1.36.2", 1).image("general", "default", "1.36.2"),
			upgrade:   scope.NodeUpgrade{Version: "1.36.3", Waits: "to be upgraded from Sat 28 Nov 02:00 CET on"},
			want: waits(1, v1beta1.NodeImageOlderReason, `1 of 1 node runs 1.36.2: the image of machine template "KwokMachineTemplate/general" still has 1.36.2; provide a template whose image has 1.36.3; `+
				`to be upgraded from Sat 28 Nov 02:00 CET on`),
		},
		"a template has brought a newer kubelet than the payload's": {
			inventory: empty().with("general", "default", "v1.37.1", 1), server: "1.37.1",
			want: waits(1, v1beta1.NodesAheadReason, "1 of 1 node runs 1.37.1, ahead of 1.36.3; move to a release with the version of their image, or provide a template whose image has 1.36.3"),
		},
		"the payload went back and Karpenter replaces what is ahead": {
			inventory: empty().with("general", "default", "v1.37.1", 2).drift().budget("general", karpv1.Budget{Nodes: "1"}), server: "1.37.1",
			want: waits(2, v1beta1.NodesOutdatedReason, `2 of 2 nodes run 1.37.1, ahead of 1.36.3; NodePool "general" allows 1 disruption at a time`),
		},
		"some nodes are behind and one is ahead": {
			inventory: empty().with("general", "default", "v1.36.2", 2).with("other", "default", "v1.37.1", 1), server: "1.37.1",
			want: waits(3, v1beta1.NodesOutdatedReason, "2 of 3 nodes still run 1.36.2; 1 runs 1.37.1, ahead of 1.36.3"),
		},
		"nodes are older than their image": {
			inventory: empty().with("general", "default", "v1.36.1", 1).image("general", "default", "1.36.2"),
			want:      waits(1, v1beta1.NodesOutdatedReason, "1 of 1 node still runs 1.36.1"),
		},
		"the older image is another node class's": {
			inventory: empty().with("general", "default", "v1.36.2", 1).image("general", "other", "1.36.2"),
			want:      waits(1, v1beta1.NodesOutdatedReason, "1 of 1 node still runs 1.36.2"),
		},
		"an image is older, and all its nodes have gone": {
			inventory: empty().with("other", "default", "v1.36.3", 1).image("general", "default", "1.36.2"),
			want:      fine("all nodes run 1.36.3"),
		},
		"image and control plane are older": {
			inventory: empty().with("general", "default", "v1.36.1", 1).image("general", "default", "1.36.1"), server: "1.36.2",
			want: waits(1, v1beta1.ControlPlaneOlderReason, "nodes stay on 1.36.2 until the control plane is upgraded to 1.36.3"),
		},
		"the image is older than the node class pins": {
			inventory: empty().with("general", "pinned", "v1.35.0", 1).pin("pinned", "1.35.1").image("general", "pinned", "1.35.0"),
			want:      waits(1, v1beta1.NodeImageOlderReason, `1 of 1 node runs 1.35.0: the image of machine template "KwokMachineTemplate/general" still has 1.35.0; provide a template whose image has 1.35.1`),
		},
		"the control plane doesn't support the nodes of an old image": {
			inventory: empty().with("general", "default", "v1.32.9", 1).image("general", "default", "1.32.9"),
			want: waits(1, v1beta1.NodeVersionUnsupportedReason, `1 of 1 node runs 1.32.9: the image of machine template "KwokMachineTemplate/general" still has 1.32.9; provide a template whose image has 1.36.3; `+
				`the control plane, at 1.36.3, doesn't support nodes that old`),
		},
	})
}

func TestInventory(t *testing.T) {
	t.Run("When nodes are of several versions, it should count each, newest first", func(t *testing.T) {
		g := NewWithT(t)
		i := empty().with("a", "default", "v1.36.2", 2).with("a", "default", "v1.36.10", 1).with("a", "default", "", 1).with("a", "default", "v1.36.3-rc.1", 1)
		g.Expect(i.versions()).To(Equal([]v1beta1.NodeVersion{
			{Version: "1.36.10", Count: 1}, {Version: "1.36.3-rc.1", Count: 1}, {Version: "1.36.2", Count: 2}, {Version: "unknown", Count: 1},
		}))
	})

	t.Run("When nodes have fractions of a CPU, it should round their sum up", func(t *testing.T) {
		g := NewWithT(t)
		i := empty().with("a", "default", "v1.36.2", 3)
		i.nodes[0].Status.Capacity[corev1.ResourceCPU] = resource.MustParse("500m")
		delete(i.nodes[1].Status.Capacity, corev1.ResourceCPU)
		g.Expect(i.vcpus()).To(BeEquivalentTo(3))
	})

	t.Run("When NodeClaims have drifted, it should count them", func(t *testing.T) {
		g := NewWithT(t)
		i := empty().with("a", "default", "v1.36.2", 3)
		i.claims[0].StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		i.claims[1].StatusConditions().SetFalse(karpv1.ConditionTypeDrifted, "NotDrifted", "")
		g.Expect(i.drifted()).To(HaveLen(1))
	})
}

func TestManyVersions(t *testing.T) {
	t.Run("When nodes say that they have as many versions as there are nodes, it should count the most frequent ones and the others", func(t *testing.T) {
		g := NewWithT(t)
		i := empty().with("general", "default", "v1.36.3", 5).with("general", "default", "v1.36.2", 3)
		for n := range 20 {
			i = i.with("fake", "default", fmt.Sprintf("v1.0.%d", n), 2)
		}
		i = i.with("fake", "default", "v1.36.1-"+strings.Repeat("a", 1<<20), 1).with("fake", "default", "nonsense", 1).with("fake", "default", "", 1)
		versions := i.versions()
		g.Expect(versions).To(HaveLen(9))
		g.Expect(versions[0]).To(Equal(v1beta1.NodeVersion{Version: "1.36.3", Count: 5}))
		g.Expect(versions[1]).To(Equal(v1beta1.NodeVersion{Version: "1.36.2", Count: 3}))
		total := int32(0)
		for _, v := range versions {
			total += v.Count
		}
		g.Expect(total).To(BeEquivalentTo(len(i.nodes)))
		g.Expect(versions).To(ContainElement(HaveField("Version", "unknown")))
		g.Expect(versions).To(ContainElement(v1beta1.NodeVersion{Version: "others", Count: 30}))
		clk := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
		g.Expect(len(decide(i, "1.37.0", "1.37.0", scope.NodeUpgrade{}, clk).message)).To(BeNumerically("<", 512))
	})
}

func TestUpgradeDecisions(t *testing.T) {
	proving := func(phase v1alpha1.NodeUpgradePhase, message, resume string) scope.NodeUpgrade {
		return scope.NodeUpgrade{Version: "1.36.3", Progress: &v1alpha1.NodeUpgradeStatus{Phase: phase, Message: message}, Resume: resume}
	}
	const healthy, failed = "1 node has to stay healthy, until Sat 12:10:00 UTC", "failed: general-x7k2p"
	mixed := empty().with("general", "default", "v1.36.3", 1).with("other", "default", "v1.36.2", 7)
	expectDecisions(t, map[string]decisionCase{
		"the first node of the payload soaks": {
			inventory: mixed, upgrade: proving(v1alpha1.NodeUpgradeCanary, healthy, ""),
			want: waits(7, v1beta1.UpgradeProvingReason, "1 of 8 nodes are on 1.36.3; others wait until it is proved: "+healthy),
		},
		"the soak isn't over although no node is outdated": {
			inventory: empty().with("general", "default", "v1.36.3", 2), upgrade: proving(v1alpha1.NodeUpgradeCanary, healthy, ""),
			want: waits(0, v1beta1.UpgradeProvingReason, "2 of 2 nodes are on 1.36.3; others wait until it is proved: "+healthy),
		},
		"there is no node to prove the payload": {
			inventory: empty(), upgrade: proving(v1alpha1.NodeUpgradeCanary, "", ""),
			want: waits(0, v1beta1.UpgradeProvingReason, "0 of 0 nodes are on 1.36.3; others wait until it is proved: Karpenter hasn't reported yet"),
		},
		"failed nodes halt the upgrade": {
			inventory: mixed, upgrade: proving(v1alpha1.NodeUpgradeHalted, failed, "kubectl annotate …=1.36.3"),
			want: waits(7, v1beta1.UpgradeHaltedReason,
				"upgrade to 1.36.3 halted, with 1 of 8 nodes on it: "+failed+"; move to another release, or resume with: kubectl annotate …=1.36.3"),
		},
		"an upgrade halts that resumes by itself": {
			inventory: mixed, upgrade: proving(v1alpha1.NodeUpgradeHalted, "not Ready: general-0", ""),
			want: waits(7, v1beta1.UpgradeHaltedReason, "upgrade to 1.36.3 halted, with 1 of 8 nodes on it: not Ready: general-0"),
		},
		"the control plane is older than a payload that is to be proved": {
			inventory: mixed, server: "1.36.2", upgrade: proving(v1alpha1.NodeUpgradeCanary, healthy, ""),
			want: waits(7, v1beta1.ControlPlaneOlderReason, "nodes stay on 1.36.2 until the control plane is upgraded to 1.36.3"),
		},
	})

	t.Run("When a report is as long as a node class takes, the command that resumes should not be cut off", func(t *testing.T) {
		g := NewWithT(t)
		resume := strings.Repeat("c", 300)
		got := decide(mixed, "1.36.3", "1.36.3", proving(v1alpha1.NodeUpgradeHalted, strings.Repeat("x", 1024), resume), clocktesting.NewFakeClock(time.Time{}))
		g.Expect(message.Cut(got.message)).To(HaveSuffix("resume with: " + resume))
	})
}
