// SPDX-License-Identifier: Apache-2.0

// Package catalog reads InstanceTypeCatalogs. The operator reports with it which entries are usable, Karpenter offers those, and the
// command-line tool checks files: all three agree, because nothing here depends on a cluster.
package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/message"
)

// Capacity types of offerings.
const (
	OnDemand = "on-demand"
	Spot     = "spot"
	Reserved = "reserved"
)

// Limits beside those of the API, which an object that was stored under other limits may exceed.
const (
	// MaxTypes of one catalog.
	MaxTypes = 5000
	// MaxOfferings of one instance type, counting each zone.
	MaxOfferings = 256
	// maxShown is the length at which messages truncate a value, in bytes.
	maxShown = 63
)

// Catalog has the instance types of an InstanceTypeCatalog.
type Catalog struct {
	// Err is why none of the instance types can be used; nil if it isn't the catalog's fault.
	Err error
	// Types that can be used, in the order of the catalog.
	Types []Type
	// Problems are the unusable entries, in the order of the catalog.
	Problems []Problem
}

// Type is a usable instance type. It is shared: don't modify it.
type Type struct {
	Name string
	// Arch and OS are empty where the catalog leaves them to the defaults.
	Arch, OS string
	// Capacity holds at least cpu and memory.
	Capacity corev1.ResourceList
	// MemoryOverhead is the fraction of the memory that nodes lack; nil for the platform's.
	MemoryOverhead *float64
	// Overhead has the kubelets' reservations; nil for those of the bootstrap.
	Overhead *v1alpha1.KubeletConfiguration
	// OverheadHash is of Overhead; empty without one.
	OverheadHash string
	// Devices of DRA drivers.
	Devices []Devices
	// VolumeLimits are how many volumes of a CSI driver can be attached to a node, by driver.
	VolumeLimits map[string]int
	Labels       map[string]string
	Offerings    []Offering
	// Patches are the catalog's, followed by the instance type's.
	Patches patch.List
	// Hash is of the entry and of the catalog's patches: the same hash is the same type.
	Hash string
}

// Problem is an entry that isn't used.
type Problem struct {
	// Index of the instance type in the catalog, and its Name, which may be malformed.
	Index int
	Name  string
	// OfferingsOnly: the instance type is usable without the offerings that Message names.
	OfferingsOnly bool
	Message       string
}

// Error names the entry.
func (p Problem) Error() string {
	return fmt.Sprintf("instanceTypes[%d] (%s): %s", p.Index, message.Cut(p.Name, maxShown), p.Message)
}

// Read reads a catalog. A malformed entry is a Problem and never an error.
func Read(spec *v1alpha1.InstanceTypeCatalogSpec) Catalog {
	read := Catalog{}
	if len(spec.InstanceTypes) > MaxTypes {
		read.Err = fmt.Errorf("%d instance types exceed the limit of %d; split the catalog", len(spec.InstanceTypes), MaxTypes)
		return read
	}
	r, err := newReader(spec)
	if err != nil {
		read.Err = err
		return read
	}
	for i := range spec.InstanceTypes {
		entry := &spec.InstanceTypes[i]
		parsed, problem, offerings := r.entry(entry)
		switch {
		case problem != "":
			read.Problems = append(read.Problems, Problem{Index: i, Name: entry.Name, Message: problem})
			continue
		case offerings != "":
			read.Problems = append(read.Problems, Problem{Index: i, Name: entry.Name, OfferingsOnly: true, Message: offerings})
		}
		r.seen[parsed.Name] = i
		read.Types = append(read.Types, parsed)
	}
	return read
}

// reader holds the data that the entries of one catalog share.
type reader struct {
	patches []v1alpha1.JSONPatch
	// list is patches as parsed, which most instance types share, and hash the hash of both.
	list patch.List
	hash []byte
	// several: the catalog has more than one instance type.
	several bool
	// seen is the index of each instance type.
	seen map[string]int
}

func newReader(spec *v1alpha1.InstanceTypeCatalogSpec) (*reader, error) {
	r := &reader{patches: jsonPatches(spec.Patches), several: len(spec.InstanceTypes) > 1, seen: make(map[string]int, len(spec.InstanceTypes))}
	var err error
	if r.list, err = patch.Parse(r.patches); err != nil {
		return nil, fmt.Errorf("spec.patches: %w", err)
	}
	r.hash = []byte(r.list.Hash())
	return r, nil
}

func jsonPatches(patches []v1alpha1.CatalogPatch) []v1alpha1.JSONPatch {
	var converted []v1alpha1.JSONPatch
	for i := range patches {
		converted = append(converted, patches[i].JSONPatch())
	}
	return converted
}

