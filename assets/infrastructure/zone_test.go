// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const clusterGroup = "infrastructure.cluster.x-k8s.io"

func TestNodeZone(t *testing.T) {
	embedded, err := Embedded()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	overlays, problems, err := Parse([]byte(`
- apiGroup: infrastructure.cluster.x-k8s.io
  kind: HCloudMachine
  nodeZone: {values: {fsn1: fsn1-dc14}}
- apiGroup: infrastructure.cluster.x-k8s.io
  kind: AzureMachine
  nodeZone: {format: 'edge-{failureDomain}'}
- {apiGroup: infrastructure.cluster.x-k8s.io, kind: VSphereMachine, nodeZone: {values: {dz-a: tag-a}}}
- {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSMachine, addresses: {fromMachine: []}}
`))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(problems).To(BeEmpty())
	corrected := embedded.With(overlays)
	for name, test := range map[string]struct {
		kinds                Kinds
		kind, domain, region string
		want                 string
		unknown, differs     bool
	}{
		"Azure numbers its zones, nodes should have the region in front":          {embedded, "AzureMachine", "1", "eastus", "eastus-1", false, false},
		"a template's label names the zone of Azure, it should stay":              {embedded, "AzureMachineTemplate", "eastus-1", "eastus", "eastus-1", false, false},
		"the region is that of another zone, it should be a failure domain":       {embedded, "AzureMachine", "eastus2-1", "eastus", "eastus-eastus2-1", false, false},
		"no region is declared for Azure, it should report that":                  {embedded, "AzureMachine", "1", "", "1", true, false},
		"nodes are named as their failure domain, it should be that":              {embedded, "AWSMachine", "eu-west-1a", "eu-west-1", "eu-west-1a", false, false},
		"a kind has no profile, it should be the failure domain":                  {embedded, "UnheardOfMachine", "a", "", "a", false, false},
		"a platform names zones by failure domain, it should be the zone":         {corrected, "HCloudMachine", "fsn1", "", "fsn1-dc14", false, false},
		"a failure domain isn't among those, it should be the zone itself":        {corrected, "HCloudMachine", "nbg1", "", "nbg1", false, false},
		"a platform corrects a format, it should be by that":                      {corrected, "AzureMachine", "1", "", "edge-1", false, false},
		"only the platform can declare the zones of nodes, it should report that": {embedded, "VSphereMachine", "dz-a", "eu", "dz-a", true, true},
		"the platform declares the zones of nodes, it should be those":            {corrected, "VSphereMachine", "dz-a", "", "tag-a", false, false},
		"a platform corrects something else, it should stay as it is":             {corrected, "AWSMachine", "eu-west-1a", "", "eu-west-1a", false, false},
	} {
		t.Run("When "+name, func(t *testing.T) {
			kind := test.kinds.For(schema.GroupKind{Group: clusterGroup, Kind: test.kind})
			zone, known := kind.NodeZone(test.domain, test.region)
			g := NewWithT(t)
			g.Expect(zone).To(Equal(test.want))
			g.Expect(known).To(Equal(!test.unknown))
			g.Expect(kind.ZonesDiffer()).To(Equal(test.differs))
		})
	}

	for name, test := range map[string]struct{ content, want string }{
		"a format has no failure domain":   {"{format: '{region}-1'}", `[0].nodeZone.format: "{region}-1" is not a label's value with {failureDomain} in it`},
		"a format has another placeholder": {"{format: '{zone}-{failureDomain}'}", `[0].nodeZone.format: "{zone}-{failureDomain}" is not`},
		"a format has it twice":            {"{format: '{failureDomain}-{failureDomain}'}", "[0].nodeZone.format"},
		"a zone can't be a label's value":  {"{values: {a: b/c}}", `[0].nodeZone.values.a: "b/c" is not the value of a label`},
		"values are a list":                {"{values: [a]}", "[0].nodeZone.values: is not an object"},
		"a field is unknown":               {"{template: a}", "[0].nodeZone.template: no such field; the fields are differs, format, values"},
		"it is text":                       {"a", "[0].nodeZone: is not an object"},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			g := NewWithT(t)
			profiles, problems, err := Parse([]byte("- {apiGroup: a, kind: B, nodeZone: " + test.content + "}"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(profiles).To(HaveLen(1), "the rest of it is in use")
			g.Expect(problems).To(ConsistOf(MatchError(HavePrefix(test.want))))
			g.Expect(strings.Count(problems[0].Error(), "\n")).To(BeZero())
		})
	}
}
