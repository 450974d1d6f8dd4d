// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// maxUnusable is the number of unusable entries in a status, and maxMessage bounds each one's message, in bytes.
	maxUnusable, maxMessage = 50, 200
	// maxQuantity is how much of a malformed quantity or time a message repeats.
	maxQuantity = scalar.MaxQuantity
)

// resources by their name in CapacityAmounts.
var resources = map[string]autonodev1alpha1.PoolResource{
	"machines": autonodev1alpha1.PoolMachines, "cpu": autonodev1alpha1.PoolVCPUs, "memory": autonodev1alpha1.PoolMemory,
	"gpus": autonodev1alpha1.PoolGPUs,
}

// resourceNames are the keys of resources in a fixed order.
var resourceNames = []string{"machines", "cpu", "memory", "gpus"}

// account is a CapacityAccount's spec as the operator understands it.
type account struct {
	// pools that the clusters share, in the order of spec, and limits by their names.
	pools       []autonodev1alpha1.LeasedPool
	limits      division.Amounts
	members     []memberEntry
	commitments []division.Commitment
	unusable    []autonodev1alpha1.UnusableEntry
	// unreadLimits: a limit can't be read, and the last one or none at all is in force.
	unreadLimits bool
	// gracePeriod is how long clusters have to return reclaimed amounts.
	gracePeriod time.Duration
	// next is when a reservation or a commitment begins or ends; zero if none does.
	next time.Time
}

// memberEntry is an entry of spec.members.
type memberEntry struct {
	// field is where it is.
	field         string
	hostedCluster *autonodev1alpha1.HostedClusterReference
	// namespaces selects namespaces; nil if the entry names a hosted cluster.
	namespaces          labels.Selector
	priority            int32
	guaranteed, maximum division.Amounts
	// limits are the pools of the cluster's own limits, with their amounts.
	limits []autonodev1alpha1.LeasedPool
	// found: it matches a hosted cluster; applies: no earlier entry matches that one.
	found, applies bool
}

func (e *memberEntry) matches(namespace, name string, namespaceLabels labels.Set) bool {
	if e.hostedCluster != nil {
		return e.hostedCluster.Namespace == namespace && e.hostedCluster.Name == name
	}
	return e.namespaces != nil && e.namespaces.Matches(namespaceLabels)
}

// parseSpec reads a spec at a time, with the rates that its commitments refer to. Entries that it can't read are unusable; the rest is in
// use.
func parseSpec(spec *autonodev1alpha1.CapacityAccountSpec, rates conversion.Rates, now time.Time) *account {
	a := &account{limits: division.Amounts{}, gracePeriod: spec.ReclaimGracePeriod.Or(division.DefaultReclaimGracePeriod)}
	for i := range spec.Reservations {
		r := &spec.Reservations[i]
		name, expires := autonodev1alpha1.ReservationPool(r.ID), fmt.Sprintf("reservations[%s].expires", r.ID)
		a.pools = append(a.pools, autonodev1alpha1.LeasedPool{
			Name: name, Resource: autonodev1alpha1.PoolMachines, Reservation: r.ID, Expires: r.Expires,
			Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{r.InstanceType}, Zones: []string{r.Zone}},
		})
		a.limits[name] = int64(r.Count)
		switch {
		case r.Expires != nil && r.Expires.Malformed != "":
			a.limits[name], a.pools[i].Expires = 0, nil
			a.problem(expires, fmt.Errorf("%q is not a time in RFC 3339, such as 2026-12-01T06:00:00Z; "+
				"until it is one, Karpenter launches nothing in the reservation", message.Cut(r.Expires.Malformed, maxQuantity)))
		case a.passed(r.Expires, now):
			a.limits[name] = 0
			a.problem(expires, errors.New("has passed: Karpenter launches nothing in the reservation; "+
				"remove the entry once its machines have gone"))
		}
	}
	for i := range spec.Quotas {
		a.quota(&spec.Quotas[i])
	}
	for i := range spec.Commitments {
		a.passed(spec.Commitments[i].Starts, now)
		a.passed(spec.Commitments[i].Ends, now)
	}
	var unusable []autonodev1alpha1.UnusableEntry
	a.commitments, unusable = conversion.CommitmentsAt(spec, rates, now)
	a.unusable = append(a.unusable, unusable...)
	for i := range spec.Members {
		a.member(i, &spec.Members[i])
	}
	return a
}

// passed reports whether a time has passed, as a malformed one has; if it will, the account changes then.
func (a *account) passed(t *scalar.Time, now time.Time) bool {
	if t == nil || !t.At().After(now) {
		return t != nil
	}
	if a.next.IsZero() || t.At().Before(a.next) {
		a.next = t.At()
	}
	return false
}

func (a *account) problem(field string, err error) {
	a.unusable = append(a.unusable, autonodev1alpha1.UnusableEntry{Field: field, Message: message.Cut(err.Error(), maxMessage)})
}

func (a *account) quota(q *autonodev1alpha1.CapacityQuota) {
	field := fmt.Sprintf("quotas[%s].limits", q.Name)
	if len(q.Limits)+len(q.LimitsFrom) == 0 {
		a.problem(field, errors.New("is empty; set machines, cpu, memory or gpus"))
	}
	for key, limit := range ordered(q.Limits) {
		amount := a.closed(field+"."+key, key, limit)
		name := autonodev1alpha1.QuotaPool(q.Name, key)
		a.pools = append(a.pools, autonodev1alpha1.LeasedPool{Name: name, Resource: resources[key], Selector: q.Selector})
		a.limits[name] = amount
	}
}

