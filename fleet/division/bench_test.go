// SPDX-License-Identifier: Apache-2.0

package division

import (
	"fmt"
	"testing"
)

// BenchmarkDecide decides for a thousand clusters that share ten pools, each with twenty machines and ten requests.
func BenchmarkDecide(b *testing.B) {
	account := Account{Limits: Amounts{}, Members: map[string]Member{}, Record: map[string]Grant{}}
	for pool := range 10 {
		account.Limits[fmt.Sprintf("pool-%d", pool)] = 25_000
	}
	for cluster := range 1000 {
		charges := Amounts{fmt.Sprintf("pool-%d", cluster%10): 1, fmt.Sprintf("pool-%d", (cluster+1)%10): 4}
		used := Amounts{}
		for pool, amount := range charges {
			used[pool] = 20 * amount
		}
		name := fmt.Sprintf("cluster-%d", cluster)
		grant := Grant{Lease: name, Sequence: 1, Limit: used, Granted: used}
		account.Record[name] = grant
		account.Members[name] = Member{Used: used, Lease: &Lease{ID: name, Sequence: 1, Limit: used, Report: Report{Sequence: 1, Reserved: used, Requests: []Request{{charges, 10}}}}}
	}
	for b.Loop() {
		Decide(account)
	}
}
