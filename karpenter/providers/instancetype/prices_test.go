// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// spotPatches make spot machines where they are offered.
func spotPatches(t *testing.T) patch.List {
	t.Helper()
	patches, err := patch.Parse([]v1alpha1.JSONPatch{{Op: v1alpha1.JSONPatchAdd, Path: "/spec/market", ValueFrom: &v1alpha1.JSONPatchValue{Variable: patch.CapacityType}}})
	if err != nil {
		t.Fatal(err)
	}
	return patches
}

func TestPriceFile(t *testing.T) {
	newStore := func(t *testing.T, text string) *Provider {
		t.Helper()
		path := filepath.Join(t.TempDir(), "prices.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		store := newProvider(Config{Pricing: pricing.New(pricing.NewFile(path))})
		set(store, nodeClass(1), []template.Template{newTemplate("c2-small", 2, 0.021, func(s *template.Template) { s.Patches = spotPatches(t) })}, manyZones())
		return store
	}
	resolve := func(t *testing.T, store *Provider, zone, capacityType string) (price float64, available, found bool) {
		t.Helper()
		choice, ok, err := store.Resolve("default", "c2-small", zone, capacityType)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return 0, false, false
		}
		return choice.Offering.Price, choice.Offering.Available, true
	}
	t.Run("When a price file has prices, it should offer at those, by zone, and close what has none", func(t *testing.T) {
		store := newStore(t, "- {instanceType: c2-small, zone: b, price: 0.5}\n- {instanceType: c2-small, zone: a, capacityType: spot, price: 0.007}")
		for _, tc := range []struct {
			zone, capacityType string
			want               float64
			priced             bool
		}{{"a", "on-demand", 0.021, true}, {"b", "on-demand", 0.5, true}, {"a", "spot", 0.007, true}, {"b", "spot", 0.5, false}} {
			if price, available, found := resolve(t, store, tc.zone, tc.capacityType); price != tc.want || available != tc.priced || !found {
				t.Errorf("%s in %s: $%v, %t, %t", tc.capacityType, tc.zone, price, available, found)
			}
		}
	})
	t.Run("When a price file has a spot price and the template makes on-demand machines, it should offer no spot", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "prices.yaml")
		if err := os.WriteFile(path, []byte("- {instanceType: c2-small, capacityType: spot, price: 0.007}"), 0o600); err != nil {
			t.Fatal(err)
		}
		store := newProvider(Config{Pricing: pricing.New(pricing.NewFile(path))})
		set(store, nodeClass(1), []template.Template{newTemplate("c2-small", 2, 0.021, nil)}, manyZones())
		if _, _, found := resolve(t, store, "a", "spot"); found {
			t.Error("spot is offered")
		}
	})
	t.Run("When a template makes spot machines, it should offer no others, at an estimate if it has no price", func(t *testing.T) {
		store := newProvider(Config{Pricing: pricing.New(pricing.NewFile(""))})
		set(store, nodeClass(1), []template.Template{newTemplate("c2-small", 2, 0.021, func(s *template.Template) { s.Price, s.CapacityType = nil, "spot" })}, manyZones())
		if _, _, found := resolve(t, store, "a", "on-demand"); found {
			t.Error("on-demand is offered")
		}
		if price, available, found := resolve(t, store, "a", "spot"); price <= 0 || !available || !found {
			t.Errorf("spot: $%v, %t, %t", price, available, found)
		}
	})
	t.Run("When a price file was never understood, it should not take spot offerings for gone, and launch none", func(t *testing.T) {
		store := newStore(t, "nonsense")
		if _, available, found := resolve(t, store, "a", "spot"); !found || available {
			t.Errorf("found %t, available %t", found, available)
		}
		if price, available, _ := resolve(t, store, "a", "on-demand"); price != 0.021 || !available {
			t.Errorf("on-demand: $%v, %t", price, available)
		}
	})
}
