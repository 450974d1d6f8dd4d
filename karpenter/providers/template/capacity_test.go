// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/patch"
)

// template with 2 cores and 4 GiB in its status.
func template(name string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
		"kind":       "TestMachineTemplate",
		"metadata":   map[string]any{"namespace": "clusters-blue", "name": name, "uid": "1", "resourceVersion": "7"},
		"spec":       map[string]any{"template": map[string]any{"spec": map[string]any{"size": "c2"}}},
		"status":     map[string]any{"capacity": map[string]any{"cpu": "2", "memory": "4Gi"}},
	}}
	if change != nil {
		change(u)
	}
	return u
}

func annotated(annotations map[string]string) *unstructured.Unstructured {
	return template("c2-small", func(u *unstructured.Unstructured) { u.SetAnnotations(annotations) })
}

func list(quantities ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(quantities); i += 2 {
		l[corev1.ResourceName(quantities[i])] = resource.MustParse(quantities[i+1])
	}
	return l
}

func TestReadTemplate(t *testing.T) {
	for _, tc := range []struct {
		name     string
		template *unstructured.Unstructured
		// arch is the node class's default architecture.
		arch string
		want Template
	}{
		{
			name:     "When the status declares the capacity, it should fill in the defaults for the rest",
			template: template("c2-small", nil),
			want:     Template{InstanceType: "c2-small", Arch: "amd64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true},
		},
		{
			name: "When the status declares more, it should take it all",
			arch: "amd64",
			template: template("g1", func(u *unstructured.Unstructured) {
				u.Object["status"] = map[string]any{
					"capacity": map[string]any{"cpu": int64(8), "memory": "16Gi", "pods": "30", "ephemeral-storage": "100Gi", "example.com/gpu": "2"},
					"nodeInfo": map[string]any{"architecture": "arm64", "operatingSystem": "windows"},
				}
			}),
			want: Template{InstanceType: "g1", Arch: "arm64", OS: "windows",
				Capacity: list("cpu", "8", "memory", "16Gi", "pods", "30", "ephemeral-storage", "100Gi", "example.com/gpu", "2"), NominalMemory: true},
		},
		{
			name: "When annotations contradict the status, it should believe the annotations",
			template: template("c2-small", func(u *unstructured.Unstructured) {
				u.Object["status"] = map[string]any{
					"capacity": map[string]any{"cpu": "1", "memory": "1Gi", "pods": "5"},
					"nodeInfo": map[string]any{"architecture": "amd64"},
				}
				u.SetAnnotations(map[string]string{
					cpuAnnotation: "4", memoryAnnotation: " 8Gi ", diskAnnotation: "20Gi", maxPodsAnnotation: "60",
					gpuTypeAnnotation: "nvidia.com/gpu", gpuCountAnnotation: "4",
					labelsAnnotation:                "kubernetes.io/arch=arm64, team=web,topology.kubernetes.io/zone=b,",
					taintsAnnotation:                "dedicated=web:NoSchedule, spot:PreferNoSchedule",
					v1alpha1.PriceAnnotation:        "0.096",
					v1alpha1.SpotPriceAnnotation:    "0.031",
					v1alpha1.CapacityTypeAnnotation: "spot",
					v1alpha1.InstanceTypeAnnotation: "c4-large", v1alpha1.MemoryOverheadAnnotation: "2.5%",
					"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "10",
				})
			}),
			want: Template{InstanceType: "c4-large", Arch: "arm64", OS: "linux",
				Capacity:       list("cpu", "4", "memory", "8Gi", "pods", "60", "ephemeral-storage", "20Gi", "nvidia.com/gpu", "4"),
				Labels:         map[string]string{"team": "web"},
				FailureDomains: []string{"b"},
				Taints: []corev1.Taint{
					{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule},
					{Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule},
				},
				Price: ptr.To(0.096), SpotPrice: ptr.To(0.031), CapacityType: "spot", MemoryOverhead: ptr.To(0.025), MaxSize: ptr.To(10)},
		},
		{
			name:     "When the zone and the region are declared by a CSI driver's topology keys, it should believe them",
			template: annotated(map[string]string{labelsAnnotation: "topology.ebs.csi.aws.com/zone=b,topology.csi.vmware.com/k8s-region=eu,beta.kubernetes.io/arch=arm64,team=web"}),
			want: Template{InstanceType: "c2-small", Arch: "arm64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true,
				Labels: map[string]string{"team": "web", corev1.LabelTopologyRegion: "eu"}, FailureDomains: []string{"b"}},
		},
		{
			name:     "When the zone is declared twice, it should believe the label of Kubernetes",
			template: annotated(map[string]string{labelsAnnotation: "topology.ebs.csi.aws.com/zone=b,topology.kubernetes.io/zone=a"}),
			want:     Template{InstanceType: "c2-small", Arch: "amd64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true, FailureDomains: []string{"a"}},
		},
		{
			name: "When there is no status, it should do with annotations alone",
			template: template("metal", func(u *unstructured.Unstructured) {
				delete(u.Object, "status")
				u.SetAnnotations(map[string]string{cpuAnnotation: "500m", memoryAnnotation: "512Mi", gpuCountAnnotation: "0"})
			}),
			want: Template{InstanceType: "metal", Arch: "amd64", OS: "linux", Capacity: list("cpu", "500m", "memory", "512Mi", "pods", "110"), DefaultPods: true},
		},
		{
			name: "When a DRA driver is named, it should publish the devices, and be no resource",
			template: annotated(map[string]string{
				draAnnotation: "gpu.nvidia.com", gpuCountAnnotation: "2", csiAnnotation: "ebs.csi.aws.com=25, efs.csi.aws.com=0",
			}),
			want: Template{InstanceType: "c2-small", Arch: "amd64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true, Devices: []catalog.Devices{{Driver: "gpu.nvidia.com", Count: 2, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}}}}, VolumeLimits: map[string]int{"ebs.csi.aws.com": 25, "efs.csi.aws.com": 0}},
		},
		{
			name:     "When the version of the image is declared, it should drop the leading v",
			template: annotated(map[string]string{v1alpha1.KubernetesVersionAnnotation: "v1.36.3+k3s1"}),
			want:     Template{InstanceType: "c2-small", Arch: "amd64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true, ImageVersion: "1.36.3+k3s1"},
		},
		{
			name:     "When the source declares no architecture, it should be the node class's",
			template: template("c2-small", nil),
			arch:     "arm64",
			want:     Template{InstanceType: "c2-small", Arch: "arm64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true},
		},
		{
			name:     "When the template is paused, it should be paused",
			template: annotated(map[string]string{"cluster.x-k8s.io/paused": ""}),
			want:     Template{InstanceType: "c2-small", Arch: "amd64", OS: "linux", Capacity: list("cpu", "2", "memory", "4Gi", "pods", "110"), DefaultPods: true, NominalMemory: true, Paused: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, invalid := embedded.read(tc.template, tc.arch)
			NewWithT(t).Expect(invalid).To(BeNil())
			tc.want.Source = sourceOf(tc.template)
			tc.want.Infrastructure = tc.template
			tc.want.Notes = got.Notes // TestReadKind
			tc.want.ContentHash = "8b55fcd0d9497e2d805006c3f9cd00e3"
			if tc.want.Labels == nil {
				tc.want.Labels = map[string]string{}
			}
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want, cmp.AllowUnexported(patch.List{}, Template{}), cmpopts.IgnoreFields(Template{}, "Kind")))
		})
	}
}

func TestReadMalformedTemplate(t *testing.T) {
	status := func(status any) *unstructured.Unstructured {
		return template("c2-small", func(u *unstructured.Unstructured) { u.Object["status"] = status })
	}
	const prefix = "TestMachineTemplate clusters-blue/c2-small: "
	for _, tc := range []struct {
		name     string
		template *unstructured.Unstructured
		want     string
	}{
		{"cpu", annotated(map[string]string{cpuAnnotation: "four"}), `annotation capacity.cluster-autoscaler.kubernetes.io/cpu: "four" is not a quantity`},
		{"a negative quantity", annotated(map[string]string{diskAnnotation: "-1Gi"}), `annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk: "-1Gi" is not a quantity`},
		{"an exponent that takes forever", annotated(map[string]string{cpuAnnotation: "1e1000000000"}), `"1e1000000000" is not a quantity`},
		{"more than there is", annotated(map[string]string{memoryAnnotation: "9e99"}), `"9e99" is more than any machine has`},
		{"no cpu at all", annotated(map[string]string{cpuAnnotation: "0"}), `has no cpu capacity: status.capacity doesn't have it; set annotation capacity.cluster-autoscaler.kubernetes.io/cpu`},
		{"no status and no annotation", status(nil), `has no cpu capacity`},
		{"pods", annotated(map[string]string{maxPodsAnnotation: "110.5"}), `annotation capacity.cluster-autoscaler.kubernetes.io/maxPods: "110.5" is not a positive number of pods`},
		{"gpu count", annotated(map[string]string{gpuTypeAnnotation: "nvidia.com/gpu", gpuCountAnnotation: "many"}), `annotation capacity.cluster-autoscaler.kubernetes.io/gpu-count: "many" is not a quantity`},
		{"gpu count alone", annotated(map[string]string{gpuCountAnnotation: "1"}), `"1" needs annotation capacity.cluster-autoscaler.kubernetes.io/gpu-type beside it`},
		{"gpu type", annotated(map[string]string{gpuTypeAnnotation: "a b", gpuCountAnnotation: "1"}), `"a b", which is not the name of a resource`},
		{"labels", annotated(map[string]string{labelsAnnotation: "team=web,tier"}), `annotation capacity.cluster-autoscaler.kubernetes.io/labels: "team=web,tier" is not a list of labels, such as team=web,tier=front: "tier" is not a label`},
		{"a label that a template can't set", annotated(map[string]string{labelsAnnotation: "karpenter.sh/capacity-type=spot"}), `has label karpenter.sh/capacity-type=spot, which can't be set by a template`},
		{"an empty architecture", annotated(map[string]string{labelsAnnotation: "kubernetes.io/arch="}), `has label kubernetes.io/arch=, which is empty`},
		{"taints", annotated(map[string]string{taintsAnnotation: "dedicated=web:Never"}), `"dedicated=web:Never" is not a taint`},
		{"a taint without a key", annotated(map[string]string{taintsAnnotation: "=x:NoSchedule"}), `"=x:NoSchedule" is not a taint`},
		{"volume limits", annotated(map[string]string{csiAnnotation: "ebs.csi.aws.com=25,efs.csi.aws.com"}), `annotation capacity.cluster-autoscaler.kubernetes.io/csi-driver: "ebs.csi.aws.com=25,efs.csi.aws.com" is not a list of volume limits, such as ebs.csi.aws.com=25: "efs.csi.aws.com" is not a volume limit`},
		{"a negative volume limit", annotated(map[string]string{csiAnnotation: "ebs.csi.aws.com=-1"}), `"ebs.csi.aws.com=-1" is not a volume limit`},
		{"DRA driver", annotated(map[string]string{draAnnotation: "gpu nvidia"}), `annotation capacity.cluster-autoscaler.kubernetes.io/dra-driver: "gpu nvidia" is not the name of a DRA driver, such as gpu.nvidia.com`},
		{"a DRA driver without a name", annotated(map[string]string{draAnnotation: "", gpuCountAnnotation: "1"}), `annotation capacity.cluster-autoscaler.kubernetes.io/dra-driver: "" is not the name of a DRA driver`},
		{"too many devices", annotated(map[string]string{draAnnotation: "gpu.nvidia.com", gpuCountAnnotation: "129"}), `annotation capacity.cluster-autoscaler.kubernetes.io/gpu-count: "129" is not a number of devices from 0 to 128`},
		{"half a device", annotated(map[string]string{draAnnotation: "gpu.nvidia.com", gpuCountAnnotation: "500m"}), `"500m" is not a number of devices`},
		{"price", annotated(map[string]string{v1alpha1.PriceAnnotation: "-1"}), `annotation karpenter.cluster.x-k8s.io/price: "-1" is not a price in US dollars an hour, such as 0.096`},
		{"a price that isn't a number", annotated(map[string]string{v1alpha1.PriceAnnotation: "NaN"}), `"NaN" is not a price`},
		{"spot price of on-demand machines", annotated(map[string]string{v1alpha1.SpotPriceAnnotation: "0.03"}), `annotation karpenter.cluster.x-k8s.io/spot-price: "0.03" declares spot machines, and nothing makes them spot`},
		{"spot price with a patch of something else", annotated(map[string]string{
			v1alpha1.SpotPriceAnnotation: "0.03", v1alpha1.InfrastructurePatchesAnnotation: `[{op: add, path: /spec/zone, valueFrom: {variable: zone}}]`,
		}), `annotation karpenter.cluster.x-k8s.io/spot-price: "0.03" declares spot machines, and nothing makes them spot`},
		{"memory overhead without its sign", annotated(map[string]string{v1alpha1.MemoryOverheadAnnotation: "0.075"}), `annotation karpenter.cluster.x-k8s.io/memory-overhead: "0.075" is not a percentage below 100%, such as 7.5%`},
		{"all memory as overhead", annotated(map[string]string{v1alpha1.MemoryOverheadAnnotation: "100%"}), `"100%" is not a percentage below 100%`},
		{"version of the image", annotated(map[string]string{v1alpha1.KubernetesVersionAnnotation: "1.36"}), `annotation karpenter.cluster.x-k8s.io/kubernetes-version: "1.36" is not a version, such as 1.36.3`},
		{"a version of the image that is too long", annotated(map[string]string{v1alpha1.KubernetesVersionAnnotation: "1.36.3+" + strings.Repeat("a", 64)}), `is not a version, such as 1.36.3`},
		{"capacity type", annotated(map[string]string{v1alpha1.CapacityTypeAnnotation: "reserved"}), `annotation karpenter.cluster.x-k8s.io/capacity-type: "reserved" is neither on-demand nor spot`},
		{"capacity type beside a patch", annotated(map[string]string{
			v1alpha1.CapacityTypeAnnotation: "spot", v1alpha1.InfrastructurePatchesAnnotation: `[{op: add, path: /spec/market, valueFrom: {variable: capacityType}}]`,
		}), `annotation karpenter.cluster.x-k8s.io/capacity-type: "spot" goes with a patch that writes the capacity type`},
		{"patches", annotated(map[string]string{v1alpha1.InfrastructurePatchesAnnotation: "[" + strings.Repeat(" ", 200) + "{op: copy, path: /spec/a}]"}), `can't be used: patch 0 (copy /spec/a): op must be add, replace or remove`},
		{"spot price", annotated(map[string]string{v1alpha1.SpotPriceAnnotation: "0,03"}), `annotation karpenter.cluster.x-k8s.io/spot-price: "0,03" is not a price`},
		{"instance type", annotated(map[string]string{v1alpha1.InstanceTypeAnnotation: "c2 small"}), `annotation karpenter.cluster.x-k8s.io/instance-type: "c2 small" is not the value of a label`},
		{"a name too long for an instance type", template(strings.Repeat("c", 64), nil), `its name can't be that of an instance type, because it is not the value of a label: must be no more than 63`},
		{"size", annotated(map[string]string{"cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "-1"}), `"-1" is not a number of machines`},
		{"status capacity", status(map[string]any{"capacity": map[string]any{"cpu": "lots"}}), `status.capacity.cpu: "lots" is not a quantity`},
		{"a status capacity of another type", status(map[string]any{"capacity": map[string]any{"cpu": map[string]any{"a": "b"}}}), `status.capacity.cpu: "map[a:b]" is not a quantity`},
		{"a status that is no map", status("ready"), `status.capacity: "" is not a map of quantities`},
		{"architecture", status(map[string]any{"capacity": map[string]any{"cpu": "2", "memory": "4Gi"}, "nodeInfo": map[string]any{"architecture": int64(64)}}), `status.nodeInfo.architecture: "" is not a string`},
		{"no template to clone", template("c2-small", func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{} }), `has no spec.template`},
	} {
		t.Run("When the template is wrong in: "+tc.name+", it should say which key of which object is wrong, and how", func(t *testing.T) {
			_, invalid := embedded.read(tc.template, "")
			if invalid == nil {
				t.Fatal("the template is accepted")
			}
			if got := invalid.Error(); !strings.Contains(got, tc.want) || !strings.HasPrefix(got, strings.Replace(prefix, "c2-small", tc.template.GetName(), 1)) {
				t.Errorf("got  %s\nwant %s", got, prefix+tc.want)
			}
		})
	}
}

// FuzzAnnotations tries values in every annotation at once: whatever a person writes, nothing panics or hangs, and a template
// that is accepted can be used.
func FuzzAnnotations(f *testing.F) {
	for _, value := range []string{"", "4", "8Gi", "-1", "1e1000000000", "1e99", "NaN", "0x10", "a=b", "a=b:NoSchedule", "=", ":", ",", "a=,=b", "999999999999999999999", "nvidia.com/gpu", "\x00", "１", "1_000", "+1"} {
		f.Add(value, "4", "1Gi")
		f.Add("2", value, value)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		annotations := map[string]string{}
		for i, reader := range annotationReaders {
			annotations[reader.key] = []string{a, b, c}[i%3]
		}
		annotations[gpuTypeAnnotation], annotations[gpuCountAnnotation] = b, c
		annotations[cpuAnnotation] = a
		u := annotated(annotations)
		u.Object["status"] = map[string]any{"capacity": map[string]any{"cpu": b, "memory": c}, "nodeInfo": map[string]any{"architecture": a}}
		tmpl, invalid := embedded.read(u, "")
		if invalid != nil {
			if invalid.Error() == "" {
				t.Error("the error is empty")
			}
			return
		}
		if tmpl.InstanceType == "" || tmpl.Arch == "" || tmpl.OS == "" {
			t.Errorf("an incomplete template: %+v", tmpl)
		}
		for name, quantity := range tmpl.Capacity {
			if quantity.Sign() < 0 || quantity.AsApproximateFloat64() > 1e18 {
				t.Errorf("%s is %s", name, quantity.String())
			}
		}
	})
}
