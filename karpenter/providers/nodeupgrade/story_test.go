// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
)

// pod makes one of Deployment shop/cart, three minutes old, on a node.
func (f *fixture) pod(node string, ready bool) *corev1.Pod {
	f.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart-" + node, Labels: map[string]string{"pod-template-hash": "7d9c"},
			CreationTimestamp: metav1.NewTime(f.clock.Now().Add(-3 * time.Minute)),
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-7d9c", UID: "r", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
	f.Expect(f.guest.Create(f.t.Context(), pod)).To(Succeed())
	f.ready(pod, ready)
	return pod
}

func (f *fixture) ready(pod *corev1.Pod, ready bool) {
	f.t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	f.Expect(f.guest.Status().Update(f.t.Context(), pod)).To(Succeed())
}

func TestCrashingPods(t *testing.T) {
	t.Run("When one Deployment's pods crash on a kubelet, it should halt after the canary, and go on once they have been well for the soak", func(t *testing.T) {
		f := newFixture(t, upgrade(upgradeplan.Plan{
			Canaries: 1, Soak: scalar.Duration{Duration: 10 * time.Minute}, MaxFailures: 1, MaxUnready: "10%",
		}))
		for i := range 10 {
			name := fmt.Sprintf("old-%d", i)
			f.claim(name, from.Image, string(drift.VersionDrifted), true)
			f.pod(name, true)
		}
		f.Expect(f.reconcile()).To(Equal(v1alpha1.NodeUpgradeCanary))
		f.Expect(f.disruptable()).To(Equal(1))

		f.Expect(f.upgrade.Launch(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "new", UID: types.UID("new")}})).To(Equal(to))
		f.claim("new", to.Image, "", true)
		crashing := f.pod("new", false)
		f.Expect(f.reconcile()).To(Equal(v1alpha1.NodeUpgradeHalted))
		f.Expect(f.upgrade.Status().Message).To(ContainSubstring("Deployment shop/cart (0 of 1 pods ready)"))
		f.Expect(f.disruptable()).To(BeZero(), "the other nodes")
		f.Expect(f.upgrade.Launch(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "scale-up", UID: types.UID("scale-up")}})).To(Equal(from))

		f.ready(crashing, true)
		f.Expect(f.reconcile()).To(Equal(v1alpha1.NodeUpgradeHalted), "it has to stay so")
		f.clock.SetTime(f.clock.Now().Add(10*time.Minute - time.Second))
		f.Expect(f.reconcile()).To(Equal(v1alpha1.NodeUpgradeHalted))
		f.clock.SetTime(f.clock.Now().Add(time.Second))
		f.Expect(f.reconcile()).To(Equal(v1alpha1.NodeUpgradeRolling))
		f.Expect(f.disruptable()).To(Equal(-1))
	})
}
