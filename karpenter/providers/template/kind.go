// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/internal/message"
)

// readKind reads the template's own fields about its machines, by its kind's profile. A value that is read later overrides them. A field
// that can't be understood is a note, and doesn't count.
func (s *Template) readKind(l layer) {
	s.Kind = *l.kind
	if !l.kind.Known() {
		s.Notes = append(s.Notes, unknownKind(l.object))
		return
	}
	facts := l.kind.Read(l.object)
	_, disk := l.object.GetAnnotations()[diskAnnotation]
	for _, problem := range facts.Problems {
		if disk && strings.HasPrefix(problem, diskField) {
			continue // the annotation declares it instead
		}
		s.note(problem)
	}
	for _, name := range slices.Sorted(maps.Keys(facts.Capacity)) {
		q, problem := ParseQuantity(facts.Capacity[name])
		if problem != "" {
			s.note(fmt.Sprintf("%s: %q %s", name, message.Cut(facts.Capacity[name], maxShown), problem))
			continue
		}
		s.Capacity[name] = q
		s.NominalMemory = s.NominalMemory || name == corev1.ResourceMemory
	}
	label := func(field, value string, set func(string)) {
		switch problem := catalog.LabelValueProblem(value); {
		case value == "":
		case problem != "":
			s.note(fmt.Sprintf("%s: %q %s", field, message.Cut(value, maxShown), problem))
		default:
			set(value)
		}
	}
	label("instanceType", facts.InstanceType, func(value string) { s.InstanceType = value })
	label("zone", facts.Zone, func(value string) {
		if len(s.FailureDomains) == 0 {
			s.FailureDomains = []string{value}
		}
	})
	label("architecture", facts.Architecture, func(value string) { s.Arch = value })
	label("operatingSystem", facts.OperatingSystem, func(value string) { s.OS = value })
	s.Image = facts.Image
	s.kindCapacityType, s.kindCapacityField = facts.CapacityType, facts.CapacityTypeField
}

// diskField begins a problem of a profile's field for the machine's disk.
const diskField = "capacity." + string(corev1.ResourceEphemeralStorage) + ":"

func unknownKind(template *unstructured.Unstructured) Note {
	return Note{On: template.GroupVersionKind().GroupKind().String(), Unknown: true, Text: "has no profile: what its " +
		"machines have is read from status.capacity and annotations only, and of its conditions only common words are known"}
}

// note records a field of the template that its profile can't understand.
func (s *Template) note(text string) {
	s.Notes = append(s.Notes, Note{On: s.Source.String(), Text: text + "; this field isn't in use"})
}
