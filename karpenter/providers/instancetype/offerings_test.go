// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
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
			choice, ok := Build(input(newTemplate("c4", 4, 0.1, func(s *template.Template) {
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

func TestWhyUnavailable(t *testing.T) {
	spot := func(s *template.Template) { s.SpotPrice = ptr.To(0.03) }
	rest := func(in *Input, zones, capacityTypes []string) {
		in.Unavailable = offering.NewUnavailable(realClock{})
		for _, zone := range zones {
			for _, capacityType := range capacityTypes {
				in.Unavailable.Mark(offering.Key{InstanceType: "c4", Zone: zone, CapacityType: capacityType}, "NoHosts")
			}
		}
	}
	both := []string{"a", "b"}
	for name, tc := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"When a machine of the template is available, it should say nothing": {func(*Input) {}, ""},
		"When the source is paused, it should say so":                        {func(in *Input) { in.Templates[0].Paused = true }, v1alpha1.TemplatePaused},
		"When the Cluster is paused, it should say so":                       {func(in *Input) { in.Cluster.Paused = true }, v1alpha1.TemplatePaused},
		"When no machine could join, it should say so":                       {func(in *Input) { in.Templates[0].Bootstrap = template.Bootstrap{} }, v1alpha1.TemplateNoBootstrap},
		"When every offering failed, it should say BackOff":                  {func(in *Input) { rest(in, both, []string{"on-demand", "spot"}) }, v1alpha1.TemplateBackOff},
		"When one capacity type is left, it should say nothing":              {func(in *Input) { rest(in, both, []string{"spot"}) }, ""},
		"When one zone is left, it should say nothing":                       {func(in *Input) { rest(in, []string{"a"}, []string{"on-demand", "spot"}) }, ""},
		"When the source is paused besides, it should say what a person can change": {func(in *Input) {
			in.Templates[0].Paused = true
			rest(in, both, []string{"on-demand", "spot"})
		}, v1alpha1.TemplatePaused},
		"When there are as many machines as may be, it should say so": {func(in *Input) {
			in.Templates[0].MaxSize = ptr.To(0)
			in.Inventory = newInventory()
		}, v1alpha1.TemplateFull},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newTemplate("c4", 4, 0.1, spot))
			tc.change(&in)
			if got := Build(in).Unavailable(in.Templates[0].Source.Annotation()); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
