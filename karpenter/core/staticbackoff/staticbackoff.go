// SPDX-License-Identifier: Apache-2.0

// Package staticbackoff makes Karpenter core's static provisioning wait while the nodes of a NodePool can't be launched, and keeps pods
// from a NodePool whose NodeClaims the API server rejects.
//
// Upstream gap: core creates NodeClaims for a static NodePool whether or not there is an available offering, and a NodeClaim
// that it deletes for the lack of one makes it create the next at once (docs/internals/upstream/static-backoff.md). It plans pods on
// a NodePool whose NodeClaims an admission policy denies, without end and without an event.
package staticbackoff

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

const (
	// Interval is after how long a NodePool without an available offering is tried again. Karpenter core retries pods that
	// fit nowhere as often.
	Interval = 10 * time.Second
	// MaxInterval is the longest back-off after launches that failed although an offering was available. It begins with
	// Interval and doubles.
	MaxInterval = 160 * time.Second
	// ReplicasUnavailableReason is the reason of the event on a static NodePool that has fewer nodes than replicas, and can't
	// get more now. The message names the shortage.
	ReplicasUnavailableReason = "ReplicasUnavailable"
	// NodeClaimRejectedReason is the reason of the event on a NodePool whose NodeClaims the API server rejects.
	NodeClaimRejectedReason = "NodeClaimRejected"
	// maxRejections is after how many rejections in a row a NodePool is left out.
	maxRejections = 3
	// maxWords bounds the API server's words in an event.
	maxWords = 600
	// forgotten is for how long after its back-off a failure counts.
	forgotten = time.Hour
	// said is for how long the same message isn't repeated.
	said = 10 * time.Minute
)

// Config of a Backoff.
type Config struct {
	// Guest reads NodePools from the cache.
	Guest client.Client
	// Missing returns why no node of a NodePool can be launched now. It is empty if one can, or if that isn't known.
	Missing func(ctx context.Context, nodePool *karpv1.NodePool) string
	// Rejected reports whether an error is an API server's rejection.
	Rejected func(error) bool
	// Closed returns a copy of an instance type in which the offerings that closes selects aren't available.
	Closed func(it *karpcloudprovider.InstanceType, closes func(*karpcloudprovider.Offering) bool) *karpcloudprovider.InstanceType
	// Cluster is core's state. It may be set after Launches, which it is made with.
	Cluster *state.Cluster
	// Recorder publishes events on NodePools.
	Recorder events.Recorder
	Clock    clock.PassiveClock
}

// Backoff follows the launches of NodePools, for those that are static, and the creation of NodeClaims for all.
type Backoff struct {
	Config
	launches, rejections failures
}

// New returns a Backoff.
func New(config Config) *Backoff {
	return &Backoff{
		Config: config, launches: failures{clock: config.Clock, after: 1, pools: map[string]pool{}},
		rejections: failures{clock: config.Clock, after: maxRejections, pools: map[string]pool{}},
	}
}

// Launches wraps Karpenter core's cloud provider: it records which NodePools' launches fail. NodePools whose NodeClaims are rejected have
// no available offering during their back-off.
func (b *Backoff) Launches(provider karpcloudprovider.CloudProvider) karpcloudprovider.CloudProvider {
	return backedOff{CloudProvider: provider, backoff: b}
}

type backedOff struct {
	karpcloudprovider.CloudProvider
	backoff *Backoff
}

// Create implements cloudprovider.CloudProvider.
func (l backedOff) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	created, err := l.CloudProvider.Create(ctx, nodeClaim)
	// After another failure the NodeClaim stays.
	if name := nodeClaim.Labels[karpv1.NodePoolLabelKey]; name != "" &&
		(err == nil || karpcloudprovider.IsInsufficientCapacityError(err) || karpcloudprovider.IsNodeClassNotReadyError(err)) {
		l.backoff.launches.record(name, err)
	}
	return created, err
}

// Created records whether the API server accepted a NodeClaim, and reports a rejection.
func (b *Backoff) Created(ctx context.Context, nodeClaim *karpv1.NodeClaim, err error) {
	if err != nil && !b.Rejected(err) {
		return
	}
	name, nodePool := nodeClaim.Labels[karpv1.NodePoolLabelKey], &karpv1.NodePool{}
	if err != nil && b.Guest.Get(ctx, types.NamespacedName{Name: name}, nodePool) == nil {
		b.Recorder.Publish(events.Event{
			InvolvedObject: nodePool,
			Type:           corev1.EventTypeWarning,
			Reason:         NodeClaimRejectedReason,
			Message: fmt.Sprintf("the API server rejects a NodeClaim of this NodePool: %s; correct the NodePool, or the policy or webhook. "+
				"After %d rejections in a row Karpenter plans pods on other NodePools, and tries this one again within %s",
				message.Cut(err.Error(), maxWords), maxRejections, MaxInterval),
			DedupeValues:  []string{string(nodePool.UID)},
			DedupeTimeout: said,
		})
	}
	b.rejections.record(name, err)
}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (l backedOff) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	instanceTypes, err := l.CloudProvider.GetInstanceTypes(ctx, nodePool)
	if wait, _ := l.backoff.rejections.remaining(nodePool); err != nil || wait <= 0 {
		return instanceTypes, err //nolint:wrapcheck // Karpenter core's own
	}
	closed := make([]*karpcloudprovider.InstanceType, len(instanceTypes))
	for i, it := range instanceTypes {
		closed[i] = l.backoff.Closed(it, func(*karpcloudprovider.Offering) bool { return true })
	}
	return closed, nil
}

