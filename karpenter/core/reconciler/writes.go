// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"
)

const (
	// lagLimit is for how long a cache that lags is waited for. After a guest's etcd was restored its resource versions begin lower.
	lagLimit = time.Minute
	// retryInterval is the requeue interval, and the least time after a failure. The change that the cache lacks triggers a reconcile, too.
	retryInterval = time.Second
	// nodeLimit is for how long a pass over a Node waits at most: an early one costs a conflict, and a late one a drain.
	nodeLimit = 5 * time.Second
	// nodeRetryInterval is the requeue interval of a pass over a Node. A change of its NodeClaim triggers none.
	nodeRetryInterval = 100 * time.Millisecond
)

// Ledger has the resource versions of NodeClaims and Nodes that were written. With it, Karpenter core's controllers begin no second pass
// over an object that is older than core's last write.
//
// Upstream gap: core's lifecycle controller sleeps for a second after a pass, so that the cache has its writes, and a node that joins
// meanwhile waits. Where many nodes come at once the cache needs longer, and core registers and initializes a node again, which costs four
// requests and a new transition time of the condition each. Its controller that terminates nodes doesn't wait at all, and conflicts with
// itself (docs/internals/upstream/repeated-passes.md).
type Ledger struct {
	mu sync.Mutex
	// written has the latest version by UID.
	written *utilcache.Expiring
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{written: utilcache.NewExpiring()} }

// Note takes down the answer to a write.
func (l *Ledger) Note(object client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lacks(object) {
		l.written.Set(object.GetUID(), object.GetResourceVersion(), lagLimit)
	}
}

// Lacks reports whether an object from a cache is older than its last write.
func (l *Ledger) Lacks(object client.Object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lacks(object)
}

func (l *Ledger) lacks(object client.Object) bool {
	written, ok := l.written.Get(object.GetUID())
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), written.(string))
	return err == nil && order < 0
}

// Await begins a pass of Karpenter core's lifecycle only once the guest's cache has core's writes of the NodeClaim. A pass that has
// failed writes why, which is an event for the next one: that begins a second later, however often the reason changes.
func Await(guest client.Reader, ledger *Ledger, now clock.Clock) Middleware {
	failed := utilcache.NewExpiringWithClock(now)
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		if _, ok := failed.Get(request); ok {
			return reconcile.Result{RequeueAfter: retryInterval}, nil
		}
		nodeClaim, err := read(ctx, guest, request)
		if err != nil {
			return reconcile.Result{}, err
		}
		if nodeClaim != nil && ledger.Lacks(nodeClaim) {
			return reconcile.Result{RequeueAfter: retryInterval}, nil
		}
		result, err := next.Reconcile(ctx, request)
		if err != nil {
			failed.Set(request, true, retryInterval)
		}
		return result, err
	})
}

// AwaitNode begins a pass of Karpenter core's termination of nodes once the guest's cache has core's writes of the Node and of its
// NodeClaim, five seconds later at the latest.
func AwaitNode(guest client.Reader, ledger *Ledger, now clock.Clock) Middleware {
	waiting := utilcache.NewExpiringWithClock(now) // since when a Node waits
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		lacks, err := ledger.lacksOfNode(ctx, guest, request.Name)
		if err != nil {
			return reconcile.Result{}, err
		}
		since, waits := waiting.Get(request)
		switch {
		case lacks && !waits:
			waiting.Set(request, now.Now(), lagLimit)
			return reconcile.Result{RequeueAfter: nodeRetryInterval}, nil
		case lacks && now.Since(since.(time.Time)) < nodeLimit:
			return reconcile.Result{RequeueAfter: nodeRetryInterval}, nil
		case !lacks:
			waiting.Delete(request)
		}
		return next.Reconcile(ctx, request)
	})
}

// lacksOfNode reports whether a cache lacks writes of a Node that is being deleted, or of its NodeClaim.
func (l *Ledger) lacksOfNode(ctx context.Context, guest client.Reader, name string) (bool, error) {
	node := &corev1.Node{}
	if err := guest.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading Node %s: %w", name, err)
	}
	switch {
	case node.DeletionTimestamp == nil:
		return false, nil
	case l.Lacks(node):
		return true, nil
	case node.Spec.ProviderID == "":
		return false, nil
	}
	nodeClaims := &karpv1.NodeClaimList{}
	if err := guest.List(ctx, nodeClaims, nodeclaimutils.ForProviderID(node.Spec.ProviderID), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("reading the NodeClaim of Node %s: %w", name, err)
	}
	return slices.ContainsFunc(nodeClaims.Items, func(nodeClaim karpv1.NodeClaim) bool { return l.Lacks(&nodeClaim) }), nil
}
