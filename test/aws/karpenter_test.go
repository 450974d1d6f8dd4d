// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/ec2"
)

// Platform AWS: Karpenter's AWS provider runs as it is released. It proves who it is by the guest's token, makes instances that join the guest, and is
// upgraded, drained and removed by the operator. Roles, permissions and user data are those of docs/platform/aws.md.
func TestKarpenterAWS(t *testing.T) {
	h := acquireHosted(t, red)
	for _, chapter := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"When AutoNode is enabled with platform AWS, it should run Karpenter's AWS provider, which becomes its role by the guest's token", h.enables},
		{"When pods are pending, they should run on nodes that CreateFleet made, each the instance that it claims to be", h.runsPods},
		{"When a type has no capacity, Karpenter should take the next, and an instance that is interrupted or terminated should be replaced", h.livesWithFailures},
		{"When the payload changes, it should roll Karpenter and disrupt no node", h.rollsKarpenter},
		{"When the image of the node class changes, it should replace the nodes, and the HostedCluster should say that they are up to date", h.upgradesNodes},
		{"When AutoNode is disabled, it should drain the nodes and terminate the instances, and be enabled again", h.disables},
		{"When the HostedCluster is deleted, nothing should be left in the account", h.goes},
		{"When all is done, AWS should have refused nothing", h.refusedNothing},
		{"When all is done, Karpenter should have used every permission of its role but the one of placement groups", h.usesRole},
		{"When all is done, Karpenter should have used every permission that it has in the guest, and been denied only new nodes during the drain", h.permitted},
	} {
		if !t.Run(chapter.name, chapter.run) {
			return
		}
	}
}

func (h *hosted) enables(t *testing.T) {
	g := NewWithT(t)
	h.patch(t, func(spec *v1beta1.HostedClusterSpec) {
		spec.Release.Image, spec.AutoNode = h.releases[localworld.InitialRelease], h.autoNode()
	})
	h.waitRuns(t, localworld.InitialRelease)
	g.Expect(h.account.Assumed()).To(BeNumerically(">", 0))
	h.nodeClass(t, localworld.InitialRelease, h.userData(t, h.admit(t)))
	g.Eventually(h.readyClass).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(h.account.InstanceProfiles()).To(HaveLen(1))
	g.Expect(h.account.InstanceProfiles()).To(ContainElement(h.nodesRole()))
}

// of are requirements of a NodePool for a capacity type.
func of(capacityType string, zones ...string) map[string][]string {
	requirements := map[string][]string{karpv1.CapacityTypeLabelKey: {capacityType}}
	if len(zones) > 0 {
		requirements[corev1.LabelTopologyZone] = zones
	}
	return requirements
}

func (h *hosted) runsPods(t *testing.T) {
	g := NewWithT(t)
	h.nodePool(t, "ondemand", of(karpv1.CapacityTypeOnDemand), onAWS)
	h.nodePool(t, "spot", of(karpv1.CapacityTypeSpot, zoneB, zoneC), onAWS)
	h.nodePool(t, "reserved", of(karpv1.CapacityTypeReserved), onAWS)
	h.workload(t, "web", 2, onPool("ondemand"))
	h.workload(t, "batch", 1, onPool("spot"))
	h.workload(t, "booked", 1, onPool("reserved"))
	for _, name := range []string{"web", "batch", "booked"} {
		h.waitRunning(t, name)
	}
	nodes, live := h.allNodes(g, t.Context()), h.live()
	g.Expect(nodes).To(HaveLen(4))
	g.Expect(live).To(HaveLen(4))
	for _, node := range nodes {
		h.expectSame(t, node, live[node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]])
	}
	// The cheapest that are offered: on demand, and on spot in those zones.
	g.Expect(live).To(ContainElements(
		And(HaveField("Type", "m6g.large"), HaveField("Architecture", "arm64"), HaveField("Spot", false)),
		And(HaveField("Type", "c5.large"), HaveField("Spot", true), HaveField("Zone", zoneB)),
		And(HaveField("Type", "m5.xlarge"), HaveField("CapacityReservation", reservation)),
	))
	g.Expect(h.guest.Delete(t.Context(), deploymentNamed("booked"))).To(Succeed())
	g.Eventually(h.live).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(HaveLen(3))
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(h.read(g, ctx).Status.AutoNode.NodeCount).To(HaveValue(BeEquivalentTo(3)))
		h.is(g, ctx, v1beta1.NodesUpToDate, metav1.ConditionTrue)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// expectSame compares a Node with the instance that it is.
