// SPDX-License-Identifier: Apache-2.0

package division

import (
	"math"
	"time"
)

// Unbounded is the limit of a pool that limits each cluster by its maximum alone. The sum of all clusters' amounts stays below it.
const Unbounded = int64(1) << 62

// Account is all inputs of Decide. The amounts may be stale, except for Record: the decision is void unless the record
// that is stored is still this one.
type Account struct {
	// Limits of all pools.
	Limits Amounts
	// Members are the account's clusters, by name.
	Members map[string]Member
	// Record has the grants of the last decision, by the cluster's name.
	Record map[string]Grant
	// Preemption: a request that doesn't fit reclaims amounts from members with a lower priority, as far as these aren't guaranteed to them.
	Preemption bool
	// Retained are those of the last decision, and Now is the time of this one by the operator's clock.
	Retained map[string]map[string]Retained
	Now      time.Time
	// First is the least sequence of a cluster that joins. It has to be more than any that the cluster's holder may have observed, also
	// of a lease or a record that is lost: the time, in seconds, is.
	First int64
}

// Member is one cluster of an account.
type Member struct {
	// Priority among the clusters whose requests don't all fit: the higher one is served first.
	Priority int32
	// Guaranteed amounts are the cluster's once it requests them. Amounts that it neither uses nor requests are lent to others. Of an
	// Unbounded pool, it is granted them at once.
	Guaranteed Amounts
	// Maximum is the most that the cluster may have of a pool; no limit of its own for an absent pool.
	Maximum Amounts
	// Used is the charges of the cluster's Machines, also of those that are being created or deleted. What exceeds both the grant and Maximum
	// doesn't count.
	Used Amounts
	// Lease is the cluster's lease as it was read; nil if there is none yet.
	Lease *Lease
	// Idle: the holder hasn't needed all that it holds for long enough, so that the rest returns to the account.
	Idle bool
	// Leaving: the cluster doesn't belong to the account any more. It gets nothing, and its unspent grants return.
	Leaving bool
	// Gone: neither a holder nor Machines are left. Its grants return at once.
	Gone bool
}

// Lease is the content of a lease object.
type Lease struct {
	// ID of the object. Another object of the same name has another one.
	ID string
	// Sequence of the grant that the object carries, and the most that its holder may use by it.
	Sequence int64
	Limit    Amounts
	// Available is about how much may be granted if it is requested, and Attainable the most that might be granted in time. Both are hints.
	Available, Attainable Amounts
	// Reclaims limit the amounts that the cluster may keep, and its holder take by launches.
	Reclaims Reclaims
	// Granted is the amounts that were recorded with the grant. It counts if the record is lost, or was another account's.
	Granted Amounts
	Report  Report
}

// Report is the status of a lease, declared by its holder.
type Report struct {
	// Sequence of the grant that the holder has observed and keeps; earlier ones are void.
	Sequence int64
	// Reserved is the most that the holder's machines take, those included that may still come, until its next grant.
	Reserved Amounts
	// Used is the charges of the holder's machines now, those included that may still come. A grant for Requests has to be larger than
	// this, whatever an operator counts.
	Used Amounts
	// Requests are launches that wait for a larger grant, the oldest first.
	Requests []Request
}

// Request is a number of launches with the same charges.
type Request struct {
	Charges Amounts
	Count   int64
}

// Grant is the record of one cluster. It is recorded before its lease is written.
type Grant struct {
	// Lease is the ID of the object that the grant is for.
	Lease string
	// Sequence increases with each change of Limit or Lease.
	Sequence int64
	// Limit is the lease's amounts: the holder may spend them once it has observed the lease.
	Limit Amounts
	// Granted is the most that the cluster's machines may take until the holder acknowledges Limit. It counts against
	// the pools, and is never less than Limit.
	Granted Amounts
}

func (g Grant) clone() Grant {
	g.Limit, g.Granted = g.Limit.clone(), g.Granted.clone()
	return g
}

// Pending reports whether the holder has been asked to return amounts and hasn't acknowledged that yet.
func (g Grant) Pending() bool { return !g.Limit.Equal(g.Granted) }

// bounded is the part of Used that a member may take from others: its own program makes the Machines, and says what each of them takes.
func (m Member) bounded(granted Amounts) Amounts {
	var exceeded Amounts // few members have any
	for pool, amount := range m.Used {
		allowed := granted[pool]
		if !m.Leaving {
			allowed = max(allowed, m.maximum(pool))
		}
		if amount > allowed {
			if exceeded == nil {
				exceeded = m.Used.clone()
			}
			exceeded.set(pool, allowed)
		}
	}
	if exceeded != nil {
		return exceeded
	}
	return m.Used
}

// maximum is the most that a member may have of a pool.
func (m Member) maximum(pool string) int64 {
	if amount, limited := m.Maximum[pool]; limited {
		return amount
	}
	return math.MaxInt64
}
