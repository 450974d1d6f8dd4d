// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

func TestReadFaults(t *testing.T) {
	const p = infrav1.FaultPrefix
	for name, test := range map[string]struct {
		machine, template, cluster map[string]string
		want                       faults
	}{
		"When no fault is set, there should be none": {machine: map[string]string{"example.com/dies": "true"}},
		"When each fault is set, each should be read": {
			machine: map[string]string{
				p + "no-capacity": "a, b/spot,*/reserved", p + "late-provider-id": "30s", p + "never-joins": "true",
				p + "dies": "true", p + "terminated": "1m",
			},
			want: faults{
				asked: true, noCapacity: places{{zone: "a"}, {"b", "spot"}, {"", "reserved"}}, neverJoins: true,
				lateProviderID: span{on: true, duration: 30 * time.Second}, dies: span{on: true, forever: true},
				terminated: span{on: true, duration: time.Minute},
			},
		},
		"When several objects have one, the most specific should win, each annotation for itself": {
			machine:  map[string]string{p + "no-capacity": "false"},
			template: map[string]string{p + "no-capacity": "true", p + "dies": "1s"},
			cluster:  map[string]string{p + "dies": "2s", p + "never-joins": "true"},
			want:     faults{asked: true, dies: span{on: true, duration: time.Second}, neverJoins: true},
		},
		"When values can't be read, they should be named and ignored": {
			machine:  map[string]string{p + "never-joins": "yes", p + "no-capacity": "a//b,", p + "what": ""},
			template: map[string]string{p + "late-provider-id": "-3s"},
			cluster:  map[string]string{p + "terminated": "1", p + "dies": "true"},
			want: faults{asked: true, dies: span{on: true, forever: true}, problems: []string{
				`KwokCluster c: annotation faults.infrastructure.autonode.io/terminated: "1": neither "true", "false" nor a duration such as "30s"`,
				`KwokMachine m: annotation faults.infrastructure.autonode.io/never-joins: "yes": neither "true" nor "false"`,
				`KwokMachine m: annotation faults.infrastructure.autonode.io/no-capacity: "a//b,": neither "true", "false" nor a list of <zone>, <zone>/<capacity type> or */<capacity type>`,
				`KwokMachine m: annotation faults.infrastructure.autonode.io/what: "": no fault has this name`,
				`KwokMachineTemplate t: annotation faults.infrastructure.autonode.io/late-provider-id: "-3s": neither "true", "false" nor a duration such as "30s"`,
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := readFaults(
				&infrav1.KwokMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: test.machine}},
				&infrav1.KwokMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Annotations: test.template}},
				&infrav1.KwokCluster{ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: test.cluster}},
			)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(faults{}, span{}, place{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	for name, test := range map[string]struct {
		value, zone, capacityType string
		want                      bool
	}{
		"When it is everywhere, any place should be in it":            {"true", "a", "spot", true},
		"When it is nowhere, no place should be in it":                {"false", "a", "spot", false},
		"When a zone is named, it should be in it":                    {"b,a", "a", "spot", true},
		"When another zone is named, it should not be in it":          {"b", "a", "spot", false},
		"When a capacity type is named, that should be in it":         {"*/spot", "a", "spot", true},
		"When another capacity type is named, it should not be in it": {"a/spot", "a", "on-demand", false},
		"When a machine has no zone, a zone should not mean it":       {"a", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			places, err := parsePlaces(test.value)
			if err != nil {
				t.Fatal(err)
			}
			if got := places.include(test.zone, test.capacityType); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestSpanLeft(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		span span
		now  time.Time
		want time.Duration
	}{
		"When there is no fault, nothing should be left":      {span{}, start, 0},
		"When it is forever, it should never end":             {span{on: true, forever: true}, start.Add(time.Hour), -1},
		"When it is going on, the rest should be left":        {span{on: true, duration: time.Minute}, start.Add(20 * time.Second), 40 * time.Second},
		"When it is over, nothing should be left":             {span{on: true, duration: time.Minute}, start.Add(time.Hour), 0},
		"When it has no duration, it should be over at once":  {span{on: true}, start, 0},
		"When it begins in the future, the wait should count": {span{on: true, duration: time.Second}, start.Add(-time.Second), 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.span.left(start, test.now); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
