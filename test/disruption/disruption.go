// SPDX-License-Identifier: Apache-2.0

// Package disruption counts as Karpenter's disruption budgets do, for the demo and the tests.
package disruption

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Counts reports whether a NodeClaim's node counts against its NodePool's disruption budget: from the decision to disrupt it until
// it is drained and its machine is being terminated. A node that was never initialized ran no pods, so a launch that is given up, such
// as one that found no capacity, disrupts nothing.
func Counts(claim *karpv1.NodeClaim) bool {
	conditions := claim.StatusConditions(status.WithObservedOnly()) // which leaves the claim, a watch's, as it is
	return conditions.IsTrue(karpv1.ConditionTypeInitialized) && !conditions.IsTrue(karpv1.ConditionTypeInstanceTerminating) &&
		(claim.DeletionTimestamp != nil || conditions.IsTrue(karpv1.ConditionTypeDisruptionReason))
}

// Watch watches every change of every NodeClaim from now on. The function that it returns ends the watch and reports how many nodes were
// disrupted at once at most, and which nodes ever were, sorted.
func Watch(ctx context.Context, guest client.WithWatch) (end func() (most int, ever []string), err error) {
	most := 0
	now, ever := map[types.UID]struct{}{}, map[string]struct{}{}
	stop, err := NodeClaims(ctx, guest, func(claim *karpv1.NodeClaim) {
		if Counts(claim) {
			now[claim.UID], ever[claim.Status.NodeName] = struct{}{}, struct{}{}
		} else {
			delete(now, claim.UID)
		}
		most = max(most, len(now))
	}, func(claim *karpv1.NodeClaim) { delete(now, claim.UID) })
	if err != nil {
		return nil, err
	}
	return func() (int, []string) {
		stop()
		return most, slices.Sorted(maps.Keys(ever))
	}, nil
}

// catchUp waits until a watch has reported what has happened until now: a busy machine is late with it, and who ends the watch may have seen more by a
// read.
func catchUp(ctx context.Context, guest client.Reader, seen toolscache.Store) {
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list := &karpv1.NodeClaimList{}
		if err := guest.List(ctx, list); err != nil {
			return true, err // without an API server nothing more will be reported
		}
		objects := seen.List()
		behind := len(objects) != len(list.Items)
		for i := range list.Items {
			object, found, err := seen.Get(&list.Items[i])
			behind = behind || err != nil || !found || object.(*karpv1.NodeClaim).ResourceVersion != list.Items[i].ResourceVersion
		}
		return !behind, nil
	})
}

// NodeClaims calls see with every NodeClaim and with each of its changes, and forget when it has gone, one after another, until it is
// ended. It goes on when the API server is restarted, as an upgrade does: while that is away, Karpenter can't decide anything either.
func NodeClaims(ctx context.Context, guest client.WithWatch, see, forget func(*karpv1.NodeClaim)) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	informer := toolscache.NewSharedInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := &karpv1.NodeClaimList{}
			return list, guest.List(ctx, list, &client.ListOptions{Raw: &options})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return guest.Watch(ctx, &karpv1.NodeClaimList{}, &client.ListOptions{Raw: &options})
		},
	}, &karpv1.NodeClaim{}, 0)

	var mu sync.Mutex
	one := func(what func(*karpv1.NodeClaim)) func(any) {
		return func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			mu.Lock()
			defer mu.Unlock()
			what(object.(*karpv1.NodeClaim))
		}
	}
	handled, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: one(see), UpdateFunc: func(_, object any) { one(see)(object) }, DeleteFunc: one(forget),
	})
	if err != nil {
		cancel()
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(func() { informer.RunWithContext(ctx) })
	end = func() {
		catchUp(ctx, guest, informer.GetStore())
		cancel()
		done.Wait()
		mu.Lock() // what was seen is the caller's now
		defer mu.Unlock()
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		end()
		return nil, errors.New("watching NodeClaims: none could be listed")
	}
	return end, nil
}
