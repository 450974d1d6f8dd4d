// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// spotPatches make spot machines where they are offered.
func spotPatches(t *testing.T) patch.List {
	t.Helper()
	patches, err := patch.Parse([]v1alpha1.JSONPatch{{Op: v1alpha1.JSONPatchAdd, Path: "/spec/market", ValueFrom: &v1alpha1.JSONPatchValue{Variable: patch.CapacityType}}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return patches
}

func TestPriceFile(t *testing.T) {
	both := func(s *template.Template) { s.Patches = spotPatches(t) }
	for name, tc := range map[string]struct {
		text   string
		change func(*template.Template)
		want   []string
	}{
		"When a price file has prices, it should offer at those, by zone, and close what has none": {
			"- {instanceType: c4, zone: b, price: 0.5}\n- {instanceType: c4, zone: a, capacityType: spot, price: 0.007}", both,
			[]string{"c4: a on-demand $0.1", "c4: a spot $0.007", "c4: b on-demand $0.5", "c4: b spot $0.5 !"},
		},
		"When a price file has a spot price and the template makes on-demand machines, it should offer no spot": {
			"- {instanceType: c4, capacityType: spot, price: 0.007}", nil, []string{"c4: a on-demand $0.1", "c4: b on-demand $0.1"},
		},
		"When a price file was never understood, it should not take spot offerings for gone, and launch none": {
			"nonsense", both, []string{"c4: a on-demand $0.1", "c4: a spot $0.1 !", "c4: b on-demand $0.1", "c4: b spot $0.1 !"},
		},
		"When a capacity type is declared without a price, it should offer it in every zone, unavailable": {
			"[]", both, []string{"c4: a on-demand $0.1", "c4: a spot $0.1 !", "c4: b on-demand $0.1", "c4: b spot $0.1 !"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "prices.yaml")
			g.Expect(os.WriteFile(path, []byte(tc.text), 0o600)).To(Succeed())
			in := input(newTemplate("c4", 4, 0.1, tc.change))
			in.Pricing = pricing.New(pricing.NewFile(path))
			g.Expect(offered(snapshotOf(in).InstanceTypes)).To(Equal(tc.want))
		})
	}
}
