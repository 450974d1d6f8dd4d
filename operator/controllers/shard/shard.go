// SPDX-License-Identifier: Apache-2.0

// Package shard lets several operators divide the HostedClusters of a management cluster among them by label selectors.
//
// An operator sees only HostedClusters that its selector matches. That alone doesn't keep two from working on one HostedCluster: after a
// change of its labels it leaves one operator's watch and enters another's at different moments, and selectors can overlap. So
// status.operator names the operator that holds a HostedCluster, by its Lease:
//
//   - An operator does nothing for a HostedCluster that it doesn't hold.
//   - It acquires one without a holder by a patch with an optimistic lock, so that only one of two operators succeeds.
//   - It releases one that its selector no longer matches, in that HostedCluster's own reconcile: the queue never runs one
//     object twice at a time, so no other work on it is in progress. Only the holder releases.
//   - It acquires one whose holder is gone, as the holder's Lease shows. An operator that loses its Lease exits before the Lease
//     expires.
//
// Only the labels decide which operator holds a HostedCluster; status.operator decides when.
package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// FieldOwner of status.operator differs from that of the rest of the status, so that writing one never writes the
// other.
const FieldOwner = v1beta1.ManagedByOperator + "-shard"

const (
	// lag is how long the cache may lag behind the API server.
	lag = 50 * time.Millisecond
	// page is the page size of lists of HostedClusters.
	page = 500
)

// Config is the input of New.
type Config struct {
	// Management reads HostedClusters from the cache, which holds those that Selector matches, and writes.
	Management client.Client
	// Live reads the management cluster's API server.
	Live client.Reader
	// Selector matches this operator's HostedClusters.
	Selector labels.Selector
	// Lease of this operator. Without a name there is no election, and other operators can't see whether this one
	// runs: it records nothing, and reconciles everything that it sees.
	Lease client.ObjectKey
	// Released is called with each released HostedCluster; it may be nil.
	Released func(hostedCluster *v1beta1.HostedCluster)
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Shard is one operator's part of the HostedClusters.
type Shard struct {
	Config
	leases *leases

	mu        sync.Mutex
	confirmed map[client.ObjectKey]types.UID // what this process has verified to hold
	waits     map[client.ObjectKey]string    // whom it waits for, so that it reports it once
}

// New returns a Shard that holds nothing yet.
func New(config Config) *Shard {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Shard{
		Config:    config,
		leases:    &leases{live: config.Live, clock: config.Clock, seen: map[client.ObjectKey]sighting{}},
		confirmed: map[client.ObjectKey]types.UID{}, waits: map[client.ObjectKey]string{},
	}
}

// Identity is the name in status.operator of an operator with that Lease; empty without election.
func Identity(lease client.ObjectKey) string {
	if lease.Name == "" {
		return ""
	}
	return lease.String()
}

// Identity is the name that the Shard records.
func (s *Shard) Identity() string { return Identity(s.Lease) }

// Reconciler calls inner with the HostedClusters that the Shard holds. It acquires and releases them.
func (s *Shard) Reconciler(inner reconcile.ObjectReconciler[*v1beta1.HostedCluster]) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		hostedCluster := &v1beta1.HostedCluster{}
		if err := s.Management.Get(ctx, request.NamespacedName, hostedCluster); apierrors.IsNotFound(err) {
			return s.release(ctx, request.NamespacedName)
		} else if err != nil {
			return reconcile.Result{}, err
		}
		if holds, wait, err := s.hold(ctx, hostedCluster); err != nil || !holds {
			return reconcile.Result{RequeueAfter: wait}, err
		}
		return inner.Reconcile(ctx, hostedCluster)
	})
}

// Source emits at startup the HostedClusters that this operator still holds and its selector no longer matches.
// Otherwise they would never be released.
func (s *Shard) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if s.Identity() == "" || s.Selector.Empty() {
			return nil
		}
		list := &v1beta1.HostedClusterList{}
		for more := true; more; more = list.Continue != "" {
			if err := s.Live.List(ctx, list, client.Limit(page), client.Continue(list.Continue)); err != nil {
				return fmt.Errorf("listing HostedClusters to release: %w", err)
			}
			for i := range list.Items {
				hostedCluster := &list.Items[i]
				if hostedCluster.Status.Operator == s.Identity() && !s.matches(hostedCluster) {
					s.keep(hostedCluster)
					queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(hostedCluster)})
				}
			}
		}
		return nil
	})
}

