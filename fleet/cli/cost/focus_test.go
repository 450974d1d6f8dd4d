// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestFOCUS(t *testing.T) {
	machines := func(instanceType, capacityType, reservation string, list, onDemand float64, count int64) cost.Machines {
		return cost.Machines{Cluster: "clusters/blue", NodePool: "=general", Count: count, Priced: capacity.Priced{
			Machine: capacity.Machine{Offering: capacity.Offering{InstanceType: instanceType, Zone: "a", CapacityType: capacityType, Reservation: reservation}},
			Price:   list, OnDemand: onDemand,
		}}
	}
	costs := []accountCost{{Account: "production", Report: cost.Of(
		[]cost.Machines{machines("m5.xlarge", "on-demand", "", 0.192, 0, 2), machines("m5.large", "spot", "", 0.03, 0.096, 1), machines("k4", "reserved", "cr", 0.01, 0.139, 2)},
		[]division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 10, Price: ptr.To(0.1152)}},
		[]cost.Reservation{{ID: "cr", InstanceType: "k4", Zone: "a", Count: 10, Price: ptr.To(0.139)}},
	)}}
	t.Run("When costs are printed with FOCUS's columns, their effective cost should be the bill", func(t *testing.T) {
		sum := 0.0
		for _, row := range focusRows(costs) {
			sum += row.EffectiveCost
		}
		if want := costs[0].Total.Paid + costs[0].Wasted; math.Abs(sum-want) > 1e-5 || math.Abs(want-(1.152+0.03+1.39)) > 1e-9 {
			t.Errorf("%g, want %g", sum, want)
		}
	})
	t.Run("When they are printed in CSV, they should have a line of columns and no formula", func(t *testing.T) {
		var text strings.Builder
		if err := printCosts(&text, costs, groups["cluster"], "csv"); err != nil {
			t.Fatal(err)
		}
		table, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
		if err != nil || len(table) != 1+5 || !slices.Equal(table[0], focusColumns) {
			t.Errorf("%v\n%s", err, text.String())
		}
		if strings.Contains(text.String(), ",=") || !strings.Contains(text.String(), "'=general") {
			t.Error(text.String())
		}
	})
	t.Run("When they are printed in JSON, the rows should have the same columns", func(t *testing.T) {
		raw, err := json.Marshal(focusRows(costs)[0])
		if err != nil {
			t.Fatal(err)
		}
		columns := map[string]any{}
		if err := json.Unmarshal(raw, &columns); err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(maps.Keys(columns)), slices.Sorted(slices.Values(focusColumns)); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
