// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// report lets a node of a template report what it can allocate.
func report(i *inventory.Inventory, tmpl template.Template, name string, capacity, allocatable inventory.Amounts) {
	i.ObserveMachine(types.UID(name), inventory.Machine{
		Origin: inventory.Origin{Source: tmpl.Source.Annotation()}, ContentHash: tmpl.ContentHash, BootstrapHash: tmpl.Bootstrap.Hash, NodeClassHash: "class", ProviderID: name,
	})
	i.ObserveNode(name, inventory.Node{ProviderID: name, Capacity: capacity, Allocatable: allocatable})
}

func expectList(g Gomega, got corev1.ResourceList, want map[corev1.ResourceName]string) {
	for name, quantity := range want {
		q := got[name]
		g.Expect(q.Cmp(resource.MustParse(quantity))).To(BeZero(), "%s is %s, want %s", name, q.String(), quantity)
	}
}

func TestBootstrapSettings(t *testing.T) {
	// large has 8 GiB of memory, 100 GiB of disk and four cores.
	large := func(settings kubelet.Settings) template.Template {
		return newTemplate("c4-large", 4, 0.1, func(s *template.Template) {
			s.DefaultPods, s.Bootstrap = true, template.Bootstrap{DataSecretName: "join", Hash: "bootstrap", Kubelet: settings}
		})
	}
	settings := kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{
		MaxPods:        ptr.To(int32(58)),
		KubeReserved:   map[string]v1alpha1.ReservedQuantity{"cpu": "500m", "memory": "1Gi"},
		SystemReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "100m", "memory": "512Mi"},
		EvictionHard:   map[string]v1alpha1.EvictionThreshold{"memory.available": "512Mi"},
	}}
	for name, tc := range map[string]struct {
		templates []template.Template
		nodeClass *v1alpha1.KubeletConfiguration
		want      map[corev1.ResourceName]string
	}{
		"a bootstrap reserves": {
			templates: []template.Template{large(settings)},
			want:      map[corev1.ResourceName]string{"cpu": "3400m", "memory": "6Gi", "pods": "58", "ephemeral-storage": "100Gi"},
		},
		"the node class sets all that counts": {
			templates: []template.Template{large(settings)},
			nodeClass: &v1alpha1.KubeletConfiguration{
				MaxPods: ptr.To(int32(200)), PodsPerCore: ptr.To(int32(30)),
				KubeReserved:   map[string]v1alpha1.ReservedQuantity{"cpu": "1", "ephemeral-storage": "10Gi"},
				SystemReserved: map[string]v1alpha1.ReservedQuantity{"memory": "1Gi", "pid": "1000"},
				EvictionHard:   map[string]v1alpha1.EvictionThreshold{"memory.available": "12.5%", "nodefs.available": "20%", "imagefs.available": "50%"},
			},
			want: map[corev1.ResourceName]string{"cpu": "3", "memory": "6Gi", "pods": "120", "ephemeral-storage": "70Gi"},
		},
		// A kubelet allocates what a soft threshold keeps, as Karpenter's AWS provider plans it.
		"the node class sets what doesn't count": {
			templates: []template.Template{large(settings)},
			nodeClass: &v1alpha1.KubeletConfiguration{
				ClusterDNS: []string{"10.96.0.10"}, EvictionSoft: map[string]v1alpha1.EvictionThreshold{"memory.available": "4Gi", "nodefs.available": "50%"},
				EvictionSoftGracePeriod:   map[string]v1alpha1.EvictionGracePeriod{"memory.available": "90s", "nodefs.available": "90s"},
				EvictionMaxPodGracePeriod: ptr.To(int32(60)), ImageGCHighThresholdPercent: ptr.To(int32(70)), ImageGCLowThresholdPercent: ptr.To(int32(60)),
				CPUCFSQuota: ptr.To(false), PodPidsLimit: ptr.To(int64(4096)),
			},
			want: map[corev1.ResourceName]string{"cpu": "3400m", "memory": "6Gi", "pods": "58", "ephemeral-storage": "100Gi"},
		},
		"a bootstrap reserves whole CPUs": {
			templates: []template.Template{large(kubelet.Settings{KubeletConfiguration: settings.KubeletConfiguration, ReservedCPUs: ptr.To(int64(2))})},
			want:      map[corev1.ResourceName]string{"cpu": "2"},
		},
		"templates of one type boot differently": {
			templates: []template.Template{large(settings), func() template.Template {
				other := large(kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{
					MaxPods: ptr.To(int32(30)), KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "1"}, EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "1Mi"},
				}})
				other.Source.Name, other.Bootstrap.Hash = "other", "other"
				return other
			}()},
			want: map[corev1.ResourceName]string{"cpu": "2900m", "memory": "6Gi", "pods": "30"},
		},
	} {
		t.Run("When "+name+", it should promise the rest", func(t *testing.T) {
			in := input(tc.templates...)
			in.Kubelet = tc.nodeClass
			snapshot := snapshotOf(in)
			NewWithT(t).Expect(snapshot.Problems).To(BeEmpty())
			expectList(NewWithT(t), snapshot.InstanceTypes[0].Allocatable(), tc.want)
		})
	}

	t.Run("When a bootstrap's quantity is none, it should name the bootstrap and not the node class", func(t *testing.T) {
		tmpl := large(kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "some"}}})
		problems := snapshotOf(input(tmpl)).Problems
		g := NewWithT(t)
		g.Expect(problems).To(HaveLen(1))
		g.Expect(problems[0].Error()).To(And(ContainSubstring("kubeReserved[cpu]"), Not(ContainSubstring("spec.kubelet"))))
	})
	t.Run("When a bootstrap registers nodes with taints, it should offer them only to NodePools that have those", func(t *testing.T) {
		g := NewWithT(t)
		dedicated := corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
		snapshot := snapshotOf(input(large(kubelet.Settings{Taints: []corev1.Taint{dedicated, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}})))
		g.Expect(snapshot.Tolerating()).To(BeEmpty())
		g.Expect(snapshot.Tolerating([]corev1.Taint{dedicated})).To(HaveLen(1))
	})
}

