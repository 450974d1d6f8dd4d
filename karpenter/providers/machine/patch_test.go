// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const bootstrapGroup = "bootstrap.cluster.x-k8s.io"

// documented are the examples of docs/platform/bootstrap.md by kind: what a person copies is what is tested.
func documented(t *testing.T) map[string]v1alpha1.BootstrapPatches {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "platform", "bootstrap.md"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	examples := map[string]v1alpha1.BootstrapPatches{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(bootstrapPatches:.*?)```").FindAllStringSubmatch(string(text), -1) {
		spec := v1beta1.ClusterAPI{}
		if err := yaml.UnmarshalStrict([]byte(block[1]), &spec); err != nil {
			t.Fatalf("%v in:\n%s", err, block[1])
		}
		for _, patches := range spec.BootstrapPatches {
			examples[patches.Kind] = patches
		}
	}
	return examples
}

func TestDocumentedPatches(t *testing.T) {
	examples := documented(t)
	for file, kind := range map[string]string{
		"rke2.yaml": "RKE2Config", "k0s.yaml": "K0sWorkerConfig", "eks.yaml": "EKSConfig", "nodeadm.yaml": "NodeadmConfig", "talos.yaml": "TalosConfig",
	} {
		t.Run("When a "+kind+" is patched as documented, it should register the node with taints, labels and kubelet settings", func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "templates", file))
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			p := plan(t)
			p.Template.Bootstrap.ConfigTemplate = object(t, string(text))
			p.BootstrapPatches = []v1alpha1.BootstrapPatches{
				{APIGroup: bootstrapGroup, Kind: "Another", Patches: anyConfig(t, "[{op: add, path: /spec/wrong, value: x}]")[0].Patches},
				examples[kind],
			}
			before := p.Template.Bootstrap.ConfigTemplate.DeepCopy()
			objects, err := machine.Build(p)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(p.Template.Bootstrap.ConfigTemplate).To(BeComparableTo(before), "the template is shared with the cache")
			compare(t, filepath.Join("patched", file), objects)
		})
	}
	t.Run("When an example is documented, it should be one that is tested", func(t *testing.T) {
		NewWithT(t).Expect(examples).To(HaveLen(5), "examples of docs/platform/bootstrap.md")
	})
}

// patched builds a machine whose bootstrap template has the spec, and returns the config's spec after the patches.
func patched(t *testing.T, spec string, change func(*machine.Plan), patches string) (any, error) {
	t.Helper()
	p := plan(t)
	p.Template.Bootstrap.ConfigTemplate = object(t, `{"apiVersion": "bootstrap.cluster.x-k8s.io/v1", "kind": "AnyConfigTemplate", "metadata": {"name": "any", "namespace": "clusters-blue"},
		"spec": {"template": {"spec": `+spec+`}}}`)
	p.BootstrapPatches = anyConfig(t, patches)
	if change != nil {
		change(&p)
	}
	objects, err := machine.Build(p)
	if err != nil {
		return nil, err
	}
	return objects.Bootstrap.Object["spec"], nil
}

// anyConfig are patches of the kind AnyConfig.
func anyConfig(t *testing.T, patches string) []v1alpha1.BootstrapPatches {
	t.Helper()
	decoded, err := patch.Decode(patches)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return []v1alpha1.BootstrapPatches{{APIGroup: bootstrapGroup, Kind: "AnyConfig", Patches: decoded}}
}

// infrastructurePatches are those of a source.
func infrastructurePatches(t *testing.T, patches string) patch.List {
	t.Helper()
	list, err := patch.Parse(anyConfig(t, patches)[0].Patches)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return list
}

func TestVariables(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*machine.Plan)
		want   string
	}{
		"When a plan has everything, every variable should have it": {
			func(p *machine.Plan) {
				p.NodeLabels = map[string]string{
					"karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": "a", "node.kubernetes.io/instance-type": "c4-large",
				}
				p.FailureDomain = "fd-a"
				p.Kubelet.Other = map[string]apiextensionsv1.JSON{"logging": {Raw: []byte(`{"verbosity":4}`)}}
			},
			`{"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}, {"key": "dedicated", "value": "web", "effect": "NoSchedule"},
				{"key": "cni", "effect": "NoSchedule"}, {"key": "gpu", "value": "true", "effect": "NoSchedule"}],
			"taintList": ["karpenter.sh/unregistered:NoExecute", "dedicated=web:NoSchedule", "cni:NoSchedule", "gpu=true:NoSchedule"],
			"taintFlag": "karpenter.sh/unregistered:NoExecute,dedicated=web:NoSchedule,cni:NoSchedule,gpu=true:NoSchedule",
			"labels": {"karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": "a", "node.kubernetes.io/instance-type": "c4-large"},
			"labelList": ["karpenter.sh/capacity-type=spot", "karpenter.sh/nodepool=general", "node.kubernetes.io/instance-type=c4-large", "topology.kubernetes.io/zone=a"],
			"labelFlag": "karpenter.sh/capacity-type=spot,karpenter.sh/nodepool=general,node.kubernetes.io/instance-type=c4-large,topology.kubernetes.io/zone=a",
			"kubeletArgs": {"cluster-dns": "10.96.0.10,fd00::a", "cpu-cfs-quota": "false", "eviction-hard": "memory.available<5%", "eviction-max-pod-grace-period": "-1", "eviction-soft": "memory.available<1Gi,nodefs.available<15%", "eviction-soft-grace-period": "memory.available=1m30s,nodefs.available=2m", "image-gc-high-threshold": "90", "image-gc-low-threshold": "80", "kube-reserved": "cpu=100m,memory=512Mi", "max-pods": "58", "pod-max-pids": "4096", "pods-per-core": "30"},
			"kubeletArgList": ["cluster-dns=10.96.0.10,fd00::a", "cpu-cfs-quota=false", "eviction-hard=memory.available<5%", "eviction-max-pod-grace-period=-1", "eviction-soft=memory.available<1Gi,nodefs.available<15%", "eviction-soft-grace-period=memory.available=1m30s,nodefs.available=2m", "image-gc-high-threshold=90", "image-gc-low-threshold=80", "kube-reserved=cpu=100m,memory=512Mi", "max-pods=58", "pod-max-pids=4096", "pods-per-core=30"],
			"kubeletConfig": {"logging": {"verbosity": 4}},
			"kubeReservedFlag": "cpu=100m,memory=512Mi", "evictionHardFlag": "memory.available<5%", "maxPods": 58, "version": "1.36.2",
			"instanceType": "c4-large", "zone": "a", "capacityType": "spot", "failureDomain": "fd-a", "nodeClaim": "general-x7k2p"}`,
		},
		"When a plan has little, what is empty should be skipped": {
			func(p *machine.Plan) {
				p.MaxPods, p.NodeLabels, p.Kubelet, p.Template.Taints, p.FailureDomain, p.Version = 0, nil, nil, nil, "", ""
				p.NodeClaim.Spec.Taints, p.NodeClaim.Spec.StartupTaints = nil, nil
			},
			`{"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}], "taintList": ["karpenter.sh/unregistered:NoExecute"],
			"taintFlag": "karpenter.sh/unregistered:NoExecute", "nodeClaim": "general-x7k2p"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var patches []string
			for _, variable := range []string{
				"taints", "taintList", "taintFlag", "labels", "labelList", "labelFlag", "kubeletArgs", "kubeletArgList", "kubeletConfig", "kubeReservedFlag", "systemReservedFlag", "evictionHardFlag", "maxPods", "version",
				"instanceType", "zone", "capacityType", "failureDomain", "nodeClaim",
			} {
				patches = append(patches, "{op: add, path: /spec/"+variable+", valueFrom: {variable: "+variable+"}}")
			}
			text := "[" + strings.Join(patches, ", ") + "]"
			want := object(t, `{"apiVersion": "v1", "kind": "Any", "spec": `+tc.want+`}`).Object["spec"]
			got, err := patched(t, `{}`, tc.change, text)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(got).To(BeComparableTo(labelledIn(want)))
			p := plan(t)
			p.Template.Patches = infrastructurePatches(t, "[{op: remove, path: /spec/size}, "+text[1:])
			tc.change(&p)
			objects, err := machine.Build(p)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(objects.Infrastructure.Object["spec"]).To(BeComparableTo(want))
		})
	}
}

