// SPDX-License-Identifier: Apache-2.0

package division

import (
	"testing"
	"time"
)

// A member is red. It was granted one machine of the pool, has one, and may have two.
func TestHostileMember(t *testing.T) {
	reports := func(reserved int64) (Member, Grant) {
		grant := Grant{Lease: "red-lease", Sequence: 3, Limit: Amounts{pool: 1}, Granted: Amounts{pool: 1}}
		return Member{Used: Amounts{pool: 1}, Maximum: Amounts{pool: 2}, Lease: lease(grant, Amounts{pool: reserved})}, grant
	}
	green, greens := using(3, nil, Request{one, 2})
	for name, change := range map[string]func(*Member){
		"reports that its machines take more than there is": func(m *Member) { m.Lease.Report.Reserved = Amounts{pool: 1 << 40} },
		"reports so, and requests another one": func(m *Member) {
			m.Lease.Report.Reserved, m.Lease.Report.Requests = Amounts{pool: 1 << 40}, []Request{{one, 1}}
		},
		"creates a Machine of which an annotation says that it is huge": func(m *Member) { m.Used = Amounts{pool: 1 << 46} },
		"does so before it joins":  func(m *Member) { m.Used, m.Lease = Amounts{pool: 1 << 46}, nil },
		"does so before it leaves": func(m *Member) { m.Used, m.Leaving = Amounts{pool: 1 << 46}, true },
	} {
		t.Run("When a member "+name+", others should have the free part of the pool", func(t *testing.T) {
			red, reds := reports(1)
			change(&red)
			record := map[string]Grant{"red": reds, "green": greens}
			if red.Lease == nil {
				delete(record, "red")
			}
			d := Decide(Account{Limits: Amounts{pool: 10}, Members: map[string]Member{"red": red, "green": green}, Record: record})
			if granted := d.Record["green"].Granted[pool]; granted != 5 {
				t.Errorf("green uses 3 and requests 2 of 10, and is granted %d", granted)
			}
		})
	}
	now := time.Unix(1_000_000, 0)
	t.Run("When a member with a higher priority reports more than there is, no other member should be asked to return machines while some are free", func(t *testing.T) {
		red, reds := reports(1 << 40)
		red.Priority = 1
		amber, ambers := using(0, guaranteed(10), Request{one, 1})
		borrower, borrows := using(60, nil)
		for range 2 {
			d := Decide(Account{
				Limits: Amounts{pool: 100}, Now: now, Members: map[string]Member{"red": red, "amber": amber, "green": borrower},
				Record: map[string]Grant{"red": reds, "amber": ambers, "green": borrows},
			})
			if len(d.Reclaims) > 0 {
				t.Fatalf("39 of 100 are free, and others are to keep %v", d.Reclaims)
			}
			now = now.Add(16 * time.Minute)
		}
	})
}
