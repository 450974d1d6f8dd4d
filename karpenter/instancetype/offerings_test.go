// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/karpenter/shape"
)

func TestFailureDomain(t *testing.T) {
	deployed := func(failureDomain string) *clusterv1.MachineTemplateSpec {
		return &clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{FailureDomain: failureDomain}}
	}
	for name, tc := range map[string]struct {
		machine *clusterv1.MachineTemplateSpec
		// zone of the source, as read from a MachineDeployment's failure domain or from a label that overrides it.
		zone, want string
	}{
		"When the zone is the MachineDeployment's own failure domain, it should write it, whatever the Cluster has": {deployed("rack-7"), "rack-7", "rack-7"},
		"When a label tells one of the Cluster's failure domains, it should write it":                               {nil, "b", "b"},
		"When a label tells a zone that is no failure domain, it should write none":                                 {nil, "eu-1b", ""},
		"When a label tells a zone and the MachineDeployment has a failure domain, it should write that":            {deployed("b"), "eu-1b", "b"},
		"When a label tells a zone and the MachineDeployment has no failure domain, it should write none":           {deployed(""), "eu-1b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			choice, ok := Build(input(newShape("c4", 4, 0.1, func(s *shape.Shape) {
				s.Machine, s.FailureDomains = tc.machine, []string{tc.zone}
			}))).Resolve("c4", tc.zone, "on-demand")
			if !ok || choice.Offering.Zone() != tc.zone {
				t.Fatalf("zone %s isn't offered", tc.zone)
			}
			if choice.FailureDomain != tc.want {
				t.Errorf("failure domain %q, want %q", choice.FailureDomain, tc.want)
			}
		})
	}
}
