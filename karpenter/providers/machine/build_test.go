// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

var update = flag.Bool("update", false, "update the golden files")

const infrastructureTemplate = `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: TestMachineTemplate
metadata: {name: c4-large, namespace: clusters-blue, uid: t1}
spec:
  template:
    metadata:
      labels: {team: web}
    spec: {size: c4}
`

const kubeadmTemplate = `
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {name: default, namespace: clusters-blue}
spec:
  template:
    spec:
      preKubeadmCommands: [echo hello]
      joinConfiguration:
        nodeRegistration:
          criSocket: unix:///run/containerd.sock
          taints:
          - {key: slow, effect: PreferNoSchedule}
          kubeletExtraArgs:
          - {name: node-labels, value: "rack=r7,karpenter.sh/nodepool=wrong"}
          - {name: v, value: "2"}
`

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(u.UnmarshalJSON(raw)).To(Succeed())
	return u
}

func plan(t *testing.T) machine.Plan {
	t.Helper()
	return machine.Plan{
		NodeClaim: &karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "general-x7k2p", UID: "0c0e2d4c-6a4e-4d39-9d7b-3f6f3e0b7a11"},
			Spec: karpv1.NodeClaimSpec{
				Taints:        []corev1.Taint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}},
				StartupTaints: []corev1.Taint{{Key: "cni", Effect: corev1.TaintEffectNoSchedule}},
			},
		},
		Cluster: &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue", UID: "c1"},
		},
		Template: template.Template{
			Infrastructure: object(t, infrastructureTemplate),
			Bootstrap:      template.Bootstrap{ConfigTemplate: object(t, kubeadmTemplate)},
			Taints:         []corev1.Taint{{Key: "gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule}},
			Machine: &clusterv1.MachineTemplateSpec{
				ObjectMeta: clusterv1.ObjectMeta{Labels: map[string]string{
					"from":                               "machinedeployment",
					v1alpha1.NodeClaimUIDLabel:           "forged",
					clusterv1.MachineDeploymentNameLabel: "would be adopted",
					clusterv1.ClusterTopologyOwnedLabel:  "",
				}},
				Spec: clusterv1.MachineSpec{Deletion: clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: ptr.To[int32](300)}},
			},
		},
		Version:       "1.36.2",
		FailureDomain: "a",
		NodeLabels: map[string]string{
			karpv1.NodePoolLabelKey:                   "general",
			karpv1.CapacityTypeLabelKey:               "spot",
			corev1.LabelInstanceTypeStable:            "c4-large",
			corev1.LabelTopologyZone:                  "a",
			corev1.LabelArchStable:                    "amd64",
			corev1.LabelOSStable:                      "linux",
			"node-role.kubernetes.io/worker":          "",
			"node-restriction.kubernetes.io/tier":     "gold",
			"node.kubernetes.io/flavor":               "plain",
			"example.com/team":                        "web",
			"karpenter.cluster.x-k8s.io/instance-cpu": "4",
		},
		Annotations: map[string]string{
			v1alpha1.TemplateHashAnnotation:   "5ca1ab1e",
			v1alpha1.TemplateSourceAnnotation: "TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-large",
		},
		Kubelet: &v1alpha1.KubeletConfiguration{
			ClusterDNS:                  []string{"10.96.0.10", "fd00::a"},
			PodsPerCore:                 ptr.To[int32](30),
			KubeReserved:                map[string]v1alpha1.ReservedQuantity{"memory": "512Mi", "cpu": "100m"},
			EvictionHard:                map[string]v1alpha1.EvictionThreshold{"memory.available": "5%"},
			EvictionSoft:                map[string]v1alpha1.EvictionThreshold{"nodefs.available": "15%", "memory.available": "1Gi"},
			EvictionSoftGracePeriod:     map[string]v1alpha1.EvictionGracePeriod{"nodefs.available": "2m", "memory.available": "1m30s"},
			EvictionMaxPodGracePeriod:   ptr.To[int32](-1),
			ImageGCHighThresholdPercent: ptr.To[int32](90),
			CPUCFSQuota:                 ptr.To(false),
			PodPidsLimit:                ptr.To[int64](4096),
		},
		MaxPods: 58,
	}
}

