// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Key names a certificate request in the guest of a HostedCluster.
type Key struct {
	HostedCluster types.NamespacedName
	Name          string
}

// grantLifetime is how long an approval is remembered that no watch has shown yet.
const grantLifetime = 10 * time.Minute

// ledger remembers what the caches of the guests don't tell: which requests are undecided, and what was approved just now.
type ledger struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[Key] // nil until the controller starts
	early []Key                                     // came before that
	// undecided requests, by the Cluster, are looked at again when one of its Machines changes.
	undecided map[client.ObjectKey]map[Key]struct{}
	grants    map[grantKey]grant
}

// grantKey is a node of a HostedCluster.
type grantKey struct {
	hostedCluster types.NamespacedName
	node          string
}

// grant is an approval of a machine's first certificate.
type grant struct {
	request string
	uid     types.UID
	at      time.Time
}

func newLedger() *ledger {
	return &ledger{undecided: map[client.ObjectKey]map[Key]struct{}{}, grants: map[grantKey]grant{}}
}

func (l *ledger) start(queue workqueue.TypedRateLimitingInterface[Key]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = queue
	for _, key := range l.early {
		queue.Add(key)
	}
	l.early = nil
}

func (l *ledger) enqueue(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		l.early = append(l.early, key)
		return
	}
	l.queue.Add(key)
}

// wake has the undecided requests of a Cluster looked at again.
func (l *ledger) wake(cluster client.ObjectKey, queue workqueue.TypedRateLimitingInterface[Key]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.undecided[cluster] {
		queue.Add(key)
	}
}

// keep remembers an undecided request; it returns whether that is new.
func (l *ledger) keep(cluster client.ObjectKey, key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := l.undecided[cluster]
	if keys == nil {
		keys = map[Key]struct{}{}
		l.undecided[cluster] = keys
	}
	_, known := keys[key]
	keys[key] = struct{}{}
	return !known
}

// forget drops a request that was decided or has gone. A watch has shown that, so that its grant isn't needed any more either.
func (l *ledger) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cluster, keys := range l.undecided {
		if _, ok := keys[key]; !ok {
			continue
		}
		if delete(keys, key); len(keys) == 0 {
			delete(l.undecided, cluster)
		}
	}
	for node, g := range l.grants {
		if node.hostedCluster == key.HostedCluster && g.request == key.Name {
			delete(l.grants, node)
		}
	}
}

// grant reserves the first certificate of a node for a request; it returns the name of the request that has it already.
func (l *ledger) grant(node grantKey, request string, uid types.UID, now time.Time) (rival string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.grants[node]; ok && g.uid != uid && now.Sub(g.at) < grantLifetime {
		return g.request
	}
	l.grants[node] = grant{request, uid, now}
	return ""
}
