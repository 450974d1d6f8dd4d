// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

func TestPlacement(t *testing.T) {
	ns := newCluster(t)

	t.Run("When the machine has no version, its node should have the guest's, and the labels of its cloud", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "versionless", machineOptions{registration: "        {}", edit: func(m *infrav1.KwokMachine) {
			m.Spec.RegistrationDelay, m.Spec.NodeLabels = &metav1.Duration{Duration: time.Second}, map[string]string{"cloud.example/rack": "7"}
		}})
		owner := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), owner)).To(Succeed())
		owner.Spec.Version = ""
		g.Expect(management.Update(t.Context(), owner)).To(Succeed())
		node := eventuallyReady(t, "versionless")
		g.Expect(node.Status.NodeInfo.KubeletVersion).To(HavePrefix("v1."))
		g.Expect(node.Status.Capacity.Pods().Value()).To(BeEquivalentTo(110))
		g.Expect(node.Labels).To(HaveKeyWithValue("cloud.example/rack", "7"))
	})

	t.Run("When no zone is requested, it should be placed in one of the cluster's", func(t *testing.T) {
		newMachine(t, ns, "anywhere", machineOptions{})
		node := eventuallyReady(t, "anywhere")
		NewWithT(t).Expect(node.Labels[corev1.LabelTopologyZone]).To(BeElementOf("a", "b", "c"))
	})

	t.Run("When the zone doesn't exist, it should say so and name the zones", func(t *testing.T) {
		machine := newMachine(t, ns, "nowhere", machineOptions{zone: "z"})
		condition := eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonInvalidFailureDomain)
		NewWithT(t).Expect(condition.Message).To(Equal(`Machine nowhere: spec.failureDomain "z" is not one of the zones a, b, c`))
	})

	t.Run("When its own delays are set, it should keep to them", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "slow", machineOptions{edit: func(m *infrav1.KwokMachine) {
			m.Spec.ProvisioningDelay = &metav1.Duration{Duration: 400 * time.Millisecond}
			m.Spec.RegistrationDelay = &metav1.Duration{Duration: time.Hour}
		}})
		never := newMachine(t, ns, "never", machineOptions{edit: func(m *infrav1.KwokMachine) {
			m.Spec.ProvisioningDelay = &metav1.Duration{Duration: time.Hour}
		}})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonBooting)
		eventuallyCondition(t, never, infrav1.ConditionReady, infrav1.ReasonProvisioning) // after a while: most machines aren't as slow
		g.Expect(get(t, never).Finalizers).To(BeEmpty())
		current := get(t, machine)
		g.Expect(current.Status.StartTime.Sub(current.Status.RequestTime.Time)).To(BeNumerically(">=", 400*time.Millisecond))
		g.Expect(current.Spec.ProviderID).NotTo(BeEmpty())
		g.Expect(apierrors.IsNotFound(guest.Get(t.Context(), types.NamespacedName{Name: "slow"}, &corev1.Node{}))).To(BeTrue())
	})
}

func TestJoinObstacles(t *testing.T) {
	ns := newCluster(t)

	t.Run("When the bootstrap data is malformed, it should run, never join, and say what is wrong", func(t *testing.T) {
		g := NewWithT(t)
		for name, test := range map[string]struct{ userData, message string }{
			"empty":    {"", `not a cloud-config`},
			"badlabel": {fmt.Sprintf(joinConfig, `        kubeletExtraArgs: [{name: node-labels, value: "kubernetes.io/role=x"}]`), `"kubernetes.io/role": a kubelet refuses`},
			"nojoin":   {"#cloud-config\nwrite_files: []\n", `write_files has no /run/kubeadm/kubeadm-join-config.yaml`},
		} {
			machine := newMachine(t, ns, "bad-"+name, machineOptions{userData: &test.userData})
			condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonInvalidBootstrapData)
			g.Expect(condition.Message).To(SatisfyAll(HavePrefix("bootstrap Secret bad-"+name+": "), ContainSubstring(test.message)))
			eventuallyCondition(t, machine, infrav1.ConditionReady, infrav1.ReasonInvalidBootstrapData)
			g.Expect(get(t, machine).Spec.ProviderID).NotTo(BeEmpty())
		}
	})

	t.Run("When another node has its name, it should say so and leave that node alone", func(t *testing.T) {
		g := NewWithT(t)
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Spec: corev1.NodeSpec{ProviderID: "other://taken"}}
		g.Expect(guest.Create(t.Context(), other)).To(Succeed())
		machine := newMachine(t, ns, "taken", machineOptions{})
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonRegistrationFailed)
		g.Expect(condition.Message).To(Equal(`another Node has the name taken; its provider ID is "other://taken"`))
		g.Expect(management.Delete(t.Context(), machine)).To(Succeed())
		eventuallyGone(t, management, machine)
		g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "taken"}, other)).To(Succeed())
	})
}
