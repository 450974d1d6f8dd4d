// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
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
	labels       map[string]string
	zone         string
	version      string
	registration string
	userData     *string
	edit         func(*infrav1.KwokMachine)
}

// newMachine makes a Machine with its bootstrap data and its KwokMachine, as Cluster API's controllers would.
func newMachine(t *testing.T, ns, name string, options machineOptions) *infrav1.KwokMachine {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	if options.version == "" {
		options.version = version
	}
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
			Version:       options.version,
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
	for key, value := range options.labels {
		kwokMachine.Labels[key] = value
	}
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
		g.Expect(readiness(node)).To(Equal(corev1.ConditionTrue))
	}, wait, poll).Should(Succeed())
	return node
}

func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

func get(t *testing.T, machine *infrav1.KwokMachine) *infrav1.KwokMachine {
	t.Helper()
	current := &infrav1.KwokMachine{}
	NewWithT(t).Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), current)).To(Succeed())
	return current
}

// annotate sets annotations; an empty value removes one.
func annotate(t *testing.T, object client.Object, annotations map[string]string) {
	t.Helper()
	before := object.DeepCopyObject().(client.Object)
	merged := object.GetAnnotations()
	if merged == nil {
		merged = map[string]string{}
	}
	for key, value := range annotations {
		merged[key] = value
		if value == "" {
			delete(merged, key)
		}
	}
	object.SetAnnotations(merged)
	NewWithT(t).Expect(management.Patch(t.Context(), object, client.MergeFrom(before))).To(Succeed())
}

