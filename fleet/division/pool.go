// SPDX-License-Identifier: Apache-2.0

package division

import (
	"maps"
	"slices"
	"strings"

	"github.com/autonode-io/autonode/capacity"
)

// Amounts are amounts by pool, in the unit of the pool's resource. An absent pool is zero.
type Amounts map[string]int64

// add adds an amount, and keeps no zero.
func (a Amounts) add(pool string, amount int64) {
	if a[pool] += amount; a[pool] == 0 {
		delete(a, pool)
	}
}

// set sets an amount, and keeps no zero.
func (a Amounts) set(pool string, amount int64) {
	if a[pool] = amount; amount == 0 {
		delete(a, pool)
	}
}

// Raise sets each amount to at least the other's.
func (a Amounts) Raise(other Amounts) {
	for pool, amount := range other {
		a.set(pool, max(a[pool], amount))
	}
}

// Equal reports whether two Amounts are the same; an absent amount is zero.
func (a Amounts) Equal(other Amounts) bool {
	for pool, amount := range a {
		if other[pool] != amount {
			return false
		}
	}
	for pool, amount := range other {
		if a[pool] != amount {
			return false
		}
	}
	return true
}

// clone returns a copy that isn't nil.
func (a Amounts) clone() Amounts {
	c := make(Amounts, len(a))
	maps.Copy(c, a)
	return c
}

// Selector selects offerings. An empty list selects all.
type Selector struct {
	// InstanceTypes and Catalogs are names, or patterns: see Matches.
	InstanceTypes []string
	Catalogs      []string
	Zones         []string
	CapacityTypes []string
}

// Selects reports whether an offering is selected.
func (s Selector) Selects(o capacity.Offering) bool {
	return named(s.InstanceTypes, o.InstanceType) &&
		named(s.Catalogs, o.Catalog) &&
		(len(s.Zones) == 0 || slices.Contains(s.Zones, o.Zone)) &&
		(len(s.CapacityTypes) == 0 || slices.Contains(s.CapacityTypes, o.CapacityType))
}

// named reports whether one of the patterns, if there are any, matches a name. Without a name only the empty list does.
func named(patterns []string, name string) bool {
	return len(patterns) == 0 || name != "" && slices.ContainsFunc(patterns, func(pattern string) bool { return Matches(pattern, name) })
}

// Matches reports whether a name matches a pattern, in which each * stands for any characters, or for none.
func Matches(pattern, name string) bool {
	first, rest, wildcard := strings.Cut(pattern, "*")
	if !wildcard {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := len(parts) - 1
	for _, part := range parts[:last] {
		// The earliest place leaves most for the rest.
		if _, name, ok = strings.Cut(name, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(name, parts[last])
}

// Rule declares which machines take from a pool, and how much.
type Rule struct {
	Pool     string
	Resource capacity.Resource
	Selector Selector
	// Reservation is the ID that a machine has to use; empty for any machine.
	Reservation string
}

// Charges returns a machine's charges by pool.
func Charges(rules []Rule, m capacity.Machine) Amounts {
	charges := Amounts{}
	for _, rule := range rules {
		if rule.Selector.Selects(m.Offering) && (rule.Reservation == "" || rule.Reservation == m.Reservation) {
			charges.add(rule.Pool, m.Amount(rule.Resource))
		}
	}
	return charges
}
