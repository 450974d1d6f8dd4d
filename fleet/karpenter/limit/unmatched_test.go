// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestUnmatched(t *testing.T) {
	f := leased(t, division.Amounts{"reservation/cr-1": 1, "limit/cpu": 8000})
	t.Run("When no offering is known yet, it should say nothing", func(t *testing.T) {
		NewWithT(t).Expect(f.Unmatched()).To(BeEmpty())
	})
	t.Run("When no offering takes from a pool, it should name the pool", func(t *testing.T) {
		f.Offer(large, 0.1)
		NewWithT(t).Expect(f.Unmatched()).To(Equal([]string{"reservation/cr-1"}))
	})
	t.Run("When one does, it should not", func(t *testing.T) {
		f.Offer(reserved, 1)
		NewWithT(t).Expect(f.Unmatched()).To(BeEmpty())
	})
	t.Run("When what an offering takes is zero, the pool should be unmatched", func(t *testing.T) {
		g := NewWithT(t)
		f.grant(func(l *Lease) {
			l.Rules = append(l.Rules[:2:2], division.Rule{Pool: "quota/m5/gpus", Resource: capacity.GPUs, Selector: division.Selector{InstanceTypes: []string{"m5.*"}}})
		})
		f.step()
		f.Offer(large, 0.1)
		f.Offer(reserved, 1)
		g.Expect(f.Unmatched()).To(Equal([]string{"quota/m5/gpus"}))
	})
	t.Run("When a commitment covers no offering, it should name it, until one comes that it covers", func(t *testing.T) {
		g := NewWithT(t)
		f.grant(func(l *Lease) {
			l.Rules = rules
			l.Commitments.Commitments = []division.Commitment{
				{Name: "typo", Kind: division.SavingsPlan, HourlySpend: 1, Selector: division.Selector{InstanceTypes: []string{"m5.xlagre"}}},
				{Name: "plan", Kind: division.SavingsPlan, HourlySpend: 1, Selector: division.Selector{InstanceTypes: []string{"m5.xlarge"}}},
			}
		})
		f.step()
		f.Offer(large, 0.1)
		f.Offer(reserved, 1)
		g.Expect(f.Unmatched()).To(Equal([]string{"commitment/plan", "commitment/typo"}))
		f.Offer(xlarge, 0.2)
		g.Expect(f.Unmatched()).To(Equal([]string{"commitment/typo"}))
	})
}
