// SPDX-License-Identifier: Apache-2.0

// Package importer makes the entries of InstanceTypeCatalogs from infrastructures' descriptions of their machine types. Each format has a
// file of its own. An entry that can't be used is a problem that names it, and the others are imported.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/internal/message"
)

// Options of an import.
type Options struct {
	// Zones that machine types are offered in where the input doesn't say; empty for every failure domain of a Cluster.
	Zones []string
	// ZoneOfferings is the infrastructure's list of the zones that each machine type is offered in; nil for none.
	ZoneOfferings io.Reader
	// Prices is a price list, in the format of the infrastructure or in CSV with the columns instanceType, zone, capacityType, price and
	// currency; nil for none. One in JSON may have any size: it is read value by value.
	Prices io.Reader
	// SpotPrices likewise, where the infrastructure has them apart.
	SpotPrices io.Reader
	// Region of machine types and prices, where a file has several; empty for the only one.
	Region string
	// Rates are US dollars for one unit of other currencies, such as EUR.
	Rates map[string]float64
	// Estimate prices of on-demand machines from their capacity where no price list is given.
	Estimate bool
	// GPUResource is the resource of devices whose maker isn't known; empty is nvidia.com/gpu.
	GPUResource string
}

// Imported are the entries of one input, ordered by name.
type Imported struct {
	Types []v1alpha1.CatalogInstanceType
	// Problems name each entry that is left out, or the parts of it that are.
	Problems []error
}

// Format of an input.
type Format struct {
	// Name on the command line.
	Name string
	// Input is where it comes from.
	Input string
	// Template that its machines are usually made from, and the patches that write a machine type into them.
	Template v1alpha1.InfrastructureTemplateReference
	Patches  []v1alpha1.CatalogPatch
	// MemoryOverhead is the part of the memory that nodes lack, as the infrastructure's own Karpenter assumes; empty for the platform's.
	MemoryOverhead string
	// read adds the entries of an input. The error reports why none of it can be read.
	read func(c *collector, file *source) error
	// readPrices and readSpotPrices read the infrastructure's own lists; nil where only a table can be read.
	readPrices, readSpotPrices func(p *prices, file *source) error
	// readZones reads the zones of machine types; nil where the input has them.
	readZones func(c *collector, file *source) error
}

// Read reads an input and its price lists. JSON may have any size. The error reports why none of it can be read.
func (f *Format) Read(input io.Reader, options Options) (*Imported, error) {
	options.GPUResource, options.Region = cmp.Or(options.GPUResource, "nvidia.com/gpu"), strings.ToLower(options.Region)
	c := &collector{options: options, prices: newPrices(options), seen: sets.New[string](), memoryOverhead: f.MemoryOverhead}
	if err := c.prices.read(f, options); err != nil {
		return nil, err
	}
	switch offered, err := open(options.ZoneOfferings); {
	case err != nil:
		return nil, fmt.Errorf("zone offerings: %w", err)
	case offered.isEmpty():
	case f.readZones == nil:
		return nil, errors.New("zone offerings: the machine types of this format have their zones")
	default:
		c.zones = map[string][]string{}
		if err := f.readZones(c, offered); err != nil {
			return nil, fmt.Errorf("zone offerings: %w", err)
		}
	}
	file, err := open(input)
	switch {
	case err != nil:
		return nil, err
	case file.isEmpty():
		return nil, errors.New("it is empty")
	}
	if err := f.read(c, file); err != nil {
		return nil, err
	}
	c.Problems = append(c.Problems, c.prices.reported()...)
	slices.SortFunc(c.Types, func(a, b v1alpha1.CatalogInstanceType) int { return strings.Compare(a.Name, b.Name) })
	return &c.Imported, nil
}

const infrastructureGroup = "infrastructure.cluster.x-k8s.io"

func templateOf(group, kind string) v1alpha1.InfrastructureTemplateReference {
	return v1alpha1.InfrastructureTemplateReference{APIGroup: group, Kind: kind}
}

