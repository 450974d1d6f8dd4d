// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// faults of a machine.
type faults struct {
	noCapacity     places
	lateProviderID span
	neverJoins     bool
	neverJoinsAt   string // a Kubernetes version
	dies           span
	interrupted    bool
	terminated     span

	// asked reports whether there was any fault annotation, understood or not.
	asked bool
	// problems are the annotations that could not be understood.
	problems []string
}

// span is a fault with a time: forever, or for (or after) a duration. The zero value means no fault.
type span struct {
	on       bool
	forever  bool
	duration time.Duration
}

// left returns how long the fault goes on that began at start; a negative value means forever.
func (s span) left(start, now time.Time) time.Duration {
	switch {
	case !s.on:
		return 0
	case s.forever:
		return -1
	}
	return max(0, start.Add(s.duration).Sub(now))
}

// place has no capacity. Empty fields stand for every zone and every capacity type.
type place struct{ zone, capacityType string }

type places []place

func (p places) include(zone, capacityType string) bool {
	return slices.ContainsFunc(p, func(each place) bool {
		return (each.zone == "" || each.zone == zone) && (each.capacityType == "" || each.capacityType == capacityType)
	})
}

// readFaults reads the fault annotations of objects, of which the first that has an annotation wins. Objects may be nil.
func readFaults(objects ...metav1.Object) faults {
	type source struct {
		object metav1.Object
		value  string
	}
	values := map[string]source{}
	for _, object := range objects {
		for name, value := range object.GetAnnotations() {
			if _, seen := values[name]; !seen && strings.HasPrefix(name, infrav1.FaultPrefix) {
				values[name] = source{object, value}
			}
		}
	}
	f := faults{asked: len(values) > 0}
	for name, source := range values {
		var err error
		switch name {
		case infrav1.FaultNoCapacity:
			f.noCapacity, err = parsePlaces(source.value)
		case infrav1.FaultLateProviderID:
			f.lateProviderID, err = parseSpan(source.value)
		case infrav1.FaultNeverJoins:
			if f.neverJoins, err = parseSwitch(source.value); err != nil {
				if _, parseErr := utilversion.ParseSemantic(source.value); parseErr == nil {
					f.neverJoinsAt, err = source.value, nil
				}
			}
		case infrav1.FaultDies:
			f.dies, err = parseSpan(source.value)
		case infrav1.FaultInterrupted:
			f.interrupted, err = parseSwitch(source.value)
		case infrav1.FaultTerminated:
			f.terminated, err = parseSpan(source.value)
		default:
			err = fmt.Errorf("no fault has this name")
		}
		if err != nil {
			f.problems = append(f.problems, fmt.Sprintf("%s %s: annotation %s: %q: %v",
				kindOf(source.object), source.object.GetName(), name, source.value, err))
		}
	}
	slices.Sort(f.problems)
	return f
}

// neverJoins reports whether the fault is set for the machine's version.
func (i *instance) neverJoins() bool {
	return i.faults.neverJoins || i.machine != nil && i.faults.neverJoinsAt != "" &&
		strings.TrimPrefix(i.machine.Spec.Version, "v") == i.faults.neverJoinsAt
}

func kindOf(object metav1.Object) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1beta1.")
}

func parseSwitch(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf(`neither "true" nor "false"`)
}

func parseSpan(value string) (span, error) {
	if on, err := parseSwitch(value); err == nil {
		return span{on: on, forever: on}, nil
	}
	duration, err := time.ParseDuration(value)
	if err != nil || duration < 0 {
		return span{}, fmt.Errorf(`neither "true", "false" nor a duration such as "30s"`)
	}
	return span{on: true, duration: duration}, nil
}

func parsePlaces(value string) (places, error) {
	if everywhere, err := parseSwitch(value); err == nil {
		if everywhere {
			return places{{}}, nil
		}
		return nil, nil
	}
	var list places
	for item := range strings.SplitSeq(value, ",") {
		zone, capacityType, narrowed := strings.Cut(strings.TrimSpace(item), "/")
		if zone == "" || (narrowed && capacityType == "") || strings.Contains(capacityType, "/") {
			return nil, fmt.Errorf(`neither "true", "false" nor a list of <zone>, <zone>/<capacity type> or */<capacity type>`)
		}
		if zone == "*" {
			zone = ""
		}
		list = append(list, place{zone, capacityType})
	}
	return list, nil
}