func TestBuild(t *testing.T) {
	for name, tc := range map[string]struct {
		golden string
		change func(*testing.T, *machine.Plan)
	}{
		"When a template is for kubeadm, it should register the node with the claim's taints, labels and kubelet settings beside the template's own": {
			golden: "kubeadm.yaml",
		},
		"When the kubeadm template is of v1beta1, it should write kubelet arguments as a map": {
			golden: "kubeadm-v1beta1.yaml",
			change: func(t *testing.T, p *machine.Plan) {
				p.Template.Bootstrap.ConfigTemplate = object(t, `
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: KubeadmConfigTemplate
metadata: {name: old, namespace: clusters-blue}
spec:
  template:
    spec:
      joinConfiguration:
        nodeRegistration:
          kubeletExtraArgs: {max-pods: "110", node-labels: rack=r7}
`)
			},
		},
		"When the kubeadm template declares nothing of joining, it should add all that is needed": {
			golden: "kubeadm-empty.yaml",
			change: func(t *testing.T, p *machine.Plan) {
				p.Template.Bootstrap.ConfigTemplate = object(t, `
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {name: empty, namespace: clusters-blue}
spec: {template: {spec: {}}}
`)
			},
		},
		"When the bootstrap kind isn't known, it should clone it as it is": {
			golden: "unknown-bootstrap.yaml",
			change: func(t *testing.T, p *machine.Plan) {
				p.Template.Bootstrap.ConfigTemplate = object(t, `
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: RKE2ConfigTemplate
metadata: {name: rke2, namespace: clusters-blue}
spec: {template: {spec: {agentConfig: {nodeTaints: []}}}}
`)
			},
		},
		"When bootstrap data is in a Secret, it should name it in the Machine": {
			golden: "data-secret.yaml",
			change: func(_ *testing.T, p *machine.Plan) {
				p.Template.Bootstrap = template.Bootstrap{DataSecretName: "worker-user-data"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t)
			if tc.change != nil {
				tc.change(t, &p)
			}
			before := p.Template.Infrastructure.DeepCopy()
			objects, err := machine.Build(p)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(p.Template.Infrastructure).To(BeComparableTo(before), "the template is shared with the cache")
			compare(t, tc.golden, objects)
		})
	}
}

// compare holds what is built against a golden file.
func compare(t *testing.T, golden string, objects *machine.Objects) {
	t.Helper()
	var got bytes.Buffer
	documents := []any{objects.Infrastructure.Object}
	if objects.Bootstrap != nil {
		documents = append(documents, objects.Bootstrap.Object)
	}
	for i, document := range append(documents, objects.Machine) {
		if i > 0 {
			got.WriteString("---\n")
		}
		text, err := yaml.Marshal(document)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		got.Write(text)
	}
	path := filepath.Join("testdata", golden)
	if *update {
		NewWithT(t).Expect(os.WriteFile(path, got.Bytes(), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(path)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(got.String()).To(BeComparableTo(string(want)), "%s; run with -update if it is meant", path)
}

func TestBuildErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*machine.Plan)
		mention string
	}{
		"When the NodeClaim has no UID yet, it should refuse": {
			change: func(p *machine.Plan) { p.NodeClaim.UID = "" }, mention: "UID",
		},
		"When the NodeClaim has the name of the Cluster's CA, it should refuse": {
			change: func(p *machine.Plan) { p.NodeClaim.Name = p.Cluster.Name + "-ca" }, mention: "-ca; create the NodeClaim with another name",
		},
		"When the NodeClaim has the name of another Cluster's kubeconfig, it should refuse": {
			change: func(p *machine.Plan) { p.NodeClaim.Name = "green-kubeconfig" }, mention: "green-kubeconfig; create the NodeClaim with another name",
		},
		"When there is neither a bootstrap template nor a Secret, it should refuse": {
			change: func(p *machine.Plan) { p.Template.Bootstrap.ConfigTemplate = nil }, mention: "bootstrap",
		},
		"When there are both a bootstrap template and a Secret, it should refuse": {
			change: func(p *machine.Plan) { p.Template.Bootstrap.DataSecretName = "x" }, mention: "bootstrap",
		},
		"When the infrastructure template has no spec.template, it should name the template": {
			change: func(p *machine.Plan) { unstructured.RemoveNestedField(p.Template.Infrastructure.Object, "spec") }, mention: "TestMachineTemplate c4-large",
		},
		"When kubelet arguments are malformed, it should name the field": {
			change: func(p *machine.Plan) {
				_ = unstructured.SetNestedField(p.Template.Bootstrap.ConfigTemplate.Object, "nonsense",
					"spec", "template", "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
			},
			mention: "spec.joinConfiguration.nodeRegistration.kubeletExtraArgs",
		},
		"When taints are malformed, it should name the field": {
			change: func(p *machine.Plan) {
				_ = unstructured.SetNestedField(p.Template.Bootstrap.ConfigTemplate.Object, "nonsense",
					"spec", "template", "spec", "joinConfiguration", "nodeRegistration", "taints")
			},
			mention: "spec.joinConfiguration.nodeRegistration.taints",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t)
			tc.change(&p)
			_, err := machine.Build(p)
			var unbuildable *machine.BuildError
			if !errors.As(err, &unbuildable) || !strings.Contains(err.Error(), tc.mention) {
				t.Errorf("got %v, want a BuildError that mentions %q", err, tc.mention)
			}
		})
	}
}

func TestBuildLongName(t *testing.T) {
	t.Run("When a NodeClaim's name is too long for a label, it should shorten the label and keep it unique", func(t *testing.T) {
		values := map[string]bool{}
		for _, suffix := range []string{"a", "b"} {
			p := plan(t)
			p.NodeClaim.Name = strings.Repeat("long-", 14) + suffix
			objects, err := machine.Build(p)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			value := objects.Machine.Labels[v1alpha1.NodeClaimLabel]
			if len(value) > 63 {
				t.Errorf("label value %q has %d characters", value, len(value))
			}
			values[value] = true
		}
		NewWithT(t).Expect(values).To(HaveLen(2))
	})
}