// labelledIn is what a bootstrap config has beyond an infrastructure machine if its patches write all taints: the label that
// keeps Karpenter from adding them again.
func labelledIn(values any) any {
	const key = "karpenter.sh/do-not-sync-taints"
	spec := runtime.DeepCopyJSONValue(values).(map[string]any)
	labels, _ := spec["labels"].(map[string]any)
	if labels == nil {
		labels = map[string]any{}
	}
	labels[key] = "true"
	list := []any{}
	var flag []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pair := key + "=" + labels[key].(string)
		list, flag = append(list, pair), append(flag, pair)
	}
	spec["labels"], spec["labelList"], spec["labelFlag"] = labels, list, strings.Join(flag, ",")
	return spec
}

// https://github.com/kubernetes-sigs/karpenter/issues/1772
func TestTaintsInBootstrap(t *testing.T) {
	const key, labels, labelled = "karpenter.sh/do-not-sync-taints", "{op: add, path: /spec/labels, valueFrom: {variable: labelFlag}}", "karpenter.sh/do-not-sync-taints=true"
	for name, tc := range map[string]struct {
		patches string
		want    bool
	}{
		"When patches write the taints and the labels, the labels should say so": {
			`[{op: add, path: /spec/taints, valueFrom: {variable: taintFlag}}, ` + labels + `]`, true,
		},
		"When patches write no taints, the labels should leave them to Karpenter": {`[` + labels + `]`, false},
		"When patches write the taints under a condition that isn't met, the labels should leave them to Karpenter": {
			`[{op: add, path: /spec/taints, valueFrom: {template: '{{ if eq .capacityType "reserved" }}{{ .taintFlag }}{{ end }}'}}, ` + labels + `]`, false,
		},
		"When a later patch replaces the taints, the labels should leave them to Karpenter": {
			`[{op: add, path: /spec/taints, valueFrom: {variable: taintFlag}}, {op: replace, path: /spec/taints, value: "a:NoSchedule"}, ` + labels + `]`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := patched(t, `{}`, nil, tc.patches)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			if flag := got.(map[string]any)["labels"].(string); strings.Contains(flag, labelled) != tc.want || !tc.want && strings.Contains(flag, key) {
				t.Errorf("labels %q", flag)
			}
		})
	}
	for name, tc := range map[string]struct {
		template, patches string
		want              bool
	}{
		"When a kubeadm template has other taints too, the labels should say that all are there": {
			`{taints: [{key: slow, effect: PreferNoSchedule}]}`, `[]`, true,
		},
		"When a kubeadm template has taints in the kubelet's flag, the labels should say that all are there": {
			`{kubeletExtraArgs: [{name: register-with-taints, value: "a:NoSchedule"}]}`, `[]`, true,
		},
		"When a patch replaces the taints by the kubelet's flag, the labels should leave them to Karpenter": {
			`{}`, `[{op: add, path: /spec/joinConfiguration/nodeRegistration/kubeletExtraArgs/-, value: {name: register-with-taints, value: "a:NoSchedule"}}]`, false,
		},
		"When a patch replaces the taints of a kubeadm config, the labels should leave them to Karpenter": {
			`{}`, `[{op: replace, path: /spec/joinConfiguration/nodeRegistration/taints, value: []}]`, false,
		},
		"When a patch changes something else of a kubeadm config, the labels should say that all are there": {
			`{}`, `[{op: add, path: /spec/joinConfiguration/nodeRegistration/name, value: a}]`, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t)
			p.Template.Bootstrap.ConfigTemplate = object(t, `{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfigTemplate, metadata: {name: any, namespace: clusters-blue},
				spec: {template: {spec: {joinConfiguration: {nodeRegistration: `+tc.template+`}}}}}`)
			p.BootstrapPatches = anyConfig(t, tc.patches)
			p.BootstrapPatches[0].Kind = "KubeadmConfig"
			objects, err := machine.Build(p)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			args, _, err := unstructured.NestedFieldNoCopy(objects.Bootstrap.Object, "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			flags, err := kubelet.Args(args)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			if strings.Contains(flags["node-labels"], labelled) != tc.want || !tc.want && strings.Contains(flags["node-labels"], key) {
				t.Errorf("labels %q", flags["node-labels"])
			}
		})
	}
}

