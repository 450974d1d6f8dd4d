// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

func TestCapacityFaults(t *testing.T) {
	ns := newCluster(t)

	t.Run("When there is no capacity in one zone, a machine there should never run until there is; others should", func(t *testing.T) {
		g := NewWithT(t)
		kwokCluster := &infrav1.KwokCluster{}
		g.Expect(management.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: clusterName}, kwokCluster)).To(Succeed())
		annotate(t, kwokCluster, map[string]string{infrav1.FaultNoCapacity: "a/spot"})
		spot := func(machine *infrav1.KwokMachine) { machine.Spec.CapacityType = infrav1.CapacityTypeSpot }
		short := newMachine(t, ns, "short", machineOptions{zone: "a", edit: spot})
		newMachine(t, ns, "other-zone", machineOptions{zone: "b", edit: spot})
		newMachine(t, ns, "on-demand", machineOptions{zone: "a", labels: map[string]string{"karpenter.sh/capacity-type": "spot"}})
		eventuallyReady(t, "other-zone")
		eventuallyReady(t, "on-demand")
		condition := eventuallyCondition(t, short, infrav1.ConditionReady, "InsufficientInstanceCapacity")
		g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition.Message).To(ContainSubstring("do not have sufficient c4-large spot capacity in the zone you requested (a)"))
		g.Expect(get(t, short).Spec.ProviderID).To(BeEmpty())
		g.Expect(get(t, short).Status.Initialization.Provisioned).To(BeNil())

		annotate(t, kwokCluster, map[string]string{infrav1.FaultNoCapacity: ""})
		eventuallyReady(t, "short")
	})

	t.Run("When a template has a fault, its machines should have it, except one that says otherwise", func(t *testing.T) {
		g := NewWithT(t)
		template := &infrav1.KwokMachineTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c4", Annotations: map[string]string{infrav1.FaultNoCapacity: "true"}},
			Spec: infrav1.KwokMachineTemplateSpec{Template: infrav1.KwokMachineTemplateResource{Spec: infrav1.KwokMachineSpec{
				Capacity:     corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
				Architecture: infrav1.ArchitectureArm64,
			}}},
		}
		g.Expect(management.Create(t.Context(), template)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
			g.Expect(template.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(4))
			g.Expect(template.Status.NodeInfo).To(Equal(infrav1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"}))
		}, wait, poll).Should(Succeed())
		cloned := func(more map[string]string) machineOptions {
			annotations := map[string]string{
				clusterv1.TemplateClonedFromNameAnnotation:      "c4",
				clusterv1.TemplateClonedFromGroupKindAnnotation: "KwokMachineTemplate." + infrav1.GroupVersion.Group,
			}
			for key, value := range more {
				annotations[key] = value
			}
			return machineOptions{annotations: annotations}
		}
		short := newMachine(t, ns, "template-short", cloned(nil))
		newMachine(t, ns, "template-exempt", cloned(map[string]string{infrav1.FaultNoCapacity: "false"}))
		eventuallyReady(t, "template-exempt")
		eventuallyCondition(t, short, infrav1.ConditionReady, infrav1.ReasonInsufficientCapacity)
		annotate(t, template, map[string]string{infrav1.FaultNoCapacity: "false"})
		eventuallyReady(t, "template-short")

		annotate(t, template, map[string]string{infrav1.FaultNoCapacity: "true"})
		late := newMachine(t, ns, "template-late", cloned(nil))
		eventuallyCondition(t, late, infrav1.ConditionReady, infrav1.ReasonInsufficientCapacity)
		g.Expect(meta.IsStatusConditionTrue(get(t, short).Status.Conditions, infrav1.ConditionReady)).To(BeTrue(), "what runs stays")
	})
}