func TestProviderID(t *testing.T) {
	for providerID, want := range map[string]bool{
		"capi://clusters-blue/general-x7k2p": true,
		"capi://clusters-blue/":              false,
		"capi:///general-x7k2p":              false,
		"capi://clusters-blue":               false,
		"capi://a/b/c":                       false,
		"kwok://clusters-blue/general-x7k2p": false,
		"":                                   false,
	} {
		t.Run("When a provider ID is "+providerID+", it should be recognized", func(t *testing.T) {
			key, ok := machine.ParseSyntheticProviderID(providerID)
			NewWithT(t).Expect(ok).To(Equal(want))
			if ok && machine.SyntheticProviderID(key) != providerID {
				t.Errorf("%v became %s", key, machine.SyntheticProviderID(key))
			}
		})
	}
}

func TestTaintsInFlag(t *testing.T) {
	const ours = "karpenter.sh/unregistered:NoExecute,dedicated=web:NoSchedule,cni:NoSchedule,gpu=true:NoSchedule,node.cluster.x-k8s.io/uninitialized:NoSchedule"
	for name, tc := range map[string]struct{ version, args, want string }{
		"When a template of v1beta1 has taints in the kubelet's flag, it should add the claim's to them":                              {"v1beta1", `{register-with-taints: "nvidia.com/gpu=true:NoSchedule"}`, "nvidia.com/gpu=true:NoSchedule," + ours},
		"When a template of v1beta2 has taints in the kubelet's flag, it should add the claim's to them":                              {"v1beta2", `[{name: register-with-taints, value: "a=b:NoSchedule, c:NoExecute"}]`, "a=b:NoSchedule,c:NoExecute," + ours},
		"When the kubelet's flag has a taint of the claim's key and effect, it should have the claim's, since a kubelet rejects both": {"v1beta2", `[{name: register-with-taints, value: "dedicated=db:NoSchedule,dedicated=db:NoExecute"}]`, "dedicated=db:NoExecute," + ours},
		"When the kubelet's flag is empty, it should have the claim's":                                                                {"v1beta2", `[{name: register-with-taints, value: ""}]`, ours},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := plan(t)
			p.Template.Bootstrap.ConfigTemplate = object(t, `{apiVersion: bootstrap.cluster.x-k8s.io/`+tc.version+`, kind: KubeadmConfigTemplate, metadata: {name: any, namespace: clusters-blue},
				spec: {template: {spec: {joinConfiguration: {nodeRegistration: {kubeletExtraArgs: `+tc.args+`}}}}}}`)
			objects, err := machine.Build(p)
			g.Expect(err).NotTo(HaveOccurred())
			args, _, err := unstructured.NestedFieldNoCopy(objects.Bootstrap.Object, "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
			g.Expect(err).NotTo(HaveOccurred())
			flags, err := kubelet.Args(args)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(flags).To(HaveKeyWithValue("register-with-taints", tc.want))
		})
	}
}

func TestDropIn(t *testing.T) {
	build := func(t *testing.T, spec string, other map[string]apiextensionsv1.JSON) *unstructured.Unstructured {
		t.Helper()
		p := plan(t)
		p.Template.Bootstrap.ConfigTemplate = object(t, `{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfigTemplate,
			metadata: {name: default, namespace: clusters-blue}, spec: {template: {spec: `+spec+`}}}`)
		p.Kubelet = &v1alpha1.KubeletConfiguration{Other: other}
		objects, err := machine.Build(p)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return objects.Bootstrap
	}
	other := map[string]apiextensionsv1.JSON{"maxParallelImagePulls": {Raw: []byte("5")}, "logging": {Raw: []byte(`{"format":"{{ text }}"}`)}}
	for name, tc := range map[string]struct{ spec, directory string }{
		"the template has no directory of drop-ins": {`{files: [{path: /a, content: b}]}`, "/etc/kubernetes/kubelet.conf.d"},
		"the template has one": {`{files: [{path: /a, content: b}],
			joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: config-dir, value: /etc/kubelet.d}]}}}`, "/etc/kubelet.d"},
	} {
		t.Run("When a node class sets other fields of the kubelet and "+name+", they should be in its last file", func(t *testing.T) {
			g, config := NewWithT(t), build(t, tc.spec, other)
			files, _, err := unstructured.NestedSlice(config.Object, "spec", "files")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(files).To(HaveLen(2))
			file := files[1].(map[string]any)
			g.Expect(file).To(HaveKeyWithValue("path", tc.directory+"/zz-autonode.conf"))
			content, err := base64.StdEncoding.DecodeString(file["content"].(string))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(content).To(MatchJSON(`{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
				"maxParallelImagePulls": 5, "logging": {"format": "{{ text }}"}}`))
			args, _, err := unstructured.NestedSlice(config.Object, "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(args).To(ContainElement(map[string]any{"name": "config-dir", "value": tc.directory}))
		})
	}
	t.Run("When a node class sets none, its machines should get no file", func(t *testing.T) {
		NewWithT(t).Expect(build(t, `{}`, nil).Object["spec"]).NotTo(HaveKey("files"))
	})
}
