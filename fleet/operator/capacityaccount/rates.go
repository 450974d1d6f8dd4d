// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"fmt"
	"maps"
	"time"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/internal/message"
)

// reading is the last reading of an object that the account names.
type reading[V any] struct {
	at time.Time
	// value that was read last, maybe earlier; zero if none was.
	value V
	// err of the last attempt.
	err error
}

// readAgain reads an object once in a while. If it can't, the last value stays: a reader that is broken for a while changes nothing.
func readAgain[K comparable, V any](r *reconciliation, readings map[K]reading[V], source K, read func() (V, error)) reading[V] {
	last, known := readings[source]
	if !known || r.now.Sub(last.at) >= quotaInterval {
		value, err := read()
		if err != nil {
			value = last.value
		}
		last = reading[V]{r.now, value, err}
		readings[source] = last
	}
	r.requeue(last.at.Add(quotaInterval).Sub(r.now))
	return last
}

// readRates returns the rates that commitments refer to, by the commitment's name, and those that can't be read.
func (r *reconciliation) readRates(ctx context.Context) (conversion.Rates, []autonodev1alpha1.UnusableEntry) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	var unread []autonodev1alpha1.UnusableEntry
	all, used := conversion.Rates{}, map[autonodev1alpha1.CapacityRatesSource]bool{}
	for i := range r.found.Spec.Commitments {
		c := &r.found.Spec.Commitments[i]
		if c.RatesFrom == nil {
			continue
		}
		used[*c.RatesFrom] = true
		read := readAgain(r, r.rates, *c.RatesFrom, func() (map[string]float64, error) { return conversion.RatesFrom(ctx, r.Live, c.RatesFrom) })
		all[c.Name] = read.value
		if read.err != nil {
			effect := "the last rates stay"
			if read.value == nil {
				effect = "it covers only types in rates"
				if c.DiscountPercent != nil {
					effect = "discountPercent applies"
				}
			}
			unread = append(unread, autonodev1alpha1.UnusableEntry{
				Field: fmt.Sprintf("commitments[%s].ratesFrom", c.Name), Message: message.Cut(effect+": "+read.err.Error(), maxMessage),
			})
		}
	}
	maps.DeleteFunc(r.rates, func(source autonodev1alpha1.CapacityRatesSource, _ reading[map[string]float64]) bool {
		return !used[source]
	})
	return all, unread
}
