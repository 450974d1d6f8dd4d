// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/message"
)

// ratesReading is the last reading of a commitment's ratesFrom.
type ratesReading struct {
	at time.Time
	// rates that were read last, maybe earlier; nil if none were.
	rates map[string]float64
	err   error
}

// readRates returns the rates that commitments refer to, by the commitment's name, and those that can't be read. The last rates of
// these stay.
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
		source := *c.RatesFrom
		used[source] = true
		read, known := r.rates[source]
		if !known || r.now.Sub(read.at) >= quotaInterval {
			rates, err := r.readRate(ctx, &source)
			if err != nil {
				rates = read.rates
			}
			read = ratesReading{at: r.now, rates: rates, err: err}
			r.rates[source] = read
		}
		r.requeue(read.at.Add(quotaInterval).Sub(r.now))
		all[c.Name] = read.rates
		if read.err != nil {
			effect := "the last rates stay"
			if read.rates == nil {
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
	for source := range r.rates {
		if !used[source] {
			delete(r.rates, source)
		}
	}
	return all, unread
}

// readRate reads rates from the API server.
func (r *reconciliation) readRate(ctx context.Context, source *autonodev1alpha1.CapacityRatesSource) (map[string]float64, error) {
	key, object := client.ObjectKey{Namespace: source.Namespace, Name: source.Name}, &corev1.ConfigMap{}
	switch err := r.Live.Get(ctx, key, object); {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("the operator may not get ConfigMap %s; give its ServiceAccount a role", key)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no ConfigMap %s", key)
	case err != nil:
		return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	rates, err := conversion.RatesIn(object, source.Key)
	if err != nil {
		return nil, fmt.Errorf("reading rates: %w", err)
	}
	return rates, nil
}
