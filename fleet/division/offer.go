// SPDX-License-Identifier: Apache-2.0

package division

import (
	"slices"
	"time"

	"github.com/autonode-io/autonode/capacity"
)

// MinPriceFraction is the part of the list price that commitments never lower. It keeps the order of machines that cost nothing
// more, else the largest of them would be as good as the smallest.
const MinPriceFraction = 0.001

// Pool is the remaining amount of one of a lease's pools.
type Pool struct {
	Left int64
	// Counted: changes of each machine count, as it is the pool of a reservation.
	Counted bool
	// Expires is when the pool ends; zero if it doesn't.
	Expires time.Time
}

// Expired reports whether the pool has ended.
func (p *Pool) Expired(now time.Time) bool { return !p.Expires.IsZero() && !now.Before(p.Expires) }

// PoolCharge is a machine's charge on a pool.
type PoolCharge struct {
	*Pool
	Amount int64
}

// Unavailable are offerings of which another cluster has found no capacity. An empty field is any; an instance type that
// ends with * is any that begins with the rest.
type Unavailable struct {
	InstanceType, Zone, CapacityType string
	Until                            time.Time
}

func (u Unavailable) selects(o capacity.Offering, now time.Time) bool {
	return now.Before(u.Until) && (u.InstanceType == "" || Matches(u.InstanceType, o.InstanceType)) &&
		(u.Zone == "" || u.Zone == o.Zone) && (u.CapacityType == "" || u.CapacityType == o.CapacityType)
}

// OfferOf returns the offer of a machine with its list price and its charges. commitments are nil where nothing is committed.
func OfferOf(m *capacity.Priced, charges []PoolCharge, commitments *Commitments, unavailable []Unavailable, now time.Time) capacity.Offer {
	o := capacity.Offer{Available: true, Remaining: capacity.Unlimited, Price: m.Price, Saving: m.Price}
	ended := false
	for _, charge := range charges {
		o.Available = o.Available && charge.Left >= charge.Amount
		ended = ended || charge.Expired(now)
		if charge.Counted {
			o.Remaining = int(min(int64(o.Remaining), charge.Left/charge.Amount))
			o.Expired = o.Expired || charge.Expired(now)
		}
	}
	elsewhere := slices.ContainsFunc(unavailable, func(u Unavailable) bool { return u.selects(m.Offering, now) })
	o.Full = !o.Available && !ended && !elsewhere
	o.Available = o.Available && !elsewhere
	// A reservation is billed whether it is used or not: its offering's own price decides.
	if commitments != nil && m.Price > 0 && m.Reservation == "" {
		price := commitments.MarginalPrice(m)
		// A saving has no such part: a machine that saves nothing isn't replaced by another one that costs nothing more.
		o.Price, o.Saving = price+(m.Price-price)*MinPriceFraction, commitments.Saving(m)
	}
	return o
}
