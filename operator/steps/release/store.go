// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"
	"container/list"
	"maps"
	"slices"
	"sync"

	"github.com/autonode-io/autonode/payload"
)

const (
	// storedBytes limits the compressed payloads, and storedShare one namespace's share of them. Karpenter's CRDs
	// take some sixty kilobytes, so a namespace can use two hundred payloads.
	storedBytes = 128 << 20
	storedShare = 16 << 20
	// decodedBytes and decodedShare limit the decoded payloads, which are kept for frequent reconciliations.
	decodedBytes = 256 << 20
	decodedShare = 64 << 20
)

// store caches payloads by digest. Tenants choose them: each namespace has a share, and when the store is full, the
// largest namespace loses its oldest payload.
type store struct {
	packed, decoded *shares
}

func newStore() *store {
	return &store{packed: newShares(storedBytes, storedShare), decoded: newShares(decodedBytes, decodedShare)}
}

// add stores a payload for a namespace. It returns a *payload.Error if the payload is too large.
func (s *store) add(key cacheKey, namespace string, release *payload.Release) error {
	packed, err := release.Pack()
	if err != nil {
		return err
	}
	s.packed.add(key, namespace, packed, packed.Bytes())
	s.decoded.add(key, namespace, release, packed.Decoded())
	return nil
}

// get returns a payload, nil if it isn't cached. Don't modify it.
func (s *store) get(key cacheKey) *payload.Release {
	if hit, ok := s.decoded.get(key); ok {
		s.packed.get(key) // so that both are as old
		return hit.value.(*payload.Release)
	}
	hit, ok := s.packed.get(key)
	if !ok {
		return nil
	}
	packed := hit.value.(payload.Packed)
	release, err := packed.Release()
	if err != nil {
		return nil // which we wrote ourselves; it is pulled again
	}
	s.decoded.add(key, hit.namespace, release, packed.Decoded())
	return release
}

// shares holds values of known sizes, the last used one first.
type shares struct {
	limit, share int64

	mu    sync.Mutex
	order *list.List // of *retained
	byKey map[cacheKey]*list.Element
	used  int64
	by    map[string]int64 // what each namespace uses
}

type retained struct {
	key       cacheKey
	namespace string
	value     any
	size      int64
}

func newShares(limit, share int64) *shares {
	return &shares{limit: limit, share: share, order: list.New(), byKey: map[cacheKey]*list.Element{}, by: map[string]int64{}}
}

func (l *shares) get(key cacheKey) (retained, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	element, ok := l.byKey[key]
	if !ok {
		return retained{}, false
	}
	l.order.MoveToFront(element)
	return *element.Value.(*retained), true
}

// add stores a value that isn't larger than a namespace's share.
func (l *shares) add(key cacheKey, namespace string, value any, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.byKey[key]; ok {
		l.remove(known)
	}
	if size > l.share {
		return
	}
	l.byKey[key] = l.order.PushFront(&retained{key: key, namespace: namespace, value: value, size: size})
	l.used += size
	l.by[namespace] += size
	for l.by[namespace] > l.share {
		l.evict(namespace)
	}
	for l.used > l.limit {
		largest := slices.MaxFunc(slices.Sorted(maps.Keys(l.by)), func(a, b string) int { return cmp.Compare(l.by[a], l.by[b]) })
		l.evict(largest)
	}
}

// evict removes a namespace's least recently used value.
func (l *shares) evict(namespace string) {
	for element := l.order.Back(); element != nil; element = element.Prev() {
		if element.Value.(*retained).namespace == namespace {
			l.remove(element)
			return
		}
	}
}

func (l *shares) remove(element *list.Element) {
	k := l.order.Remove(element).(*retained)
	delete(l.byKey, k.key)
	l.used -= k.size
	if l.by[k.namespace] -= k.size; l.by[k.namespace] == 0 {
		delete(l.by, k.namespace)
	}
}
