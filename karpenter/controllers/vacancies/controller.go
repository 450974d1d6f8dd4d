// SPDX-License-Identifier: Apache-2.0

// Package vacancies ends what is held for the replacements of nodes that were terminated first, once they are initialized or no pod needs
// them any more, and reports on NodePools that their nodes are replaced so. What is held is in package providers/vacancy.
package vacancies

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

const (
	// interval is how often vacancies are checked while there are any.
	interval = 5 * time.Second
	// retryInterval is after how long a check that failed is repeated.
	retryInterval = time.Second
	// idleInterval is how often the NodePools are checked without a vacancy.
	idleInterval = time.Minute
	// evicted is how long after a node has gone its pods may take to be created again and found unschedulable.
	evicted = time.Minute
)

// VacancyReleasedReason is the reason of the event on a NodePool when what a terminated node has left is held no longer, and nothing has
// replaced the node. Pods that need it may find that another cluster has taken it.
const VacancyReleasedReason = "VacancyReleased"

// Config of the controller.
type Config struct {
	// Guest reads NodePools, NodeClaims and pods from the cache.
	Guest     client.Client
	Vacancies *vacancy.Keeper
	Inventory *inventory.Inventory
	// Unavailable are the offerings that failed lately.
	Unavailable *offering.Unavailable
	Recorder    events.Recorder
	Clock       clock.Clock
}

// Controller is a manager.Runnable of the elected process.
type Controller struct {
	Config
	triggered chan struct{}
	failing   bool
}

var _ manager.LeaderElectionRunnable = (*Controller)(nil)

// New returns a controller.
func New(config Config) *Controller {
	return &Controller{Config: config, triggered: make(chan struct{}, 1)}
}

// Register adds the controller to the manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	c.Vacancies.OnChange(func() {
		select {
		case c.triggered <- struct{}{}:
		default:
		}
	})
	return m.Add(c)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the elected process holds vacancies.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start follows the vacancies until ctx ends.
func (c *Controller) Start(ctx context.Context) error {
	for {
		next := interval
		err := c.Reconcile(ctx)
		switch {
		case err != nil:
			next = retryInterval
			// While an API server is away, each attempt fails.
			if !c.failing && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "following vacancies of terminated nodes")
			}
		case len(c.Vacancies.All()) == 0:
			next = idleInterval
		}
		c.failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-c.Clock.After(next):
		case <-c.triggered:
		}
	}
}

// Reconcile ends the vacancies that are filled or needn't be held, writes down those that are left, and updates the NodePools.
func (c *Controller) Reconcile(ctx context.Context) error {
	if err := c.Vacancies.Load(ctx); err != nil {
		return err
	}
	if !c.Inventory.IsCounted() {
		return nil
	}
	c.Vacancies.Settle(func(nodeClaim types.UID) bool {
		_, exists := c.Inventory.Machine(nodeClaim)
		return exists
	})
	var errs []error
	for _, v := range c.Vacancies.All() {
		errs = append(errs, c.check(ctx, &v))
	}
	return errors.Join(append(errs, c.Vacancies.Save(ctx), c.nodePools(ctx))...)
}

// check ends a vacancy that needn't be held any more.
func (c *Controller) check(ctx context.Context, v *vacancy.Vacancy) error {
	nodePool := &karpv1.NodePool{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: v.NodePool}, nodePool)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading NodePool %s: %w", v.NodePool, err)
	case apierrors.IsNotFound(err), nodePool.DeletionTimestamp != nil:
		c.Vacancies.End(v.NodeClaim)
		return nil
	}
	if v.Filler() != "" {
		return c.checkFilled(ctx, nodePool, v)
	}
	now := c.Clock.Now()
	if v.Expired(now) {
		c.release(ctx, nodePool, v, "no replacement was launched in time")
		return nil
	}
	if v.Gone().IsZero() {
		return nil
	}
	if strings.HasPrefix(v.Reason, string(methods.NoSpareHost)) {
		c.Unavailable.Clear(v.Offering) // its host comes back
	}
	if now.Sub(v.Gone()) < evicted {
		return nil
	}
	needed, err := c.needed(ctx, nodePool)
	if err != nil || needed {
		return err
	}
	c.Vacancies.End(v.NodeClaim)
	return nil
}