func TestMachine(t *testing.T) {
	ns := newCluster(t)

	t.Run("When a machine has all it needs, it should become a ready node as its bootstrap data says", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "good", machineOptions{zone: "b", edit: func(m *infrav1.KwokMachine) {
			m.Spec.NodeLabels = map[string]string{"cloud.example/rack": "7"}
		}})
		node := eventuallyReady(t, "good")

		wantLabels := map[string]string{
			"team": "web", "cloud.example/rack": "7",
			corev1.LabelHostname: "good", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "arm64",
			"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64",
			corev1.LabelInstanceTypeStable: "c4-large", corev1.LabelTopologyZone: "b", corev1.LabelTopologyRegion: "here",
		}
		if diff := cmp.Diff(wantLabels, node.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		g.Expect(node.Spec.Taints).To(ContainElement(corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}))
		g.Expect(node.Spec.ProviderID).To(Equal("kwok://" + ns + "/good"))
		g.Expect(node.Annotations).To(HaveKeyWithValue("kwok.x-k8s.io/node", "fake"))
		g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(version))
		g.Expect(node.Status.NodeInfo.Architecture).To(Equal("arm64"))
		equalQuantities := cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
		if diff := cmp.Diff(corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("3900m"), corev1.ResourceMemory: resource.MustParse("7680Mi"), corev1.ResourcePods: resource.MustParse("42"),
		}, node.Status.Allocatable, equalQuantities); diff != "" {
			t.Errorf("allocatable (-want +got):\n%s", diff)
		}

		ready := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		g.Expect(ready.Status).To(Equal(metav1.ConditionTrue))
		current := get(t, machine)
		g.Expect(current.Spec.ProviderID).To(Equal(node.Spec.ProviderID))
		g.Expect(current.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		g.Expect(current.Status.FailureDomain).To(Equal("b"))
		g.Expect(current.Status.NodeName).To(Equal("good"))
		g.Expect(current.Finalizers).To(ConsistOf(infrav1.MachineFinalizer))
		want := clusterv1.MachineAddresses{
			{Type: clusterv1.MachineInternalIP, Address: node.Status.Addresses[0].Address},
			{Type: clusterv1.MachineHostName, Address: "good"},
		}
		if diff := cmp.Diff(want, current.Status.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		g.Expect(current.Status.JoinTime.Sub(current.Status.StartTime.Time)).To(BeNumerically(">=", registrationDelay))
		g.Expect(current.Status.StartTime.Sub(current.Status.RequestTime.Time)).To(BeNumerically(">=", provisioningDelay))

		g.Eventually(func() error {
			return guest.Get(t.Context(), types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: "good"}, &coordinationv1.Lease{})
		}, wait, poll).Should(Succeed())
	})

	t.Run("When pods are bound to its node, it should run, complete and end them, even once the node was deleted", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "pods", machineOptions{})
		node := eventuallyReady(t, "pods")
		service := newPod(t, "pods", nil)
		job := newPod(t, "pods", []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "1"}})
		eventuallyPhase(t, service, corev1.PodRunning)
		eventuallyPhase(t, job, corev1.PodSucceeded)
		g.Expect(netip.MustParsePrefix("10.128.0.0/9").Contains(netip.MustParseAddr(service.Status.PodIP))).To(BeTrue())
		g.Expect(service.Status.PodIP).NotTo(Equal(job.Status.PodIP))

		g.Expect(guest.Delete(t.Context(), node)).To(Succeed())
		g.Expect(guest.Delete(t.Context(), service)).To(Succeed())
		eventuallyGone(t, guest, service)
		g.Expect(guest.Delete(t.Context(), job)).To(Succeed())
		eventuallyGone(t, guest, job)
	})

	t.Run("When pods ask to be late or unready, they should run accordingly, and end within their grace period", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "patient", machineOptions{})
		eventuallyReady(t, "patient")
		late := newPod(t, "patient", nil, func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"pod-delete.stage.kwok.x-k8s.io/delay": "300s"}
			pod.Spec.TerminationGracePeriodSeconds = new(int64(3))
		})
		unready := newPod(t, "patient", nil, func(pod *corev1.Pod) { pod.Labels = map[string]string{"kwok.x-k8s.io/stage": "unhealthy"} })
		eventuallyPhase(t, late, corev1.PodRunning)
		eventuallyPhase(t, unready, corev1.PodRunning)
		g.Expect(guest.Delete(t.Context(), late)).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(unready), unready)).To(Succeed())
			for _, condition := range unready.Status.Conditions {
				g.Expect(condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue).To(BeFalse(), "it is ready")
			}
		}, "1s", poll).Should(Succeed())
		eventuallyGone(t, guest, late)
	})

	t.Run("When it is deleted, it should stop at once, end the pods that are ending, and leave the node to Cluster API", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "deleted", machineOptions{})
		eventuallyReady(t, "deleted")
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		pod := newPod(t, "deleted", nil)
		eventuallyPhase(t, pod, corev1.PodRunning)

		g.Expect(management.Delete(t.Context(), machine)).To(Succeed())
		eventuallyGone(t, management, machine)
		g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "deleted"}, &corev1.Node{})).To(Succeed())
		late := newPod(t, "deleted", nil)
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.Status.Phase).To(Equal(corev1.PodPending))
		}, "500ms", poll).Should(Succeed())
	})

	t.Run("When it changes, there should be one event for each change", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "eventful", machineOptions{})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		annotate(t, get(t, machine), map[string]string{infrav1.FaultDies: "true"})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonDead)
		g.Eventually(func(g Gomega) {
			events := &eventsv1.EventList{}
			g.Expect(management.List(t.Context(), events, client.InNamespace(ns))).To(Succeed())
			var reasons []string
			for _, event := range events.Items {
				if event.Regarding.Name == "eventful" {
					reasons = append(reasons, event.Type+" "+event.Reason)
				}
			}
			g.Expect(reasons).To(ConsistOf("Normal Provisioned", "Warning Dead"))
		}, wait, poll).Should(Succeed())
	})

	t.Run("When a node outlives its machine, the cloud should delete it, and no other", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "alive", machineOptions{})
		eventuallyReady(t, "alive")
		ghost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ghost"}, Spec: corev1.NodeSpec{ProviderID: "kwok://" + ns + "/ghost"}}
		foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Spec: corev1.NodeSpec{ProviderID: "other://ghost"}}
		g.Expect(guest.Create(t.Context(), ghost)).To(Succeed())
		g.Expect(guest.Create(t.Context(), foreign)).To(Succeed())
		eventuallyGone(t, guest, ghost)
		g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "foreign"}, foreign)).To(Succeed())
		g.Expect(guest.Get(t.Context(), types.NamespacedName{Name: "alive"}, &corev1.Node{})).To(Succeed())
	})

	t.Run("When no zone is asked for, it should be placed in one of the cluster's", func(t *testing.T) {
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

	t.Run("When the machine has no version, it should have the guest's", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "versionless", machineOptions{registration: "        {}", edit: func(m *infrav1.KwokMachine) {
			m.Spec.RegistrationDelay = &metav1.Duration{Duration: time.Second}
		}})
		owner := &clusterv1.Machine{}
		g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), owner)).To(Succeed())
		owner.Spec.Version = ""
		g.Expect(management.Update(t.Context(), owner)).To(Succeed())
		node := eventuallyReady(t, "versionless")
		g.Expect(node.Status.NodeInfo.KubeletVersion).To(HavePrefix("v1."))
		g.Expect(node.Status.Capacity.Pods().Value()).To(BeEquivalentTo(110))
	})

	t.Run("When the machine is paused, it should wait", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "paused", machineOptions{annotations: map[string]string{clusterv1.PausedAnnotation: ""}})
		eventuallyCondition(t, machine, infrav1.ConditionPaused, infrav1.ReasonPaused)
		g.Expect(get(t, machine).Finalizers).To(BeEmpty())
		before := get(t, machine)
		after := before.DeepCopy()
		after.Annotations = nil
		g.Expect(management.Patch(t.Context(), after, client.MergeFrom(before))).To(Succeed())
		eventuallyReady(t, "paused")
		eventuallyCondition(t, machine, infrav1.ConditionPaused, infrav1.ReasonNotPaused)
	})

	t.Run("When the guest can't be reached for a while, it should join, and its pods start, when that is over", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, ns, "before", machineOptions{})
		eventuallyReady(t, "before")
		guestProxy.cut()
		machine := newMachine(t, ns, "after", machineOptions{})
		pod := newPod(t, "before", nil)
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonGuestUnreachable)
		g.Expect(condition.Message).To(ContainSubstring("connection refused"))
		g.Expect(guestProxy.mend()).To(Succeed())
		eventuallyReady(t, "after")
		g.Eventually(func() corev1.PodPhase {
			_ = guest.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
			return pod.Status.Phase
		}, 40*time.Second, poll).Should(Equal(corev1.PodRunning))
	})
}

