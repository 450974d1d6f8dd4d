// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
)

// template is a KubeadmConfigTemplate with the spec of its configs in YAML.
func template(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate", "metadata": map[string]any{"name": "web"},
	}}
	var parsed map[string]any
	NewWithT(t).Expect(yaml.Unmarshal([]byte(spec), &parsed)).To(Succeed())
	NewWithT(t).Expect(unstructured.SetNestedMap(u.Object, parsed, "spec", "template", "spec")).To(Succeed())
	return u
}

func reserved(pairs ...string) map[string]v1alpha1.ReservedQuantity {
	result := map[string]v1alpha1.ReservedQuantity{}
	for i := 0; i < len(pairs); i += 2 {
		result[pairs[i]] = v1alpha1.ReservedQuantity(pairs[i+1])
	}
	return result
}

func maxPods(n int32) kubelet.Settings {
	return kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{MaxPods: ptr.To(n)}}
}

func podsPerCore(n int32) kubelet.Settings {
	return kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{PodsPerCore: ptr.To(n)}}
}

func memoryThreshold(value v1alpha1.EvictionThreshold) map[string]v1alpha1.EvictionThreshold {
	return map[string]v1alpha1.EvictionThreshold{"memory.available": value}
}

// merging has a patch of kubeadm's that requests the default thresholds beside its own.
const merging = `
joinConfiguration: {patches: {directory: /p}}
files: [{path: /p/kubeletconfiguration0+merge.yaml, content: "mergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 500Mi}"}]`