// entry reads one instance type. problem is why it isn't usable, and offerings why some of its offerings aren't.
func (r *reader) entry(entry *v1alpha1.CatalogInstanceType) (t Type, problem, offerings string) {
	if problem := LabelValueProblem(entry.Name); problem != "" {
		return t, fmt.Sprintf("name %q %s", message.Cut(entry.Name, maxShown), problem), ""
	}
	if first, twice := r.seen[entry.Name]; twice {
		return t, fmt.Sprintf("instanceTypes[%d] has the same name; merge the two or rename one", first), ""
	}
	t.Name = entry.Name
	if problem := t.readSystem(entry); problem != "" {
		return t, problem, ""
	}
	if problem := t.readCapacity(entry.Capacity); problem != "" {
		return t, problem, ""
	}
	if entry.MemoryOverhead != "" {
		fraction, err := ParsePercentage(entry.MemoryOverhead)
		if err != nil {
			return t, fmt.Sprintf("memoryOverhead %q %s", message.Cut(entry.MemoryOverhead, maxShown), err), ""
		}
		t.MemoryOverhead = &fraction
	}
	if problem := t.readOverhead(entry.Overhead); problem != "" {
		return t, problem, ""
	}
	if problem := t.readDevices(entry.Devices); problem != "" {
		return t, problem, ""
	}
	if problem := t.readVolumeLimits(entry.VolumeAttachmentLimits); problem != "" {
		return t, problem, ""
	}
	if problem := t.readLabels(entry.Labels); problem != "" {
		return t, problem, ""
	}
	if problem := r.readPatches(&t, entry.Patches); problem != "" {
		return t, problem, ""
	}
	offerings = t.readOfferings(entry.Offerings)
	raw, err := json.Marshal(entry)
	if err != nil {
		return t, fmt.Sprintf("can't be encoded: %s", err), ""
	}
	sum := sha256.Sum256(slices.Concat(r.hash, []byte("/"), raw))
	t.Hash = hex.EncodeToString(sum[:8])
	return t, "", offerings
}

func (t *Type) readSystem(entry *v1alpha1.CatalogInstanceType) (problem string) {
	for _, field := range []struct {
		name, value string
		into        *string
	}{{"architecture", entry.Architecture, &t.Arch}, {"operatingSystem", entry.OperatingSystem, &t.OS}} {
		if field.value == "" {
			continue
		}
		if problem := LabelValueProblem(field.value); problem != "" {
			return fmt.Sprintf("%s %q %s", field.name, message.Cut(field.value, maxShown), problem)
		}
		*field.into = field.value
	}
	return ""
}

func (t *Type) readCapacity(capacity map[string]scalar.Quantity) (problem string) {
	t.Capacity = make(corev1.ResourceList, len(capacity)+1)
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		value := capacity[name]
		text := value.String()
		quantity, problem := quantityOf(value)
		switch {
		case len(validation.IsQualifiedName(name)) > 0:
			return fmt.Sprintf("capacity: %q is not the name of a resource", message.Cut(name, maxShown))
		case problem != "":
			return fmt.Sprintf("capacity.%s: %q %s", name, message.Cut(text, maxShown), problem)
		}
		t.Capacity[corev1.ResourceName(name)] = quantity
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, ok := t.Capacity[name]; !ok || quantity.Sign() <= 0 {
			return fmt.Sprintf("capacity.%s is needed, and has to be more than 0", name)
		}
	}
	if pods, ok := t.Capacity[corev1.ResourcePods]; ok &&
		(pods.Sign() <= 0 || pods.CmpInt64(math.MaxInt32) > 0 || pods.MilliValue()%1000 != 0) {
		return fmt.Sprintf("capacity.pods: %q is not a positive number of pods", pods.String())
	}
	return ""
}

// overheadResources are those that a kubelet reserves, and overheadSignals its hard eviction signals.
var (
	overheadResources = []string{"cpu", "memory", "ephemeral-storage", "pid"}
	overheadSignals   = []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available",
	}
)

