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
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/assets/guest"
)

// CapacityBuffer keeps room for pods that don't exist yet.
const CapacityBuffer = "CapacityBuffer"

// gate is a feature of Karpenter.
type gate struct {
	name string
	// on by default in Karpenter core; Karpenter's Deployment may differ.
	on bool
	// rules are what Karpenter needs in the guest beside its ClusterRole; nil for nothing.
	rules func() ([]rbacv1.PolicyRule, error)
	// definition is the CustomResourceDefinition that the guest needs, and version the one of its versions that Karpenter reads; empty for none.
	definition, version string
}

// gates are those that a platform may set, sorted by name.
var gates = []gate{
	{name: CapacityBuffer, rules: guest.CapacityBufferRules, definition: crds.CapacityBuffer, version: "v1beta1"},
	{name: "NodeOverlay"},
	{name: "NodeRepair"},
	{name: "ReservedCapacity", on: true},
	{name: "SpotToSpotConsolidation"},
	{name: "StaticCapacity"},
}

// Names returns the gates that a platform may set, sorted.
func Names() []string {
	names := make([]string, 0, len(gates))
	for _, gate := range gates {
		names = append(names, gate.name)
	}
	return names
}

// Rules returns what Karpenter may do in the guest, beside its ClusterRole, while some gates are on.
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
	if len(set) == 0 {
		return
	}
	values := written(container)
	maps.Copy(values, set)
	pairs := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, name+"="+strconv.FormatBool(values[name]))
	}
	value := corev1.EnvVar{Name: variable, Value: strings.Join(pairs, ",")}
	if i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == variable }); i >= 0 {
		container.Env[i] = value
	} else {
		container.Env = append(container.Env, value)
	}
}

// Enabled returns the gates that are on in Karpenter's container, sorted.
func Enabled(container *corev1.Container) []string {
	values := written(container)
	for _, gate := range gates {
		if _, ok := values[gate.name]; !ok {
			values[gate.name] = gate.on
		}
	}
	maps.DeleteFunc(values, func(_ string, on bool) bool { return !on })
	return slices.Sorted(maps.Keys(values))
}

// written returns the gates that the container's environment sets, as Karpenter core parses it.
func written(container *corev1.Container) map[string]bool {
	values := map[string]bool{}
	for _, v := range container.Env {
		if v.Name != variable {
			continue
		}
		for pair := range strings.SplitSeq(v.Value, ",") {
			name, value, _ := strings.Cut(pair, "=")
			if on, err := strconv.ParseBool(strings.TrimSpace(value)); err == nil {
				values[strings.TrimSpace(name)] = on
			}
		}
	}
	return values
}