func TestRead(t *testing.T) {
	dedicated := []corev1.Taint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}}
	for name, tc := range map[string]struct {
		spec string
		want kubelet.Settings
	}{
		"the template declares nothing": {`{}`, kubelet.Settings{}},
		"the flags are a list": {`
joinConfiguration:
  nodeRegistration:
    kubeletExtraArgs:
      - {name: max-pods, value: "58"}
      - {name: kube-reserved, value: "cpu=100m, memory=1Gi"}
      - {name: system-reserved, value: "memory=200Mi"}
      - {name: eviction-hard, value: "memory.available<5%,nodefs.available<2Gi"}
      - {name: reserved-cpus, value: "0-1,4"}
      - {name: pods-per-core, value: "10"}
    taints: [{key: dedicated, value: web, effect: NoSchedule}]`,
			kubelet.Settings{
				KubeletConfiguration: v1alpha1.KubeletConfiguration{
					MaxPods: ptr.To(int32(58)), KubeReserved: reserved("cpu", "100m", "memory", "1Gi"), SystemReserved: reserved("memory", "200Mi"),
					EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "5%", "nodefs.available": "2Gi"}, PodsPerCore: ptr.To(int32(10)),
				},
				ReservedCPUs: ptr.To(int64(3)), Taints: dedicated,
			}},
		"the flags are a map":             {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {max-pods: "58"}}}}`, maxPods(58)},
		"a flag has the taints":           {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {register-with-taints: "dedicated=web:NoSchedule"}}}}`, kubelet.Settings{Taints: dedicated}},
		"a KubeletConfiguration is there": {`{files: [{path: /etc/kubelet.yaml, content: "kind: KubeletConfiguration\nmaxPods: 58\nregisterWithTaints: [{key: dedicated, value: web, effect: NoSchedule}]"}]}`, kubelet.Settings{KubeletConfiguration: maxPods(58).KubeletConfiguration, Taints: dedicated}},
		"it is packed":                    {`{files: [{path: /etc/kubelet.yaml, encoding: base64, content: "a2luZDogS3ViZWxldENvbmZpZ3VyYXRpb24KbWF4UG9kczogNTgK"}]}`, maxPods(58)},
		"kubeadm patches the configuration": {`
joinConfiguration: {patches: {directory: /etc/kubeadm/patches}}
files:
  - {path: /etc/kubeadm/patches/kubeletconfiguration1+merge.json, content: '{"kubeReserved": {"memory": "2Gi"}, "maxPods": null}'}
  - {path: /etc/kubeadm/patches/kubeletconfiguration0+strategic.yaml, content: "maxPods: 58\nkubeReserved: {cpu: 100m, memory: 1Gi}"}
  - {path: /etc/kubeadm/patches/etcd.yaml, content: "spec: {}"}`,
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{KubeReserved: reserved("cpu", "100m", "memory", "2Gi")}}},
		"a flag replaces what a file declares": {`
joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {kube-reserved: "cpu=1", config-dir: /etc/kubelet.d}}}
files:
  - {path: /etc/kubelet.d/10-limits.conf, content: "maxPods: 58\n"}
  - {path: /etc/kubelet.d/20-limits.conf, append: true, content: "kubeReserved: {memory: 1Gi}\n"}`,
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(58)), KubeReserved: reserved("cpu", "1")}}},
		"a flag turns off the pods per core of a file": {`
joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {pods-per-core: "0"}}}
files: [{path: /k, content: "kind: KubeletConfiguration\npodsPerCore: 4"}]`, kubelet.Settings{}},
		"a flag names the file": {`
joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {config: /etc/mine.yaml}}}
files:
  - {path: /etc/other.yaml, content: "kind: KubeletConfiguration\nmaxPods: 10"}
  - {path: /etc/mine.yaml, content: "kind: KubeletConfiguration\npodsPerCore: 4"}`,
			kubelet.Settings{KubeletConfiguration: podsPerCore(4).KubeletConfiguration, Unread: []string{"KubeadmConfigTemplate web, file /etc/other.yaml: it mentions maxPods"}}},
		"a patch merges the default thresholds": {merging, kubelet.Settings{
			KubeletConfiguration: v1alpha1.KubeletConfiguration{EvictionHard: memoryThreshold("500Mi")}, MergeEvictionDefaults: true,
		}},
		"a drop-in has thresholds, which come on top of the default ones": {`
joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {config-dir: /etc/kubelet.d}}}
files: [{path: /etc/kubelet.d/10-eviction.conf, content: "evictionHard: {memory.available: 500Mi}"}]`,
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{EvictionHard: memoryThreshold("500Mi")}, MergeEvictionDefaults: true}},
		"only a drop-in requests default thresholds, which the kubelet ignores": {`
joinConfiguration: {patches: {directory: /p}, nodeRegistration: {kubeletExtraArgs: {config-dir: /etc/kubelet.d}}}
files:
  - {path: /p/kubeletconfiguration.yaml, content: "evictionHard: {memory.available: 500Mi}"}
  - {path: /etc/kubelet.d/10-eviction.conf, content: "mergeDefaultEvictionSettings: true"}`,
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{EvictionHard: memoryThreshold("500Mi")}}},
		"a flag has thresholds, which nothing is merged into": {strings.Replace(merging, "joinConfiguration: {",
			`joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {eviction-hard: "memory.available<1Gi"}}, `, 1),
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{EvictionHard: memoryThreshold("1Gi")}}},
		"the thresholds are empty": {`{files: [{path: /k, content: "kind: KubeletConfiguration\nevictionHard: {}"}]}`,
			kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{EvictionHard: map[string]v1alpha1.EvictionThreshold{}}}},
		"flags say what the kubelet leaves out": {`
joinConfiguration:
  nodeRegistration:
    kubeletExtraArgs: {experimental-allocatable-ignore-eviction: "true", local-storage-capacity-isolation: "false"}`,
			kubelet.Settings{IgnoreEviction: true, NoLocalStorage: true}},
		"a file declares that there is no local storage": {`{files: [{path: /k, content: "kind: KubeletConfiguration\nlocalStorageCapacityIsolation: false"}]}`, kubelet.Settings{NoLocalStorage: true}},
		"a file has fields that decide nothing of this":  {`{files: [{path: /k, content: "kind: KubeletConfiguration\nevictionSoft: {memory.available: 1Gi}\nshutdownGracePeriod: 30s\ntopologyManagerPolicy: best-effort\ncpuManagerPolicy: static"}]}`, kubelet.Settings{}},
	} {
		t.Run("When "+name+", it should read that", func(t *testing.T) {
			NewWithT(t).Expect(kubelet.Read(template(t, tc.spec))).To(BeComparableTo(tc.want))
		})
	}
}