func (t *Type) readOverhead(overhead *v1alpha1.CatalogOverhead) (problem string) {
	if overhead == nil || len(overhead.KubeReserved)+len(overhead.SystemReserved)+len(overhead.EvictionHard) == 0 {
		return ""
	}
	for _, reserved := range []struct {
		field  string
		values map[string]v1alpha1.ReservedQuantity
	}{{"kubeReserved", overhead.KubeReserved}, {"systemReserved", overhead.SystemReserved}} {
		for _, name := range slices.Sorted(maps.Keys(reserved.values)) {
			value := string(reserved.values[name])
			if !slices.Contains(overheadResources, name) {
				return fmt.Sprintf("overhead.%s: %q is not one of %s", reserved.field, message.Cut(name, maxShown),
					strings.Join(overheadResources, ", "))
			}
			if _, problem := ParseQuantity(value); problem != "" {
				return fmt.Sprintf("overhead.%s.%s: %q %s", reserved.field, name, message.Cut(value, maxShown), problem)
			}
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(overhead.EvictionHard)) {
		value := string(overhead.EvictionHard[signal])
		quantity, problem := ParseQuantity(value)
		_, err := ParsePercentage(value)
		switch {
		case !slices.Contains(overheadSignals, signal):
			return fmt.Sprintf("overhead.evictionHard: %q is not one of %s", message.Cut(signal, maxShown), strings.Join(overheadSignals, ", "))
		case err != nil && (problem != "" || quantity.IsZero()):
			return fmt.Sprintf("overhead.evictionHard.%s: %q is neither a positive quantity, such as 100Mi, nor a percentage, such as 5%%", signal,
				message.Cut(value, maxShown))
		}
	}
	t.Overhead = &v1alpha1.KubeletConfiguration{
		KubeReserved: overhead.KubeReserved, SystemReserved: overhead.SystemReserved, EvictionHard: overhead.EvictionHard,
	}
	// Maps of strings always encode, with ordered keys.
	raw, _ := json.Marshal(overhead)
	sum := sha256.Sum256(raw)
	t.OverheadHash = hex.EncodeToString(sum[:8])
	return ""
}

// CSIDriverProblem returns why a name isn't that of a CSI driver, or "".
func CSIDriverProblem(name string) string {
	if len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 || len(name) > maxCSIDriver {
		return "is not the name of a CSI driver, such as ebs.csi.aws.com"
	}
	return ""
}

// maxCSIDriver is Kubernetes' limit, in bytes. A driver's name may have upper-case letters.
const maxCSIDriver = 63

func (t *Type) readVolumeLimits(limits map[string]int32) (problem string) {
	for _, driver := range slices.Sorted(maps.Keys(limits)) {
		if problem := CSIDriverProblem(driver); problem != "" {
			return fmt.Sprintf("volumeAttachmentLimits: %q %s", message.Cut(driver, maxShown), problem)
		}
		if limits[driver] < 0 {
			return fmt.Sprintf("volumeAttachmentLimits[%s]: %d is not a number of volumes", driver, limits[driver])
		}
		if t.VolumeLimits == nil {
			t.VolumeLimits = make(map[string]int, len(limits))
		}
		t.VolumeLimits[driver] = int(limits[driver])
	}
	return ""
}

// reservedLabels are those that have a field, or that Karpenter and the kubelet set.
var reservedLabels = map[string]string{
	corev1.LabelInstanceTypeStable: "name", corev1.LabelArchStable: "architecture", corev1.LabelOSStable: "operatingSystem",
	corev1.LabelTopologyZone: "offerings[].zones", "karpenter.sh/capacity-type": "offerings[].capacityType",
	v1alpha1.ReservationIDLabel: "offerings[].reservation.id",
	corev1.LabelHostname:        "", "karpenter.sh/nodepool": "",
}

func (t *Type) readLabels(set map[string]v1alpha1.CatalogValue) (problem string) {
	t.Labels = make(map[string]string, len(set))
	for _, key := range slices.Sorted(maps.Keys(set)) {
		value := string(set[key])
		if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
			return fmt.Sprintf("labels: %q is not the key of a label: %s", message.Cut(key, maxShown), msgs[0])
		}
		if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 {
			return fmt.Sprintf("labels[%s]: %q is not the value of a label: %s", key, message.Cut(value, maxShown), msgs[0])
		}
		if field, reserved := reservedLabels[key]; reserved {
			if field == "" {
				return fmt.Sprintf("labels: %s can't be set by a catalog", key)
			}
			return fmt.Sprintf("labels: set %s instead of %s", field, key)
		}
		t.Labels[key] = value
	}
	return ""
}

func (r *reader) readPatches(t *Type, patches []v1alpha1.CatalogPatch) (problem string) {
	t.Patches = r.list
	if len(patches) > 0 {
		var err error
		if t.Patches, err = patch.Parse(slices.Concat(r.patches, jsonPatches(patches))); err != nil {
			var bad *patch.Error
			if errors.As(err, &bad) && bad.Index >= len(r.patches) {
				shifted := *bad
				shifted.Index -= len(r.patches)
				return "patches: " + shifted.Error()
			}
			return "patches, with those of the catalog: " + err.Error()
		}
	}
	if r.several && len(patches) == 0 && !t.Patches.Refers(patch.InstanceType) {
		return "no patch makes its machine another than those of the other types: write the variable instanceType into the machine by " +
			"spec.patches, or set patches of its own"
	}
	return ""
}
