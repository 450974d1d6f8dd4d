// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"sync"

	"sigs.k8s.io/karpenter/pkg/events"
)

// Recorder keeps the published events.
type Recorder struct {
	mu     sync.Mutex
	events []events.Event
}

var _ events.Recorder = (*Recorder)(nil)

// Publish implements events.Recorder.
func (r *Recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, published...)
}

// Reasons of the published events, in order.
func (r *Recorder) Reasons() []string {
	return r.each(func(event events.Event) string { return event.Reason })
}

// Messages of the published events, in order.
func (r *Recorder) Messages() []string {
	return r.each(func(event events.Event) string { return event.Message })
}

func (r *Recorder) each(text func(events.Event) string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := make([]string, len(r.events))
	for i, event := range r.events {
		texts[i] = text(event)
	}
	return texts
}
