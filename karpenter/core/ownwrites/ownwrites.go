// SPDX-License-Identifier: Apache-2.0

// Package ownwrites keeps Karpenter core's controllers from a second pass over a NodeClaim or a Node that is older than what core has
// written.
//
// Upstream gap: core's lifecycle controller sleeps for a second after a pass, so that the cache has what it wrote, and a node that joins
// meanwhile waits. Where many nodes come at once the cache needs longer, and core registers and initializes a node again, which costs four
// requests and a new transition time of the condition each. Its controller that terminates nodes doesn't wait at all, and conflicts with
// itself (docs/upstream/repeated-passes.md).
package ownwrites

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/controller"
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

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

const (
	// limit is for how long a cache that lags is waited for. After a guest's etcd was restored its resource versions begin lower.
	limit = time.Minute
	// retryInterval is the requeue interval, and the least time after a failure. The change that the cache lacks triggers a reconcile, too.
	retryInterval = time.Second
	// nodeLimit is for how long a pass over a Node waits at most: an early one costs a conflict, and a late one a drain.
	nodeLimit = 5 * time.Second
	// nodeRetryInterval is the requeue interval of a pass over a Node. A change of its NodeClaim triggers none.
	nodeRetryInterval = 100 * time.Millisecond
)

// Ledger has the resource versions of NodeClaims and Nodes that were written.
type Ledger struct {
	mu sync.Mutex
	// written has the latest version by UID.
	written *utilcache.Expiring
}

// New returns an empty ledger.
func New() *Ledger { return &Ledger{written: utilcache.NewExpiring()} }

// Note takes down what a write returned.
func (l *Ledger) Note(object client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lacks(object) {
		l.written.Set(object.GetUID(), object.GetResourceVersion(), limit)
	}
}

// Lacks reports whether an object from a cache is older than what was written of it last.
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

// Guest wraps Karpenter core's guest client: the ledger gets the versions that its patches of NodeClaims and Nodes return.
func Guest(guest client.Client, ledger *Ledger) client.Client { return patcher{guest, ledger} }

type patcher struct {
	client.Client
	ledger *Ledger
}

// Patch implements client.Client.
func (p patcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return p.ledger.after(object, p.Client.Patch(ctx, object, patch, opts...))
}

// Status implements client.Client.
func (p patcher) Status() client.SubResourceWriter {
	return statusPatcher{p.Client.Status(), p.ledger}
}

type statusPatcher struct {
	client.SubResourceWriter
	ledger *Ledger
}

// Patch implements client.SubResourceWriter.
func (p statusPatcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return p.ledger.after(object, p.SubResourceWriter.Patch(ctx, object, patch, opts...))
}

func (l *Ledger) after(object client.Object, err error) error {
	if err != nil {
		return err
	}
	switch object.(type) {
	case *karpv1.NodeClaim, *corev1.Node:
		l.Note(object)
	}
	return nil
}

// Await wraps Karpenter core's lifecycle controller: it begins a pass over a NodeClaim only once the guest's cache has what core wrote. A pass
// that has failed writes why, which is an event for the next one: that begins a second later, however often the reason changes.
func Await(core controller.Controller, guest client.Reader, ledger *Ledger, now clock.Clock) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		failed := utilcache.NewExpiringWithClock(now)
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			if _, ok := failed.Get(request); ok {
				return reconcile.Result{RequeueAfter: retryInterval}, nil
			}
			nodeClaim := &karpv1.NodeClaim{}
			key := types.NamespacedName{Name: request.Name}
			if err := guest.Get(ctx, key, nodeClaim, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, fmt.Errorf("reading NodeClaim %s: %w", request.Name, err)
			}
			if ledger.Lacks(nodeClaim) {
				return reconcile.Result{RequeueAfter: retryInterval}, nil
			}
			result, err := of.Inner.Reconcile(ctx, request)
			if err != nil {
				failed.Set(request, true, retryInterval)
			}
			return result, err
		}), nil
	})
}

// AwaitNode wraps Karpenter core's controller that terminates nodes: it begins a pass over a Node once the guest's cache has what core wrote of
// the Node and of its NodeClaim, five seconds later at the latest.
func AwaitNode(core controller.Controller, guest client.Reader, ledger *Ledger, now clock.Clock) controller.Controller {
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		// held has since when a Node waits.
		held := utilcache.NewExpiringWithClock(now)
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			lacks, err := ledger.lacksOfNode(ctx, guest, request.Name)
			if err != nil {
				return reconcile.Result{}, err
			}
			since, waits := held.Get(request)
			switch {
			case lacks && !waits:
				held.Set(request, now.Now(), limit)
				return reconcile.Result{RequeueAfter: nodeRetryInterval}, nil
			case lacks && now.Since(since.(time.Time)) < nodeLimit:
				return reconcile.Result{RequeueAfter: nodeRetryInterval}, nil
			}
			if !lacks {
				held.Delete(request)
			}
			return of.Inner.Reconcile(ctx, request)
		}), nil
	})
}

// lacksOfNode reports whether a cache lacks what was written of a Node that is being deleted, or of its NodeClaim.
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

// Clock returns a clock for Karpenter core's lifecycle controller that doesn't sleep after a pass: with Await, the next one may begin as soon
// as something happens to the node.
func Clock(of clock.Clock) clock.Clock { return sleepless{of} }

type sleepless struct{ clock.Clock }

// Sleep implements clock.Clock.
func (sleepless) Sleep(time.Duration) {}