func TestPatchErrors(t *testing.T) {
	const bad = `[{op: add, path: /spec/a, value: x}, {op: replace, path: /spec/b, value: x}]`
	t.Run("When a bootstrap patch doesn't apply, the error should name the field and the patch", func(t *testing.T) {
		_, err := patched(t, `{}`, nil, bad)
		var unbuildable *machine.BuildError
		if !errors.As(err, &unbuildable) || !strings.Contains(err.Error(), "spec.bootstrapPatches for AnyConfig: patch 1 (replace /spec/b): /spec/b doesn't exist") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("When a bootstrap patch of an old node class has no operation, the error should say so", func(t *testing.T) {
		_, err := patched(t, `{}`, nil, `[{path: /spec/a, value: $(Zone)}]`)
		var failed *machine.PatchError
		if !errors.As(err, &failed) || err == nil || !strings.Contains(err.Error(), "op must be add, replace or remove") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("When an infrastructure patch doesn't apply, the error should name the annotation and the patch", func(t *testing.T) {
		p := plan(t)
		p.Template.Patches = infrastructurePatches(t, bad)
		_, err := machine.Build(p)
		var unbuildable *machine.BuildError
		if !errors.As(err, &unbuildable) || !strings.Contains(err.Error(), "annotation karpenter.cluster.x-k8s.io/infrastructure-patches: patch 1 (replace /spec/b): /spec/b doesn't exist") {
			t.Errorf("got %v", err)
		}
	})
}

func TestCheckPatches(t *testing.T) {
	for name, tc := range map[string]struct{ infrastructure, bootstrap, mention string }{
		"When there are no patches, it should find nothing":                    {"[]", "[]", ""},
		"When all patches apply, it should find nothing":                       {`[{op: replace, path: /spec/size, valueFrom: {variable: instanceType}}]`, `[{op: add, path: /spec/a, valueFrom: {variable: maxPods}}]`, ""},
		"When a patch refers to an image, any should do":                       {`[{op: add, path: /spec/ami, valueFrom: {variable: image.aws.mars-1}}]`, "[]", ""},
		"When an infrastructure patch doesn't apply, it should say so":         {`[{op: remove, path: /spec/spot}]`, "[]", "patch 0 (remove /spec/spot): /spec/spot doesn't exist"},
		"When a bootstrap patch doesn't apply, it should say so":               {"[]", `[{op: remove, path: /spec/a}]`, "spec.bootstrapPatches for AnyConfig: patch 0 (remove /spec/a)"},
		"When a bootstrap patch is malformed, it should say so":                {"[]", `[{op: move, path: /spec/a}]`, "op must be add, replace or remove"},
		"When a patch fails for one of the capacity types only, it should say": {`[{op: add, path: /spec/a, valueFrom: {template: '{{ if eq .capacityType "spot" }}{{"{"}}{{ end }}'}}]`, "[]", "valueFrom.template renders"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t)
			nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{BootstrapPatches: anyConfig(t, tc.bootstrap)}}
			tmpl := &template.Template{
				Source: template.Source{Namespace: "clusters-blue", Name: "c4"}, Infrastructure: p.Template.Infrastructure, InstanceType: "c4", Patches: infrastructurePatches(t, tc.infrastructure),
				Bootstrap: template.Bootstrap{ConfigTemplate: object(t, `{"apiVersion": "bootstrap.cluster.x-k8s.io/v1", "kind": "AnyConfigTemplate",
					"metadata": {"name": "any", "namespace": "clusters-blue"}, "spec": {"template": {"spec": {}}}}`)},
			}
			err := machine.CheckPatches(nodeClass, tmpl)
			if (err == nil) != (tc.mention == "") || err != nil && !strings.Contains(err.Error(), tc.mention) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCheckNaming(t *testing.T) {
	for name, tc := range map[string]struct{ naming, mention string }{
		"When a template adds to the Machine's name, it should find nothing":           {`{naming: {template: '{{ .machine.name }}-vm'}}`, ""},
		"When a template changes a name's form but keeps it, it should find nothing":   {`{naming: {template: '{{ .machine.name | lower }}'}}`, ""},
		"When a template cuts the Machine's name, it should say so":                    {`{naming: {template: '{{ .machine.name | trunc 12 }}'}}`, "spec.template.spec.naming.template lets two Machines share an instance"},
		"When a template of an older version leaves the name out, it should say so":    {`{namingStrategy: {template: 'worker'}}`, "spec.template.spec.namingStrategy.template"},
		"When a template uses another value than the Machine's name, it should say so": {`{naming: {template: '{{ .cluster.name }}'}}`, "naming.template"},
	} {
		t.Run(name, func(t *testing.T) {
			infrastructure := object(t, `{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: VSphereMachineTemplate, metadata: {name: c4}, spec: {template: {spec: `+tc.naming+`}}}`)
			err := machine.CheckPatches(&v1alpha1.ClusterAPINodeClass{}, &template.Template{Infrastructure: infrastructure})
			if (err == nil) != (tc.mention == "") || err != nil && !strings.Contains(err.Error(), tc.mention) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestPatchedKubelet(t *testing.T) {
	const extraArgs = "/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs/-"
	tmpl := func(spec string) *template.Template {
		p := plan(t)
		return &template.Template{
			Source: template.Source{Namespace: "clusters-blue", Name: "c4"}, Infrastructure: p.Template.Infrastructure, InstanceType: "c4",
			Capacity:  corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
			SpotPrice: ptr.To(0.1), Price: ptr.To(0.2),
			Bootstrap: template.Bootstrap{ConfigTemplate: object(t, `{"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate",
				"metadata": {"name": "web", "namespace": "clusters-blue"}, "spec": {"template": {"spec": `+spec+`}}}`)},
		}
	}
	class := func(patches string) *v1alpha1.ClusterAPINodeClass {
		parsed := anyConfig(t, patches)
		parsed[0].APIGroup, parsed[0].Kind = bootstrapGroup, "KubeadmConfig"
		nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{BootstrapPatches: parsed}}
		nodeClass.Spec.Kubelet = &v1alpha1.KubeletConfiguration{
			MaxPods: ptr.To(int32(80)), KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "200m"},
		}
		return nodeClass
	}
	settings := func(own v1alpha1.KubeletConfiguration, patched kubelet.Patched) kubelet.Settings {
		return kubelet.Settings{KubeletConfiguration: own, Patched: patched}
	}
	dedicated := corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	const tainted = `{"joinConfiguration": {"nodeRegistration": {"taints": [{"key": "dedicated", "value": "web", "effect": "NoSchedule"}]}}}`
	for name, tc := range map[string]struct {
		spec, patches string
		want          kubelet.Settings
	}{
		"a patch has nothing to do with the kubelet": {`{}`, `[{op: add, path: /spec/ntp, value: {enabled: true}}]`, kubelet.Settings{}},
		"a patch writes what the machine has anyhow": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: max-pods, value: "80"}}]`, kubelet.Settings{}},
		"a patch sets the number of pods": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: max-pods, value: "20"}}]`,
			settings(v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(20))}, kubelet.Patched{MaxPods: true})},
		"a patch sets the number of pods per core": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: pods-per-core, value: "5"}}]`,
			settings(v1alpha1.KubeletConfiguration{PodsPerCore: ptr.To(int32(5))}, kubelet.Patched{PodsPerCore: true})},
		"a patch adds a reservation": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: system-reserved, value: "memory=2Gi"}}]`,
			settings(v1alpha1.KubeletConfiguration{SystemReserved: map[string]v1alpha1.ReservedQuantity{"memory": "2Gi"}}, kubelet.Patched{SystemReserved: true})},
		"a patch sets another one than the node class": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: kube-reserved, value: "cpu=1"}}]`,
			settings(v1alpha1.KubeletConfiguration{KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "1"}}, kubelet.Patched{KubeReserved: true})},
		"a patch brings a KubeletConfiguration": {`{}`, `[{op: add, path: /spec/files, value: [{path: /etc/kubelet.yaml, content: "kind: KubeletConfiguration\nevictionHard: {memory.available: 1Gi}"}]}]`,
			settings(v1alpha1.KubeletConfiguration{EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "1Gi"}}, kubelet.Patched{EvictionHard: true})},
		"a patch merges the default thresholds": {
			`{"files": [{"path": "/k", "content": "kind: KubeletConfiguration\nevictionHard: {memory.available: 1Gi}"}]}`,
			`[{op: replace, path: /spec/files/0/content, value: "kind: KubeletConfiguration\nmergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 1Gi}"}]`,
			kubelet.Settings{
				KubeletConfiguration:  v1alpha1.KubeletConfiguration{EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "1Gi"}},
				MergeEvictionDefaults: true, Patched: kubelet.Patched{EvictionHard: true},
			},
		},
		"a patch lets kubelets reject pods": {`{}`, `[{op: add, path: ` + extraArgs + `, value: {name: topology-manager-policy, value: restricted}}]`,
			kubelet.Settings{Unplanned: []string{"spec.bootstrapPatches of the node class, KubeadmConfigTemplate web, topologyManagerPolicy: restricted makes kubelets reject pods " +
				"that fit no NUMA node; use best-effort, or let such pods request less than one NUMA node has"}}},
		"a patch adds a command that edits it": {`{}`, `[{op: add, path: /spec/preKubeadmCommands, value: ["sed -i s/maxPods/x/ /k"]}]`,
			kubelet.Settings{Unread: []string{"spec.bootstrapPatches of the node class, KubeadmConfigTemplate web, preKubeadmCommands[0]: it mentions maxPods"}}},
		"a patch removes the command that edits it": {`{"preKubeadmCommands": ["sed -i s/maxPods/x/ /k"]}`, `[{op: remove, path: /spec/preKubeadmCommands}]`, kubelet.Settings{}},
		"a patch removes a taint":                   {tainted, `[{op: replace, path: /spec/joinConfiguration/nodeRegistration/taints, value: []}]`, kubelet.Settings{}},
		"a patch keeps a taint":                     {tainted, `[{op: add, path: /spec/ntp, value: {enabled: true}}]`, kubelet.Settings{Taints: []corev1.Taint{dedicated}}},
		"a patch adds a taint": {`{}`, `[{op: add, path: /spec/joinConfiguration/nodeRegistration/taints/-, value: {key: dedicated, value: web, effect: NoSchedule}}]`,
			kubelet.Settings{Taints: []corev1.Taint{dedicated}}},
	} {
		t.Run("When "+name+", it should count in what nodes allocate", func(t *testing.T) {
			got, patched := machine.PatchedKubelet(class(tc.patches), tmpl(tc.spec))
			NewWithT(t).Expect(patched).To(BeTrue(), "no patch applies")
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want, cmpopts.EquateEmpty()))
		})
	}
	t.Run("When the kubelet's settings depend on what is chosen, it should say that they aren't known", func(t *testing.T) {
		got, _ := machine.PatchedKubelet(class(`[{op: add, path: `+extraArgs+`, value: {name: max-pods}},
			{op: add, path: /spec/files, valueFrom: {template: '[{"path": "/etc/kubelet.yaml", "content": "kind: KubeletConfiguration\npodsPerCore: {{ if eq .capacityType "spot" }}1{{ else }}2{{ end }}"}]'}}]`), tmpl(`{}`))
		if len(got.Unread) == 0 || !strings.HasPrefix(got.Unread[len(got.Unread)-1], "spec.bootstrapPatches for KubeadmConfig: the kubelet's settings depend on") {
			t.Errorf("got %q", got.Unread)
		}
	})
	t.Run("When no patch is for the kind, the template's own settings should stay", func(t *testing.T) {
		nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{BootstrapPatches: anyConfig(t, "[{op: add, path: /spec/a, value: b}]")}}
		if _, patched := machine.PatchedKubelet(nodeClass, tmpl(`{}`)); patched {
			t.Error("a patch for another kind applies")
		}
	})
}

// TestImageGarbageCollection: no kubelet starts with a low threshold that isn't below the high one, and the bootstrap's file may have either.
func TestImageGarbageCollection(t *testing.T) {
	for name, tc := range map[string]struct {
		kubelet v1alpha1.KubeletConfiguration
		want    []any
	}{
		"both thresholds":    {v1alpha1.KubeletConfiguration{ImageGCHighThresholdPercent: ptr.To[int32](70), ImageGCLowThresholdPercent: ptr.To[int32](0)}, []any{"image-gc-high-threshold=70", "image-gc-low-threshold=0"}},
		"the high threshold": {v1alpha1.KubeletConfiguration{ImageGCHighThresholdPercent: ptr.To[int32](95)}, []any{"image-gc-high-threshold=95", "image-gc-low-threshold=80"}},
		"the low threshold":  {v1alpha1.KubeletConfiguration{ImageGCLowThresholdPercent: ptr.To[int32](50)}, []any{"image-gc-high-threshold=85", "image-gc-low-threshold=50"}},
		"neither":            {v1alpha1.KubeletConfiguration{PodsPerCore: ptr.To[int32](0)}, []any{"pods-per-core=0"}},
	} {
		t.Run("When a node class sets "+name+", the kubelet should get both or none", func(t *testing.T) {
			got, err := patched(t, `{}`, func(p *machine.Plan) { p.MaxPods, p.Kubelet = 0, &tc.kubelet }, `[{op: add, path: /spec/args, valueFrom: {variable: kubeletArgList}}]`)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(got).To(BeComparableTo(map[string]any{"args": tc.want}))
		})
	}
}

func TestUnwritten(t *testing.T) {
	all := &v1alpha1.KubeletConfiguration{
		ClusterDNS: []string{"10.96.0.10"}, MaxPods: ptr.To(int32(80)), SystemReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "200m"},
	}
	for name, tc := range map[string]struct {
		kubelet *v1alpha1.KubeletConfiguration
		kind    schema.GroupKind
		patches string
		want    []v1alpha1.KubeletField
	}{
		"the kind is kubeadm's":                   {all, schema.GroupKind{Group: bootstrapGroup, Kind: "KubeadmConfigTemplate"}, `[]`, nil},
		"the node class sets nothing":             {nil, schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfig"}, `[]`, nil},
		"no patch is there":                       {all, schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfig"}, `[]`, []v1alpha1.KubeletField{"clusterDNS", "maxPods", "systemReserved"}},
		"patches write some of them":              {all, schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfig"}, `[{op: add, path: /spec/a, valueFrom: {variable: systemReservedFlag}}, {op: add, path: /spec/b, valueFrom: {template: "{{ .maxPods }}"}}]`, []v1alpha1.KubeletField{"clusterDNS"}},
		"a patch writes all of them":              {all, schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfigTemplate"}, `[{op: add, path: /spec/a, valueFrom: {variable: kubeletArgs}}]`, nil},
		"a patch writes all of them to be joined": {all, schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfig"}, `[{op: add, path: /spec/a, valueFrom: {template: '{{ join " " .kubeletArgList }}'}}]`, nil},
	} {
		t.Run("When "+name+", it should name what doesn't reach kubelets", func(t *testing.T) {
			nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{Kubelet: tc.kubelet, BootstrapPatches: anyConfig(t, tc.patches)}}
			NewWithT(t).Expect(machine.Unwritten(nodeClass, tc.kind)).To(BeComparableTo(tc.want, cmpopts.EquateEmpty()))
		})
	}
}

func TestUnallowed(t *testing.T) {
	allowed := anyConfig(t, `[{op: add, path: /spec/a, value: {b: "<1", c: 2}}]`)
	for name, tc := range map[string]struct {
		patches []v1alpha1.BootstrapPatches
		allowed []v1alpha1.BootstrapPatches
		want    string
	}{
		"When anything is allowed, it should allow it":                     {anyConfig(t, `[{op: remove, path: /spec/a}]`), nil, ""},
		"When nothing is allowed, it should name the kind":                 {allowed, []v1alpha1.BootstrapPatches{}, "AnyConfig (bootstrap.cluster.x-k8s.io)"},
		"When a value is written in another way, it should be the same":    {[]v1alpha1.BootstrapPatches{rewritten(allowed[0], `{ "c":2, "b": "\u003c1" }`)}, allowed, ""},
		"When a value is another, it should name the kind":                 {[]v1alpha1.BootstrapPatches{rewritten(allowed[0], `{"b": "<1", "c": 3}`)}, allowed, "AnyConfig (bootstrap.cluster.x-k8s.io)"},
		"When a patch has another operation, it should name the kind":      {anyConfig(t, `[{op: replace, path: /spec/a, value: {b: "<1", c: 2}}]`), allowed, "AnyConfig (bootstrap.cluster.x-k8s.io)"},
		"When a value isn't even JSON, it should be taken for another one": {[]v1alpha1.BootstrapPatches{rewritten(allowed[0], `{`)}, allowed, "AnyConfig (bootstrap.cluster.x-k8s.io)"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(machine.Unallowed(tc.patches, tc.allowed)).To(Equal(tc.want))
		})
	}
}

func rewritten(patches v1alpha1.BootstrapPatches, value string) v1alpha1.BootstrapPatches {
	patches = *patches.DeepCopy()
	patches.Patches[0].Value.Raw = []byte(value)
	return patches
}

func TestRegisters(t *testing.T) {
	patches := func(kind, from string) []v1alpha1.BootstrapPatches {
		p := anyConfig(t, `[{op: add, path: /spec/a, valueFrom: `+from+`}]`)
		p[0].Kind = kind
		return p
	}
	for name, tc := range map[string]struct {
		kind    string
		patches []v1alpha1.BootstrapPatches
		want    bool
	}{
		"When the kind is kubeadm's, it should need no patch":                               {"KubeadmConfigTemplate", nil, true},
		"When the kind isn't known and has no patches, it should say no":                    {"RKE2ConfigTemplate", nil, false},
		"When a patch writes the taints, it should say yes":                                 {"RKE2Config", patches("RKE2Config", "{variable: taintList}"), true},
		"When a patch writes the taints into a text, it should say yes of the template too": {"RKE2ConfigTemplate", patches("RKE2Config", `{template: "--taints={{ .taintFlag }}"}`), true},
		"When patches write all but the taints, it should say no":                           {"RKE2Config", patches("RKE2Config", `{template: "{{ .labelFlag }} .taints"}`), false},
		"When patches are for another kind, it should say no":                               {"K0sWorkerConfig", patches("RKE2Config", "{variable: taints}"), false},
		"When a patch can't be parsed, it should say no":                                    {"RKE2Config", patches("RKE2Config", `{template: "{{ .taints"}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{BootstrapPatches: tc.patches}}
			NewWithT(t).Expect(machine.Registers(nodeClass, schema.GroupKind{Group: bootstrapGroup, Kind: tc.kind})).To(Equal(tc.want))
		})
	}
}
