// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"context"
	"fmt"
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

// joinConfig is a bootstrap data Secret's value; the nodeRegistration is filled in. There is no token in it: see TestBootstrap for that.
const joinConfig = `## template: jinja
#cloud-config

write_files:
-   path: /run/kubeadm/kubeadm-join-config.yaml
    owner: root:root
    permissions: '0640'
    content: |
      ---
      apiVersion: kubeadm.k8s.io/v1beta4
      discovery: {file: {kubeConfigPath: /etc/kubernetes/bootstrap.conf}}
      kind: JoinConfiguration
      nodeRegistration:
%s
runcmd:
  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml
`

const plainRegistration = `        kubeletExtraArgs:
        - {name: node-labels, value: "team=web,node.kubernetes.io/instance-type=c4-large"}
        - {name: max-pods, value: "42"}
        - {name: kube-reserved, value: "cpu=100m,memory=512Mi"}
        taints:
        - {key: karpenter.sh/unregistered, effect: NoExecute}
`

// machineOptions vary what newMachine makes.
type machineOptions struct {
	annotations  map[string]string
	zone         string
	registration string
	userData     *string
	edit         func(*infrav1.KwokMachine)
}

// newMachine makes a Machine with its bootstrap data and its KwokMachine, as Cluster API's controllers would.
func newMachine(t *testing.T, ns, name string, options machineOptions) *infrav1.KwokMachine {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	if options.registration == "" {
		options.registration = plainRegistration
	}
	userData := fmt.Sprintf(joinConfig, options.registration)
	if options.userData != nil {
		userData = *options.userData
	}
	g.Expect(management.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Data:       map[string][]byte{"value": []byte(userData), "format": []byte("cloud-config")},
	})).To(Succeed())
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName}},
		Spec: clusterv1.MachineSpec{
			ClusterName:   clusterName,
			Version:       version,
			FailureDomain: options.zone,
			Bootstrap:     clusterv1.Bootstrap{DataSecretName: &name},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.GroupVersion.Group, Kind: "KwokMachine", Name: name,
			},
		},
	}
	g.Expect(management.Create(ctx, machine)).To(Succeed())
	kwokMachine := kwokMachine(ns, name)
	kwokMachine.Annotations = options.annotations
	kwokMachine.OwnerReferences = []metav1.OwnerReference{ownerReference("Machine", machine)}
	if options.edit != nil {
		options.edit(kwokMachine)
	}
	g.Expect(management.Create(ctx, kwokMachine)).To(Succeed())
	return kwokMachine
}

// kwokMachine returns a machine that nothing owns.
func kwokMachine(ns, name string) *infrav1.KwokMachine {
	return &infrav1.KwokMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName, corev1.LabelInstanceTypeStable: "c4-large"},
		},
		Spec: infrav1.KwokMachineSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("4"),
				corev1.ResourceMemory: resource.MustParse("8Gi"),
			},
			Architecture: infrav1.ArchitectureArm64,
		},
	}
}

// eventuallyCondition waits for a condition of a KwokMachine to have a reason, and returns it.
func eventuallyCondition(t *testing.T, machine *infrav1.KwokMachine, kind, reason string) *metav1.Condition {
	t.Helper()
	var condition *metav1.Condition
	NewWithT(t).Eventually(func(g Gomega) {
		current := &infrav1.KwokMachine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), current)).To(Succeed())
		condition = meta.FindStatusCondition(current.Status.Conditions, kind)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(condition.Reason).To(Equal(reason), "%s", condition.Message)
	}, wait, poll).Should(Succeed())
	return condition
}

// eventuallyReady waits for a Node to be ready, and returns it.
func eventuallyReady(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: name}, node)).To(Succeed())
		g.Expect(node.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))))
	}, wait, poll).Should(Succeed())
	return node
}

func get(t *testing.T, machine *infrav1.KwokMachine) *infrav1.KwokMachine {
	t.Helper()
	current := &infrav1.KwokMachine{}
	NewWithT(t).Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), current)).To(Succeed())
	return current
}

func newPod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: node + "-"},
		Spec: corev1.PodSpec{
			NodeName:    node,
			Containers:  []corev1.Container{{Name: "main", Image: "none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	g := NewWithT(t)
	g.Expect(guest.Create(t.Context(), pod)).To(Succeed())
	t.Cleanup(func() { _ = guest.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
	return pod
}

func eventuallyPhase(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(phase))
	}, wait, poll).Should(Succeed())
}

func eventuallyGone(t *testing.T, cluster client.Client, object client.Object) {
	t.Helper()
	NewWithT(t).Eventually(func() bool {
		return apierrors.IsNotFound(cluster.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	}, wait, poll).Should(BeTrue())
}
