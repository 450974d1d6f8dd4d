// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// pause pauses the Cluster of a namespace, or resumes it, as clusterctl does before and after it moves the objects.
func pause(t *testing.T, ns string, value bool) {
	t.Helper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: clusterName}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, value))
	NewWithT(t).Expect(management.Patch(t.Context(), cluster, patch)).To(Succeed())
}

// leave deletes a machine's object as clusterctl does in the old management cluster, and returns what clusterctl makes in the new one: without
// UID and status.
func leave(t *testing.T, machine *infrav1.KwokMachine) *infrav1.KwokMachine {
	t.Helper()
	g := NewWithT(t)
	copied := get(t, machine)
	copied.UID, copied.ResourceVersion, copied.Status = "", "", infrav1.KwokMachineStatus{}
	for _, patch := range []client.Patch{
		client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"add","path":"/metadata/annotations","value":{%q:""}}]`, clusterctlv1.DeleteForMoveAnnotation)),
		nil,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`)),
	} {
		if patch == nil {
			g.Expect(management.Delete(t.Context(), machine)).To(Succeed())
			continue
		}
		g.Expect(management.Patch(t.Context(), machine.DeepCopy(), patch)).To(Succeed())
	}
	eventuallyGone(t, management, machine)
	return copied
}

func TestMove(t *testing.T) {
	ns := newCluster(t)
	machine := newMachine(t, ns, "mover", machineOptions{})
	node := eventuallyReady(t, "mover")
	eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
	before := get(t, machine)

	var arriving *infrav1.KwokMachine
	t.Run("When clusterctl takes the objects of a paused Cluster away, the nodes and their kubelets should stay", func(t *testing.T) {
		g := NewWithT(t)
		pause(t, ns, true)
		eventuallyCondition(t, machine, infrav1.ConditionPaused, infrav1.ReasonPaused)
		arriving = leave(t, machine)
		eventuallyPhase(t, newPod(t, "mover", nil), corev1.PodRunning)
		g.Consistently(func(g Gomega) {
			current := &corev1.Node{}
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(node), current)).To(Succeed())
			g.Expect(current.DeletionTimestamp).To(BeNil())
		}, "1s", poll).Should(Succeed())
	})

	t.Run("When the objects arrive without a status, the machine should be the one that runs, and not join again", func(t *testing.T) {
		g := NewWithT(t)
		// Its token is spent: a machine that joined again could read nothing.
		g.Expect(management.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mover"}})).To(Succeed())
		g.Expect(management.Create(t.Context(), arriving)).To(Succeed())
		eventuallyCondition(t, arriving, infrav1.ConditionPaused, infrav1.ReasonPaused)
		pause(t, ns, false)
		eventuallyCondition(t, arriving, infrav1.ConditionJoined, infrav1.ReasonJoined)
		eventuallyCondition(t, arriving, infrav1.ConditionReady, infrav1.ReasonReady)
		after := get(t, arriving)
		g.Expect(after.Spec).To(Equal(before.Spec))
		g.Expect(after.Status.Addresses).To(Equal(before.Status.Addresses))
		g.Expect(after.Status.FailureDomain).To(Equal(before.Status.FailureDomain))
		g.Expect(after.Status.NodeName).To(Equal("mover"))
		g.Expect(after.Status.JoinTime.Time).To(BeTemporally("==", node.CreationTimestamp.Time))
		g.Expect(eventuallyReady(t, "mover").UID).To(Equal(node.UID))
		eventuallyPhase(t, newPod(t, "mover", nil), corev1.PodRunning)
	})

	t.Run("When a machine that was moved is deleted, it should stop as any other", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Delete(t.Context(), arriving)).To(Succeed())
		eventuallyGone(t, management, arriving)
		late := newPod(t, "mover", nil)
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.Status.Phase).To(Equal(corev1.PodPending))
		}, "500ms", poll).Should(Succeed())
	})

	t.Run("When a machine was moved before it joined, it should join", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "early", machineOptions{annotations: map[string]string{infrav1.FaultNeverJoins: "true"}})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonNeverJoins)
		pause(t, ns, true)
		eventuallyCondition(t, machine, infrav1.ConditionPaused, infrav1.ReasonPaused)
		arriving := leave(t, machine)
		arriving.Annotations = nil
		g.Expect(management.Create(t.Context(), arriving)).To(Succeed())
		pause(t, ns, false)
		eventuallyReady(t, "early")
	})
}