// TestEviction: hard eviction thresholds reduce what a node can allocate; which ones apply is the kubelet's to say.
func TestEviction(t *testing.T) {
	const merging = `
joinConfiguration: {patches: {directory: /etc/kubernetes/patches}}
files: [{path: /etc/kubernetes/patches/kubeletconfiguration0+merge.yaml, content: "mergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 500Mi}"}]`
	args := func(name, value string) string {
		return `{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: ` + name + `, value: "` + value + `"}]}}}`
	}
	for name, tc := range map[string]struct {
		os, spec        string
		nodeClass       map[string]v1alpha1.EvictionThreshold
		memory, storage string
	}{
		"nodes run Linux": {spec: `{}`, memory: "8092Mi", storage: "90Gi"},
		// aws/karpenter-provider-aws#8473
		"nodes run Windows":                  {os: "windows", spec: `{}`, memory: "7692Mi", storage: "90Gi"},
		"a template has one threshold":       {spec: args("eviction-hard", "memory.available<500Mi"), memory: "7692Mi", storage: "100Gi"},
		"a template merges the default ones": {spec: merging, memory: "7692Mi", storage: "90Gi"},
		"a template merges those of Windows": {
			os: "windows", spec: strings.Replace(merging, "{memory.available: 500Mi}", "{nodefs.available: 20%}", 1), memory: "7692Mi", storage: "80Gi",
		},
		"a node class replaces what a template merges": {
			spec: merging, nodeClass: map[string]v1alpha1.EvictionThreshold{"memory.available": "1Gi"}, memory: "7Gi", storage: "100Gi",
		},
		"a template has no threshold":     {spec: `{files: [{path: /k, content: "kind: KubeletConfiguration\nevictionHard: {}"}]}`, memory: "8Gi", storage: "100Gi"},
		"the kubelet leaves them out":     {spec: args("experimental-allocatable-ignore-eviction", "true"), memory: "8Gi", storage: "100Gi"},
		"a percentage turns one off":      {spec: args("eviction-hard", "memory.available<100%,nodefs.available<0%"), memory: "8Gi", storage: "100Gi"},
		"nodes have no ephemeral storage": {spec: args("local-storage-capacity-isolation", "false"), memory: "8092Mi", storage: "0"},
	} {
		t.Run("When "+name+", it should plan with what nodes can allocate", func(t *testing.T) {
			var spec map[string]any
			g := NewWithT(t)
			g.Expect(yaml.Unmarshal([]byte(tc.spec), &spec)).To(Succeed())
			config := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate", "spec": map[string]any{"template": map[string]any{"spec": spec}},
			}}
			in := input(newTemplate("c4-large", 4, 0.1, func(s *template.Template) {
				s.OS = cmp.Or(tc.os, "linux")
				s.Bootstrap = template.Bootstrap{ConfigTemplate: config, Hash: "bootstrap", Kubelet: kubelet.Read(config)}
			}))
			in.Kubelet = &v1alpha1.KubeletConfiguration{EvictionHard: tc.nodeClass}
			g.Expect(in.Templates[0].Bootstrap.Kubelet.Unread).To(BeEmpty())
			expectList(g, snapshotOf(in).InstanceTypes[0].Allocatable(), map[corev1.ResourceName]string{"memory": tc.memory, "ephemeral-storage": tc.storage})
		})
	}
	t.Run("When machines of both systems join with one bootstrap, it should plan with the thresholds of each", func(t *testing.T) {
		memory := map[string]string{"linux": "8092Mi", "windows": "7692Mi"}
		var templates []template.Template
		for os := range memory {
			templates = append(templates, newTemplate(os, 4, 0.1, func(s *template.Template) { s.OS = os }))
		}
		for _, it := range snapshotOf(input(templates...)).InstanceTypes {
			expectList(NewWithT(t), it.Allocatable(), map[corev1.ResourceName]string{"memory": memory[it.Name]})
		}
	})
}

