// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/capacity"
)

func TestParsePath(t *testing.T) {
	object := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"example.org/type": "c4"}},
		"spec":     map[string]any{"disks": []any{map[string]any{"size": int64(8)}, "none"}, "empty": nil},
	}
	for path, want := range map[string]any{
		"spec.disks[0].size":                        int64(8),
		"spec.disks[1]":                             "none",
		"metadata.annotations['example.org/type']":  "c4",
		"spec.disks[2].size":                        nil,
		"spec.disks.size":                           nil,
		"spec['disks'][0]['size']":                  int64(8),
		"metadata[0]":                               nil,
		"spec.disks[1].size":                        nil,
		"spec.empty":                                nil,
		"spec.missing.further":                      nil,
		"metadata.annotations['example.org/other']": nil,
	} {
		t.Run("When the path is "+path+", it should find what is there", func(t *testing.T) {
			p, err := parsePath(path)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := p.find(object); ok != (want != nil) || ok && got != want {
				t.Errorf("found %v, %t; want %v", got, ok, want)
			}
		})
	}
	for _, path := range []string{"", ".spec", "spec..a", "spec.", "spec[", "spec[a]", "spec[-1]", "spec['']", "[0]", "spec a", "spec[0]size", "$.spec", strings.Repeat("a.", 200) + "a", "spec[99999]"} {
		t.Run("When the path is "+shown(path)+", it should be rejected", func(t *testing.T) {
			if _, err := parsePath(path); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// TestParse has one mistake of each sort in a file whose rest is right.
func TestParse(t *testing.T) {
	const file = `
- apiGroup: infrastructure.example.org
  kind: RackMachineTemplate
  sauces: [tomato]
  template:
    size: [{path: spec.a}]
    zone: {path: spec.a}
    instanceType: [{path: "spec..a"}, {path: spec.type}]
    architecture: [{values: {a: b}}, {path: spec.arch, value: amd64}]
    capacityType: [{path: spec.tier, values: {cheap: reserved}}, {value: spot}]
    capacity:
      cpu: [{path: spec.cores, unit: cores}, {path: spec.cores, times: [spec.sockets]}]
      "a b": [{value: "1"}]
      memory: [{path: spec.gib, unit: Gi}]
      hugepages-2Mi: [{path: spec.huge, where: {path: spec.mode}}]
  conditions:
    - {reasons: [Nothing]}
    - {means: Broken, reasons: [Nothing]}
    - {means: Failed}
    - {means: Failed, messages: ["(", "a+b"], reason: [Nothing]}
    - {means: Failed, words: [], messages: ["["], type: Ready}
    - {means: Terminated, status: Maybe, reasons: [Gone]}
    - {means: Terminated, reasons: [1, Gone]}
    - {means: Interrupted, type: Reclaiming, status: "True"}
  states:
    - {means: Terminated, path: status.power}
    - {means: Terminated, path: status.power, values: [Gone]}
  quotas:
    - {counts: cpu}
    - {name: 'racks of {tenant}'}
    - {name: units, counts: rack units}
    - {name: cores, instanceTypes: ["("], capacityTypes: [reserved], scope: ["spec..a"]}
    - {name: cores, counts: cpu, left: ['only (?P<limit>[0-9]+)']}
    - {name: cores, left: ['only (?P<left>[0-9]+)']}
    - {name: racks, counts: machines, messages: [RackFull], left: ['(?P<left>[0-9]+) free']}
  rebootsBy: [RackRemediationTemplate, RackRemediation]
  addresses:
    fromMachine: [Hostname, Phone]
- {kind: Nameless}
- {apiGroup: infrastructure.example.org, kind: RackMachine}
`
	profiles, problems, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, problem := range problems {
		got = append(got, problem.Error())
	}
	t.Run("When fields can't be understood, each should be named", func(t *testing.T) {
		want := []string{
			`[0].addresses.fromMachine[1]: "Phone" is not one of Hostname, InternalIP, ExternalIP, InternalDNS, ExternalDNS`,
			`[0].conditions[0].means: is missing; it is one of InsufficientCapacity, QuotaExceeded, Throttled, Misconfigured, Failed, Interrupted, Terminated, Ignored`,
			`[0].conditions[1].means: "Broken" is not one of InsufficientCapacity, QuotaExceeded, Throttled, Misconfigured, Failed, Interrupted, Terminated, Ignored`,
			`[0].conditions[2]: matches nothing: it has neither reasons, words, messages nor a type`,
			"[0].conditions[3].messages[0]: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(`",
			`[0].conditions[3].reason: no such field; the fields are means, messages, reasons, status, type, words`,
			"[0].conditions[4].messages[0]: \"[\" is not a regular expression: error parsing regexp: missing closing ]: `[`",
			`[0].conditions[4]: matches nothing: it has neither reasons, words, messages nor a type`,
			`[0].conditions[5].status: "Maybe" is not one of False, True, Unknown`,
			`[0].conditions[6].reasons[0]: is not a string of 1 to 512 bytes`,
			`[0].quotas[0].name: is missing: it is what people read, and keeps quotas apart`,
			`[0].quotas[1].name: "{tenant}" is no placeholder; there are {family}, {instanceType}, {capacityType}, {zone}`,
			`[0].quotas[2].counts: "rack units" is not one of machines, cpu, memory, gpus`,
			`[0].quotas[3].capacityTypes[0]: "reserved" is not one of on-demand, spot`,
			"[0].quotas[3].instanceTypes[0]: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(`",
			`[0].quotas[3].scope[0]: "spec..a" is not a path such as spec.template.spec.disks[0].size or metadata.annotations['example.org/type']`,
			`[0].quotas[4].left: "only (?P<limit>[0-9]+)" has no group (?P<left>…), nor both (?P<limit>…) and (?P<used>…)`,
			`[0].quotas[5]: has left, but not what the quota counts`,
			`[0].rebootsBy[1]: "RackRemediation" is no kind of remediation templates, such as Metal3RemediationTemplate`,
			`[0].sauces: no such field; the fields are addresses, apiGroup, conditions, kind, machines, nodeZone, quotas, rebootsBy, sources, states, template, varies`,
			`[0].states[0]: needs means, path and values`,
			`[0].template.architecture[0]: needs either path or value`,
			`[0].template.architecture[1]: needs either path or value`,
			`[0].template.capacity.a b: is not the name of a resource, such as cpu or nvidia.com/gpu`,
			`[0].template.capacity.cpu[0].unit: "cores" is not one of m, k, M, G, T, Ki, Mi, Gi, Ti`,
			`[0].template.capacity.hugepages-2Mi[0].where: needs path and values`,
			`[0].template.capacityType[0].values.cheap: "reserved" is not one of on-demand, spot`,
			`[0].template.instanceType[0].path: "spec..a" is not a path such as spec.template.spec.disks[0].size or metadata.annotations['example.org/type']`,
			`[0].template.size: no such field; the fields are architecture, capacity, capacityType, image, instanceType, operatingSystem, zone`,
			`[0].template.zone: is not a list`,
			`[1]: has no apiGroup and kind, which name the infrastructure machine that a profile is for, such as AWSMachine`,
			`[2]: RackMachine.infrastructure.example.org has a profile already`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})
	t.Run("When some fields can't be understood, all else should be in use", func(t *testing.T) {
		if len(profiles) != 1 {
			t.Fatalf("%d profiles", len(profiles))
		}
		facts := profiles[0].Read(&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": "r1", "cores": int64(4), "sockets": "2", "gib": 16.0}}})
		want := Facts{InstanceType: "r1", CapacityType: Spot, Capacity: facts.Capacity}
		if diff := cmp.Diff(want, facts); diff != "" || facts.Capacity["cpu"] != "8" || facts.Capacity["memory"] != "16Gi" {
			t.Errorf("capacity %v, facts (-want +got):\n%s", facts.Capacity, diff)
		}
		for reason, means := range map[string]Meaning{"Gone": Terminated} {
			if got, _ := profiles[0].Means(metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason}, Question{}); got != means {
				t.Errorf("%s means %s", reason, got)
			}
		}
		if got, _ := profiles[0].Means(metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Message: "aab"}, Question{}); got != Failed {
			t.Errorf("the message means %s", got)
		}
		machine := Countable{InstanceType: "r1", CapacityType: OnDemand}
		if got, remaining := (Kind{profile: profiles[0]}).Exceeded(machine, "RackFull: 2 free"); got != (capacity.QuotaName{Name: "racks", Counts: capacity.Machines}) || remaining != 2 {
			t.Errorf("it exceeds %v, of which %d is left", got, remaining)
		}
		if got, remaining := (Kind{profile: profiles[0]}).Exceeded(machine, "no licence"); got != (capacity.QuotaName{Name: "on-demand r1"}) || remaining != -1 {
			t.Errorf("it exceeds %v, of which %d is left", got, remaining)
		}
		if !profiles[0].FromMachine("Hostname") {
			t.Error("the host name doesn't come from the machine")
		}
	})
	for name, raw := range map[string]string{
		"is no list": "kind: RackMachine", "isn't YAML": "- {", "has a key twice": "- {kind: A, kind: B}", "is too large": strings.Repeat(" ", MaxFileSize+1),
	} {
		t.Run("When a file "+name+", it should be an error", func(t *testing.T) {
			if _, _, err := Parse([]byte(raw)); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	profiles, problems, err := Parse([]byte(`- {apiGroup: a.b, kind: C, template: {capacity: {cpu: [{path: count, times: [factor], unit: k}]}}}`))
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for name, tc := range map[string]struct {
		n, m    any
		want    string
		problem string
	}{
		"When both are numbers, it should be the product": {int64(2), float64(3), "6k", ""},
		"When the factor is missing, it should be one":    {int64(2), nil, "2k", ""},
		"When the number is a text, it should be read":    {" 12 ", nil, "12k", ""},
		"When the number is missing, it should be empty":  {nil, int64(2), "", ""},
		"When it is no whole number, it should say so":    {1.5, nil, "", `capacity.cpu: count is "1.5", which isn't a whole number`},
		"When it is negative, it should say so":           {int64(-1), nil, "", `capacity.cpu: count is "-1", which isn't a whole number`},
		"When the factor is a list, it should say so":     {int64(1), []any{}, "", `capacity.cpu: count is multiplied by factor, which is "" and no whole number`},
		"When it is an object, it should say so":          {map[string]any{}, nil, "", `capacity.cpu: count is neither text nor a number`},
		"When it is more than there is, it should say so": {int64(1e18), int64(1e18), "", `capacity.cpu: count is more than any machine has`},
	} {
		t.Run(name, func(t *testing.T) {
			facts := profiles[0].Read(&unstructured.Unstructured{Object: map[string]any{"count": tc.n, "factor": tc.m}})
			if got := strings.Join(facts.Problems, "; "); facts.Capacity["cpu"] != tc.want || got != tc.problem {
				t.Errorf("%q, %q", facts.Capacity["cpu"], got)
			}
		})
	}
}

// FuzzParse tries files and templates of any content: nothing panics, and what is accepted can be used.
func FuzzParse(f *testing.F) {
	f.Add([]byte("- {apiGroup: a.b, kind: C, template: {zone: [{path: spec.zone}]}, conditions: [{means: Failed, words: [x]}]}"), "spec", "x")
	f.Add([]byte("- {apiGroup: a.b, kind: C, quotas: [{name: '{family} cores', counts: cpu, left: ['(?P<left>.*)'], unit: Ki}]}"), "spec", "1")
	f.Fuzz(func(t *testing.T, file []byte, key, text string) {
		profiles, _, err := Parse(file)
		if err != nil {
			return
		}
		for _, p := range profiles {
			object := map[string]any{key: map[string]any{key: text}, text: []any{key, map[string]any{}}}
			_ = p.Read(&unstructured.Unstructured{Object: object})
			_, _ = p.States(object)
			machine := Countable{InstanceType: text, Family: key, CapacityType: OnDemand, Template: object}
			if q, remaining := (Kind{profile: p}).Exceeded(machine, text+key); q.Name == "" || remaining < -1 {
				t.Errorf("it exceeds %v, of which %d is left", q, remaining)
			}
			_, _ = p.Means(metav1.Condition{Type: key, Status: metav1.ConditionFalse, Reason: text, Message: text + key}, Question{})
		}
	})
}