func (a *account) member(i int, m *autonodev1alpha1.CapacityMember) {
	field := fmt.Sprintf("members[%d]", i)
	entry := memberEntry{hostedCluster: m.HostedCluster, priority: m.Priority, maximum: division.Amounts{}}
	if m.HostedCluster != nil {
		field = fmt.Sprintf("members[%s/%s]", m.HostedCluster.Namespace, m.HostedCluster.Name)
	} else {
		selector, err := metav1.LabelSelectorAsSelector(m.NamespaceSelector)
		if err != nil {
			a.problem(field+".namespaceSelector", err)
			return
		}
		entry.namespaces = selector
	}
	entry.field = field
	entry.guaranteed = division.Amounts{}
	for i := range m.Guaranteed {
		maps.Copy(entry.guaranteed, a.share(fmt.Sprintf("%s.guaranteed[%d]", field, i), &m.Guaranteed[i], a.amount))
	}
	for i := range m.Maximum {
		closed := func(field, key string, value scalar.Quantity) (int64, bool) { return a.closed(field, key, value), true }
		maps.Copy(entry.maximum, a.share(fmt.Sprintf("%s.maximum[%d]", field, i), &m.Maximum[i], closed))
	}
	for key, limit := range ordered(m.Limits) {
		amount := a.closed(field+".limits."+key, key, limit)
		// The limit is the cluster's alone: all of it is granted at once, and no other cluster draws on it.
		name := autonodev1alpha1.LimitPool(key)
		entry.limits = append(entry.limits, autonodev1alpha1.LeasedPool{Name: name, Resource: resources[key]})
		entry.guaranteed[name], entry.maximum[name] = amount, amount
		for i := range a.pools {
			if shared := &a.pools[i]; shared.Resource == resources[key] {
				maximum, limited := entry.maximum[shared.Name]
				if entry.maximum[shared.Name] = amount; limited {
					entry.maximum[shared.Name] = min(maximum, amount)
				}
			}
		}
	}
	a.members = append(a.members, entry)
}

// unmatched reports the entries of members that no hosted cluster gets.
func (a *account) unmatched() {
	for i := range a.members {
		switch e := &a.members[i]; {
		case e.applies:
		case e.found:
			a.problem(e.field, errors.New("matches no hosted cluster but those of earlier entries"))
		default:
			a.problem(e.field, errors.New("matches no hosted cluster with AutoNode on platform ClusterAPI"))
		}
	}
}

// share returns the amounts of a share, by pool.
func (a *account) share(
	field string, share *autonodev1alpha1.CapacityShare, read func(field, key string, value scalar.Quantity) (int64, bool),
) division.Amounts {
	amounts := division.Amounts{}
	for key, value := range ordered(share.Amounts) {
		pool := autonodev1alpha1.QuotaPool(share.Quota, key)
		if share.Reservation != "" {
			pool = autonodev1alpha1.ReservationPool(share.Reservation)
		}
		at := field + ".amounts." + key
		if _, known := a.limits[pool]; !known || share.Reservation != "" && key != "machines" {
			a.problem(at, fmt.Errorf("the account has no usable %s of %s", key, message.Cut(pool, 2*63)))
			continue
		}
		if amount, ok := read(at, key, value); ok {
			amounts[pool] = amount
		}
	}
	return amounts
}

// limit bounds a cluster's grants of the pools of its own limits.
func (a *account) limit() {
	for _, key := range resourceNames {
		a.limits[autonodev1alpha1.LimitPool(key)] = division.Unbounded
	}
}

// ordered returns the amounts in the order of resourceNames.
func ordered(amounts autonodev1alpha1.CapacityAmounts) iter.Seq2[string, scalar.Quantity] {
	return func(yield func(string, scalar.Quantity) bool) {
		for _, key := range resourceNames {
			if amount, ok := amounts[key]; ok && !yield(key, amount) {
				return
			}
		}
	}
}

// amount parses the quantity of a field. If it can't, the field is unusable.
func (a *account) amount(field, key string, value scalar.Quantity) (int64, bool) {
	amount, err := parse(key, value)
	if err != nil {
		a.problem(field, err)
	}
	return amount, err == nil
}

// closed parses a limit. Zero is in force instead of one that it can't read: without a limit, clusters could launch without bounds.
func (a *account) closed(field, key string, value scalar.Quantity) int64 {
	amount, err := parse(key, value)
	if err != nil {
		a.unreadLimits = true
		a.problem(field, fmt.Errorf("%w; until it is one, nothing more is launched that counts against it", err))
		return 0
	}
	return amount
}

// parse returns a quantity in the unit of its pool.
func parse(key string, value scalar.Quantity) (int64, error) {
	text := value.String()
	if len(text) > maxQuantity {
		return 0, fmt.Errorf("has %d characters, and a quantity at most %d", len(text), maxQuantity)
	}
	quantity, err := value.Parse()
	if err != nil {
		return 0, fmt.Errorf("%q %w", text, err)
	}
	size := quantity.AsApproximateFloat64()
	if key == "cpu" {
		size *= 1000
	}
	switch {
	case quantity.Sign() < 0:
		return 0, fmt.Errorf("%q is negative", text)
	case size > float64(autonodev1alpha1.MaxAmount):
		return 0, fmt.Errorf("%q is too large", text)
	case key == "cpu":
		return quantity.MilliValue(), nil
	}
	return quantity.Value(), nil
}

// format is the reverse of parse, for a pool's resource.
func format(kind autonodev1alpha1.PoolResource, amount int64) string {
	switch kind {
	case autonodev1alpha1.PoolVCPUs:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case autonodev1alpha1.PoolMemory:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return strconv.FormatInt(amount, 10)
}
