// SPDX-License-Identifier: Apache-2.0

// Package capacitylease follows this cluster's CapacityLease and writes what Karpenter holds and wants into its status. What is
// held is decided by package providers/capacity.
package capacitylease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity/conversion"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
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
	Capacity    *capacityprovider.Provider
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
	resourceVersion, report, ok := c.Capacity.Report()
	if !ok {
		return 0, nil
	}
	// Later than the report: if the lease has changed meanwhile, the write fails.
	written := c.Capacity.Status()
	status := &autonodev1alpha1.CapacityLeaseStatus{Conditions: slices.Clone(written.Conditions)}
	conversion.SetReport(status, report)
	status.Unavailable = c.unavailable()
	c.setReady(status, c.Capacity.Generation())
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": resourceVersion}, "status": map[string]any{
		"observedGeneration": status.ObservedGeneration, "conditions": status.Conditions,
		"acknowledgedSequence": status.AcknowledgedSequence, "held": status.Held, "spent": status.Spent, "requests": status.Requests, "unavailable": status.Unavailable,
	}})
	if err != nil {
		return 0, fmt.Errorf("encoding the report: %w", err)
	}
	lease := &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Lease.Namespace, Name: c.Lease.Name}}
	err = c.Management.Status().Patch(ctx, lease, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return reportInterval, nil // the cache has yet to tell what has changed
	}
	return 0, err
}

// setReady says that Karpenter keeps to a generation of the lease.
func (c *Controller) setReady(status *autonodev1alpha1.CapacityLeaseStatus, generation int64) {
	status.ObservedGeneration = generation
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: autonodev1alpha1.Ready, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.AsExpectedReason, Message: "Karpenter launches what the lease grants",
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(c.Clock.Now().Truncate(time.Second)),
	})
}

// isGenerationOnly reports whether a report differs from the one that was written in nothing but the generation of the lease.
func isGenerationOnly(status, written *autonodev1alpha1.CapacityLeaseStatus) bool {
	if meta.FindStatusCondition(written.Conditions, autonodev1alpha1.Ready) == nil || written.AcknowledgedSequence == 0 {
		return false // the operator is waiting for it
	}
	same := *written
	same.ObservedGeneration, same.Conditions = status.ObservedGeneration, status.Conditions
	return equality.Semantic.DeepEqual(status, &same)
}

// unavailable returns the offerings of which this cluster has found no capacity, those that stay unavailable the longest first.
func (c *Controller) unavailable() []autonodev1alpha1.UnavailableOffering {
	entries := slices.DeleteFunc(c.Unavailable.Entries(), func(entry offering.Entry) bool {
		// A reservation has an ID of its own, and the account counts it.
		return entry.CapacityType == karpv1.CapacityTypeReserved || entry.Reservation != "" || entry.Lacks == ""
	})
	slices.SortStableFunc(entries, func(a, b offering.Entry) int { return cmp.Or(b.Until.Compare(a.Until), a.Key.Compare(b.Key)) })
	var list []autonodev1alpha1.UnavailableOffering
	for _, entry := range entries[:min(len(entries), autonodev1alpha1.MaxUnavailable)] {
		list = append(list, autonodev1alpha1.UnavailableOffering{
			InstanceType: entry.InstanceType, Zone: entry.Zone, CapacityType: entry.CapacityType, Family: entry.Family, Reason: string(entry.Lacks),
			Until: scalar.NewTime(entry.Until.Truncate(untilStep)),
		})
	}
	return list
}
