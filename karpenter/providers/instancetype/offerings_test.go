// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/catalog"
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
		"When a label declares one of the Cluster's failure domains, it should write it":                            {nil, "b", "b"},
		"When a label declares a zone that is no failure domain, it should write none":                              {nil, "eu-1b", ""},
		"When a label declares a zone and the MachineDeployment has a failure domain, it should write that":         {deployed("b"), "eu-1b", "b"},
		"When a label declares a zone and the MachineDeployment has no failure domain, it should write none":        {deployed(""), "eu-1b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			choice, ok := snapshotOf(input(newTemplate("c4", 4, 0.1, func(s *template.Template) {
				s.Machine, s.FailureDomains = tc.machine, []string{tc.zone}
			}))).Resolve("c4", tc.zone, "on-demand")
			if !ok || choice.Offering.Zone() != tc.zone {
				t.Fatalf("zone %s isn't offered", tc.zone)
			}
			NewWithT(t).Expect(choice.FailureDomain).To(Equal(tc.want))
		})
	}
}

func TestNodeZone(t *testing.T) {
	embedded, err := infrastructure.Embedded()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	azure := func(s *template.Template) {
		s.Kind = embedded.For(schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "AzureMachineTemplate"})
		s.Infrastructure = &unstructured.Unstructured{Object: map[string]any{"kind": "AzureMachineTemplate"}}
	}
	in := func(region string, changes ...func(*template.Template)) Input {
		in := input(newTemplate("d2", 2, 0.1, func(s *template.Template) {
			azure(s)
			for _, change := range changes {
				change(s)
			}
		}))
		in.Cluster = template.Cluster{FailureDomains: []string{"1", "2"}, Region: region}
		return in
	}
	labelled := func(zone string) func(*template.Template) {
		return func(s *template.Template) { s.FailureDomains = []string{zone} }
	}
	for name, tc := range map[string]struct {
		in                  Input
		zone, failureDomain string
	}{
		"When nodes have the region in their zone, the offering should, and the machine have the failure domain": {in("eastus"), "eastus-2", "2"},
		"When a template's label names a zone, its machine should have the failure domain":                       {in("eastus", labelled("eastus-1")), "eastus-1", "1"},
		"When a template's label names a failure domain, the offering should be in its zone":                     {in("eastus", labelled("1")), "eastus-1", "1"},
		"When a template has a region of its own, it should count": {in("eastus", func(s *template.Template) {
			s.Labels = map[string]string{corev1.LabelTopologyRegion: "westeurope"}
		}), "westeurope-2", "2"},
		"When no region is declared, the failure domain should be the zone": {in(""), "2", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			snapshot := snapshotOf(tc.in)
			choice, ok := snapshot.Resolve("d2", tc.zone, "on-demand")
			g.Expect(ok).To(BeTrue(), "zone %s is offered", tc.zone)
			g.Expect(choice.FailureDomain).To(Equal(tc.failureDomain))
			if tc.in.Cluster.Region == "" {
				g.Expect(snapshot.Problems).To(ConsistOf(MatchError(And(ContainSubstring("AzureMachineTemplate"), ContainSubstring("topology.kubernetes.io/region")))))
			} else {
				g.Expect(snapshot.Problems).To(BeEmpty())
			}
		})
	}

	for name, tc := range map[string]struct{ zone, want, failureDomain string }{
		"When a catalog names a zone as nodes do, it should be offered there, and the machine have the failure domain": {"eastus-1", "eastus-1", "1"},
		"When a catalog names a failure domain, it should be offered in its zone":                                      {"2", "eastus-2", "2"},
		"When a catalog names no zone, it should be offered in each":                                                   {"", "eastus-2", "2"},
		"When a catalog names a zone that the Cluster lacks, it should not be launched":                                {"eastus-3", "eastus-3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			catalogs := in("eastus", func(s *template.Template) {
				s.Source = template.Source{GroupKind: schema.GroupKind{Group: v1alpha1.Group, Kind: "InstanceTypeCatalog"}, Name: "general", Entry: "d2"}
				s.Offerings = []catalog.Offering{{Zone: tc.zone, CapacityType: "on-demand", Price: 0.1, Priced: true}}
			})
			snapshot := snapshotOf(catalogs)
			choice, ok := snapshot.Resolve("d2", tc.want, "on-demand")
			g.Expect(ok).To(BeTrue(), "zone %s is offered", tc.want)
			g.Expect(choice.FailureDomain).To(Equal(tc.failureDomain))
			g.Expect(choice.Offering.Available).To(Equal(tc.failureDomain != ""))
			g.Expect(choice.ListPrice).To(Equal(0.1))
			source := catalogs.Templates[0].Source.Annotation()
			for _, zone := range []string{tc.zone, tc.want} {
				g.Expect(snapshot.Gone(source, offering.Key{InstanceType: "d2", Zone: zone, CapacityType: "on-demand"})).To(BeFalse(), zone)
			}
		})
	}

	t.Run("When the region becomes known, a machine in the failure domain should not be gone, nor one in its zone", func(t *testing.T) {
		g := NewWithT(t)
		bound := in("eastus", labelled("1"))
		source := bound.Templates[0].Source.Annotation()
		for zone, gone := range map[string]bool{"1": false, "eastus-1": false, "eastus-2": true, "2": true} {
			g.Expect(snapshotOf(bound).Gone(source, offering.Key{InstanceType: "d2", Zone: zone, CapacityType: "on-demand"})).To(Equal(gone), zone)
		}
	})
}

func TestWhyUnavailable(t *testing.T) {
	spot := func(s *template.Template) { s.SpotPrice = ptr.To(0.03) }
	rest := func(in *Input, zones, capacityTypes []string) {
		in.Unavailable = offering.NewUnavailable(clock.RealClock{})
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
			NewWithT(t).Expect(snapshotOf(in).Unavailable(in.Templates[0].Source.Annotation())).To(Equal(tc.want))
		})
	}
}
