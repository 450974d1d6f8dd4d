// SPDX-License-Identifier: Apache-2.0

package division

import (
	"fmt"
	"testing"

	"github.com/autonode-io/autonode/capacity"
)

// BenchmarkPrices prices each of 1,400 types beside 300 groups of machines and five commitments, as Karpenter does when one machine comes.
func BenchmarkPrices(b *testing.B) {
	var commitments []Commitment
	rates := map[string]float64{}
	var types []capacity.Priced
	for family := range 175 {
		for size := range 8 {
			m := running(fmt.Sprintf("m%d.%dxlarge", family, size+1), float64(size+1)*(0.1+float64(family)/1000))
			types = append(types, m)
			rates[m.InstanceType] = m.Price * float64(50+family%30) / 100
		}
	}
	for i := range 3 {
		commitments = append(commitments, Commitment{Name: fmt.Sprint("ri", i), Kind: ReservedInstance, InstanceType: types[i*8].InstanceType, SizeFlexible: true, Instances: 10})
	}
	commitments = append(commitments, Commitment{Name: "compute", Kind: SavingsPlan, HourlySpend: 20, Rates: rates}, Commitment{Name: "percent", Kind: SavingsPlan, HourlySpend: 5, Discount: 0.2})
	for b.Loop() {
		c := NewCommitments(commitments)
		for i := range 300 {
			c.Add(Group{Priced: types[i*4%len(types)], Count: 3})
		}
		for i := range types {
			c.MarginalPrice(&types[i])
		}
	}
}
