// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/internal/message"
)

// Note is an unknown or unusable property of a template that is in use.
type Note struct {
	// On is the source, or the kind for a note about all templates of a kind.
	On string
	// Unknown: the kind has no profile.
	Unknown bool
	Text    string
}

// Error names the object or the kind first.
func (n Note) Error() string { return n.On + ": " + n.Text }

// InvalidError is why one source is excluded. The others stay in use.
type InvalidError struct {
	Source Source
	// On is the object that carries Key, if it isn't the source: a MachineDeployment's template.
	On string
	// Key is the malformed annotation or field, and Value its value; both are empty if the problem isn't a single
	// value.
	Key, Value string
	// Problem continues the sentence after the value: "is not a quantity".
	Problem string
	// Unresolved: the source refers to an object that doesn't exist.
	Unresolved bool
}

// maxShown is the length at which messages truncate a value, in bytes.
const maxShown = 100

// Error names the object, the key, the value and the problem.
func (e *InvalidError) Error() string {
	prefix := e.Source.String() + ": "
	if e.On != "" {
		prefix += e.On + ": "
	}
	if e.Key == "" {
		return prefix + e.Problem
	}
	// The problem follows the value, and messages are truncated.
	return fmt.Sprintf("%s%s: %q %s", prefix, e.Key, message.Cut(e.Value, maxShown), e.Problem)
}

// Found has the objects that a node class selects.
type Found struct {
	// SelectorErrs are the selectors that can't be parsed, each naming its field.
	SelectorErrs []error
	// Matching are the objects that the selectors match, usable or not.
	Matching []Source
	// Templates that can be used, ordered by source.
	Templates []Template
	// Invalid are the matching sources that are excluded.
	Invalid []*InvalidError
	// Closed declares which offerings of catalogs can't be launched, by reason.
	Closed []error
	// Unreadable are the kinds that couldn't be read, each an *informer.UnreadableError. Their templates are missing
	// here and may exist.
	Unreadable []error
	// referred are those of them that only sources refer to; unread are these sources, by Source.Annotation.
	referred []error
	unread   []string
	// Existing counts the objects of each kind, whether they match or not.
	Existing map[schema.GroupKind]int
	// Others counts those of each kind in a shared namespace that don't belong to the Cluster.
	Others map[schema.GroupKind]int
	// BootstrapErr is why the node class's bootstrap can't be used although some templates need it: ErrNoBootstrap, a
	// Forbidden, a NotFound, or an *informer.UnreadableError. Those templates have no bootstrap, and nothing can be
	// launched from them.
	BootstrapErr error
	// ProfileSequence is that of the profiles that templates were read with.
	ProfileSequence uint64
}

// Checked moves the templates that fail a check to Invalid.
func (f *Found) Checked(check func(*Template) error) *Found {
	checked := *f
	checked.Templates, checked.Invalid = nil, slices.Clone(f.Invalid)
	for i := range f.Templates {
		if err := check(&f.Templates[i]); err != nil {
			checked.Invalid = append(checked.Invalid, &InvalidError{Source: f.Templates[i].Source, Problem: err.Error()})
			continue
		}
		checked.Templates = append(checked.Templates, f.Templates[i])
	}
	slices.SortFunc(checked.Invalid, func(a, b *InvalidError) int { return a.Source.compare(b.Source) })
	return &checked
}

func (f *Found) add(s Template, invalid *InvalidError) {
	if invalid != nil {
		f.Invalid = append(f.Invalid, invalid)
		return
	}
	f.Templates = append(f.Templates, s)
}

// unreadable records a kind that can't be read, once. The sources are those that refer to it; none for a kind of sources.
func (f *Found) unreadable(err error, sources ...Source) {
	same := func(other error) bool { return other.Error() == err.Error() }
	switch known := slices.ContainsFunc(f.Unreadable, same); {
	case len(sources) == 0 && known:
		f.referred = slices.DeleteFunc(f.referred, same)
	case !known:
		f.Unreadable = append(f.Unreadable, err)
		if len(sources) > 0 {
			f.referred = append(f.referred, err)
		}
	}
	for _, source := range sources {
		f.unread = append(f.unread, source.Annotation())
	}
}

// Cluster has the fields of the Cluster that templates need.
type Cluster struct {
	// FailureDomains by name, ordered.
	FailureDomains []string
	// Region of the machines whose template declares none: the Cluster's label topology.kubernetes.io/region. It may be empty.
	Region string
	Paused bool
	// Deleting: nothing is launched any more.
	Deleting bool
	// NotReady is why its infrastructure isn't ready; empty while it is. It is known with ErrNotProvisioned, too.
	NotReady string
}
