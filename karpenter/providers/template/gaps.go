// SPDX-License-Identifier: Apache-2.0

package template

import "slices"

// Gaps are what isn't known of a node class's shapes: what lacks because of them may be there all the same.
type Gaps struct {
	// All: a kind couldn't be read, or a selector parsed, so that any source may lack.
	All bool
	// Sources that are there but can't be used, by Source.Annotation.
	Sources []string
}

// Gaps of what was found.
func (f *Found) Gaps() Gaps {
	gaps := Gaps{All: len(f.Unreadable) > 0 || len(f.SelectorErrs) > 0}
	for _, invalid := range f.Invalid {
		gaps.Sources = append(gaps.Sources, invalid.Source.Annotation())
	}
	return gaps
}

// Has tells whether a source may be there although it lacks.
func (g Gaps) Has(source string) bool { return g.All || slices.Contains(g.Sources, source) }
