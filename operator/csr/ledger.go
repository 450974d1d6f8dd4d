// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
	// undecided requests, by the Cluster, are looked at again when there is something new about a node of theirs.
	undecided map[client.ObjectKey]*openRequests
	grants    map[grantKey]grant
}

// openRequests are those of one Cluster that wait for something, or are nobody's yet.
type openRequests struct {
	requests map[Key]*openRequest
	byNode   map[string]sets.Set[Key]
}

// openRequest is one of them.
type openRequest struct {
	// nodes that it names.
	nodes []string
	// told says that people were told of it.
	told bool
}

// grantKey is what one request at a time may have: see requestIndex.
type grantKey struct {
	hostedCluster types.NamespacedName
	index         string
}

// grant is an approval of one request.
type grant struct {
	request string
	uid     types.UID
	at      time.Time
}

func newLedger() *ledger {
	return &ledger{undecided: map[client.ObjectKey]*openRequests{}, grants: map[grantKey]grant{}}
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

// wake has the undecided requests of a Cluster looked at again: those that name one of the nodes, or all if none is given.
func (l *ledger) wake(cluster client.ObjectKey, nodes ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok || l.queue == nil { // what is undecided was in the queue before
		return
	}
	if len(nodes) == 0 {
		for key := range known.requests {
			l.queue.Add(key)
		}
		return
	}
	for _, node := range nodes {
		for key := range known.byNode[node] {
			l.queue.Add(key)
		}
	}
}

// knows says whether an undecided request is remembered.
func (l *ledger) knows(cluster client.ObjectKey, key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	return ok && known.requests[key] != nil
}

// keep remembers an undecided request. It has to be called before the request is judged: what changes from then on wakes it.
func (l *ledger) keep(cluster client.ObjectKey, key Key, nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok {
		known = &openRequests{requests: map[Key]*openRequest{}, byNode: map[string]sets.Set[Key]{}}
		l.undecided[cluster] = known
	}
	if _, ok := known.requests[key]; ok {
		return // what it asks for can't change
	}
	known.requests[key] = &openRequest{nodes: nodes}
	for _, node := range nodes {
		if known.byNode[node] == nil {
			known.byNode[node] = sets.New[Key]()
		}
		known.byNode[node].Insert(key)
	}
}

// tell returns whether people are to be told that a request is undecided: once.
func (l *ledger) tell(cluster client.ObjectKey, key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok || known.requests[key] == nil || known.requests[key].told {
		return false
	}
	known.requests[key].told = true
	return true
}

// forget drops a request that was decided or has gone. A watch has shown that, so that its grant isn't needed any more either.
func (l *ledger) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cluster, known := range l.undecided {
		if known.drop(key); len(known.requests) == 0 {
			delete(l.undecided, cluster)
		}
	}
	for granted, g := range l.grants {
		if granted.hostedCluster == key.HostedCluster && g.request == key.Name {
			delete(l.grants, granted)
		}
	}
}

func (o *openRequests) drop(key Key) {
	request, ok := o.requests[key]
	if !ok {
		return
	}
	delete(o.requests, key)
	for _, node := range request.nodes {
		if o.byNode[node].Delete(key); o.byNode[node].Len() == 0 {
			delete(o.byNode, node)
		}
	}
}

// grant reserves for a request what only one at a time may have; it returns the name of the request that has it already.
func (l *ledger) grant(wanted grantKey, request string, uid types.UID, now time.Time) (rival string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.grants[wanted]; ok && g.uid != uid && now.Sub(g.at) < grantLifetime {
		return g.request
	}
	l.grants[wanted] = grant{request, uid, now}
	return ""
}
