// SPDX-License-Identifier: Apache-2.0

// Package fairness admits work within limits, so that one tenant's work doesn't delay another's.
package fairness

import "slices"

// Class of running work, and the number of its items that may run.
type Class struct {
	Kind, Name string
	Limit      int
}

type counted struct{ kind, name string }

func (c Class) counted() counted { return counted{c.Kind, c.Name} }

// Limiter counts the running items and queues those that don't fit. The caller locks it.
type Limiter[T comparable] struct {
	// Classes returns the classes of an item if it is admitted now. The first class is its tenant.
	Classes func(item T) []Class

	running map[counted]int
	waiting []T // in order of arrival
}

// Acquire counts an item as running and returns its classes, which Release takes. Above a limit it queues the item, once.
func (l *Limiter[T]) Acquire(item T) (admitted []Class, ok bool) {
	admitted = l.Classes(item)
	if !l.admits(admitted) {
		if !slices.Contains(l.waiting, item) {
			l.waiting = append(l.waiting, item)
		}
		return nil, false
	}
	l.count(admitted, 1)
	return admitted, true
}

// Release counts an item as completed.
func (l *Limiter[T]) Release(admitted []Class) { l.count(admitted, -1) }

// Next acquires the queued item that fits, of the tenant with the least running.
func (l *Limiter[T]) Next() (item T, admitted []Class, ok bool) {
	next := -1
	for i, waiting := range l.waiting {
		classes := l.Classes(waiting)
		if l.admits(classes) && (next < 0 || l.running[classes[0].counted()] < l.running[admitted[0].counted()]) {
			next, admitted = i, classes
		}
	}
	if next < 0 {
		return item, nil, false
	}
	item = l.waiting[next]
	l.waiting = slices.Delete(l.waiting, next, next+1)
	l.count(admitted, 1)
	return item, admitted, true
}

func (l *Limiter[T]) admits(classes []Class) bool {
	return !slices.ContainsFunc(classes, func(class Class) bool { return l.running[class.counted()] >= class.Limit })
}

func (l *Limiter[T]) count(classes []Class, n int) {
	if l.running == nil {
		l.running = map[counted]int{}
	}
	for _, class := range classes {
		key := class.counted()
		if l.running[key] += n; l.running[key] == 0 {
			delete(l.running, key)
		}
	}
}
