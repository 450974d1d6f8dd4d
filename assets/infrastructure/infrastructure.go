// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:embed *.yaml
var files embed.FS

// Embedded returns the profiles of this package, one a file, by kind. They are shared: don't modify the map.
var Embedded = sync.OnceValues(func() (Kinds, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	profiles := Kinds{}
	for _, name := range names {
		raw, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		parsed, problems, err := Parse(raw)
		if err := errors.Join(append(problems, err)...); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, p := range parsed {
			profiles[p.GroupKind()] = p
		}
	}
	return profiles, nil
})

// Kinds are profiles by kind.
type Kinds map[schema.GroupKind]*Profile

// With returns the kinds with overlays, which add kinds or correct them.
func (k Kinds) With(overlays []*Profile) Kinds {
	kinds := maps.Clone(k)
	for _, overlay := range overlays {
		if known, ok := kinds[overlay.GroupKind()]; ok {
			kinds[overlay.GroupKind()] = known.Corrected(overlay)
		} else {
			kinds[overlay.GroupKind()] = overlay
		}
	}
	return kinds
}

// For returns the profiles for the kind of a machine, or of its template.
func (k Kinds) For(kind schema.GroupKind) Kind {
	kind.Kind = strings.TrimSuffix(kind.Kind, templateSuffix)
	return Kind{profile: k[kind], every: k[schema.GroupKind{Group: Every, Kind: Every}]}
}

// Kind has the profiles that concern one kind.
type Kind struct{ profile, every *Profile }

// Known reports whether the kind has a profile of its own. Of others only Cluster API's contract is known.
func (k Kind) Known() bool { return k.profile != nil }

// Read returns a template's declarations about its machines.
func (k Kind) Read(template *unstructured.Unstructured) Facts {
	if k.profile == nil {
		return Facts{}
	}
	return k.profile.Read(template)
}

// InstanceType returns the infrastructure's instance type that a template names; empty if it names none, or that isn't known.
func (k Kind) InstanceType(template *unstructured.Unstructured) string {
	if k.profile == nil || template == nil {
		return ""
	}
	text, _ := k.profile.first(fieldInstanceType, template.Object, &Facts{})
	return text
}

// Means returns the meaning of a condition of the machine; false if no rule matches it.
func (k Kind) Means(condition metav1.Condition, q Question) (Meaning, bool) {
	for _, p := range []*Profile{k.profile, k.every} {
		if p == nil {
			continue
		}
		if means, ok := p.Means(condition, q); ok {
			return means, true
		}
	}
	return Ignored, false
}

// States returns the known states of a machine as conditions, and the meaning of each.
func (k Kind) States(machine *unstructured.Unstructured) ([]metav1.Condition, []Meaning) {
	if k.profile == nil {
		return nil, nil
	}
	return k.profile.States(machine.Object)
}

// FromMachine reports whether software in the machine decides an address of this type, so that whoever is root there does.
// Of a kind without a profile nothing is known, and it is false.
func (k Kind) FromMachine(addressType string) bool {
	return k.profile != nil && k.profile.FromMachine(addressType)
}

// Hosts reports whether machines are hosts of a fixed set: one that is removed comes back to it, and no other tenant gets it meanwhile.
func (k Kind) Hosts() bool { return k.profile != nil && k.profile.Hosts() }

// ReportsAddresses reports whether software in the machine decides addresses of any type.
func (k Kind) ReportsAddresses() bool { return k.profile != nil && len(k.profile.fromMachine) > 0 }

// GroupKind of the machine; empty if the kind has no profile.
func (k Kind) GroupKind() schema.GroupKind {
	if k.profile == nil {
		return schema.GroupKind{}
	}
	return k.profile.GroupKind()
}

// Reboots reports whether the infrastructure provider can reboot a machine in place. It is false for a kind without a profile.
func (k Kind) Reboots() bool { return k.profile != nil && len(k.profile.rebootsBy) > 0 }

// RebootsBy reports whether remediations of a template of this kind reboot a machine in place.
func (k Kind) RebootsBy(template schema.GroupKind) bool {
	return k.profile != nil && template.Group == k.profile.Group && slices.Contains(k.profile.rebootsBy, template.Kind)
}
