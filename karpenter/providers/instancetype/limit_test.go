// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestMaximumSize(t *testing.T) {
	newStore := func() (*Provider, *inventory.Inventory) {
		machines := newInventory()
		return newProvider(Config{Pricing: pricing.New(pricing.NewFile("")), Inventory: machines}), machines
	}
	available := func(t *testing.T, store *Provider) int {
		t.Helper()
		its, err := store.InstanceTypes("default")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, it := range its {
			n += len(it.Offerings.Available())
		}
		return n
	}
	source := newTemplate("c2-small", 2, 0.021, nil).Source.Annotation()
	for _, tc := range []struct {
		name     string
		change   func(*template.Template)
		machines int
		want     int
	}{
		{"When a source has fewer machines than it may, it should be available", func(s *template.Template) { s.MaxSize = ptr.To(2) }, 1, 3},
		{"When a source has as many machines as it may, it should be unavailable", func(s *template.Template) { s.MaxSize = ptr.To(2) }, 2, 0},
		{"When the source keeps machines itself, they should count", func(s *template.Template) { s.MaxSize, s.Replicas = ptr.To(3), 2 }, 1, 0},
		{"When the source keeps more machines than it may, it should be unavailable", func(s *template.Template) { s.MaxSize, s.Replicas = ptr.To(3), 5 }, 0, 0},
		{"When a source has no maximum, it should always be available", nil, 500, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store, machines := newStore()
			set(store, nodeClass(1), []template.Template{newTemplate("c2-small", 2, 0.021, tc.change)}, manyZones())
			for i := range tc.machines {
				machines.ObserveMachine(types.UID(fmt.Sprint(i)), inventory.Machine{Origin: inventory.Origin{Source: source}})
			}
			if got := available(t, store); got != tc.want {
				t.Errorf("%d offerings are available, want %d", got, tc.want)
			}
		})
	}
	t.Run("When a machine of a full source goes, it should be available again at the next look", func(t *testing.T) {
		store, machines := newStore()
		set(store, nodeClass(1), []template.Template{newTemplate("c2-small", 2, 0.021, func(s *template.Template) { s.MaxSize = ptr.To(1) })}, manyZones())
		machines.ObserveMachine("1", inventory.Machine{Origin: inventory.Origin{Source: source}})
		before := available(t, store)
		machines.ForgetMachine("1")
		if after := available(t, store); before != 0 || after != 3 {
			t.Errorf("%d offerings were available, then %d", before, after)
		}
	})
}
