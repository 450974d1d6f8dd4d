// SPDX-License-Identifier: Apache-2.0

//go:build linux

package real

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/workload"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/registry"
)

const (
	// eventually is how long everything that must happen may take: no test depends on how fast the machine is.
	eventually = 10 * time.Minute
	interval   = 200 * time.Millisecond

	pool       = "real"
	web        = "web"
	pullSecret = "registry"
)

// TestRealMachine: a machine with containerd and a kubelet joins by `kubeadm join`, runs a container, is drained and goes.
func TestRealMachine(t *testing.T) {
	p := start(t)
	g := NewWithT(t)
	t.Cleanup(func() {
		if t.Failed() {
			p.describe(t)
		}
	})
	p.offerHost(t)
	p.enable(t)
	watched := p.watch(t)
	p.nodePool(t)
	p.serveWeb(t)
	p.waitRunning(t)
	node, pod := p.node(t), p.pod(t)
	machines := &infrav1.KwokMachineList{}
	g.Expect(p.management.List(t.Context(), machines, client.InNamespace(p.namespace()), client.MatchingLabels{v1alpha1.NodeClaimLabel: p.nodeClaim(t, node.Name).Name})).To(Succeed())
	g.Expect(machines.Items).To(HaveLen(1))
	machine := &machines.Items[0]

	t.Run("When a machine joins, it should get its identity from AutoNode's operator, once as its token and then as itself", func(t *testing.T) {
		for signer, requester := range map[string]string{
			certificatesv1.KubeAPIServerClientKubeletSignerName: "system:bootstrap:", certificatesv1.KubeletServingSignerName: "system:node:" + node.Name,
		} {
			NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
				requests := &certificatesv1.CertificateSigningRequestList{}
				g.Expect(p.guest.List(ctx, requests)).To(Succeed())
				g.Expect(requests.Items).To(ContainElement(And(
					HaveField("Spec.SignerName", signer), HaveField("Spec.Username", HavePrefix(requester)),
					HaveField("Status.Certificate", Not(BeEmpty())),
					HaveField("Status.Conditions", ConsistOf(And(
						HaveField("Type", certificatesv1.CertificateApproved), HaveField("Reason", v1beta1.NodeIdentityConfirmedReason)))),
				)))
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		}
	})

	t.Run("When the kubelet made the Node, it should have had the unregistered taint until Karpenter had registered it", func(t *testing.T) {
		g := NewWithT(t)
		first, registered := watched.firstNode(node.Name)
		g.Expect(first.ManagedFields).To(HaveEach(HaveField("Manager", "kubelet")))
		g.Expect(first.Spec.Taints).To(ContainElement(karpv1.UnregisteredNoExecuteTaint))
		g.Expect(registered).To(BeTrue(), "the label %s comes with the end of the taint", karpv1.NodeRegisteredLabelKey)
		g.Expect(node.Spec.Taints).To(BeEmpty())
		g.Expect(node.Labels).To(HaveKeyWithValue(karpv1.NodeInitializedLabelKey, "true"))
	})

	t.Run("When the kubelet reports, it should be about this host, and Karpenter should have promised no more", func(t *testing.T) {
		g := NewWithT(t)
		capacity := node.Status.Capacity
		g.Expect(capacity.Cpu().Value()).To(BeEquivalentTo(goruntime.NumCPU()))
		g.Expect(capacity.Memory().Value()).To(BeEquivalentTo(hostMemory(t)))
		info := node.Status.NodeInfo
		g.Expect(info.ContainerRuntimeVersion).To(HavePrefix("containerd://"))
		g.Expect(info.KubeletVersion).To(Equal("v" + localworld.InitialRelease))
		g.Expect(node.Spec.ProviderID).To(Equal(machine.Spec.ProviderID))
		g.Expect(node.Status.Addresses).To(ConsistOf(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: machine.Status.Addresses[0].Address},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name}))
		claim := p.nodeClaim(t, node.Name)
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
			promised, has := claim.Status.Allocatable[name], node.Status.Allocatable[name]
			g.Expect(promised.Cmp(has)).To(BeNumerically("<=", 0), "%s: %s promised, %s there", name, promised.String(), has.String())
		}
	})

	t.Run("When a pod runs, it should be a process of its own from the registry's image, whose logs can be read", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		g.Expect(pod.Status.ContainerStatuses[0].ImageID).To(ContainSubstring("@sha256:"))
		g.Expect(pod.Status.ContainerStatuses[0].ContainerID).To(HavePrefix("containerd://"))
		logs, err := p.kubelets.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(logs)).To(Equal(fmt.Sprintf("pod %s serves as user 65532, process 1\n", pod.Name)))
	})

	t.Run("When its NodeClaim is deleted, the pod should be ended in order and replaced on another machine, and the first one go", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(p.guest.Delete(t.Context(), p.nodeClaim(t, node.Name))).To(Succeed())
		p.waitGone(t, node.Name, string(machine.UID))
		g.Expect(watched.exitCode(pod.Name)).To(HaveValue(BeZero()), "it has ended by itself when it was asked to")
		p.waitRunning(t)
		g.Expect(p.node(t).Name).NotTo(Equal(node.Name))
	})

	t.Run("When nothing is to run any more, every machine should go and leave nothing on this host", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(p.guest.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: web}})).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			nodes, machines := &corev1.NodeList{}, &clusterv1.MachineList{}
			g.Expect(p.guest.List(ctx, nodes)).To(Succeed())
			g.Expect(nodes.Items).To(BeEmpty())
			g.Expect(p.management.List(ctx, machines, client.InNamespace(p.namespace()))).To(Succeed())
			g.Expect(machines.Items).To(BeEmpty())
			g.Expect(p.hypervisor.Machines()).To(BeEmpty())
			g.Expect(p.hypervisor.Leftovers()).To(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}