func TestFaults(t *testing.T) {
	ns := newCluster(t)

	t.Run("When there is no capacity in one zone, a machine there should never run until there is; others should", func(t *testing.T) {
		g := NewWithT(t)
		kwokCluster := &infrav1.KwokCluster{}
		g.Expect(management.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: clusterName}, kwokCluster)).To(Succeed())
		annotate(t, kwokCluster, map[string]string{infrav1.FaultNoCapacity: "a/spot"})
		spot := map[string]string{"karpenter.sh/capacity-type": "spot"}
		short := newMachine(t, ns, "short", machineOptions{zone: "a", labels: spot})
		newMachine(t, ns, "other-zone", machineOptions{zone: "b", labels: spot})
		newMachine(t, ns, "on-demand", machineOptions{zone: "a"})
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
	})

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

	t.Run("When somebody else says that its node isn't ready, that should stand until the kubelet's next status", func(t *testing.T) {
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

func TestClusterStatus(t *testing.T) {
	ns := newCluster(t)
	t.Run("When a Cluster owns it, it should be provisioned and report its zones", func(t *testing.T) {
		kwokCluster := &infrav1.KwokCluster{}
		NewWithT(t).Expect(management.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: clusterName}, kwokCluster)).To(Succeed())
		want := infrav1.KwokClusterStatus{
			Conditions:     []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready", ObservedGeneration: 1}},
			FailureDomains: []clusterv1.FailureDomain{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		}
		provisioned := true
		want.Initialization.Provisioned = &provisioned
		if diff := cmp.Diff(want, kwokCluster.Status, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

func TestMany(t *testing.T) {
	ns := newCluster(t)
	t.Run("When many machines start at once, they should all be ready soon", func(t *testing.T) {
		const count = 100
		start := time.Now()
		for n := range count {
			newMachine(t, ns, fmt.Sprintf("many-%03d", n), machineOptions{})
		}
		created := time.Now()
		NewWithT(t).Eventually(func(g Gomega) {
			nodes := &corev1.NodeList{}
			g.Expect(guest.List(t.Context(), nodes)).To(Succeed())
			ready := 0
			for i := range nodes.Items {
				if strings.HasPrefix(nodes.Items[i].Name, "many-") && readiness(&nodes.Items[i]) == corev1.ConditionTrue {
					ready++
				}
			}
			g.Expect(ready).To(Equal(count))
		}, time.Minute, 50*time.Millisecond).Should(Succeed())
		t.Logf("%d machines were created in %s and ready %s later", count, created.Sub(start), time.Since(created))
	})
}

func newPod(t *testing.T, node string, owners []metav1.OwnerReference, options ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: node + "-", OwnerReferences: owners},
		Spec: corev1.PodSpec{
			NodeName:    node,
			Containers:  []corev1.Container{{Name: "main", Image: "none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	for _, option := range options {
		option(pod)
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