func TestMemoryOverhead(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*template.Template)
		want   string
	}{
		"an annotation declares the memory":             {func(*template.Template) {}, "8Gi"},
		"the infrastructure declares it":                {func(s *template.Template) { s.NominalMemory = true }, "7577Mi"},
		"the source declares how much of it is missing": {func(s *template.Template) { s.NominalMemory, s.MemoryOverhead = true, ptr.To(0.5) }, "4Gi"},
		"the source declares that nothing is missing":   {func(s *template.Template) { s.NominalMemory, s.MemoryOverhead = true, ptr.To(0.) }, "8Gi"},
	} {
		t.Run("When "+name+", it should assume that before the first node, and keep the label", func(t *testing.T) {
			g := NewWithT(t)
			in := input(newTemplate("c4-large", 4, 0.1, tc.change))
			in.MemoryOverhead = 0.075
			it := snapshotOf(in).InstanceTypes[0]
			expectList(g, it.Capacity, map[corev1.ResourceName]string{"memory": tc.want})
			g.Expect(it.Requirements.Get("karpenter.cluster.x-k8s.io/instance-memory").Values()).To(ConsistOf("8192"))
		})
	}
	t.Run("When a node reports more than was assumed, it should promise that, and never more than was declared", func(t *testing.T) {
		for reported, want := range map[int64]string{7900 << 20: "7900Mi", 9 << 30: "8Gi", 7 << 30: "7Gi"} {
			in := input(newTemplate("c4-large", 4, 0.1, func(s *template.Template) { s.NominalMemory, s.ContentHash = true, "1" }))
			in.MemoryOverhead, in.NodeClassHash, in.Inventory = 0.075, "class", newInventory()
			report(in.Inventory, in.Templates[0], "a", inventory.Amounts{Memory: reported}, inventory.Amounts{})
			expectList(NewWithT(t), snapshotOf(in).InstanceTypes[0].Capacity, map[corev1.ResourceName]string{"memory": want})
		}
	})
}