// Provisioning begins no pass of Karpenter core's static provisioning over a NodePool that lacks nodes and can't get any now.
func (b *Backoff) Provisioning() reconciler.Middleware {
	return reconciler.Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		if wait, err := b.wait(ctx, request.Name); err != nil || wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, err
		}
		return next.Reconcile(ctx, request)
	})
}

// wait returns for how long nothing is to be launched for a NodePool, and reports why; 0 if nothing keeps it from being launched.
func (b *Backoff) wait(ctx context.Context, name string) (time.Duration, error) {
	nodePool := &karpv1.NodePool{}
	if err := b.Guest.Get(ctx, types.NamespacedName{Name: name}, nodePool); err != nil {
		if apierrors.IsNotFound(err) {
			b.launches.record(name, nil)
			b.rejections.record(name, nil)
			return 0, nil
		}
		return 0, fmt.Errorf("reading NodePool %s: %w", name, err)
	}
	if nodePool.Spec.Replicas == nil || nodePool.DeletionTimestamp != nil || !nodePool.StatusConditions().Root().IsTrue() ||
		!b.Cluster.HasSynced() {
		return 0, nil
	}
	running, _, replaced := b.Cluster.NodePoolState.GetNodeCount(name)
	if int64(running+replaced) >= *nodePool.Spec.Replicas {
		return 0, nil
	}
	wait, why := b.launches.remaining(nodePool)
	if rejected, words := b.rejections.remaining(nodePool); rejected > wait {
		wait, why = rejected, words
	}
	if missing := b.Missing(ctx, nodePool); missing != "" {
		wait, why = max(wait, Interval), missing
	}
	if wait <= 0 {
		return 0, nil
	}
	wait = min(wait, Interval) // core's controller isn't woken by an edit that ends the back-off
	b.Recorder.Publish(events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         ReplicasUnavailableReason,
		Message: fmt.Sprintf("%d of %d replicas have a NodeClaim, and no other can be launched: %s",
			running+replaced, *nodePool.Spec.Replicas, why),
		DedupeValues:  []string{string(nodePool.UID), why},
		DedupeTimeout: said,
	})
	return wait, nil
}

// Retry ends the back-off of all NodePools: what their launches waited for may be there.
func (b *Backoff) Retry() {
	b.launches.mu.Lock()
	defer b.launches.mu.Unlock()
	clear(b.launches.pools)
}

// failures of NodePools.
type failures struct {
	clock clock.PassiveClock
	// after is the number of failures in a row after which a back-off begins.
	after int

	mu    sync.Mutex
	pools map[string]pool
}

// pool is a NodePool whose last attempt failed.
type pool struct {
	// generation of the NodePool when it failed; 0 if that isn't known yet. An edit ends the back-off.
	generation int64
	failures   int
	until      time.Time
	why        string
}

// record records the result of an attempt. All NodeClaims of a NodePool that fail together count once.
func (f *failures) record(nodePool string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.pools, nodePool)
		return
	}
	now := f.clock.Now()
	maps.DeleteFunc(f.pools, func(_ string, p pool) bool { return now.Sub(p.until) > forgotten })
	p := f.pools[nodePool]
	if now.Before(p.until) {
		return
	}
	p.failures++
	p.until, p.why = now, err.Error()
	if more := p.failures - f.after; more >= 0 {
		p.until = now.Add(min(Interval<<min(more, 16), MaxInterval))
	}
	f.pools[nodePool] = p
}

// remaining returns how long a NodePool's back-off still lasts, and why.
func (f *failures) remaining(nodePool *karpv1.NodePool) (time.Duration, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pools[nodePool.Name]
	switch {
	case !ok:
		return 0, ""
	case p.generation == 0:
		p.generation = nodePool.Generation
		f.pools[nodePool.Name] = p
	case p.generation != nodePool.Generation:
		delete(f.pools, nodePool.Name)
		return 0, ""
	}
	return p.until.Sub(f.clock.Now()), p.why
}
