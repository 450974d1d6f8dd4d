// SPDX-License-Identifier: Apache-2.0

package capacity

import "math"

// Unlimited machines of a reservation.
const Unlimited = math.MaxInt32

// Offer is the availability and price of an offering within a lease.
type Offer struct {
	// Available: another machine may be launched, maybe after more was granted.
	Available bool
	// Full: nothing but a lack in pools keeps another machine from being launched.
	Full bool
	// Left is how many more machines the reservation of a reserved offering has for this cluster; Unlimited if the lease
	// doesn't limit it.
	Left int
	// Expired: the reservation of a reserved offering has ended. Its machines are paid for as on-demand ones are.
	Expired bool
	// Price is the account's cost of another machine in US dollars an hour, and Saving its saving with one less of those that run. Both are
	// the list price where nothing is committed.
	Price, Saving float64
}