// checkFilled ends a vacancy whose replacement is initialized, or has been replacing for too long.
func (c *Controller) checkFilled(ctx context.Context, nodePool *karpv1.NodePool, v *vacancy.Vacancy) error {
	nodeClaim := &karpv1.NodeClaim{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: v.Filler()}, nodeClaim)
	switch {
	case apierrors.IsNotFound(err):
		c.Vacancies.Release(v.Filler())
	case err != nil:
		return fmt.Errorf("reading NodeClaim %s: %w", v.Filler(), err)
	case nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue():
		c.Vacancies.End(v.NodeClaim)
		log.FromContext(ctx).Info("replaced a node that was terminated first", "NodePool", v.NodePool, "NodeClaim", v.NodeClaim, "replacement", v.Filler())
	case v.Expired(c.Clock.Now()):
		c.release(ctx, nodePool, v, "its replacements weren't initialized in time")
	}
	return nil
}

func (c *Controller) release(ctx context.Context, nodePool *karpv1.NodePool, v *vacancy.Vacancy, why string) {
	c.Vacancies.End(v.NodeClaim)
	log.FromContext(ctx).Info("releasing what a terminated node has left", "NodePool", v.NodePool, "NodeClaim", v.NodeClaim, "why", why)
	c.Recorder.Publish(events.Event{
		InvolvedObject: nodePool, Type: corev1.EventTypeWarning, Reason: VacancyReleasedReason,
		Message:      fmt.Sprintf("Holding no longer what NodeClaim %s has left, which was terminated before its replacement: %s", v.NodeClaim, why),
		DedupeValues: []string{string(nodePool.UID), v.NodeClaim},
	})
}

// needed reports whether a NodePool may launch a node into a vacancy: pods wait for one, or a static NodePool has too few.
func (c *Controller) needed(ctx context.Context, nodePool *karpv1.NodePool) (bool, error) {
	if nodePool.Spec.Replicas == nil {
		pods, err := nodeutils.GetProvisionablePods(ctx, c.Guest)
		if err != nil {
			return true, fmt.Errorf("listing pending pods: %w", err)
		}
		return len(pods) > 0, nil
	}
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return true, fmt.Errorf("listing NodeClaims of NodePool %s: %w", nodePool.Name, err)
	}
	n := int64(0)
	for i := range nodeClaims.Items {
		if nodeClaims.Items[i].DeletionTimestamp == nil {
			n++
		}
	}
	return n < *nodePool.Spec.Replicas, nil
}

// nodePools reports on each NodePool with vacancies that its nodes are terminated first, and why, until none of them has to be replaced.
func (c *Controller) nodePools(ctx context.Context) error {
	why, count := map[string]string{}, map[string]int{}
	for _, v := range c.Vacancies.All() {
		_, text, _ := strings.Cut(v.Reason, ": ")
		why[v.NodePool] = text
		count[v.NodePool]++
	}
	nodePools := &karpv1.NodePoolList{}
	if err := c.Guest.List(ctx, nodePools, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodePools: %w", err)
	}
	var errs []error
	for i := range nodePools.Items {
		nodePool := &nodePools.Items[i]
		is := nodePool.StatusConditions().Get(v1alpha1.TerminateFirstCondition)
		text, terminates := why[nodePool.Name]
		if !terminates && is == nil {
			continue
		}
		if terminates {
			text = fmt.Sprintf("nodes are terminated before their replacements are launched: %s", text)
			if is != nil && is.Message == text {
				continue
			}
		} else if drifted, err := c.drifted(ctx, nodePool); err != nil || drifted {
			errs = append(errs, err)
			continue
		}
		changed := nodePool.DeepCopy()
		if terminates {
			changed.StatusConditions().SetTrueWithReason(v1alpha1.TerminateFirstCondition, methods.TerminateFirstReason, text)
		} else if err := changed.StatusConditions().Clear(v1alpha1.TerminateFirstCondition); err != nil {
			errs = append(errs, err)
			continue
		}
		// Others write conditions, too: theirs stay.
		err := c.Guest.Status().Patch(ctx, changed, client.MergeFromWithOptions(nodePool, client.MergeFromWithOptimisticLock{}))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("updating the conditions of NodePool %s: %w", nodePool.Name, err))
		}
	}
	return errors.Join(errs...)
}

// drifted reports whether nodes of a NodePool have to be replaced.
func (c *Controller) drifted(ctx context.Context, nodePool *karpv1.NodePool) (bool, error) {
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing NodeClaims of NodePool %s: %w", nodePool.Name, err)
	}
	for i := range nodeClaims.Items {
		for _, condition := range nodeClaims.Items[i].Status.Conditions {
			if condition.Type == karpv1.ConditionTypeDrifted && condition.IsTrue() {
				return true, nil
			}
		}
	}
	return false, nil
}
