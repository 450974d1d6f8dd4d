// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHeldRoom(t *testing.T) {
	large, small := Amounts{vcpus: 64}, Amounts{vcpus: 4}
	// decide divides 128 vCPUs by the priorities of green and blue. Green has waited for a launch of 64. Blue holds 60, of which 8 are guaranteed, and
	// requests 4 more.
	decide := func(green, blue int32) Decision {
		held := Grant{Lease: "blue", Sequence: 3, Asked: Amounts{vcpus: 60}, Granted: Amounts{vcpus: 60}}
		others := Grant{Lease: "red", Sequence: 3, Asked: Amounts{vcpus: 64}, Granted: Amounts{vcpus: 64}}
		none := Grant{Lease: "green", Sequence: 3, Asked: Amounts{}, Granted: Amounts{}}
		return Decide(Account{
			Limits: Amounts{vcpus: 128}, Now: now, Record: map[string]Grant{"blue": held, "green": none, "red": others},
			Line: map[string]Place{"green": {Charges: large, Count: 1, Since: now.Add(-HoldAfter)}},
			Members: map[string]Member{
				"blue":  {Priority: blue, Used: held.Asked, Guaranteed: Amounts{vcpus: 8}, Lease: lease(held, held.Asked, Request{small, 1})},
				"green": {Priority: green, Lease: lease(none, nil, Request{large, 1})},
				"red":   {Priority: blue, Used: others.Asked, Lease: lease(others, others.Asked)},
			},
		})
	}
	t.Run("When room is held, requests of the same priority should be granted nothing of it, also if their Karpenter has no support for that", func(t *testing.T) {
		d := decide(0, 0)
		if got := d.Record["blue"].Asked[vcpus]; got != 60 {
			t.Errorf("blue is granted %d", got)
		}
		if diff := cmp.Diff(map[string]Amounts{"blue": {vcpus: 8}, "green": {vcpus: 0}, "red": {vcpus: 0}}, d.Keep); diff != "" {
			t.Errorf("launches are bounded by (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Amounts{vcpus: 68}, d.Waiting); diff != "" {
			t.Errorf("waiting (-want +got):\n%s", diff)
		}
		if next := now.Add(HoldWithout); !d.Next.Equal(next) {
			t.Errorf("it changes at %s, want %s", d.Next, next)
		}
	})
	t.Run("When requests have a higher priority, they should be granted what is free", func(t *testing.T) {
		d := decide(0, 1)
		if got := d.Record["blue"].Asked[vcpus]; got != 64 {
			t.Errorf("blue is granted %d", got)
		}
		if len(d.Keep["blue"])+len(d.Keep["red"]) > 0 {
			t.Errorf("launches are bounded by %v", d.Keep)
		}
	})
}