// TestLearned: what nodes can allocate ends the loop in which a pod doesn't fit the node that was launched for it.
func TestLearned(t *testing.T) {
	declared := inventory.Amounts{Memory: 8 << 30}
	short := inventory.Amounts{MilliCPU: 3000, Memory: 5 << 30, EphemeralStorage: 50 << 30, Pods: 20}
	start := func() (Input, *clocktesting.FakeClock) {
		clk := clocktesting.NewFakeClock(time.Now())
		in := input(newTemplate("c4-large", 4, 0.1, func(s *template.Template) { s.ContentHash = "1" }))
		in.NodeClassHash, in.Inventory = "class", inventory.New(inventory.Config{Clock: clk})
		return in, clk
	}
	promised := map[corev1.ResourceName]string{"cpu": "4", "memory": "8092Mi", "pods": "110", "ephemeral-storage": "90Gi"}
	learned := map[corev1.ResourceName]string{"cpu": "3", "memory": "5Gi", "pods": "20", "ephemeral-storage": "50Gi"}

	t.Run("When the first node can allocate less than was promised, it should promise that, and leave the pods that the kubelet is told", func(t *testing.T) {
		g := NewWithT(t)
		in, _ := start()
		expectList(g, snapshotOf(in).InstanceTypes[0].Allocatable(), promised)
		report(in.Inventory, in.Templates[0], "a", declared, short)
		it := snapshotOf(in).InstanceTypes[0]
		expectList(g, it.Allocatable(), learned)
		expectList(g, it.Capacity, map[corev1.ResourceName]string{"pods": "110", "cpu": "4"})
	})
	t.Run("When no other node confirms it within an hour, it should try again, and promise it for good when one does", func(t *testing.T) {
		g := NewWithT(t)
		in, clk := start()
		report(in.Inventory, in.Templates[0], "a", declared, short)
		before := in.Inventory.Sequence()
		clk.Step(inventory.ConfirmWithin)
		g.Expect(in.Inventory.Sequence()).NotTo(Equal(before))
		expectList(g, snapshotOf(in).InstanceTypes[0].Allocatable(), promised)
		report(in.Inventory, in.Templates[0], "b", declared, short)
		clk.Step(10 * inventory.ConfirmWithin)
		in.Inventory.Sequence()
		expectList(g, snapshotOf(in).InstanceTypes[0].Allocatable(), learned)
	})
	t.Run("When nodes of another node class or bootstrap can allocate less, it should not mind", func(t *testing.T) {
		in, _ := start()
		report(in.Inventory, in.Templates[0], "a", declared, short)
		in.NodeClassHash = "other"
		expectList(NewWithT(t), snapshotOf(in).InstanceTypes[0].Allocatable(), promised)
		in.NodeClassHash, in.Templates[0].Bootstrap.Hash = "class", "other"
		expectList(NewWithT(t), snapshotOf(in).InstanceTypes[0].Allocatable(), promised)
	})
	t.Run("When nodes can allocate more than was promised, it should promise no more", func(t *testing.T) {
		in, _ := start()
		report(in.Inventory, in.Templates[0], "a", declared, inventory.Amounts{MilliCPU: 9000, Memory: 9 << 30, EphemeralStorage: 900 << 30, Pods: 900})
		expectList(NewWithT(t), snapshotOf(in).InstanceTypes[0].Allocatable(), promised)
	})
	t.Run("When a problem is every bootstrap's, it should say it once", func(t *testing.T) {
		in := input(newTemplate("a", 4, 0.1, nil), newTemplate("b", 4, 0.1, func(s *template.Template) { s.Bootstrap.Hash = "other" }))
		in.Kubelet = &v1alpha1.KubeletConfiguration{KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "some"}}
		problems := snapshotOf(in).Problems
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), "spec.kubelet.kubeReserved[cpu]") {
			t.Errorf("%v", problems)
		}
	})
}
