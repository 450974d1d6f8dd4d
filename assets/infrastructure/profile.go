// SPDX-License-Identifier: Apache-2.0

// Package infrastructure holds the differences between the kinds of infrastructure machines, one profile a file: where a template
// declares the properties of its machines, the meaning of a machine's conditions, and which addresses come from the machine itself.
package infrastructure

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// templateSuffix of the kind of a template, whose machines' kind a profile names.
const templateSuffix = "Template"

// remediationSuffix of the kind of a template of remediations.
const remediationSuffix = "RemediationTemplate"

// Every is the group and the kind of the profile that holds for each kind, after its own.
const Every = "*"

// Capacity types that a template's machines may have.
const (
	OnDemand = "on-demand"
	Spot     = "spot"
)

// Fields of a template.
const (
	fieldInstanceType    = "instanceType"
	fieldZone            = "zone"
	fieldArchitecture    = "architecture"
	fieldOperatingSystem = "operatingSystem"
	fieldCapacityType    = "capacityType"
	fieldImage           = "image"
)

func capacityField(resource string) string { return "capacity." + resource }

var (
	capacityTypes = []string{OnDemand, Spot}
	// units are suffixes of a quantity. A field whose name states the unit holds a bare number.
	units        = []string{"m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"}
	addressTypes = []string{"Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"}
)

// Profile of one kind of infrastructure machine. It isn't changed after Parse.
type Profile struct {
	// Group and Kind of the machine.
	Group, Kind string
	// Sources are where its facts come from.
	Sources []string
	// Varies are paths of fields in which a machine may differ from its template, with [] for a list. Only the built-in profiles' count.
	Varies []string

	// fields of the template: the first value that isn't empty counts.
	fields     map[string][]value
	conditions []rule
	states     []state
	// quotas of the infrastructure, the one that decides first.
	quotas   []quota
	nodeZone nodeZone
	// fromMachine are the types of addresses that software in the machine reports; nil if unknown.
	fromMachine []string
	// machines are instances or hosts; empty for instances.
	machines string
	// rebootsBy are kinds of remediation templates, of the profile's API group, whose remediations reboot a machine in place; empty for none.
	rebootsBy []string
}

// Values of Profile.machines.
const (
	instances = "Instances"
	hosts     = "Hosts"
)

// Hosts reports whether machines are hosts of a fixed set: one that is removed comes back to it.
func (p *Profile) Hosts() bool { return p.machines == hosts }

// value is how to read one field of a template.
type value struct {
	// path of the field; without one it is the constant.
	path     Path
	constant string
	// set is the result if the field is there, with any value.
	set string
	// values maps the field's content to the result.
	values map[string]string
	// where the field counts: only while another one holds one of the texts; nil for always.
	where *where
	// times are further numbers that the field is multiplied by. One that isn't there counts as one.
	times []Path
	// unit of the number.
	unit string
}

// where is a condition on another field of the template.
type where struct {
	path   Path
	values []string
}

func (w *where) holds(object map[string]any) bool {
	if w == nil {
		return true
	}
	text, _ := w.path.Text(object)
	return slices.Contains(w.values, text)
}

// GroupKind of the machine.
func (p *Profile) GroupKind() schema.GroupKind { return schema.GroupKind{Group: p.Group, Kind: p.Kind} }

func (p *Profile) addField(field string, v value) {
	if p.fields == nil {
		p.fields = map[string][]value{}
	}
	p.fields[field] = append(p.fields[field], v)
}

// Corrected returns the profile with an overlay. The overlay's declarations about a field of the template, of zones, or of
// addresses, replace those of the profile; its conditions, states and quotas come first.
func (p *Profile) Corrected(overlay *Profile) *Profile {
	corrected := *p
	corrected.Sources = slices.Concat(overlay.Sources, p.Sources)
	corrected.fields = maps.Clone(p.fields)
	for field, values := range overlay.fields {
		if corrected.fields == nil {
			corrected.fields = map[string][]value{}
		}
		corrected.fields[field] = values
	}
	corrected.conditions = slices.Concat(overlay.conditions, p.conditions)
	corrected.states = slices.Concat(overlay.states, p.states)
	corrected.quotas = slices.Concat(overlay.quotas, p.quotas)
	if !overlay.nodeZone.isZero() {
		corrected.nodeZone = overlay.nodeZone
	}
	if overlay.fromMachine != nil {
		corrected.fromMachine = overlay.fromMachine
	}
	corrected.machines = cmp.Or(overlay.machines, p.machines)
	if overlay.rebootsBy != nil {
		corrected.rebootsBy = overlay.rebootsBy
	}
	return &corrected
}

