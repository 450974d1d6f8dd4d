// SPDX-License-Identifier: Apache-2.0

// Package capacitylease follows this cluster's CapacityLease and writes what Karpenter holds and requests into its status. What is
// held is decided by package providers/capacity.
package capacitylease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	// reportInterval is the least time between two writes of the report.
	reportInterval = time.Second
	// generationInterval is that of reports which say nothing new but that a newer lease was observed: hints change often.
	generationInterval = 30 * time.Second
	// stepInterval is the least time between two steps: Machines change in bursts.
	stepInterval = 100 * time.Millisecond
	// retryInterval is how long a step or a write that failed waits.
	retryInterval = time.Second
	// untilStep is the unit of the times in the report. Entries that differ less aren't written again.
	untilStep = time.Second
)

// Config of the controller.
type Config struct {
	// Management writes the status of the lease.
	Management client.Client
	// Lease names the CapacityLease.
	Lease       types.NamespacedName
	Capacity    *limit.Provider
	Unavailable *offering.Unavailable
	Clock       clock.Clock
}

// Controller is a manager.Runnable of the elected process.
type Controller struct {
	Config
	// reported is when the report was written last.
	reported time.Time
	// failing: the last attempt has failed, and was logged.
	failing bool
}

var _ manager.LeaderElectionRunnable = (*Controller)(nil)

// New returns a controller.
func New(config Config) *Controller { return &Controller{Config: config} }

// Register adds the controller to the manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	// What others of the account are to know.
	c.Unavailable.OnChange(c.Capacity.Trigger)
	return m.Add(c)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the elected process holds the lease.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start follows the lease until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	for {
		next := c.reconcile(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-c.Clock.After(next):
		case <-c.Capacity.Triggered():
			select {
			case <-ctx.Done():
				return nil
			case <-c.Clock.After(stepInterval):
			}
		}
	}
}

// reconcile does what is due, and returns when something is due next.
func (c *Controller) reconcile(ctx context.Context) time.Duration {
	next, err := c.Capacity.Step(ctx)
	if lease := c.Capacity.Lease(); lease != nil {
		c.Unavailable.Share(lease.Quotas)
	}
	wait, reportErr := c.report(ctx)
	err = errors.Join(err, reportErr)
	if err != nil {
		next = retryInterval
		// While the management cluster is away, each attempt fails.
		if !c.failing && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "following the CapacityLease")
		}
	}
	c.failing = err != nil
	if wait > 0 {
		next = min(next, wait)
	}
	return next
}

// report writes the report if it has changed, and returns how long that has to wait.
func (c *Controller) report(ctx context.Context) (wait time.Duration, err error) {
	lease := c.Capacity.Lease() // before the report: if the lease has changed meanwhile, the write fails
	report, ok := c.Capacity.Report()
	if lease == nil || !ok {
		return 0, nil
	}
	written := &lease.Status
	status := &autonodev1alpha1.CapacityLeaseStatus{Conditions: slices.Clone(written.Conditions)}
	conversion.SetReport(status, report)
	_, reclaims := c.Capacity.Reclaims()
	status.Reclaim = conversion.CapacityReclaims(reclaims)
	status.Unavailable, status.Unmatched = c.unavailable(), bounded(c.Capacity.Unmatched())
	c.setReady(status, lease.Generation)
	c.setReturned(status, reclaims, report.Used)
	if equality.Semantic.DeepEqual(status, written) {
		return 0, nil
	}
	interval := reportInterval
	if isGenerationOnly(status, written) {
		interval = generationInterval
	}
	if wait := interval - c.Clock.Since(c.reported); wait > 0 {
		return wait, nil
	}
	c.reported = c.Clock.Now()
	// A list that is empty is removed.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": lease.ResourceVersion}, "status": map[string]any{
		"observedGeneration": status.ObservedGeneration, "conditions": status.Conditions,
		"acknowledgedSequence": status.AcknowledgedSequence, "reserved": status.Reserved, "used": status.Used, "requests": status.Requests,
		"reclaim": status.Reclaim, "unavailable": status.Unavailable, "unmatched": status.Unmatched,
	}})
	if err != nil {
		return 0, fmt.Errorf("encoding the report: %w", err)
	}
	object := &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Lease.Namespace, Name: c.Lease.Name}}
	err = c.Management.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return reportInterval, nil // the cache hasn't reported the change yet
	}
	return 0, err
}

// maxUnmatched is the number of unmatched pools and commitments in a report.
const maxUnmatched = 192

