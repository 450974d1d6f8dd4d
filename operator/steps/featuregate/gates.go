// SPDX-License-Identifier: Apache-2.0

package featuregate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/assets/crds"
	guestassets "github.com/autonode-io/autonode/assets/guest"
)

const (
	// CapacityBuffer keeps room for pods that don't exist yet.
	CapacityBuffer = "CapacityBuffer"
	// DynamicResourceAllocation launches nodes for pods that claim devices of DRA drivers. It has the name of Kubernetes' gate; Karpenter core
	// has a variable for the contrary.
	DynamicResourceAllocation = "DynamicResourceAllocation"
	// PodDeletionCostManagement has a Deployment that is scaled down remove the pods first whose nodes Karpenter would remove first.
	PodDeletionCostManagement = "PodDeletionCostManagement"
)

// gate is a feature of Karpenter.
type gate struct {
	name string
	// on by default in Karpenter core; Karpenter's Deployment may differ.
	on bool
	// rules are those that Karpenter needs in the guest beside its ClusterRole; nil for none.
	rules func() ([]rbacv1.PolicyRule, error)
	// definition is the CustomResourceDefinition that the guest needs, and version the one of its versions that Karpenter reads; empty for
	// none.
	definition, version string
	// kind is one of the guest's API server that Karpenter reads; empty for none.
	kind schema.GroupVersionKind
	// ignored is the environment variable of Karpenter core that turns the gate off, for one that isn't in FEATURE_GATES; empty for none.
	ignored string
}

// gates are those that a platform may set, sorted by name.
var gates = []gate{
	{name: CapacityBuffer, rules: guestassets.CapacityBufferRules, definition: crds.CapacityBuffer, version: "v1beta1"},
	{
		name: DynamicResourceAllocation, rules: guestassets.DynamicResourceRules, kind: resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"),
		ignored: "IGNORE_DRA_REQUESTS",
	},
	{name: "NodeOverlay"},
	{name: "NodeRepair"},
	{name: PodDeletionCostManagement, rules: guestassets.PodDeletionCostRules},
	{name: "ReservedCapacity", on: true},
	{name: "SpotToSpotConsolidation"},
	{name: "StaticCapacity"},
	{name: "TerminateFirstDrift"},
	{name: "TerminateFirstRepair"},
}

// Names returns the gates that a platform may set, sorted.
func Names() []string {
	names := make([]string, 0, len(gates))
	for _, gate := range gates {
		names = append(names, gate.name)
	}
	return names
}

// Rules returns Karpenter's permissions in the guest, beside its ClusterRole, while some gates are on.
func Rules(on sets.Set[string]) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for _, gate := range gates {
		if gate.rules == nil || !on.Has(gate.name) {
			continue
		}
		more, err := gate.rules()
		if err != nil {
			return nil, fmt.Errorf("reading the permissions for feature gate %s: %w", gate.name, err)
		}
		rules = append(rules, more...)
	}
	return rules, nil
}

// variable is the environment variable that Karpenter core reads its feature gates from.
const variable = "FEATURE_GATES"

// Write sets gates in the environment of Karpenter's container. The others stay as they are.
func Write(container *corev1.Container, set map[string]bool) {
	values := inVariable(container)
	changed := false
	for _, name := range slices.Sorted(maps.Keys(set)) {
		on := set[name]
		if i := slices.IndexFunc(gates, func(gate gate) bool { return gate.name == name && gate.ignored != "" }); i >= 0 {
			setVariable(container, gates[i].ignored, strconv.FormatBool(!on))
			continue
		}
		values[name], changed = on, true
	}
	if !changed {
		return
	}
	pairs := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, name+"="+strconv.FormatBool(values[name]))
	}
	setVariable(container, variable, strings.Join(pairs, ","))
}

func setVariable(container *corev1.Container, name, value string) {
	if i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name }); i >= 0 {
		container.Env[i].Value = value
	} else {
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// Enabled returns the gates that are on in Karpenter's container, sorted.
func Enabled(container *corev1.Container) []string {
	values := inVariable(container)
	for _, gate := range gates {
		if gate.ignored != "" {
			ignored, err := strconv.ParseBool(valueOf(container, gate.ignored))
			values[gate.name] = err == nil && !ignored
		} else if _, ok := values[gate.name]; !ok {
			values[gate.name] = gate.on
		}
	}
	maps.DeleteFunc(values, func(_ string, on bool) bool { return !on })
	return slices.Sorted(maps.Keys(values))
}

// inVariable returns the gates that the container's environment sets, as Karpenter core parses it.
func inVariable(container *corev1.Container) map[string]bool {
	values := map[string]bool{}
	for pair := range strings.SplitSeq(valueOf(container, variable), ",") {
		name, value, _ := strings.Cut(pair, "=")
		if on, err := strconv.ParseBool(strings.TrimSpace(value)); err == nil {
			values[strings.TrimSpace(name)] = on
		}
	}
	return values
}

func valueOf(container *corev1.Container, name string) string {
	for _, v := range container.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}