func (p *place) namespace() string { return hosting.ControlPlaneNamespace(blue) }

// hostMemory is what this host has, in bytes, as a kubelet reads it.
func hostMemory(t *testing.T) int64 {
	t.Helper()
	g := NewWithT(t)
	file, err := os.Open("/proc/meminfo")
	g.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "MemTotal:" {
			kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
			g.Expect(err).NotTo(HaveOccurred())
			return kilobytes << 10
		}
	}
	t.Fatal("/proc/meminfo has no MemTotal")
	return 0
}

// offerHost makes the templates of a machine that is as large as this host.
func (p *place) offerHost(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	labels := map[string]string{clusterv1.ClusterNameLabel: blue, hosting.TemplatePoolLabel: pool}
	bootstrap := &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace(), Name: pool}}
	registration := &bootstrap.Spec.Template.Spec.JoinConfiguration.NodeRegistration
	registration.Name = "{{ ds.meta_data.local_hostname }}"
	for name, value := range map[string]string{"provider-id": "{{ ds.meta_data.provider_id }}", "rotate-server-certificates": "true"} {
		registration.KubeletExtraArgs = append(registration.KubeletExtraArgs, bootstrapv1.Arg{Name: name, Value: &value})
	}
	// What kubeadm would look for in the kernel of the host: its configuration, and modules.
	registration.IgnorePreflightErrors = []string{"SystemVerification", "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables"}
	g.Expect(p.management.Create(t.Context(), bootstrap)).To(Succeed())
	template := &infrav1.KwokMachineTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.namespace(), Name: "host", Labels: labels, Annotations: map[string]string{v1alpha1.PriceAnnotation: "0.1"},
	}}
	template.Spec.Template.Spec = infrav1.KwokMachineSpec{
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(hostMemory(t), resource.BinarySI),
		},
		Architecture: infrav1.Architecture(goruntime.GOARCH),
	}
	g.Expect(p.management.Create(t.Context(), template)).To(Succeed())
}

// enable turns AutoNode on, and waits until the default node class is ready.
func (p *place) enable(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	hosted := &v1beta1.HostedCluster{}
	key := client.ObjectKey{Namespace: hosting.Namespace, Name: blue}
	g.Expect(p.management.Get(t.Context(), key, hosted)).To(Succeed())
	before := hosted.DeepCopy()
	hosted.Spec.AutoNode = hosting.AutoNode(pool, pool)
	g.Expect(p.management.Patch(t.Context(), hosted, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(p.management.Get(ctx, key, hosted)).To(Succeed())
		g.Expect(hosted.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1beta1.AutoNodeEnabled), HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", hosted.Generation))))
		class := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(p.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
		g.Expect(class.StatusConditions().IsTrue("Ready")).To(BeTrue(), "default node class: %v", class.Status.Conditions)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func (p *place) nodePool(t *testing.T) {
	t.Helper()
	NewWithT(t).Expect(p.guest.Create(t.Context(), workload.NodePool(pool))).To(Succeed())
}

// serveWeb deploys one pod of a program of ours, from the world's registry and with its pull secret.
func (p *place) serveWeb(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	image, err := registry.PackProgram(p.hypervisor.Workload(), web, nil)
	g.Expect(err).NotTo(HaveOccurred())
	reference, err := p.world.Registry().Push(t.Context(), "real/web:1", image)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.guest.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pullSecret}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: p.world.Registry().DockerConfigJSON()},
	})).To(Succeed())
	g.Expect(p.guest.Create(t.Context(), workload.Deployment(web, 1, "100m", func(template *corev1.PodTemplateSpec) {
		template.Spec.TerminationGracePeriodSeconds = nil // the program ends on request
		template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: pullSecret}}
		container := &template.Spec.Containers[0]
		container.Image, container.Args = reference, []string{":8080"}
		container.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)},
		}}
	}))).To(Succeed())
}

