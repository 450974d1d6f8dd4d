// SPDX-License-Identifier: Apache-2.0

package message

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
)

const (
	// eventsAtOnce is the burst of one object's events, eventEvery the interval after it. An upgrade of a hosted
	// cluster publishes fewer than ten.
	eventsAtOnce = 50
	eventEvery   = 30 * time.Second
	// recordedObjects is the number of objects with a rate limiter. The least recently used one is replaced first.
	recordedObjects = 1 << 14
)

// Recorder limits the note of each event, and the rate of each object's events. client-go's recorder merges events with
// the same object, reason and action into a series, whatever their notes. A tenant who makes a condition alternate
// between reasons evades that.
func Recorder(recorder events.EventRecorder, clk clock.PassiveClock) events.EventRecorder {
	return &bounded{EventRecorder: recorder, clock: clk, limiters: lru.New[types.UID, *rate.Limiter](recordedObjects)}
}

type bounded struct {
	events.EventRecorder
	clock clock.PassiveClock

	mu       sync.Mutex
	limiters lru.Cache[types.UID, *rate.Limiter] // by the object
}

// Eventf implements events.EventRecorder.
func (b *bounded) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	if object, err := meta.Accessor(regarding); err == nil && !b.limiter(object.GetUID()).AllowN(b.clock.Now(), 1) {
		return // the condition reports the same
	}
	b.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", Cut(fmt.Sprintf(note, args...)))
}

// Transitions writes an event on an object for each of its conditions but Ready whose status or reason changed, with that reason. eventType
// returns the event's type; the condition before is nil for a new one.
func Transitions(recorder events.EventRecorder, object runtime.Object, before, after []metav1.Condition,
	eventType func(before *metav1.Condition, after metav1.Condition) string,
) {
	for _, condition := range after {
		was := meta.FindStatusCondition(before, condition.Type)
		if condition.Type == v1beta1.Ready || was != nil && was.Status == condition.Status && was.Reason == condition.Reason {
			continue
		}
		note := fmt.Sprintf("%s is %s", condition.Type, condition.Status)
		if condition.Message != "" {
			note += ": " + condition.Message
		}
		recorder.Eventf(object, nil, eventType(was, condition), condition.Reason, condition.Type, "%s", note)
	}
}

func (b *bounded) limiter(uid types.UID) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limiter, ok := b.limiters.Get(uid); ok {
		return limiter
	}
	limiter := rate.NewLimiter(rate.Every(eventEvery), eventsAtOnce)
	b.limiters.Add(uid, limiter)
	return limiter
}
