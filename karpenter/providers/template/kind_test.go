// SPDX-License-Identifier: Apache-2.0

package template

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// ofKind returns a template of a kind, without a status, with this machine spec and these annotations.
func ofKind(kind string, spec map[string]any, annotations map[string]string) *unstructured.Unstructured {
	return template("workers", func(u *unstructured.Unstructured) {
		u.SetKind(kind)
		u.SetAnnotations(annotations)
		u.Object["spec"] = map[string]any{"template": map[string]any{"spec": spec}}
		delete(u.Object, "status")
	})
}

// embedded reads templates with the embedded profiles.
var embedded = templates{Config{Profiles: profile.Embedded()}}

var vsphereSpec = map[string]any{"numCPUs": int64(4), "memoryMiB": int64(16384), "diskGiB": int64(40), "cloneMode": "fullClone"}

func TestReadKind(t *testing.T) {
	t.Run("When the kind's template has no status, its own fields should be the capacity", func(t *testing.T) {
		got, invalid := embedded.read(ofKind("VSphereMachineTemplate", vsphereSpec, nil), "")
		NewWithT(t).Expect(invalid).To(BeNil())
		if diff := cmp.Diff(list("cpu", "4", "memory", "16Gi", "ephemeral-storage", "40Gi", "pods", "110"), got.Capacity); diff != "" || len(got.Notes) > 0 {
			t.Errorf("notes %v, capacity (-want +got):\n%s", got.Notes, diff)
		}
		NewWithT(t).Expect(got.NominalMemory).To(BeTrue(), "what a hypervisor keeps of it isn't allowed for")
	})
	t.Run("When an annotation declares otherwise, it should override the kind's fields", func(t *testing.T) {
		got, invalid := embedded.read(ofKind("AWSMachineTemplate", map[string]any{"instanceType": "m5.large"}, map[string]string{
			cpuAnnotation: "2", memoryAnnotation: "8Gi", v1alpha1.InstanceTypeAnnotation: "ours",
		}), "")
		if invalid != nil || got.InstanceType != "ours" {
			t.Errorf("instance type %q, %v", got.InstanceType, invalid)
		}
	})
	t.Run("When the kind names an instance type, it should be the template's", func(t *testing.T) {
		got, invalid := embedded.read(ofKind("AWSMachineTemplate", map[string]any{"instanceType": "m5.large"}, map[string]string{cpuAnnotation: "2", memoryAnnotation: "8Gi"}), "")
		if invalid != nil || got.InstanceType != "m5.large" || got.CapacityType != "on-demand" {
			t.Errorf("%q, %q, %v", got.InstanceType, got.CapacityType, invalid)
		}
	})
	t.Run("When a kind has no profile, it should say so once for the kind, and read status and annotations", func(t *testing.T) {
		got, invalid := embedded.read(template("c2-small", nil), "")
		NewWithT(t).Expect(invalid).To(BeNil())
		if len(got.Notes) != 1 || !got.Notes[0].Unknown || !strings.HasPrefix(got.Notes[0].Error(), "TestMachineTemplate.infrastructure.cluster.x-k8s.io: has no profile") {
			t.Errorf("notes: %v", got.Notes)
		}
	})
	t.Run("When a profile's field doesn't hold what it should, it should be named, and all else be read", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		if err := os.WriteFile(path, []byte(`
- apiGroup: infrastructure.cluster.x-k8s.io
  kind: TestMachine
  template:
    instanceType: [{path: spec.template.spec.size}]
    architecture: [{path: spec.template.spec.arch}]
    capacity: {cpu: [{path: spec.template.spec.cores}], example.com/gpu: [{path: spec.template.spec.gpus}], memory: [{path: spec.template.spec.mib, unit: Mi}]}
`), 0o600); err != nil {
			t.Fatal(err)
		}
		profiles, err := profile.New(path)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		got, invalid := templates{Config{Profiles: profiles}}.read(ofKind("TestMachineTemplate", map[string]any{
			"size": "very large", "arch": "arm64", "cores": "four", "gpus": int64(2), "mib": "1.5",
		}, map[string]string{cpuAnnotation: "2", memoryAnnotation: "8Gi"}), "")
		NewWithT(t).Expect(invalid).To(BeNil())
		var notes []string
		for _, note := range got.Notes {
			notes = append(notes, note.Error())
		}
		const source, unused = "TestMachineTemplate clusters-blue/workers: ", "; this field isn't in use"
		if diff := cmp.Diff([]string{
			source + `capacity.memory: spec.template.spec.mib is "1.5", which isn't a whole number` + unused,
			source + `cpu: "four" is not a quantity` + unused,
			source + `instanceType: "very large" is not the value of a label: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')` + unused,
		}, notes); diff != "" {
			t.Errorf("notes (-want +got):\n%s", diff)
		}
		if got.Arch != "arm64" || got.InstanceType != "workers" {
			t.Errorf("%q, %q", got.Arch, got.InstanceType)
		}
		NewWithT(t).Expect(got.Capacity).To(BeComparableTo(list("cpu", "2", "memory", "8Gi", "example.com/gpu", "2", "pods", "110")))
	})
}

func TestCapacityTypeOfKind(t *testing.T) {
	const patches = `[{op: add, path: /spec/marketType, valueFrom: {variable: capacityType}}]`
	spot := map[string]any{"instanceType": "m5.large", "spotMarketOptions": map[string]any{}}
	onDemand := map[string]any{"instanceType": "m5.large"}
	annotations := func(more ...string) map[string]string {
		all := map[string]string{cpuAnnotation: "2", memoryAnnotation: "8Gi"}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for name, tc := range map[string]struct {
		spec        map[string]any
		annotations map[string]string
		want        []string
		invalid     string
	}{
		"When the template itself makes spot machines, it should offer spot only":       {spot, annotations(v1alpha1.SpotPriceAnnotation, "0.03"), []string{"spot"}, ""},
		"When the template itself makes on-demand machines, it should offer those only": {onDemand, annotations(), []string{"on-demand"}, ""},
		"When a patch writes the capacity type, it should offer both": {
			spot, annotations(v1alpha1.InfrastructurePatchesAnnotation, patches, v1alpha1.SpotPriceAnnotation, "0.03"), []string{"on-demand", "spot"}, "",
		},
		"When an annotation agrees with the template, it should offer that": {spot, annotations(v1alpha1.CapacityTypeAnnotation, "spot"), []string{"spot"}, ""},
		"When an annotation contradicts the template, it should be rejected with the field": {
			spot, annotations(v1alpha1.CapacityTypeAnnotation, "on-demand"), nil,
			`annotation karpenter.cluster.x-k8s.io/capacity-type: "on-demand" contradicts the template, which makes spot machines by spec.template.spec.spotMarketOptions; change one of them`,
		},
		"When there is a spot price and the template makes on-demand machines, it should be rejected": {
			onDemand, annotations(v1alpha1.SpotPriceAnnotation, "0.03"), nil, `make the template spot, which makes on-demand machines`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, invalid := embedded.read(ofKind("AWSMachineTemplate", tc.spec, tc.annotations), "")
			switch {
			case tc.invalid != "":
				if invalid == nil || !strings.Contains(invalid.Error(), tc.invalid) {
					t.Errorf("got  %v\nwant %s", invalid, tc.invalid)
				}
			case invalid != nil:
				t.Error(invalid)
			default:
				NewWithT(t).Expect(got.CapacityTypes()).To(BeComparableTo(tc.want))
			}
		})
	}
}