func variable(path, name string) v1alpha1.CatalogPatch {
	return v1alpha1.CatalogPatch{Op: "add", Path: path, ValueFrom: &v1alpha1.CatalogPatchValue{Variable: name}}
}

func rendered(path, template string) v1alpha1.CatalogPatch {
	return v1alpha1.CatalogPatch{Op: "add", Path: path, ValueFrom: &v1alpha1.CatalogPatchValue{Template: template}}
}

// Formats are all that can be imported.
var Formats = []Format{
	{
		Name: "aws", Input: "aws ec2 describe-instance-types", Template: templateOf(infrastructureGroup, "AWSMachineTemplate"), read: readAWS,
		readPrices: (*prices).readAWS, readSpotPrices: (*prices).readAWSSpot, readZones: readAWSZones, MemoryOverhead: "7.5%",
		Patches: []v1alpha1.CatalogPatch{
			variable("/spec/instanceType", "instanceType"),
			rendered("/spec/spotMarketOptions", `{{ if eq .capacityType "spot" }}{}{{ end }}`),
			variable("/spec/capacityReservationId", "reservationID"),
		},
	},
	{
		Name: "azure", Input: "az vm list-skus", Template: templateOf(infrastructureGroup, "AzureMachineTemplate"), read: readAzure,
		readPrices: (*prices).readAzure, MemoryOverhead: "7.5%",
		Patches: []v1alpha1.CatalogPatch{
			variable("/spec/vmSize", "instanceType"),
			rendered("/spec/spotVMOptions", `{{ if eq .capacityType "spot" }}{}{{ end }}`),
		},
	},
	{
		Name: "gcp", Input: "gcloud compute machine-types list --format=json", Template: templateOf(infrastructureGroup, "GCPMachineTemplate"),
		read: readGCP,
		Patches: []v1alpha1.CatalogPatch{
			variable("/spec/instanceType", "instanceType"),
			rendered("/spec/provisioningModel", `{{ if eq .capacityType "spot" }}Spot{{ else }}Standard{{ end }}`),
		},
	},
	{
		Name: "hetzner", Input: "hcloud server-type list -o json", Template: templateOf(infrastructureGroup, "HCloudMachineTemplate"),
		read:    readHetzner,
		Patches: []v1alpha1.CatalogPatch{variable("/spec/type", "instanceType")},
	},
	{
		Name: "openstack", Input: "openstack flavor list --long -f json", Template: templateOf(infrastructureGroup, "OpenStackMachineTemplate"),
		read:    readOpenStack,
		Patches: []v1alpha1.CatalogPatch{variable("/spec/flavor", "instanceType")},
	},
	{
		Name: "vsphere", Input: "kubectl get virtualmachineclasses -o yaml", read: readVSphere,
		Template: templateOf("vmware.infrastructure.cluster.x-k8s.io", "VSphereMachineTemplate"),
		Patches:  []v1alpha1.CatalogPatch{variable("/spec/className", "instanceType")},
	},
	{Name: "csv", Input: "a table with a header", read: readCSV},
}

// FormatOf returns a format by its name.
func FormatOf(name string) (Format, error) {
	names := make([]string, 0, len(Formats))
	for _, format := range Formats {
		if format.Name == name {
			return format, nil
		}
		names = append(names, format.Name)
	}
	return Format{}, fmt.Errorf("unknown format %q; it is one of %s", name, strings.Join(names, ", "))
}

// collector gathers the entries of an input.
type collector struct {
	Imported
	options Options
	prices  *prices
	seen    sets.Set[string]
	// memoryOverhead of the format.
	memoryOverhead string
	// zones of machine types by name; nil if no list has them.
	zones map[string][]string
}

func (c *collector) problem(where, format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
}