func (h *hosted) expectSame(t *testing.T, node corev1.Node, i ec2.Instance) {
	t.Helper()
	g := NewWithT(t)
	capacityType := karpv1.CapacityTypeOnDemand
	switch {
	case i.Spot:
		capacityType = karpv1.CapacityTypeSpot
	case i.CapacityReservation != "":
		capacityType = karpv1.CapacityTypeReserved
	}
	g.Expect(node.Spec.ProviderID).To(Equal("aws:///" + i.Zone + "/" + i.ID))
	g.Expect(node.Name).To(Equal(i.PrivateDNSName))
	g.Expect(node.Labels).To(And(
		HaveKeyWithValue(corev1.LabelInstanceTypeStable, i.Type), HaveKeyWithValue(corev1.LabelTopologyZone, i.Zone),
		HaveKeyWithValue(corev1.LabelTopologyRegion, h.account.Region()), HaveKeyWithValue(karpv1.CapacityTypeLabelKey, capacityType),
	))
	g.Expect(node.Spec.Taints).NotTo(ContainElement(HaveField("Key", karpv1.UnregisteredTaintKey)))
	g.Expect(i.Tags).To(And(HaveKeyWithValue(karpv1.NodePoolLabelKey, node.Labels[karpv1.NodePoolLabelKey]), HaveKey(ec2.FleetTag)))
	g.Expect(i.SecurityGroups).To(ConsistOf("sg-0nodes"))
}

