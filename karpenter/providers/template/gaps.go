// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"
	"strings"
)

// Gaps are the sources of a node class that couldn't be read. A template that is missing because of them may still exist.
type Gaps struct {
	// All: a kind of sources couldn't be read or a selector parsed, so any source may be missing.
	All bool
	// Sources that exist but can't be used, by Source.Annotation. A catalog stands for all its entries.
	Sources []string
}

// Gaps returns the sources that couldn't be read.
func (f *Found) Gaps() Gaps {
	gaps := Gaps{All: len(f.Unreadable) > len(f.referred) || len(f.SelectorErrs) > 0, Sources: slices.Clone(f.unread)}
	for _, invalid := range f.Invalid {
		gaps.Sources = append(gaps.Sources, invalid.Source.Annotation())
	}
	return gaps
}

// Has reports whether a missing source may exist.
func (g Gaps) Has(source string) bool {
	return g.All || slices.ContainsFunc(g.Sources, func(gap string) bool {
		return source == gap || strings.HasPrefix(source, gap) && source[len(gap)] == '/'
	})
}
