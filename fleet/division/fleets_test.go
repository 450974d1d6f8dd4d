// SPDX-License-Identifier: Apache-2.0

package division

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/autonode-io/autonode/capacity"
)

// randomFleet makes commitments of all kinds, and machines, of a few types whose list prices don't depend on the machine.
func randomFleet(random *rand.Rand) (commitments []Commitment, machines []capacity.Priced) {
	types := map[string]capacity.Priced{}
	for name, price := range map[string]float64{
		"m5.large": 0.096, "m5.xlarge": 0.192, "m5.4xlarge": 0.768, "c5.large": 0.085, "c5.9xlarge": 1.53, "g5.xlarge": 1.006, "n2-standard-4": 0.192, "n2-highmem-2": 0.128,
	} {
		m := running(name, price)
		m.VCPUs, m.Memory = Resources(name)
		types[name] = m
	}
	names := []string{"m5.large", "m5.xlarge", "m5.4xlarge", "c5.large", "c5.9xlarge", "g5.xlarge", "n2-standard-4", "n2-highmem-2"}
	name := func() string { return names[random.IntN(len(names))] }
	for range 1 + random.IntN(4) {
		c := Commitment{Name: fmt.Sprint("c", len(commitments)), Discount: float64(1+random.IntN(7)) / 10}
		switch random.IntN(5) {
		case 0:
			c.Kind, c.HourlySpend = SavingsPlan, random.Float64()*3
		case 1:
			c.Kind, c.HourlySpend, c.EC2Instance = SavingsPlan, random.Float64()*2, true
			c.Selector.InstanceTypes = []string{[]string{"m5.*", "c5.*"}[random.IntN(2)]}
		case 2:
			c.Kind, c.HourlySpend, c.Discount, c.Rates = SavingsPlan, random.Float64()*3, 0, map[string]float64{}
			for range 1 + random.IntN(4) {
				at := name()
				c.Rates[at] = types[at].Price * float64(2+random.IntN(8)) / 10
			}
		case 3:
			c.Kind, c.Instances, c.InstanceType, c.SizeFlexible = ReservedInstance, float64(random.IntN(6)), name(), random.IntN(2) == 0
		case 4:
			c.Kind, c.Selector.InstanceTypes = CommittedUse, []string{"n2-*"}
			c.CPU, c.Memory = CommittedAmount{Amount: float64(random.IntN(20)), List: 0.032}, CommittedAmount{Amount: float64(random.IntN(60)), List: 0.004}
		}
		commitments = append(commitments, c)
	}
	for range random.IntN(12) {
		machines = append(machines, types[name()])
	}
	return commitments, machines
}

// TestPricesOfAnyFleet compares prices with the bill of another fleet, and lets Karpenter's consolidation go on until it rests: a machine is
// replaced by the one that costs least, if that costs less than the machine saves.
func TestPricesOfAnyFleet(t *testing.T) {
	const rounding = 1e-9
	random := rand.New(rand.NewPCG(1, 2))
	moves := 0
	for range 5000 {
		commitments, machines := randomFleet(random)
		_, others := randomFleet(random)
		for step := 0; ; step++ {
			c := applied(commitments, machines)
			paid := beyond(c)
			best, at, by := 0.0, -1, capacity.Priced{}
			for i := range machines {
				m := &machines[i]
				saving, without := c.Saving(m), beyond(applied(commitments, slices.Delete(slices.Clone(machines), i, i+1)))
				if want := min(paid-without, c.MarginalPrice(m)); math.Abs(saving-max(0, want)) > rounding {
					t.Fatalf("%v saves %g of %v beside %v, of which the bill is %g with it and %g without it", *m, saving, machines, commitments, paid, without)
				}
				for _, other := range others {
					if offer := OfferOf(&other, nil, c, nil, time.Time{}); saving-offer.Price > best+rounding {
						best, at, by = saving-offer.Price, i, other
					}
				}
			}
			for _, other := range others {
				price, with := c.MarginalPrice(&other), beyond(applied(commitments, append(slices.Clone(machines), other)))
				if diff := price - (with - paid); diff < -rounding || diff > rounding {
					t.Fatalf("one more %v costs %g beside %v and %v, and the bill rises by %g", other, price, machines, commitments, with-paid)
				}
			}
			if at < 0 {
				break
			}
			moves++
			machines[at] = by
			if after := beyond(applied(commitments, machines)); after > paid-rounding {
				t.Fatalf("a consolidation to %v raises the bill from %g to %g: %v beside %v", by, paid, after, machines, commitments)
			}
			if step == 100 {
				t.Fatalf("consolidation doesn't come to rest: %v beside %v", machines, commitments)
			}
		}
	}
	t.Logf("%d consolidations", moves)
}