func (h *hosted) livesWithFailures(t *testing.T) {
	g := NewWithT(t)
	restore := world.EC2().Inject(ec2.Fault{Action: "CreateFleet", InstanceType: "m6g.large", Error: ec2.InsufficientInstanceCapacity("m6g.large", zoneA)})
	h.nodePool(t, "scarce", of(karpv1.CapacityTypeOnDemand), onAWS)
	h.workload(t, "scarce", 1, onPool("scarce"))
	h.waitRunning(t, "scarce")
	g.Expect(restore()).To(BeNumerically(">", 0), "EC2 has refused it")
	fleets := world.EC2().Fleets()
	last := fleets[len(fleets)-1]
	next := h.live()[last.Instances[0]]
	g.Expect(next.Type).To(Equal("c5.large"))
	g.Expect(next.Image).To(Equal(ec2.ImageID("v"+localworld.InitialRelease, "x86_64")), "the image of its architecture")
	g.Expect(last.Tried).To(And(ContainElement(HavePrefix("m6g.large/")), ContainElement("c5.large/"+next.Zone)))

	// A person terminates it: Karpenter deletes its NodeClaim and launches another.
	g.Expect(world.EC2().Terminate(next.ID)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(h.nodes(g, ctx, "scarce")).To(ConsistOf(HaveField("Spec.ProviderID", Not(HaveSuffix(next.ID)))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	h.waitRunning(t, "scarce")
	g.Expect(h.guest.Delete(t.Context(), deploymentNamed("scarce"))).To(Succeed())

	var spot ec2.Instance
	for _, i := range h.live() {
		if i.Spot {
			spot = i
		}
	}
	g.Expect(h.account.InterruptSpot(h.queue(), spot.ID)).To(Succeed())
	g.Eventually(func(g Gomega) {
		live := h.live()
		g.Expect(live).NotTo(HaveKey(spot.ID))
		g.Expect(live).To(ContainElement(HaveField("Spot", true)))
		g.Expect(live).To(HaveLen(3))
		g.Expect(h.account.Messages(h.queue())).To(BeZero())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	h.waitRunning(t, "batch")
}

func (h *hosted) rollsKarpenter(t *testing.T) {
	g := NewWithT(t)
	var before map[string]string
	g.Eventually(func(g Gomega, ctx context.Context) {
		before = h.claims(g, ctx)
		g.Expect(before).To(HaveLen(3))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(world.UpgradeControlPlane(t.Context(), h.name, localworld.UpgradedKubernetes)).To(Succeed())
	h.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = h.releases[localworld.UpgradedRelease] })
	h.waitRuns(t, localworld.UpgradedRelease)
	g.Eventually(func(g Gomega, ctx context.Context) {
		h.is(g, ctx, v1beta1.NodesUpToDate, metav1.ConditionFalse)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(h.claims(g, t.Context())).To(Equal(before))
}

func (h *hosted) upgradesNodes(t *testing.T) {
	g := NewWithT(t)
	class := newEC2NodeClass()
	g.Expect(h.guest.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(Succeed())
	before := class.DeepCopy()
	g.Expect(unstructured.SetNestedSlice(class.Object, h.selectImages(localworld.UpgradedRelease), "spec", "amiSelectorTerms")).To(Succeed())
	g.Expect(h.guest.Patch(t.Context(), class, client.MergeFrom(before))).To(Succeed())
	assumed := h.account.Assumed()
	g.Eventually(func(g Gomega, ctx context.Context) {
		nodes, live := h.allNodes(g, ctx), h.live()
		g.Expect(nodes).To(HaveLen(3))
		g.Expect(nodes).To(HaveEach(HaveField("Status.NodeInfo.KubeletVersion", localworld.UpgradedKubernetes)))
		g.Expect(live).To(HaveLen(3))
		for _, i := range live {
			g.Expect(i.Image).To(Equal(ec2.ImageID(localworld.UpgradedKubernetes, i.Architecture)))
		}
		h.is(g, ctx, v1beta1.NodesUpToDate, metav1.ConditionTrue)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	h.waitRunning(t, "web")
	h.waitRunning(t, "batch")
	g.Eventually(h.account.Assumed).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).
		Should(BeNumerically(">", assumed), "Karpenter renews its credentials with the token")
}

func (h *hosted) disables(t *testing.T) {
	g := NewWithT(t)
	h.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
	g.Eventually(func(g Gomega, ctx context.Context) {
		h.is(g, ctx, v1beta1.AutoNodeEnabled, metav1.ConditionFalse)
		component := &v1beta1.ControlPlaneComponent{}
		err := h.management.Get(ctx, client.ObjectKey{Namespace: h.namespace(), Name: v1beta1.KarpenterComponent}, component)
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "ControlPlaneComponent: %v", err)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(h.live()).To(BeEmpty())
	g.Expect(h.claims(g, t.Context())).To(BeEmpty())
	g.Expect(h.allNodes(g, t.Context())).To(BeEmpty())
	class := newEC2NodeClass()
	g.Expect(h.guest.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(Succeed(), "node classes stay")

	h.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = h.autoNode() })
	h.waitRuns(t, localworld.UpgradedRelease)
	h.waitRunning(t, "web")
}

func (h *hosted) goes(t *testing.T) {
	g := NewWithT(t)
	g.Expect(h.management.Delete(t.Context(), h.read(g, t.Context()))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		err := h.management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: h.name}, &v1beta1.HostedCluster{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "HostedCluster: %v", err)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(h.live()).To(BeEmpty())
	g.Expect(world.EC2().LaunchTemplates()).To(BeEmpty())
	g.Expect(h.account.InstanceProfiles()).To(BeEmpty())
}

func (h *hosted) refusedNothing(t *testing.T) {
	t.Logf("requests to AWS: %v", h.account.Calls())
	NewWithT(t).Expect(h.account.Refused()).To(BeEmpty())
}

// usesRole compares the permissions that docs/platform/aws.md prints with those that were needed.
func (h *hosted) usesRole(t *testing.T) {
	g := NewWithT(t)
	_, document := documents(t)
	var policy struct {
		Statement []struct{ Action any }
	}
	g.Expect(json.Unmarshal([]byte(document), &policy)).To(Succeed())
	var printed []any
	for _, statement := range policy.Statement {
		switch action := statement.Action.(type) {
		case []any:
			printed = append(printed, action...)
		default:
			printed = append(printed, action)
		}
	}
	used := []any{"ec2:DescribePlacementGroups"} // no node class of the test has one
	for _, action := range h.account.Allowed() {
		used = append(used, action)
	}
	g.Expect(printed).To(ConsistOf(used...))
}

func deploymentNamed(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
}
