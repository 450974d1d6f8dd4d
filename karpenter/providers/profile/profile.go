// SPDX-License-Identifier: Apache-2.0

// Package profile has the differences between the kinds of infrastructure machines: the embedded profiles, and those with
// which a platform adds kinds or corrects them.
package profile

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
)

// Profiles of infrastructure kinds. It is a manager.Runnable that follows the platform's file, a YAML list of profiles. A part
// of the file that can't be understood is a problem, and the rest is in use; of a file that is no list at all, the profiles
// read before stay.
type Profiles struct {
	*filewatch.File
	embedded infrastructure.Kinds

	state    atomic.Pointer[contents]
	sequence atomic.Uint64
}

type contents struct {
	kinds   infrastructure.Kinds
	problem error
}

// New returns the embedded profiles, and those of a file if path isn't empty. It reads the file for the first time: Problem
// returns its errors. Its own error is that of an embedded profile.
func New(path string) (*Profiles, error) {
	embedded, err := infrastructure.Embedded()
	if err != nil {
		return nil, fmt.Errorf("reading the profiles of infrastructure kinds: %w", err)
	}
	return with(embedded, path), nil
}

// Embedded returns the embedded profiles alone.
var Embedded = sync.OnceValue(func() *Profiles {
	embedded, _ := infrastructure.Embedded() // New returns the error
	return with(embedded, "")
})

func with(embedded infrastructure.Kinds, path string) *Profiles {
	p := &Profiles{embedded: embedded}
	p.state.Store(&contents{kinds: embedded})
	p.File = filewatch.NewFile(path, infrastructure.MaxFileSize,
		func(ctx context.Context, raw []byte, err error) bool { return p.read(ctx, path, raw, err) })
	return p
}

// For returns the profiles for the kind of a machine, or of its template.
func (p *Profiles) For(kind schema.GroupKind) infrastructure.Kind {
	return p.state.Load().kinds.For(kind)
}

// Problem returns the problem of the file, or nil.
func (p *Profiles) Problem() error { return p.state.Load().problem }

// Sequence changes with the profiles.
func (p *Profiles) Sequence() uint64 { return p.sequence.Load() }

func (p *Profiles) read(ctx context.Context, path string, raw []byte, err error) (changed bool) {
	before := p.state.Load()
	now := &contents{kinds: before.kinds}
	var overlays []*infrastructure.Profile
	var problems []error
	if err == nil {
		overlays, problems, err = infrastructure.Parse(raw)
	}
	if err != nil {
		now.problem = fmt.Errorf("profile file %s: %w; the profiles read before stay in use", path, err)
	} else {
		now.kinds, now.problem = p.embedded.With(overlays), problemOf(path, problems)
	}
	if err != nil && before.problem != nil && before.problem.Error() == now.problem.Error() {
		return false
	}
	p.state.Store(now)
	p.sequence.Add(1)
	if now.problem != nil {
		log.FromContext(ctx).Error(now.problem, "reading profiles of infrastructure kinds")
	} else {
		log.FromContext(ctx).Info("profiles of infrastructure kinds read", "profiles", len(overlays))
	}
	return true
}

// maxProblems is how many problems a message names.
const maxProblems = 10

func problemOf(path string, problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	texts := make([]string, 0, len(problems))
	for _, problem := range problems {
		texts = append(texts, problem.Error())
	}
	return fmt.Errorf("profile file %s: %s; the rest of it is in use", path, message.List(texts, maxProblems, "; "))
}
