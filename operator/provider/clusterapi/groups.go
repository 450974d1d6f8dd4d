// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"fmt"
	"strings"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// DefaultGroups are the API groups of Cluster API's providers.
const DefaultGroups = "*.cluster.x-k8s.io"

// groups are the API groups that templates may be of: a HostedCluster names kinds, and Karpenter gets a Role for them. One that begins with
// "*." stands for all below it.
type groups []string

// parseGroups reads a comma-separated list.
func parseGroups(list string) groups {
	var parsed groups
	for group := range strings.SplitSeq(list, ",") {
		if group = strings.TrimSpace(group); group != "" {
			parsed = append(parsed, group)
		}
	}
	return parsed
}

func (g groups) allow(group string) bool {
	for _, allowed := range g {
		suffix, all := strings.CutPrefix(allowed, "*")
		if group == allowed || all && strings.HasPrefix(suffix, ".") && len(group) > len(suffix) && strings.HasSuffix(group, suffix) {
			return true
		}
	}
	return false
}

// check returns why a kind can't be a template of machines or of their bootstrap, in words that follow a field's name.
func (g groups) check(group, kind string) error {
	if !g.allow(group) {
		return fmt.Errorf("API group %q isn't among those that the platform allows, which are %s", group, strings.Join(g, ", "))
	}
	// A provider has templates of other things, too, and Karpenter may create and delete the objects that are made from one.
	for _, other := range []string{"ClusterTemplate", "ControlPlaneTemplate", "MachinePoolTemplate"} {
		if strings.HasSuffix(kind, other) {
			return fmt.Errorf("kind %q is no template of machines or of their bootstrap", kind)
		}
	}
	if !strings.HasSuffix(kind, "Template") {
		return fmt.Errorf("kind %q is no template", kind)
	}
	return nil
}

func (g groups) checkSpec(config *v1beta1.Karpenter) error {
	if err := checkSpec(config); err != nil {
		return err
	}
	for i, selector := range config.ClusterAPI.InfrastructureTemplateSelectors {
		if err := g.check(selector.APIGroup, selector.Kind); err != nil {
			return fmt.Errorf("clusterAPI.infrastructureTemplateSelectors[%d]: %w", i, err)
		}
	}
	if bootstrap := config.ClusterAPI.Bootstrap; bootstrap != nil && bootstrap.ConfigTemplateRef != nil {
		if err := g.check(bootstrap.ConfigTemplateRef.APIGroup, bootstrap.ConfigTemplateRef.Kind); err != nil {
			return fmt.Errorf("clusterAPI.bootstrap.configTemplateRef: %w", err)
		}
	}
	return nil
}
