// SPDX-License-Identifier: Apache-2.0

// Package ownwrites keeps Karpenter core's lifecycle controller from a second pass over a NodeClaim that is older than what core has
// written.
//
// Upstream gap: core sleeps for a second after a pass, so that the cache has what it wrote, and a node that joins meanwhile waits. Where many
// nodes come at once the cache needs longer, and core registers and initializes a node again, which costs four requests and a new transition
// time of the condition each (docs/upstream/repeated-passes.md).
package ownwrites

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

const (
	// limit is for how long a cache that lags is waited for. After a guest's etcd was restored its resource versions begin lower.
	limit = time.Minute
	// retryInterval is the requeue interval, and the least time after a failure. The change that the cache lacks triggers a reconcile, too.
	retryInterval = time.Second
)

// Ledger has the resource versions of NodeClaims that were written.
type Ledger struct {
	mu sync.Mutex
	// written has the latest version by UID.
	written *utilcache.Expiring
}

// New returns an empty ledger.
func New() *Ledger { return &Ledger{written: utilcache.NewExpiring()} }

// Note takes down what a write returned.
func (l *Ledger) Note(nodeClaim *karpv1.NodeClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lacks(nodeClaim) {
		l.written.Set(nodeClaim.UID, nodeClaim.ResourceVersion, limit)
	}
}

// Lacks reports whether a NodeClaim from a cache is older than the last one written.
func (l *Ledger) Lacks(nodeClaim *karpv1.NodeClaim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lacks(nodeClaim)
}

func (l *Ledger) lacks(nodeClaim *karpv1.NodeClaim) bool {
	written, ok := l.written.Get(nodeClaim.UID)
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(nodeClaim.ResourceVersion, written.(string))
	return err == nil && order < 0
}

// Guest wraps Karpenter core's guest client: the ledger gets the versions that its patches of NodeClaims return.
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
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && err == nil {
		l.Note(nodeClaim)
	}
	return err
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

// Clock returns a clock for Karpenter core's lifecycle controller that doesn't sleep after a pass: with Await, the next one may begin as soon
// as something happens to the node.
func Clock(of clock.Clock) clock.Clock { return sleepless{of} }

type sleepless struct{ clock.Clock }

// Sleep implements clock.Clock.
func (sleepless) Sleep(time.Duration) {}
