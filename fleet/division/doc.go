// SPDX-License-Identifier: Apache-2.0

// Package division divides the reservations and quotas of an account among hosted clusters. It is pure, without
// clients or goroutines. An operator grants leases with Decide, each Karpenter spends its own by a Holder, and
// Commitments give the cost of one more machine beside commitments.
//
// The record is the status of a CapacityAccount (fleet/operator/capacityaccount), a lease a CapacityLease in a control-plane
// namespace, and a Holder's is the adapter fleet/karpenter/limit. The gaps are at the end of this page.
//
//	record (one object per account)           lease (one object per cluster)            Holder (one per process)
//	blue: granted 6, limit 6, sequence 3  ->  sequence 3: 6                        ->  launches up to 6
//	blue: granted 6, limit 2, sequence 4  ->  sequence 4: 2                        ->  launches nothing above 2
//	blue: granted 3, limit 2, sequence 4  <-  acknowledged 4, reserved 3           <-  3 machines, one of which may still come
//	green: granted 7                      ->  sequence 2: 7                        ->  launches up to 7
//
// The sum of the grants never exceeds a pool's limit by a decision, and no cluster's machines take more than it is
// granted. A cluster that joins with machines is granted those, independent of the limit. That holds with several operators,
// after a crash at any step and with stale caches, by these rules:
//
//   - Record first, grant second. A decision replaces the record only if that is still the one it was made from
//     (optimistic concurrency), and leases are written afterwards.
//   - A lease is written only with a newer sequence than it has, only if it is the object that the record names, and only if it hasn't
//     changed since it was read. A new lease object grants nothing. So an operator with an old record can't write amounts that were
//     reclaimed since.
//   - Amounts asked back count until the holder acknowledges that very sequence. Its holdings then count: machines,
//     and launches of which the request may still have its effect.
//   - An acknowledgement only lowers a grant. An old one of the same sequence may say more than a newer one by which
//     others have been granted the rest.
//   - A holder ignores a lease with an older sequence than it has seen. Its process begins by reading the lease and the
//     Machines from the API server.
//   - A holder ignores a lease object that the API server didn't have when it was asked. A new object has no sequence
//     until it grants something, so that a process which begins by reading it couldn't tell that a deleted one in its
//     cache is older.
//   - A launch that was given up counts until its requests have had their effect and the API server, asked after that, has no
//     Machine of it.
//   - A process that succeeds another launches and acknowledges nothing for InFlight after it was elected. No rule of an
//     API server fences a request that a dead process has sent, but an API server ends each within that time.
//   - A process sends nothing once it may have lost its Lease, also in the middle of a launch that began before.
//   - An operator's own count, from its cache of Machines, may be old. It frees nothing, and raises a grant only within the record's free
//     amounts.
//
// A Karpenter that is dead or partitioned acknowledges nothing, so its holdings stay granted. A pool that a holder has never been informed
// of isn't enforced there: the charges of its Machines count, and its launches aren't limited until it acknowledges.
//
// # Gaps
//
//   - Clusters that join with machines, in the schedules of the test: those that join there have none. fleet/operator/capacityaccount has a
//     test of them, without random schedules.
//   - A network that delivers a connection's packets after more than a minute, when the connection was closed long ago.
//   - A pool that is added to an account isn't enforced in a cluster before its Karpenter has acknowledged it, and the
//     others aren't kept from it meanwhile.
package division
