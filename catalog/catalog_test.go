// SPDX-License-Identifier: Apache-2.0

package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
)

const sound = `
templateRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: TestMachineTemplate, name: general}
patches:
  - {op: add, path: /spec/size, valueFrom: {variable: instanceType}}
  - {op: add, path: /spec/reservation, valueFrom: {variable: reservationID}}
instanceTypes:
  - name: c2-small
    capacity: {cpu: 2, memory: 4Gi}
    offerings: [{zones: [a, b], price: "0.021"}, {capacityType: spot, price: "0.007"}]
`

// specOf decodes a spec, and fails the test where the API server would refuse it.
func specOf(t *testing.T, text string) *v1alpha1.InstanceTypeCatalogSpec {
	t.Helper()
	spec := &v1alpha1.InstanceTypeCatalogSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestRead(t *testing.T) {
	t.Run("When an entry declares everything, it should keep all of it", func(t *testing.T) {
		read := catalog.Read(specOf(t, sound+`
  - name: g8-gpu
    architecture: arm64
    operatingSystem: windows
    capacity: {cpu: "8", memory: 16Gi, pods: 58, nvidia.com/gpu: 1}
    memoryOverhead: 5%
    overhead: {kubeReserved: {cpu: 100m}, evictionHard: {memory.available: 5%}}
    volumeAttachmentLimits: {ebs.csi.aws.com: 25, Block.CSI.example.com: 0}
    labels: {example.com/family: g8}
    offerings:
      - {zones: [a], capacityType: reserved, price: "0.4", reservation: {id: r-1, count: 3}}
      - {zones: [a], capacityType: on-demand}
    patches: [{op: add, path: /spec/gpu, value: true}]
`))
		if read.Err != nil || len(read.Problems) > 0 || len(read.Types) != 2 {
			t.Fatalf("err %v, problems %v, %d types", read.Err, read.Problems, len(read.Types))
		}
		want := []catalog.Offering{
			{Zone: "a", CapacityType: "on-demand", Price: 0.021, Priced: true}, {Zone: "b", CapacityType: "on-demand", Price: 0.021, Priced: true},
			{CapacityType: "spot", Price: 0.007, Priced: true},
		}
		if diff := cmp.Diff(want, read.Types[0].Offerings); diff != "" {
			t.Errorf("offerings (-want +got):\n%s", diff)
		}
		gpu := read.Types[1]
		if gpu.Arch != "arm64" || gpu.OS != "windows" || *gpu.MemoryOverhead != 0.05 || gpu.Overhead.KubeReserved["cpu"] != "100m" || gpu.OverheadHash == "" || gpu.Labels["example.com/family"] != "g8" {
			t.Errorf("got %+v", gpu)
		}
		if diff := cmp.Diff(map[string]int{"ebs.csi.aws.com": 25, "Block.CSI.example.com": 0}, gpu.VolumeLimits); diff != "" {
			t.Errorf("volume limits (-want +got):\n%s", diff)
		}
		if pods := gpu.Capacity.Pods().Value(); pods != 58 {
			t.Errorf("%d pods", pods)
		}
		want = []catalog.Offering{{Zone: "a", CapacityType: "reserved", Price: 0.4, Priced: true, Reservation: "r-1", Count: 3}, {Zone: "a", CapacityType: "on-demand"}}
		if diff := cmp.Diff(want, gpu.Offerings); diff != "" {
			t.Errorf("offerings (-want +got):\n%s", diff)
		}
		if gpu.Patches.Hash() == read.Types[0].Patches.Hash() {
			t.Error("its own patches should count")
		}
	})
	t.Run("When only a price changes, it should change the entry's hash and not that of its patches", func(t *testing.T) {
		before := catalog.Read(specOf(t, sound)).Types[0]
		after := catalog.Read(specOf(t, strings.Replace(sound, "0.021", "0.022", 1))).Types[0]
		if before.Hash == after.Hash || before.Patches.Hash() != after.Patches.Hash() || before.OverheadHash != after.OverheadHash {
			t.Errorf("before %s %s, after %s %s", before.Hash, before.Patches.Hash(), after.Hash, after.Patches.Hash())
		}
	})
	for name, tc := range map[string]struct{ entry, want string }{
		"the name is no label's value":    {`{name: "a b", capacity: {cpu: 1, memory: 1Gi}}`, `name "a b" is not the value of a label`},
		"the name is empty":               {`{name: "", capacity: {cpu: 1, memory: 1Gi}}`, `name "" is empty`},
		"the name is there already":       {`{name: c2-small, capacity: {cpu: 1, memory: 1Gi}}`, "instanceTypes[0] has the same name"},
		"there are no cores":              {`{name: x, capacity: {memory: 1Gi}}`, "capacity.cpu is needed"},
		"the memory is 0":                 {`{name: x, capacity: {cpu: 1, memory: 0}}`, "capacity.memory is needed"},
		"the cores are a word":            {`{name: x, capacity: {cpu: four, memory: 1Gi}}`, `capacity.cpu: "four" is not a quantity`},
		"a quantity takes forever":        {`{name: x, capacity: {cpu: 1e999999999, memory: 1Gi}}`, "is not a quantity"},
		"a resource has no name":          {`{name: x, capacity: {cpu: 1, memory: 1Gi, "a b": 1}}`, `capacity: "a b" is not the name of a resource`},
		"there is half a pod":             {`{name: x, capacity: {cpu: 1, memory: 1Gi, pods: 500m}}`, "is not a positive number of pods"},
		"the architecture is no label":    {`{name: x, architecture: "a/b", capacity: {cpu: 1, memory: 1Gi}}`, `architecture "a/b" is not the value`},
		"the overhead is no percentage":   {`{name: x, memoryOverhead: "5", capacity: {cpu: 1, memory: 1Gi}}`, `memoryOverhead "5" is not a percentage`},
		"a kubelet can't reserve it":      {`{name: x, capacity: {cpu: 1, memory: 1Gi}, overhead: {kubeReserved: {gpu: 1}}}`, `overhead.kubeReserved: "gpu" is not one of`},
		"what is reserved is no quantity": {`{name: x, capacity: {cpu: 1, memory: 1Gi}, overhead: {systemReserved: {cpu: much}}}`, `overhead.systemReserved.cpu: "much" is not a quantity`},
		"a threshold is neither":          {`{name: x, capacity: {cpu: 1, memory: 1Gi}, overhead: {evictionHard: {memory.available: low}}}`, "is neither a positive quantity"},
		"a driver has no name":            {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: "", count: 1}]}`, `devices[0].driver: "" is not the name of a DRA driver, such as gpu.nvidia.com`},
		"a driver's name is long":         {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: ` + strings.Repeat("d", 64) + `, count: 1}]}`, "is not the name of a DRA driver"},
		"a driver has no device":          {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1}, {driver: a.b}]}`, "devices[1].count: 0 is not a number of devices from 1 to 128"},
		"a driver has too many devices":   {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 100}, {driver: c.d, count: 100}, {driver: a.b, count: 29}]}`, "devices[2].count: 129 devices of driver a.b exceed the limit of 128"},
		"an attribute's name is none":     {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, attributes: {a-b: {bool: true}}}]}`, `devices[0].attributes: "a-b" is not the name of an attribute`},
		"an attribute has no value":       {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, attributes: {model: {}}}]}`, "devices[0].attributes.model: exactly one of string, version, bool and int has to be set"},
		"an attribute has two values":     {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, attributes: {model: {int: 1, string: "1"}}}]}`, "exactly one of string, version, bool and int"},
		"an attribute is no version":      {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, attributes: {model: {version: "1.2"}}}]}`, `version: "1.2" is not a semantic version`},
		"a device's capacity has no name": {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, capacity: {"x/y/z": 1}}]}`, `devices[0].capacity: "x/y/z" is not the name of a capacity`},
		"a device's capacity is none":     {`{name: x, capacity: {cpu: 1, memory: 1Gi}, devices: [{driver: a.b, count: 1, capacity: {memory: much}}]}`, `devices[0].capacity.memory: "much" is not a quantity`},
		"a threshold is zero":             {`{name: x, capacity: {cpu: 1, memory: 1Gi}, overhead: {evictionHard: {memory.available: 0}}}`, "is neither a positive quantity"},
		"a CSI driver has no name":        {`{name: x, capacity: {cpu: 1, memory: 1Gi}, volumeAttachmentLimits: {ebs csi: 25}}`, `volumeAttachmentLimits: "ebs csi" is not the name of a CSI driver`},
		"a CSI driver's name is long":     {`{name: x, capacity: {cpu: 1, memory: 1Gi}, volumeAttachmentLimits: {` + strings.Repeat("d", 64) + `: 25}}`, "is not the name of a CSI driver"},
		"a volume limit is negative":      {`{name: x, capacity: {cpu: 1, memory: 1Gi}, volumeAttachmentLimits: {ebs.csi.aws.com: -1}}`, "volumeAttachmentLimits[ebs.csi.aws.com]: -1 is not a number of volumes"},
		"a label has a field":             {`{name: x, capacity: {cpu: 1, memory: 1Gi}, labels: {topology.kubernetes.io/zone: a}}`, "set offerings[].zones instead"},
		"a label is Karpenter's":          {`{name: x, capacity: {cpu: 1, memory: 1Gi}, labels: {karpenter.sh/nodepool: a}}`, "can't be set by a catalog"},
		"a label's value is none":         {`{name: x, capacity: {cpu: 1, memory: 1Gi}, labels: {team: "a b"}}`, `labels[team]: "a b" is not the value`},
		"a patch is malformed":            {`{name: x, capacity: {cpu: 1, memory: 1Gi}, patches: [{op: add, path: /spec/a, value: 1}, {op: guess, path: /spec/b}]}`, "patches: patch 1 (guess /spec/b): op must be"},
		"a patch names another object":    {`{name: x, capacity: {cpu: 1, memory: 1Gi}, patches: [{op: add, path: /metadata/labels, value: 1}]}`, "the path must begin with /spec/"},
	} {
		t.Run(fmt.Sprintf("When %s, it should name the entry and use the others", name), func(t *testing.T) {
			read := catalog.Read(specOf(t, sound+"  - "+tc.entry))
			if read.Err != nil || len(read.Types) != 1 || len(read.Problems) != 1 {
				t.Fatalf("err %v, %d types, problems %v", read.Err, len(read.Types), read.Problems)
			}
			if p := read.Problems[0]; p.Index != 1 || p.OfferingsOnly || !strings.Contains(p.Message, tc.want) {
				t.Errorf("got %+v, want %q", p, tc.want)
			}
		})
	}
}

func TestReadOfferings(t *testing.T) {
	for name, tc := range map[string]struct{ offering, want string }{
		"the capacity type is unknown":           {`{capacityType: borrowed, price: "1"}`, `capacityType "borrowed" is neither`},
		"the price is a word":                    {`{price: cheap}`, `price "cheap" is not a price`},
		"the price is negative":                  {`{price: "-1"}`, `price "-1" is not a price`},
		"a zone is no label's value":             {`{zones: ["a b"], price: "1"}`, `zone "a b" is not the value`},
		"a zone is there twice":                  {`{zones: [a, a], price: "1"}`, `zone "a" is there twice`},
		"it is there already":                    {`{zones: [z], price: "2"}`, `zone "z", on-demand has an offering already`},
		"it is reserved without a reservation":   {`{capacityType: reserved, price: "1"}`, "capacityType reserved needs reservation"},
		"it has a reservation and isn't so":      {`{price: "1", reservation: {id: r-1, count: 1}}`, "only a reserved offering has a reservation"},
		"its reservation has no ID":              {`{capacityType: reserved, price: "1", reservation: {id: "", count: 1}}`, `reservation.id "" is empty`},
		"its reservation's ID is too long to be": {`{capacityType: reserved, reservation: {id: "` + strings.Repeat("r", 64) + `", count: 1}}`, "must be no more than 63 bytes"},
	} {
		t.Run(fmt.Sprintf("When of an offering %s, it should leave that one out and say so", name), func(t *testing.T) {
			read := catalog.Read(specOf(t, sound+`  - {name: x, capacity: {cpu: 1, memory: 1Gi}, offerings: [{zones: [z], price: "1"}, `+tc.offering+"]}"))
			if read.Err != nil || len(read.Types) != 2 || len(read.Types[1].Offerings) != 1 || len(read.Problems) != 1 {
				t.Fatalf("err %v, types %+v, problems %v", read.Err, read.Types, read.Problems)
			}
			if p := read.Problems[0]; p.Index != 1 || !p.OfferingsOnly || !strings.HasPrefix(p.Message, "offerings[1]: ") || !strings.Contains(p.Message, tc.want) {
				t.Errorf("got %+v, want %q", p, tc.want)
			}
		})
	}
	t.Run("When no patch writes the reservation, it should close the reserved offering", func(t *testing.T) {
		read := catalog.Read(specOf(t, `
patches: [{op: add, path: /spec/size, valueFrom: {variable: instanceType}}]
instanceTypes: [{name: x, capacity: {cpu: 1, memory: 1Gi}, offerings: [{capacityType: reserved, price: "1", reservation: {id: r-1, count: 1}}, {price: "2"}]}]
`))
		if len(read.Types) != 1 || len(read.Types[0].Offerings) != 1 || len(read.Problems) != 1 || !strings.Contains(read.Problems[0].Message, "write the variable reservationID") {
			t.Errorf("types %+v, problems %v", read.Types, read.Problems)
		}
	})
}

func TestReadCatalog(t *testing.T) {
	t.Run("When a patch of the catalog is malformed, it should use none of it and name the patch", func(t *testing.T) {
		read := catalog.Read(specOf(t, `
patches: [{op: add, path: /spec/size, valueFrom: {variable: size}}]
instanceTypes: [{name: x, capacity: {cpu: 1, memory: 1Gi}}]
`))
		if read.Err == nil || !strings.Contains(read.Err.Error(), `spec.patches: patch 0 (add /spec/size): unknown variable "size"`) || len(read.Types) > 0 {
			t.Errorf("err %v, types %v", read.Err, read.Types)
		}
	})
	t.Run("When nothing distinguishes the machines of several types, it should use those that have patches of their own", func(t *testing.T) {
		read := catalog.Read(specOf(t, `
instanceTypes:
  - {name: x, capacity: {cpu: 1, memory: 1Gi}}
  - {name: big, capacity: {cpu: 2, memory: 2Gi}, patches: [{op: add, path: /spec/numCPUs, value: 2}]}
`))
		if len(read.Types) != 1 || read.Types[0].Name != "big" || len(read.Problems) != 1 || !strings.Contains(read.Problems[0].Message, "write the variable instanceType") {
			t.Errorf("types %+v, problems %v", read.Types, read.Problems)
		}
	})
	t.Run("When there is one type, it should take the template for it", func(t *testing.T) {
		if read := catalog.Read(specOf(t, `instanceTypes: [{name: x, capacity: {cpu: 1, memory: 1Gi}}]`)); len(read.Types) != 1 || len(read.Problems) > 0 {
			t.Errorf("types %+v, problems %v", read.Types, read.Problems)
		}
	})
	t.Run("When a stored catalog is larger than the API allows, it should say so", func(t *testing.T) {
		spec := specOf(t, sound)
		spec.InstanceTypes = make([]v1alpha1.CatalogInstanceType, catalog.MaxTypes+1)
		if read := catalog.Read(spec); read.Err == nil || !strings.Contains(read.Err.Error(), "split the catalog") {
			t.Errorf("err %v", read.Err)
		}
	})
}

// FuzzRead gives catalogs that a tenant may write to the reader, which neither panics nor takes long.
func FuzzRead(f *testing.F) {
	f.Add(sound)
	f.Add(sound + `  - {name: x, capacity: {cpu: 1e99, memory: 1Gi}, patches: [{op: add, path: /spec/a/-, value: {a: [1]}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		spec := &v1alpha1.InstanceTypeCatalogSpec{}
		if yaml.Unmarshal([]byte(text), spec) != nil {
			return
		}
		read := catalog.Read(spec)
		for i := range read.Types {
			if len(read.Types[i].Offerings) > catalog.MaxOfferings || read.Types[i].Capacity.Cpu().Sign() <= 0 {
				t.Errorf("got %+v", read.Types[i])
			}
		}
	})
}
