// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/clitest"
)

// makeGuest makes a guest with a node class of four instance types, a NodePool of it and a pod that is larger than any of them.
func makeGuest(t *testing.T) {
	t.Helper()
	g, admin := NewWithT(t), server.Admin
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	class.Spec.ScalableResourceSelector = &metav1.LabelSelector{}
	server.Create(t, class)
	for _, of := range [][5]string{
		{"small", "amd64", "2", "8Gi", "0.05"}, {"medium", "amd64", "8", "32Gi", "0.2"}, {"large", "amd64", "32", "128Gi", "0.8"}, {"arm", "arm64", "16", "64Gi", "0.3"},
	} {
		class.Status.Templates = append(class.Status.Templates, v1alpha1.TemplateStatus{
			InstanceType: of[0], Source: "MachineDeployment/" + of[0], Architecture: of[1], CPU: scalar.Text(of[2]), Memory: scalar.Text(of[3]), Pods: 110,
			Price: of[4], Zones: []string{"a"},
		})
	}
	g.Expect(admin.Status().Update(t.Context(), class)).To(Succeed())
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
	}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("30s")
	server.Create(t, pool)
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, status.ConditionReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	g.Expect(admin.Status().Update(t.Context(), pool)).To(Succeed())
	server.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	makePod(t, "web", "64", "")
}

// makePod makes a pod that runs on a node, or has none.
func makePod(t *testing.T, name, cpu, node string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r"}}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	server.Create(t, pod)
	pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if node == "" {
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
	NewWithT(t).Expect(server.Admin.Status().Update(t.Context(), pod)).To(Succeed())
}

// makeNode makes a node of NodePool general, with its NodeClaim.
func makeNode(t *testing.T, name, instanceType, cpu string) {
	t.Helper()
	g, admin := NewWithT(t), server.Admin
	labels := map[string]string{
		karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: "a", corev1.LabelHostname: name,
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: "test://" + name}}
	server.Create(t, node)
	node.Status = corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	g.Expect(admin.Status().Update(t.Context(), node)).To(Succeed())
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-x1", Labels: labels}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	server.Create(t, claim)
	claim.Status.NodeName, claim.Status.ProviderID, claim.Status.Capacity, claim.Status.Allocatable = name, "test://"+name, room, room
	for _, condition := range []string{
		karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, karpv1.ConditionTypeConsolidatable,
	} {
		claim.StatusConditions().SetTrue(condition)
	}
	g.Expect(admin.Status().Update(t.Context(), claim)).To(Succeed())
}

func TestPage(t *testing.T) {
	makeGuest(t)
	why := func(t *testing.T, args ...string) {
		t.Helper()
		out, err := clitest.Run(t, NewCommand(), append(args, "--kubeconfig", server.Kubeconfig)...)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		clitest.Shown(t, "docs/reference/cli/nodes.md", "autonode why "+strings.Join(args, " "), out)
	}
	t.Run("When the documentation shows a pod that is too large, it should show what the command prints", func(t *testing.T) {
		why(t, "pod", "shop/web")
	})
	t.Run("When the documentation shows a node that stays, it should show what the command prints", func(t *testing.T) {
		makeNode(t, "blue-web-x1", "medium", "8")
		makePod(t, "cart", "6", "blue-web-x1")
		why(t, "node", "blue-web-x1")
	})
}