func TestMachineFaults(t *testing.T) {
	ns := newCluster(t)

	t.Run("When the provider ID comes late, the node should be there before it", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "late", machineOptions{annotations: map[string]string{infrav1.FaultLateProviderID: "true"}})
		node := eventuallyReady(t, "late")
		g.Expect(node.Spec.ProviderID).NotTo(BeEmpty())
		eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonProviderIDPending)
		g.Expect(get(t, machine).Spec.ProviderID).To(BeEmpty())
		g.Expect(get(t, machine).Status.Initialization.Provisioned).To(BeNil())

		annotate(t, get(t, machine), map[string]string{infrav1.FaultLateProviderID: "300ms"})
		eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonReady)
		g.Expect(get(t, machine).Spec.ProviderID).To(Equal(node.Spec.ProviderID))
	})

	t.Run("When it never joins, it should be provisioned and have no node until the fault ends", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "hermit", machineOptions{annotations: map[string]string{infrav1.FaultNeverJoins: "true"}})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonNeverJoins)
		g.Expect(get(t, machine).Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		g.Expect(apierrors.IsNotFound(guest.Get(t.Context(), types.NamespacedName{Name: "hermit"}, &corev1.Node{}))).To(BeTrue())
		annotate(t, get(t, machine), map[string]string{infrav1.FaultNeverJoins: "false"})
		eventuallyReady(t, "hermit")
	})

	t.Run("When it dies, its node should become unknown and its pods stay as they are; when it comes back, they should go on", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "mortal", machineOptions{annotations: map[string]string{infrav1.FaultDies: "true"}})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonDead)
		node := &corev1.Node{}
		unknown := func(g Gomega) {
			g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "mortal"}, node)).To(Succeed())
			g.Expect(readiness(node)).To(Equal(corev1.ConditionUnknown))
		}
		g.Eventually(unknown, wait, poll).Should(Succeed())
		pod := newPod(t, "mortal", nil)
		g.Consistently(func(g Gomega) {
			unknown(g)
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodPending))
		}, "1s", poll).Should(Succeed())
		g.Expect(meta.IsStatusConditionTrue(get(t, machine).Status.Conditions, infrav1.ConditionReady)).To(BeTrue(), "a cloud doesn't know")

		annotate(t, get(t, machine), map[string]string{infrav1.FaultDies: "false"})
		eventuallyReady(t, "mortal")
		eventuallyPhase(t, pod, corev1.PodRunning)
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
	})

	t.Run("When another client says that its node isn't ready, that should stand until the kubelet's next status", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "slandered", machineOptions{})
		node := eventuallyReady(t, "slandered")
		patch := client.StrategicMergeFrom(node.DeepCopy())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
		g.Expect(guest.Status().Patch(t.Context(), node, patch)).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(readiness(node)).To(Equal(corev1.ConditionFalse))
		}, "2s", poll).Should(Succeed())
		eventuallyReady(t, "slandered")
	})

	t.Run("When a running machine is told to die later, it should", func(t *testing.T) {
		machine := newMachine(t, ns, "later", machineOptions{})
		eventuallyReady(t, "later")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		annotate(t, get(t, machine), map[string]string{infrav1.FaultDies: "500ms"})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonDead)
	})

	t.Run("When the cloud takes it back, it should say so and run on until then", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "reclaimed", machineOptions{})
		eventuallyReady(t, "reclaimed")
		annotate(t, get(t, machine), map[string]string{infrav1.FaultInterrupted: "true"})
		g.Expect(eventuallyCondition(t, machine, infrav1.ConditionInterrupted, infrav1.ReasonInterrupted).Status).To(Equal(metav1.ConditionTrue))
		eventuallyPhase(t, newPod(t, "reclaimed", nil), corev1.PodRunning)
		annotate(t, get(t, machine), map[string]string{infrav1.FaultInterrupted: "false"})
		g.Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(get(t, machine).Status.Conditions, infrav1.ConditionInterrupted)
		}, wait, poll).Should(BeNil())
	})

	t.Run("When the cloud terminates it, it should say so once, and its node should become unknown", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "terminated", machineOptions{})
		eventuallyReady(t, "terminated")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		annotate(t, get(t, machine), map[string]string{infrav1.FaultTerminated: "true"})
		eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonInstanceTerminated)
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonDead)
		node := &corev1.Node{}
		g.Eventually(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "terminated"}, node)).To(Succeed())
			g.Expect(readiness(node)).To(Equal(corev1.ConditionUnknown))
		}, wait, poll).Should(Succeed())
		since := meta.FindStatusCondition(get(t, machine).Status.Conditions, infrav1.ConditionProvisioned).LastTransitionTime
		g.Consistently(func() metav1.Time {
			return meta.FindStatusCondition(get(t, machine).Status.Conditions, infrav1.ConditionProvisioned).LastTransitionTime
		}, "2s", poll).Should(Equal(since))
	})

	t.Run("When its deletion hangs, it should go on running until the fault ends", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "clingy", machineOptions{annotations: map[string]string{infrav1.FaultDeletionHangs: "true"}})
		eventuallyReady(t, "clingy")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		g.Expect(management.Delete(t.Context(), machine)).To(Succeed())
		eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonDeletionHangs)
		eventuallyPhase(t, newPod(t, "clingy", nil), corev1.PodRunning)
		annotate(t, get(t, machine), map[string]string{infrav1.FaultDeletionHangs: "1ms"})
		eventuallyGone(t, management, machine)
	})

	t.Run("When a fault can't be understood, it should say so and go on without it", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "typo", machineOptions{annotations: map[string]string{
			infrav1.FaultDies: "soon", infrav1.FaultPrefix + "no-capcity": "true",
		}})
		eventuallyReady(t, "typo")
		condition := eventuallyCondition(t, machine, infrav1.ConditionFaultsUnderstood, infrav1.ReasonMalformedFault)
		g.Expect(condition.Message).To(Equal(strings.Join([]string{
			`KwokMachine typo: annotation faults.infrastructure.autonode.io/dies: "soon": neither "true", "false" nor a duration such as "30s"`,
			`KwokMachine typo: annotation faults.infrastructure.autonode.io/no-capcity: "true": no fault has this name`,
		}, "; ")))
	})
}