func TestUnread(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"a flag is no number":          {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {max-pods: many}}}}`, `kubeletExtraArgs max-pods: "many" is not a number of pods`},
		"a reservation is no list":     {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {kube-reserved: "1Gi"}}}}`, `kubeletExtraArgs kube-reserved: "1Gi" is not a list of <name>=<quantity>`},
		"a threshold is no list":       {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {eviction-hard: "memory.available=1Gi"}}}}`, "is not a list of <name><<quantity>"},
		"CPUs are too many":            {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {reserved-cpus: "0-99999999999"}}}}`, "is not a list of CPUs"},
		"a taint is none":              {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {register-with-taints: dedicated}}}}`, "is not a list of taints"},
		"the flags are of no form":     {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: 7}}}`, "kubeletExtraArgs: neither a list nor a map"},
		"the taints are of no form":    {`{joinConfiguration: {nodeRegistration: {taints: 7}}}`, "web, taints: "},
		"a patch is in a Secret":       {`{joinConfiguration: {patches: {directory: /p}}, files: [{path: /p/kubeletconfiguration.yaml, contentFrom: {secret: {name: x, key: y}}}]}`, "file /p/kubeletconfiguration.yaml: its content is in a Secret"},
		"a kubelet file is a template": {`{files: [{path: /etc/default/kubelet, content: "{{ .x }}", contentFormat: go-template}]}`, "file /etc/default/kubelet: its content is a template"},
		"a patch is a JSON patch":      {`{joinConfiguration: {patches: {directory: /p}}, files: [{path: /p/kubeletconfiguration+json.json, content: "[]"}]}`, "JSON patches of the kubelet's configuration aren't read"},
		"a patch is no YAML":           {`{joinConfiguration: {patches: {directory: /p}}, files: [{path: /p/kubeletconfiguration.yaml, content: "a: [b"}]}`, "file /p/kubeletconfiguration.yaml: "},
		"a field has another type":     {`{files: [{path: /k, content: "kind: KubeletConfiguration\nmaxPods: many"}]}`, "KubeletConfiguration: "},
		"a file isn't packed":          {`{files: [{path: /etc/kubelet.yaml, content: "%", encoding: gzip+base64}]}`, "its content isn't base64"},
		"a command edits it":           {`{preKubeadmCommands: [hostname], postKubeadmCommands: ["sed -i s/maxPods:.*/maxPods:58/ /var/lib/kubelet/config.yaml"]}`, "postKubeadmCommands[0]: it mentions maxPods"},
		"an environment file has it":   {`{files: [{path: /etc/default/kubelet, content: "KUBELET_EXTRA_ARGS=--max-pods=58"}]}`, "file /etc/default/kubelet: it mentions max-pods"},
		"a field isn't known":          {`{files: [{path: /k, content: "kind: KubeletConfiguration\nmaxpods: 58"}]}`, "KubeletConfiguration, maxpods: the provider doesn't know this field"},
		"a boot command edits it":      {`{bootCommands: [hostname, "sed -i s/x/mergeDefaultEvictionSettings/ /etc/kubelet.yaml"]}`, "bootCommands[1]: it mentions mergeDefaultEvictionSettings"},
		"Ignition writes it":           {`{ignition: {containerLinuxConfig: {additionalConfig: "systemd: {units: [{name: kubelet.service, contents: --max-pods=58}]}"}}}`, "ignition.containerLinuxConfig.additionalConfig: it mentions max-pods"},
		"a file's truth value is none": {`{files: [{path: /k, content: "kind: KubeletConfiguration\nmergeDefaultEvictionSettings: maybe"}]}`, "KubeletConfiguration, mergeDefaultEvictionSettings: it is neither true nor false"},
		"a truth value is none":        {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {local-storage-capacity-isolation: maybe}}}}`, `"maybe" is neither true nor false`},
		"the spec has another form":    {`{files: 7}`, "KubeadmConfigTemplate web: "},
	} {
		t.Run("When "+name+", it should name the place", func(t *testing.T) {
			NewWithT(t).Expect(kubelet.Read(template(t, tc.spec)).Unread).To(ConsistOf(And(HavePrefix("KubeadmConfigTemplate web"), ContainSubstring(tc.want))))
		})
	}
	t.Run("When the template is of another kind, it should say so", func(t *testing.T) {
		other := template(t, `{}`)
		other.SetKind("RKE2ConfigTemplate")
		NewWithT(t).Expect(kubelet.Read(other).Unread).To(ConsistOf("RKE2ConfigTemplate web: the kubelet settings of this kind aren't known"))
	})
	t.Run("When a Secret holds a file that isn't the kubelet's, it should not mind", func(t *testing.T) {
		spec := `{files: [{path: /etc/kubernetes/azure.json, contentFrom: {secret: {name: x, key: y}}}], preKubeadmCommands: ["hostnamectl set-hostname x"]}`
		NewWithT(t).Expect(kubelet.Read(template(t, spec)).Unread).To(BeEmpty())
	})
	t.Run("When a file unpacks to more than a MiB, it should not read it", func(t *testing.T) {
		content := strings.Repeat("#", 1<<20+1)
		NewWithT(t).Expect(kubelet.Read(template(t, `{files: [{path: /etc/kubelet.yaml, content: "`+content+`"}]}`)).Unread).
			To(ConsistOf(ContainSubstring("it is larger than")))
	})
}

func TestUnplanned(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"the kubelet's file has a topology policy": {`{files: [{path: /k, content: "kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node"}]}`, "topologyManagerPolicy: single-numa-node makes kubelets reject pods"},
		"a flag has a topology policy":             {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {topology-manager-policy: restricted}}}}`, "topologyManagerPolicy: restricted makes kubelets reject pods"},
		"only whole cores are given to pods": {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {cpu-manager-policy: static, cpu-manager-policy-options: "full-pcpus-only=true"}}}}`,
			"cpuManagerPolicyOptions: full-pcpus-only makes kubelets reject pods"},
		"a pod is static":                   {`{files: [{path: /etc/kubernetes/manifests/proxy.yaml, content: "kind: Pod"}, {path: /etc/kubernetes/manifests/.old.yaml, content: "kind: Pod"}]}`, "file /etc/kubernetes/manifests/proxy.yaml: Karpenter doesn't plan with what static pods request"},
		"static pods are elsewhere":         {`{joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {pod-manifest-path: /static/}}}, files: [{path: /static/proxy.yaml, content: "kind: Pod"}]}`, "file /static/proxy.yaml: "},
		"static pods are from a web server": {`{files: [{path: /k, content: "kind: KubeletConfiguration\nstaticPodURL: http://pods"}]}`, "staticPodURL: Karpenter doesn't plan"},
	} {
		t.Run("When "+name+", it should say why nodes hold less", func(t *testing.T) {
			g := NewWithT(t)
			got := kubelet.Read(template(t, tc.spec))
			g.Expect(got.Unplanned).To(ConsistOf(And(HavePrefix("KubeadmConfigTemplate web, "), ContainSubstring(tc.want))))
			g.Expect(got.Unread).To(BeEmpty())
		})
	}
}

func TestOver(t *testing.T) {
	class := &v1alpha1.KubeletConfiguration{
		ClusterDNS: []string{"10.96.0.10"}, MaxPods: ptr.To(int32(50)), PodsPerCore: ptr.To(int32(0)), KubeReserved: reserved("cpu", "1"), SystemReserved: reserved("cpu", "2"),
		EvictionHard: memoryThreshold("1Gi"), EvictionSoft: memoryThreshold("2Gi"),
		EvictionSoftGracePeriod:   map[string]v1alpha1.EvictionGracePeriod{"memory.available": "90s"},
		EvictionMaxPodGracePeriod: ptr.To(int32(60)), ImageGCHighThresholdPercent: ptr.To(int32(70)), ImageGCLowThresholdPercent: ptr.To(int32(60)),
		CPUCFSQuota: ptr.To(false), PodPidsLimit: ptr.To(int64(4096)),
	}
	t.Run("When a node class sets something, it should win over the template, and a patch over both", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(maxPods(20).Over(class).KubeletConfiguration).To(Equal(*class))
		patched := kubelet.Settings{
			KubeletConfiguration: v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(20)), KubeReserved: reserved("cpu", "3")},
			Patched:              kubelet.Patched{MaxPods: true, PodsPerCore: true, KubeReserved: true, SystemReserved: true, EvictionHard: true},
		}
		want := patched
		want.KubeletConfiguration = *class
		want.MaxPods, want.PodsPerCore, want.KubeReserved, want.SystemReserved, want.EvictionHard = patched.MaxPods, nil, patched.KubeReserved, nil, nil
		g.Expect(patched.Over(class)).To(Equal(want))
	})
	t.Run("When a node class sets one thing, the template's others should stay", func(t *testing.T) {
		g := NewWithT(t)
		full := kubelet.Settings{KubeletConfiguration: v1alpha1.KubeletConfiguration{
			MaxPods: ptr.To(int32(50)), PodsPerCore: ptr.To(int32(4)), KubeReserved: reserved("cpu", "1"), SystemReserved: reserved("cpu", "2"), EvictionHard: memoryThreshold("1Gi"),
		}, MergeEvictionDefaults: true}
		want := full
		want.PodPidsLimit = ptr.To(int64(4096))
		g.Expect(full.Over(&v1alpha1.KubeletConfiguration{PodPidsLimit: ptr.To(int64(4096))})).To(Equal(want))
	})
	t.Run("When a node class has thresholds, default ones should not be merged into them: they are a flag", func(t *testing.T) {
		g := NewWithT(t)
		got := kubelet.Read(template(t, merging)).Over(class)
		g.Expect(got.EvictionHard).To(Equal(class.EvictionHard))
		g.Expect(got.MergeEvictionDefaults).To(BeFalse())
	})
}

func TestPods(t *testing.T) {
	own := func(n int32) *v1alpha1.KubeletConfiguration {
		return &v1alpha1.KubeletConfiguration{MaxPods: ptr.To(n)}
	}
	perCore := func(n int32) *v1alpha1.KubeletConfiguration {
		return &v1alpha1.KubeletConfiguration{PodsPerCore: ptr.To(n)}
	}
	for name, tc := range map[string]struct {
		settings  kubelet.Settings
		nodeClass *v1alpha1.KubeletConfiguration
		declared  int64
		want      int64
	}{
		"nothing declares it":                {want: 110},
		"the source declares it":             {declared: 250, want: 250},
		"the bootstrap declares it":          {settings: maxPods(250), want: 250},
		"both say it and the bootstrap less": {settings: maxPods(58), declared: 110, want: 58},
		"both say it and the source less":    {settings: maxPods(110), declared: 58, want: 58},
		"the node class declares it":         {settings: maxPods(58), nodeClass: own(200), declared: 110, want: 200},
		"a patch declares it": {
			settings:  kubelet.Settings{KubeletConfiguration: maxPods(20).KubeletConfiguration, Patched: kubelet.Patched{MaxPods: true}},
			nodeClass: own(200), declared: 10, want: 20,
		},
		"a patch removes it":                             {settings: kubelet.Settings{Patched: kubelet.Patched{MaxPods: true}}, nodeClass: own(200), declared: 10, want: 110},
		"the bootstrap limits the pods of cores":         {settings: podsPerCore(10), nodeClass: own(200), want: 40},
		"the node class limits the pods of cores":        {settings: podsPerCore(10), nodeClass: perCore(5), declared: 110, want: 20},
		"the node class limits them to more than it has": {nodeClass: perCore(50), declared: 110, want: 110},
		"the node class lifts the limit of cores":        {settings: podsPerCore(10), nodeClass: perCore(0), want: 110},
		"a patch limits the pods of cores": {
			settings:  kubelet.Settings{KubeletConfiguration: podsPerCore(3).KubeletConfiguration, Patched: kubelet.Patched{PodsPerCore: true}},
			nodeClass: perCore(5), want: 12,
		},
	} {
		t.Run("When "+name+", it should be that", func(t *testing.T) {
			NewWithT(t).Expect(tc.settings.Pods(tc.nodeClass, tc.declared, 4)).To(Equal(tc.want))
		})
	}
}