// machine is a machine type before its offerings.
type machine struct {
	name, arch string
	capacity   map[string]scalar.Quantity
	labels     map[string]v1alpha1.CatalogValue
	// zones that it is offered in, and the capacity types.
	zones, capacityTypes []string
}

// architectures are Kubernetes' names of those of infrastructures. A machine type without one has the usual one.
var architectures = map[string]string{
	"": "amd64", "ARCHITECTURE_UNSPECIFIED": "amd64", "X86_64": "amd64", "x86_64": "amd64", "x64": "amd64",
	"ARM64": "arm64", "Arm64": "arm64", "arm64": "arm64",
}

// setDevices adds those that there are to the capacity.
func (m *machine) setDevices(devices map[string]int64) {
	for name, number := range devices {
		if number > 0 {
			m.capacity[name] = count(number)
		}
	}
}

// add adds a machine type with an offering for each price. where names it in problems.
func (c *collector) add(where string, m machine) {
	entry := v1alpha1.CatalogInstanceType{Name: m.name, Architecture: m.arch, Capacity: m.capacity, Labels: m.labels,
		MemoryOverhead: c.memoryOverhead}
	for _, capacityType := range m.capacityTypes {
		entry.Offerings = append(entry.Offerings, c.prices.offerings(m.name, capacityType, m.zones)...)
	}
	c.keep(where, entry)
}

// keep adds an entry that a catalog can use.
func (c *collector) keep(where string, entry v1alpha1.CatalogInstanceType) {
	if c.seen.Has(entry.Name) {
		c.problem(where, "%s is there twice; the first one is kept", shown(entry.Name))
		return
	}
	read := readAlone(entry)
	for _, p := range read.Problems {
		c.problem(where, "%s", p.Message)
		if !p.OfferingsOnly {
			return
		}
		entry.Offerings = usableOfferings(entry)
	}
	if c.options.Estimate && c.prices.none {
		for i := range entry.Offerings {
			if o := &entry.Offerings[i]; o.Price == "" && o.CapacityType == catalog.OnDemand {
				o.Price = strconv.FormatFloat(catalog.EstimatePrice(read.Types[0].Capacity), 'f', 4, 64)
			}
		}
	}
	c.seen.Insert(entry.Name)
	c.Types = append(c.Types, entry)
}

// readAlone reads an entry without others, and without the catalog's patches, whose absence isn't the entry's fault.
func readAlone(entry v1alpha1.CatalogInstanceType) catalog.Catalog {
	return catalog.Read(&v1alpha1.InstanceTypeCatalogSpec{
		InstanceTypes: []v1alpha1.CatalogInstanceType{entry},
		Patches:       []v1alpha1.CatalogPatch{variable("/spec/reservation", "reservationID")},
	})
}

// usableOfferings returns the offerings of an entry that a catalog can use.
func usableOfferings(entry v1alpha1.CatalogInstanceType) []v1alpha1.CatalogOffering {
	all := entry.Offerings
	entry.Offerings = nil
	for _, offering := range all {
		before := entry.Offerings
		entry.Offerings = append(slices.Clone(before), offering)
		if len(readAlone(entry).Problems) > 0 {
			entry.Offerings = before
		}
	}
	return entry.Offerings
}

// capacityOf builds a capacity of cores and MiB.
func capacityOf(cores, mebibytes int64) map[string]scalar.Quantity {
	return map[string]scalar.Quantity{"cpu": count(cores), "memory": scalar.Text(mebibytesOf(mebibytes))}
}

// mebibytesOf writes MiB, as Gi where they are whole.
func mebibytesOf(mebibytes int64) string {
	if mebibytes > 0 && mebibytes%1024 == 0 {
		return strconv.FormatInt(mebibytes/1024, 10) + "Gi"
	}
	return strconv.FormatInt(mebibytes, 10) + "Mi"
}

func shown(text string) string { return message.Cut(text, 63) }

// count writes a number of a resource.
func count(n int64) scalar.Quantity { return scalar.Text(strconv.FormatInt(n, 10)) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