func bounded(names []string) []string { return names[:min(len(names), maxUnmatched)] }

// setReady reports that Karpenter keeps to a generation of the lease.
func (c *Controller) setReady(status *autonodev1alpha1.CapacityLeaseStatus, generation int64) {
	status.ObservedGeneration = generation
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: autonodev1alpha1.Ready, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.AsExpectedReason,
		Message:            "Karpenter launches what the lease grants",
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(c.Clock.Now().Truncate(time.Second)),
	})
}

// setReturned reports what the cluster has to return, and by when. Without anything to return there is no condition.
func (c *Controller) setReturned(status *autonodev1alpha1.CapacityLeaseStatus, reclaims division.Reclaims, used division.Amounts) {
	if len(reclaims) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, autonodev1alpha1.CapacityReturned)
		return
	}
	now, late := c.Capacity.Clock.Now(), false // by which the deadlines are
	var texts []string
	for _, pool := range slices.Sorted(maps.Keys(reclaims)) {
		limit, _ := reclaims.Limit(pool)
		if used[pool] <= limit {
			continue
		}
		r := reclaims.Next(pool, used[pool])
		late = late || !now.Before(r.By)
		texts = append(texts,
			fmt.Sprintf("%d of %s by %s for %s", used[pool]-limit, pool, r.By.UTC().Format(time.RFC3339), strings.Join(r.For, ", ")))
	}
	condition := metav1.Condition{
		Type: autonodev1alpha1.CapacityReturned, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.AsExpectedReason,
		Message:            "the cluster keeps no more than it may",
		ObservedGeneration: status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if len(texts) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, autonodev1alpha1.DrainingReason
		condition.Message = message.Cut("Karpenter removes nodes to return "+strings.Join(texts, "; "), maxReturned)
		if late {
			condition.Reason = autonodev1alpha1.DeadlinePassedReason
		}
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

// maxReturned bounds the message of the condition CapacityReturned, in bytes.
const maxReturned = 1024

// isGenerationOnly reports whether a report differs from the one that was written in nothing but the generation of the lease.
func isGenerationOnly(status, written *autonodev1alpha1.CapacityLeaseStatus) bool {
	if meta.FindStatusCondition(written.Conditions, autonodev1alpha1.Ready) == nil || written.AcknowledgedSequence == 0 {
		return false // the operator is waiting for it
	}
	before := ptr.Deref(meta.FindStatusCondition(written.Conditions, autonodev1alpha1.CapacityReturned), metav1.Condition{})
	now := ptr.Deref(meta.FindStatusCondition(status.Conditions, autonodev1alpha1.CapacityReturned), metav1.Condition{})
	if before.Reason != now.Reason || before.Message != now.Message {
		return false
	}
	same := *written
	same.ObservedGeneration, same.Conditions = status.ObservedGeneration, status.Conditions
	return equality.Semantic.DeepEqual(status, &same)
}

// unavailable returns the quotas that this cluster has found exhausted, and the offerings without capacity, those that stay unavailable the
// longest first.
func (c *Controller) unavailable() []autonodev1alpha1.UnavailableOffering {
	var list, without []autonodev1alpha1.UnavailableOffering
	for _, quota := range c.Unavailable.Quotas() {
		if !quota.Shared {
			list = append(list, autonodev1alpha1.UnavailableOffering{
				Reason: string(offering.LackOfQuota), Quota: quota.Name, Counts: autonodev1alpha1.PoolResource(quota.Counts), AtLeast: quota.AtLeast,
				Until: scalar.NewTime(quota.Until.Truncate(untilStep)),
			})
		}
	}
	for _, entry := range c.Unavailable.Entries() {
		// A reservation has an ID of its own, and the account counts it.
		if entry.CapacityType != karpv1.CapacityTypeReserved && entry.Reservation == "" && entry.Lacks == offering.LackOfCapacity {
			without = append(without, autonodev1alpha1.UnavailableOffering{
				InstanceType: entry.InstanceType, Zone: entry.Zone, CapacityType: entry.CapacityType, Reason: string(entry.Lacks),
				Until: scalar.NewTime(entry.Until.Truncate(untilStep)),
			})
		}
	}
	slices.SortStableFunc(without, func(a, b autonodev1alpha1.UnavailableOffering) int { return b.Until.At().Compare(a.Until.At()) })
	list = append(list, without...)
	return list[:min(len(list), autonodev1alpha1.MaxUnavailable)]
}