func (p *place) waitRunning(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		workload.ExpectRunning(g, ctx, p.guest, web)
		g.Expect(p.listNodes(g, ctx)).To(ConsistOf(HaveField("Labels", HaveKeyWithValue(karpv1.NodeInitializedLabelKey, "true"))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// waitGone waits until a node, its machine and all of it on this host have gone.
func (p *place) waitGone(t *testing.T, node, machine string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(p.listNodes(g, ctx)).NotTo(ContainElement(HaveField("Name", node)))
		g.Expect(p.hypervisor.Machines()).NotTo(ContainElement(machine))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func (p *place) listNodes(g Gomega, ctx context.Context) []corev1.Node {
	list := &corev1.NodeList{}
	g.Expect(p.guest.List(ctx, list)).To(Succeed())
	return list.Items
}

func (p *place) node(t *testing.T) *corev1.Node {
	t.Helper()
	g := NewWithT(t)
	nodes := p.listNodes(g, t.Context())
	g.Expect(nodes).To(HaveLen(1))
	return &nodes[0]
}

func (p *place) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	g := NewWithT(t)
	pods := &corev1.PodList{}
	g.Expect(p.guest.List(t.Context(), pods, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	return &pods.Items[0]
}

func (p *place) nodeClaim(t *testing.T, node string) *karpv1.NodeClaim {
	t.Helper()
	g := NewWithT(t)
	claims := &karpv1.NodeClaimList{}
	g.Expect(p.guest.List(t.Context(), claims)).To(Succeed())
	for i := range claims.Items {
		if claims.Items[i].Status.NodeName == node {
			return &claims.Items[i]
		}
	}
	t.Fatalf("no NodeClaim has node %s", node)
	return nil
}

// history is what a watch has seen of nodes and pods.
type history struct {
	mutex sync.Mutex
	// nodes are all versions of each, the first one first.
	nodes map[string][]*corev1.Node
	// exits are the exit codes of pods' containers.
	exits map[string]int32
}

func (p *place) watch(t *testing.T) *history {
	t.Helper()
	g := NewWithT(t)
	h := &history{nodes: map[string][]*corev1.Node{}, exits: map[string]int32{}}
	var done sync.WaitGroup
	t.Cleanup(done.Wait)
	for _, list := range []client.ObjectList{&corev1.NodeList{}, &corev1.PodList{}} {
		watcher, err := p.guest.Watch(t.Context(), list)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(watcher.Stop)
		done.Go(func() {
			for event := range watcher.ResultChan() {
				h.record(event)
			}
		})
	}
	return h
}

func (h *history) record(event watch.Event) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch object := event.Object.(type) {
	case *corev1.Node:
		h.nodes[object.Name] = append(h.nodes[object.Name], object)
	case *corev1.Pod:
		for _, container := range object.Status.ContainerStatuses {
			if ended := container.State.Terminated; ended != nil {
				h.exits[object.Name] = ended.ExitCode
			}
		}
	}
}

// firstNode is the first version of a node, and reports whether every version without Karpenter's label that it is registered had the taint.
func (h *history) firstNode(name string) (first *corev1.Node, registered bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	registered = true
	for _, version := range h.nodes[name] {
		_, is := version.Labels[karpv1.NodeRegisteredLabelKey]
		tainted := false
		for _, taint := range version.Spec.Taints {
			tainted = tainted || taint.MatchTaint(&karpv1.UnregisteredNoExecuteTaint)
		}
		registered = registered && is != tainted
	}
	return h.nodes[name][0], registered
}

func (h *history) exitCode(pod string) *int32 {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if code, ended := h.exits[pod]; ended {
		return &code
	}
	return nil
}

// describe writes down what a person would look at.
func (p *place) describe(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{localworld.Management, "get", "machines,kwokmachines,kubeadmconfigs", "-A", "-o", "wide"},
		{blue, "get", "nodeclaims,nodes,csr,pods", "-A", "-o", "wide"},
		{blue, "get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		kubectl := exec.CommandContext(ctx, p.world.Kubectl(), append([]string{"--kubeconfig=" + p.world.Kubeconfig(args[0])}, args[1:]...)...)
		output, err := kubectl.CombinedOutput()
		t.Logf("%s: kubectl %s: %v\n%s", args[0], strings.Join(args[1:], " "), err, output)
	}
	logs, _ := filepath.Glob(filepath.Join(p.dir, "machine-logs", "*", "*.log"))
	for _, path := range logs {
		content, err := os.ReadFile(path)
		t.Logf("the end of %s: %v\n%s", path, err, content[max(0, len(content)-4000):])
	}
}
