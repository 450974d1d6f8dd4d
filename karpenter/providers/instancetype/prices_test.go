// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestPriceFile(t *testing.T) {
	newStore := func(t *testing.T, text string) *Provider {
		t.Helper()
		path := filepath.Join(t.TempDir(), "prices.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		store := newProvider(Config{Pricing: pricing.WithFile(pricing.NewFile(path))})
		set(store, nodeClass(1), []template.Template{newShape("c2-small", 2, 0.021, nil)}, manyZones())
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
	t.Run("When a price file has prices, it should offer at those, by zone, and spot too", func(t *testing.T) {
		store := newStore(t, "- {instanceType: c2-small, zone: b, price: 0.5}\n- {instanceType: c2-small, zone: a, capacityType: spot, price: 0.007}")
		for _, tc := range []struct {
			zone, capacityType string
			want               float64
			found              bool
		}{{"a", "on-demand", 0.021, true}, {"b", "on-demand", 0.5, true}, {"a", "spot", 0.007, true}, {"b", "spot", 0, false}} {
			if price, available, found := resolve(t, store, tc.zone, tc.capacityType); price != tc.want || available != tc.found || found != tc.found {
				t.Errorf("%s in %s: $%v, %t, %t", tc.capacityType, tc.zone, price, available, found)
			}
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
