// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/capacity"
)

// golden is a file of testdata: what a profile makes of templates as users write them, and of machines as controllers report
// them. Each case names its source.
type golden struct {
	Templates []struct {
		Name, Source string
		Object       map[string]any
		Want         wanted
	}
	Machines []struct {
		Name, Source string
		// Exists: the machine has a provider ID.
		Exists     bool
		Conditions []metav1.Condition
		Object     map[string]any
		// Want is the meaning; empty for none.
		Want Meaning
		// Quotas that a machine exceeds by its first condition.
		Quotas []exceeded
	}
}

// exceeded is what a machine's message reports about quotas.
type exceeded struct {
	Of Countable
	// Template of the machine.
	Template map[string]any
	// Quota that it lacks, and what it counts.
	Quota  string
	Counts capacity.Resource
	// Left of it; nothing is said without it.
	Left *int64
	// Also are the names of instance types, in the same place, which the quota counts as well, and Not those that it doesn't.
	Also, Not []string
}

type wanted struct {
	InstanceType, Zone, Architecture, OperatingSystem, CapacityType, Image string
	Capacity                                                               map[string]string
	Problems                                                               []string
}

func TestProfiles(t *testing.T) {
	profiles, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	every := profiles[schema.GroupKind{Group: Every, Kind: Every}]
	for kind, p := range profiles {
		name := strings.ToLower(kind.Group + "_" + kind.Kind + ".yaml")
		if p == every {
			name = "contract.yaml"
		}
		t.Run(name, func(t *testing.T) {
			if _, err := fs.Stat(files, name); err != nil {
				t.Fatalf("the profile of %s isn't in the file of its name: %v", kind, err)
			}
			if len(p.Sources) == 0 {
				t.Error("the profile names no sources")
			}
			raw, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatalf("every profile has its cases: %v", err)
			}
			var g golden
			if err := yaml.UnmarshalStrict(raw, &g); err != nil {
				t.Fatal(err)
			}
			templatesOf(t, p, g)
			machinesOf(t, p, every, g)
		})
	}
}

func templatesOf(t *testing.T, p *Profile, g golden) {
	t.Helper()
	read := map[string]bool{}
	for _, tc := range g.Templates {
		if tc.Source == "" {
			t.Errorf("%s: names no source", tc.Name)
		}
		t.Run(tc.Name, func(t *testing.T) {
			facts := p.Read(&unstructured.Unstructured{Object: tc.Object})
			got := wanted{
				InstanceType: facts.InstanceType, Zone: facts.Zone, Architecture: facts.Architecture, OperatingSystem: facts.OperatingSystem,
				CapacityType: facts.CapacityType, Image: facts.Image, Problems: facts.Problems,
			}
			for resource, quantity := range facts.Capacity {
				if got.Capacity == nil {
					got.Capacity = map[string]string{}
				}
				got.Capacity[string(resource)] = quantity
			}
			if diff := cmp.Diff(tc.Want, got); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
		for field, values := range p.fields {
			for _, v := range values {
				if text, _ := v.read(tc.Object); text != "" {
					read[field+"="+v.path.String()] = true
				}
			}
		}
	}
	for field, values := range p.fields {
		for _, v := range values {
			if !read[field+"="+v.path.String()] {
				t.Errorf("no template has the field %s at %s", field, v.path)
			}
		}
	}
}

func machinesOf(t *testing.T, p, every *Profile, g golden) {
	t.Helper()
	matched := make([]bool, len(p.conditions))
	states := make([]bool, len(p.states))
	quotas := make([]bool, len(p.quotas))
	for _, tc := range g.Machines {
		if tc.Source == "" {
			t.Errorf("%s: names no source", tc.Name)
		}
		var got []Meaning
		for _, condition := range tc.Conditions {
			for i := range p.conditions {
				if (!tc.Exists || !slices.Contains(launches, p.conditions[i].means)) && p.conditions[i].matches(condition, nil) {
					matched[i] = true
					break
				}
			}
			means, ok := p.Means(condition, Question{Exists: tc.Exists})
			if !ok {
				means, ok = every.Means(condition, Question{Exists: tc.Exists})
			}
			if ok && means != Ignored && means != Throttled || means == tc.Want {
				got = append(got, means)
			}
		}
		for i, s := range p.states {
			if found, ok := s.path.find(tc.Object); ok {
				text, _ := scalar(found)
				states[i] = states[i] || slices.Contains(s.values, text)
			}
		}
		_, means := p.States(tc.Object)
		got = slices.Compact(append(got, means...))
		t.Run(tc.Name, func(t *testing.T) {
			var want []Meaning
			if tc.Want != "" {
				want = []Meaning{tc.Want}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("meaning (-want +got):\n%s", diff)
			}
		})
	}
	for _, tc := range g.Machines {
		for _, excess := range tc.Quotas {
			excess.Of.Template = excess.Template
			t.Run(tc.Name+": "+excess.Of.InstanceType, func(t *testing.T) { quotaOf(t, Kind{profile: p, every: every}, excess, tc.Conditions[0].Message) })
			if i := slices.IndexFunc(p.quotas, func(q quota) bool { return q.covers(excess.Of) && q.concerns(tc.Conditions[0].Message) }); i >= 0 {
				quotas[i] = true
			}
		}
	}
	for i, ok := range quotas {
		if !ok {
			t.Errorf("no machine exceeds quotas[%d], %s", i, p.quotas[i].name)
		}
	}
	for i, ok := range matched {
		if !ok {
			t.Errorf("no machine has a condition for conditions[%d], %s", i, p.conditions[i].means)
		}
	}
	for i, ok := range states {
		if !ok {
			t.Errorf("no machine is in a state of states[%d], %s", i, p.states[i].means)
		}
	}
}

func quotaOf(t *testing.T, kind Kind, excess exceeded, text string) {
	t.Helper()
	got, remaining := kind.Exceeded(excess.Of, text)
	want := int64(-1)
	if excess.Left != nil {
		want = *excess.Left
	}
	if diff := cmp.Diff(capacity.QuotaName{Name: excess.Quota, Counts: excess.Counts}, got); diff != "" || remaining != want {
		t.Errorf("left %d, want %d; quota (-want +got):\n%s", remaining, want, diff)
	}
	counts := func(instanceType string) bool {
		other := excess.Of
		other.InstanceType = instanceType
		return slices.Contains(kind.Quotas(other), got)
	}
	for _, also := range append(excess.Also, excess.Of.InstanceType) {
		if !counts(also) {
			t.Errorf("%s doesn't count %s", got.Name, also)
		}
	}
	for _, not := range excess.Not {
		if counts(not) {
			t.Errorf("%s counts %s", got.Name, not)
		}
	}
}