// Facts are a template's declarations about its machines. A field that it doesn't declare is empty.
type Facts struct {
	InstanceType, Zone, Architecture, OperatingSystem string
	// CapacityType is on-demand or spot, and CapacityTypeField the field that declares it.
	CapacityType, CapacityTypeField string
	// Image that a machine boots whatever version its Machine has: the template names it. Empty if the provider may look for one by the
	// version.
	Image string
	// Capacity holds quantities, which the caller parses.
	Capacity map[corev1.ResourceName]string
	// Problems are fields whose content the profile doesn't know, each with its path.
	Problems []string
}

// Read returns a template's declarations about its machines.
func (p *Profile) Read(template *unstructured.Unstructured) Facts {
	facts := Facts{Capacity: map[corev1.ResourceName]string{}}
	for _, field := range slices.Sorted(maps.Keys(p.fields)) {
		text, path := p.first(field, template.Object, &facts)
		if text == "" {
			continue
		}
		switch resource, isCapacity := strings.CutPrefix(field, capacityField("")); {
		case isCapacity:
			facts.Capacity[corev1.ResourceName(resource)] = text
		case field == fieldInstanceType:
			facts.InstanceType = text
		case field == fieldZone:
			facts.Zone = text
		case field == fieldArchitecture:
			facts.Architecture = text
		case field == fieldOperatingSystem:
			facts.OperatingSystem = text
		case field == fieldImage:
			facts.Image = text
		case field == fieldCapacityType:
			facts.CapacityType, facts.CapacityTypeField = text, path
		}
	}
	return facts
}

// first returns the first value that isn't empty, and the path that it was read from.
func (p *Profile) first(field string, object map[string]any, facts *Facts) (text, path string) {
	for _, v := range p.fields[field] {
		text, problem := v.read(object)
		if problem != "" {
			facts.Problems = append(facts.Problems, fmt.Sprintf("%s: %s %s", field, v.path, problem))
			continue
		}
		if text != "" {
			return text, v.path.String()
		}
	}
	return "", ""
}

// read returns the object's value, or "".
func (v value) read(object map[string]any) (text, problem string) {
	if v.constant != "" {
		return v.constant, ""
	}
	found, ok := v.path.find(object)
	switch {
	case !ok:
		return "", ""
	case !v.where.holds(object):
		return "", fmt.Sprintf("is ignored unless %s is %s", v.where.path, strings.Join(v.where.values, " or "))
	case v.set != "":
		return v.set, ""
	}
	text, ok = scalar(found)
	switch {
	case !ok:
		return "", "is neither text nor a number"
	case text == "":
		return "", ""
	case v.values != nil:
		meant, known := v.values[text]
		if !known {
			return "", fmt.Sprintf("is %q, which isn't one of %s", shown(text), strings.Join(slices.Sorted(maps.Keys(v.values)), ", "))
		}
		return meant, ""
	case v.unit == "" && len(v.times) == 0:
		return text, ""
	}
	return v.number(text, object)
}

// maxNumber is more than any machine has of anything, in the smallest unit.
var maxNumber = big.NewInt(1e18)

func (v value) number(text string, object map[string]any) (quantity, problem string) {
	product, ok := whole(text)
	if !ok {
		return "", fmt.Sprintf("is %q, which isn't a whole number", shown(text))
	}
	for _, path := range v.times {
		found, there := path.find(object)
		if !there {
			continue
		}
		text, _ := scalar(found)
		factor, ok := whole(text)
		if !ok {
			return "", fmt.Sprintf("is multiplied by %s, which is %q and no whole number", path, shown(text))
		}
		product.Mul(product, factor)
	}
	if product.Cmp(maxNumber) > 0 {
		return "", "is more than any machine has"
	}
	return product.String() + v.unit, ""
}

func whole(text string) (*big.Int, bool) {
	if len(text) > 19 {
		return nil, false
	}
	n, ok := new(big.Int).SetString(text, 10)
	return n, ok && n.Sign() >= 0
}

// FromMachine reports whether software in the machine decides an address of this type, so that whoever is root there does.
// It is false if the profile doesn't know.
func (p *Profile) FromMachine(addressType string) bool {
	return slices.Contains(p.fromMachine, addressType)
}
