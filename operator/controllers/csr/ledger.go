// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/controllerqueue"
)

// Key names a certificate request in the guest of a HostedCluster.
type Key struct {
	HostedCluster types.NamespacedName
	Name          string
}

// grantLifetime is how long an approval is remembered that no watch has shown.
const grantLifetime = 10 * time.Minute

// ledger remembers state that the guests' caches lack: which requests are undecided, and recent approvals.
type ledger struct {
	queue controllerqueue.Queue[Key]

	mu    sync.Mutex
	early []Key // came before the controller started
	// undecided holds requests by Cluster. They are enqueued when one of their nodes changes.
	undecided map[client.ObjectKey]*openRequests
	grants    map[grantKey]grant
}

// openRequests are one Cluster's undecided requests, including those that match no node of ours yet.
type openRequests struct {
	requests map[Key]*openRequest
	byNode   map[string]sets.Set[Key]
}

// openRequest is one of them.
type openRequest struct {
	// nodes that the request names.
	nodes []string
	// notified: an event was published.
	notified bool
	// awaited: another approver has to approve it.
	awaited *approval
}

// grantKey is a key that only one request at a time may have: see requestIndex.
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

// Start implements source.TypedSource: it learns the controller's queue, and queues earlier requests.
func (l *ledger) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[Key]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.early {
		queue.Add(key)
	}
	l.early = nil
	return l.queue.Start(ctx, queue)
}

func (l *ledger) enqueue(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.queue.Add(key) {
		l.early = append(l.early, key)
	}
}

// enqueueUndecided enqueues a Cluster's undecided requests: those that name one of the nodes, or all without nodes.
func (l *ledger) enqueueUndecided(cluster client.ObjectKey, nodes ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok {
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

// remembers reports whether an undecided request is remembered.
func (l *ledger) remembers(cluster client.ObjectKey, key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	return ok && known.requests[key] != nil
}

// keep remembers an undecided request. Call it before validation, so that a later change enqueues the request.
func (l *ledger) keep(cluster client.ObjectKey, key Key, nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok {
		known = &openRequests{requests: map[Key]*openRequest{}, byNode: map[string]sets.Set[Key]{}}
		l.undecided[cluster] = known
	}
	if _, ok := known.requests[key]; ok {
		return // its spec can't change
	}
	known.requests[key] = &openRequest{nodes: nodes}
	for _, node := range nodes {
		if known.byNode[node] == nil {
			known.byNode[node] = sets.New[Key]()
		}
		known.byNode[node].Insert(key)
	}
}

// shouldNotify reports whether to publish that a request is undecided: once.
func (l *ledger) shouldNotify(cluster client.ObjectKey, key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.undecided[cluster]
	if !ok || known.requests[key] == nil || known.requests[key].notified {
		return false
	}
	known.requests[key].notified = true
	return true
}

// await records that an undecided request waits for another approver, nil that it doesn't, and reports whether that is new.
func (l *ledger) await(cluster client.ObjectKey, key Key, awaited *approval) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.undecided[cluster]; known != nil && known.requests[key] != nil {
		changed = (known.requests[key].awaited == nil) != (awaited == nil)
		known.requests[key].awaited = awaited
	}
	return changed
}

// awaited returns one of the approvals that a Cluster's requests wait for, and when to look again.
func (l *ledger) awaited(cluster client.ObjectKey, now time.Time) (found approval, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.undecided[cluster]; known != nil {
		for _, r := range known.requests {
			if r.awaited != nil && now.Before(r.awaited.until) && (!ok || r.awaited.message < found.message) {
				found, ok = *r.awaited, true
			}
		}
	}
	found.until = now.Add(nameGrace)
	return found, ok
}

// forget drops a request that was decided or is gone. A watch has shown that, so its grant is dropped too.
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

// grant reserves a key that only one request at a time may have. It returns the name of the request that has it already.
func (l *ledger) grant(wanted grantKey, request string, uid types.UID, now time.Time) (conflicting string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.grants[wanted]; ok && g.uid != uid && now.Sub(g.at) < grantLifetime {
		return g.request
	}
	l.grants[wanted] = grant{request, uid, now}
	return ""
}