// hold reports whether the Shard holds a cached HostedCluster, and acquires it if possible. Otherwise it returns when
// to retry; zero if a watch triggers it. Afterwards the HostedCluster is as in the API server.
func (s *Shard) hold(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (holds bool, wait time.Duration, err error) {
	key := client.ObjectKeyFromObject(hostedCluster)
	switch holder := hostedCluster.Status.Operator; {
	case s.Identity() == "":
		return true, 0, nil
	case holder == s.Identity() && s.verified(key, hostedCluster.UID):
		return true, 0, nil
	case holder == s.Identity():
		return s.verify(ctx, hostedCluster)
	case holder == "":
		return s.acquire(ctx, hostedCluster)
	default:
		remaining, err := s.leases.validFor(ctx, holder)
		if err != nil {
			return false, 0, err
		}
		if remaining > 0 {
			s.waitFor(ctx, key, holder)
			return false, remaining, nil
		}
		return s.acquire(ctx, hostedCluster)
	}
}

// verify checks a cached hold against the API server, once: the cache may be older than this operator's own release.
func (s *Shard) verify(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (holds bool, wait time.Duration, err error) {
	live := &v1beta1.HostedCluster{}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(hostedCluster), live); err != nil {
		return false, 0, client.IgnoreNotFound(err)
	}
	if live.Status.Operator != s.Identity() {
		return false, lag, nil
	}
	s.keep(live)
	if !s.matches(live) {
		return false, lag, nil // it leaves the cache, and is released then
	}
	return true, 0, nil
}

func (s *Shard) acquire(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (holds bool, wait time.Duration, err error) {
	before := hostedCluster.DeepCopy()
	hostedCluster.Status.Operator = s.Identity()
	err = s.patch(ctx, hostedCluster, before)
	switch {
	case apierrors.IsConflict(err):
		return false, lag, nil // the cache lags, or another one was faster
	case err != nil:
		return false, 0, client.IgnoreNotFound(err)
	}
	if from := before.Status.Operator; from != "" {
		log.FromContext(ctx).Info("Acquired a HostedCluster from an operator that is gone", "from", from)
	}
	s.keep(hostedCluster)
	return true, 0, nil
}

// release releases a HostedCluster that isn't in the cache: it is gone, or another operator's.
func (s *Shard) release(ctx context.Context, key client.ObjectKey) (reconcile.Result, error) {
	if !s.verified(key, "") {
		return reconcile.Result{}, nil
	}
	live := &v1beta1.HostedCluster{}
	if err := s.Live.Get(ctx, key, live); apierrors.IsNotFound(err) {
		s.forget(key)
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading a HostedCluster to release: %w", err)
	}
	if s.matches(live) {
		return reconcile.Result{}, nil // it comes back, and was held all the time
	}
	if live.Status.Operator == s.Identity() {
		before := live.DeepCopy()
		live.Status.Operator = ""
		if err := s.patch(ctx, live, before); apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: lag}, nil
		} else if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("releasing a HostedCluster: %w", err)
		}
		log.FromContext(ctx).Info("Released a HostedCluster that the selector no longer matches")
	}
	s.forget(key)
	if s.Released != nil {
		s.Released(live)
	}
	return reconcile.Result{}, nil
}

// patch doesn't apply: an apply removes only fields that their field manager owns, and a hold written by another
// client, such as an operator that is gone, has to end too.
func (s *Shard) patch(ctx context.Context, after, before *v1beta1.HostedCluster) error {
	return s.Management.Status().Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(FieldOwner))
}

func (s *Shard) matches(hostedCluster *v1beta1.HostedCluster) bool {
	return s.Selector.Matches(labels.Set(hostedCluster.Labels))
}

// verified reports whether this process has verified its hold of a HostedCluster; without a UID, of any of that name.
func (s *Shard) verified(key client.ObjectKey, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.confirmed[key]
	return ok && (uid == "" || uid == known)
}

func (s *Shard) keep(hostedCluster *v1beta1.HostedCluster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := client.ObjectKeyFromObject(hostedCluster)
	s.confirmed[key] = hostedCluster.UID
	delete(s.waits, key)
}

func (s *Shard) forget(key client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.confirmed, key)
	delete(s.waits, key)
}

// waitFor logs once that another operator holds a HostedCluster.
func (s *Shard) waitFor(ctx context.Context, key client.ObjectKey, holder string) {
	s.mu.Lock()
	said := s.waits[key] == holder
	s.waits[key] = holder
	delete(s.confirmed, key)
	s.mu.Unlock()
	if !said {
		log.FromContext(ctx).Info("Waiting for another operator to release the HostedCluster; if it doesn't, the selectors of both match it",
			"holder", holder)
	}
}
