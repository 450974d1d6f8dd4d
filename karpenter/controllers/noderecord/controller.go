// SPDX-License-Identifier: Apache-2.0

// Package noderecord writes a NodeRecord in the guest for every node: one create when its machine is launched, one patch when it is gone.
package noderecord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/singleton"
	"github.com/dustin/go-humanize/english"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/nodeupgrade"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	sweepInterval                              = time.Hour
	maxText, maxBecause, maxRefused, maxOwners = 256, 512, 8, 2
)

var ends = promauto.With(crmetrics.Registry).NewCounterVec(prometheus.CounterOpts{
	Namespace: "karpenter", Subsystem: "clusterapi", Name: "noderecord_ends_total", Help: "Gone nodes. Labeled by reason and nodepool.",
}, []string{"reason", "nodepool"})

// Config of the controller. Guest reads from the cache. Queue is Karpenter core's.
type Config struct {
	Guest       client.Client
	Cluster     *state.Cluster
	Queue       func() *disruption.Queue
	Unavailable *offering.Unavailable
	Clock       clock.PassiveClock
	// Days and Limit bound the records of nodes that are gone.
	Days, Limit int
}

// Controller handles one request at a time: a NodeClaim's UID, or none for a sweep. It trusts no record: a guest's admin may edit it.
type Controller struct {
	Config
	// claims as last seen, and causes, the known parts of their ends, by UID.
	claims, causes sync.Map
	// written has the NodeClaims that have a record, and whether that has ended. started is the time of the first pass.
	written map[types.UID]bool
	started time.Time
}

// New returns the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, written: map[types.UID]bool{}}
}

// Register implements operatorpkg's controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("noderecord").WatchesRawSource(singleton.Source()).
		WatchesRawSource(source.Kind(m.GetCache(), &v1alpha1.NodeRecord{}, handler.TypedFuncs[*v1alpha1.NodeRecord, reconcile.Request]{})).
		WatchesRawSource(source.Kind(m.GetCache(), &karpv1.NodeClaim{}, handler.TypedEnqueueRequestsFromMapFunc(c.observe))).
		Complete(c)
}

func (c *Controller) observe(_ context.Context, claim *karpv1.NodeClaim) []reconcile.Request {
	if ref := claim.Spec.NodeClassRef; ref == nil || ref.Group != v1alpha1.Group {
		return nil
	}
	c.claims.Store(claim.UID, claim)
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: string(claim.UID)}}}
}

// Reconcile writes a NodeClaim's record, or sweeps old ones. The end is written when the machine's deletion begins: if this process dies
// before that, the NodeClaim still has the reason.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if c.started.IsZero() {
		c.started = c.Clock.Now().Truncate(time.Second) // as the API's times
	}
	if request.Name == "" {
		return reconcile.Result{RequeueAfter: sweepInterval}, c.sweep(ctx)
	}
	seen, ok := c.claims.Load(types.UID(request.Name))
	if !ok {
		return reconcile.Result{}, nil
	}
	claim, current := seen.(*karpv1.NodeClaim).DeepCopy(), &karpv1.NodeClaim{}
	if err := c.read(ctx, claim.Name, current); err != nil {
		return reconcile.Result{}, err
	}
	gone, end := current.UID != claim.UID, since(claim, karpv1.ConditionTypeInstanceTerminating)
	if gone && end.IsZero() {
		end = c.Clock.Now()
	}
	if ended, written := c.written[claim.UID]; !since(claim, karpv1.ConditionTypeLaunched).IsZero() && (!written || !ended && !end.IsZero()) {
		if err := c.write(ctx, claim, end, written); err != nil {
			return reconcile.Result{}, err
		}
		c.written[claim.UID] = !end.IsZero()
	}
	if gone {
		c.claims.Delete(claim.UID)
		c.causes.Delete(claim.UID)
		delete(c.written, claim.UID)
	}
	return reconcile.Result{}, nil
}

func (c *Controller) write(ctx context.Context, claim *karpv1.NodeClaim, end time.Time, written bool) error {
	record, stored := c.render(claim, end), &v1alpha1.NodeRecord{}
	err := c.Guest.Get(ctx, client.ObjectKeyFromObject(record), stored)
	switch {
	case err == nil && (record.End == nil || stored.End != nil && stored.End.Time.Equal(record.End.Time)):
		return nil // it is an earlier process's, which knew more
	case err == nil || written: // The patch leaves launch.for and launch.refused as they are.
		err = c.Guest.Patch(ctx, record.DeepCopy(), client.MergeFrom(&v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: record.Name}}))
	}
	if apierrors.IsNotFound(err) {
		record.Launch.For, record.Launch.Refused = c.launchedFor(ctx, claim), c.refused(claim)
		err = c.Guest.Create(ctx, record)
	}
	if err == nil && record.End != nil {
		ends.WithLabelValues(record.End.Reason, string(record.Launch.NodePool)).Inc()
	}
	return err
}

// sweep deletes old records of nodes that are gone. The first one closes those of nodes that went while Karpenter wasn't running.
func (c *Controller) sweep(ctx context.Context) error {
	claims, records, existing, now := &karpv1.NodeClaimList{}, &v1alpha1.NodeRecordList{}, map[string]bool{}, c.Clock.Now()
	errs := []error{c.Guest.List(ctx, claims, client.UnsafeDisableDeepCopy), c.Guest.List(ctx, records)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("listing NodeClaims and NodeRecords: %w", err)
	}
	for i := range claims.Items {
		existing[v1alpha1.NodeRecordName(&claims.Items[i])] = true
	}
	gone := slices.DeleteFunc(records.Items, func(r v1alpha1.NodeRecord) bool { return existing[r.Name] })
	dayOf := func(r *v1alpha1.NodeRecord) string {
		return cmp.Or(r.Labels[v1alpha1.RecordedDayLabel], day(r.CreationTimestamp.Time))
	}
	slices.SortFunc(gone, func(a, b v1alpha1.NodeRecord) int { // the newest first
		return cmp.Or(strings.Compare(dayOf(&b), dayOf(&a)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	for i := range gone {
		switch record := gone[i].DeepCopy(); {
		case i >= c.Limit, dayOf(record) < day(now.AddDate(0, 0, -c.Days)):
			errs = append(errs, client.IgnoreNotFound(c.Guest.Delete(ctx, record)))
		case record.End == nil && now.Sub(c.started) < sweepInterval:
			metav1.SetMetaDataLabel(&record.ObjectMeta, v1alpha1.RecordedDayLabel, day(now))
			record.End = &v1alpha1.NodeEnd{Time: timeOf(now), Reason: "Unknown", Because: "Unknown: Karpenter wasn't running then"}
			// The lock conflicts if this process has just ended it.
			lock := client.MergeFromWithOptions(&gone[i], client.MergeFromWithOptimisticLock{})
			errs = append(errs, client.IgnoreNotFound(c.Guest.Patch(ctx, record, lock)))
		}
	}
	return errors.Join(errs...)
}

// read reads an object of the guest from the cache, shared: don't modify it. A missing object stays empty.
func (c *Controller) read(ctx context.Context, name string, object client.Object) error {
	return client.IgnoreNotFound(c.Guest.Get(ctx, types.NamespacedName{Name: name}, object, client.UnsafeDisableDeepCopy))
}

func (c *Controller) refused(claim *karpv1.NodeClaim) (texts []v1alpha1.RecordText) {
	allowed := karpscheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	for _, entry := range c.Unavailable.Entries() {
		if len(texts) < maxRefused && allowed.Get(corev1.LabelInstanceTypeStable).Has(entry.InstanceType) &&
			allowed.Get(corev1.LabelTopologyZone).Has(entry.Zone) && allowed.Get(karpv1.CapacityTypeLabelKey).Has(entry.CapacityType) {
			texts = append(texts, text(entry.Description()+": "+entry.Reason))
		}
	}
	return texts
}

func (c *Controller) launchedFor(ctx context.Context, claim *karpv1.NodeClaim) v1alpha1.RecordText {
	pool, keys, pods, owners := &karpv1.NodePool{}, c.Cluster.PodsMappedToNodeClaim(claim.Name), 0, map[string]int{}
	for _, key := range keys {
		pod := &corev1.Pod{}
		if c.Guest.Get(ctx, key, pod, client.UnsafeDisableDeepCopy) == nil { // no cache has virtual pods
			pods++
			_, owner := nodeupgrade.OwnerOf(pod)
			owners[pod.Namespace+"/"+owner]++
		}
	}
	names := slices.SortedFunc(maps.Keys(owners), func(a, b string) int { return cmp.Or(owners[b]-owners[a], strings.Compare(a, b)) })
	named := message.Cut(strings.Join(names[:min(len(names), maxOwners)], ", "), maxText-64)
	switch err := c.read(ctx, claim.Labels[karpv1.NodePoolLabelKey], pool); {
	case err == nil && pool.Spec.Replicas != nil:
		return "static"
	case len(names) > maxOwners:
		return text(fmt.Sprintf("%s, %s and %s", english.Plural(pods, "pod", ""), named, english.Plural(len(names)-maxOwners, "more owner", "")))
	case pods > 0:
		return text(english.Plural(pods, "pod", "") + ", " + named)
	case len(keys) > 0:
		return "capacity buffer"
	}
	return "adopted"
}

// render returns the record of a NodeClaim, which ended at that time unless it is zero.
func (c *Controller) render(claim *karpv1.NodeClaim, end time.Time) *v1alpha1.NodeRecord {
	after := func(from time.Time, condition string) v1alpha1.RecordText {
		if at := since(claim, condition); !at.IsZero() {
			return text(duration.HumanDuration(max(at.Sub(from), 0)))
		}
		return ""
	}
	launched, created, cost := since(claim, karpv1.ConditionTypeLaunched), claim.CreationTimestamp.Time, ""
	record := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeRecordName(claim), Labels: map[string]string{
		v1alpha1.RecordedDayLabel: day(c.Clock.Now()), karpv1.NodePoolLabelKey: claim.Labels[karpv1.NodePoolLabelKey],
	}}, Launch: v1alpha1.NodeLaunch{
		Time: timeOf(launched), Node: text(cmp.Or(claim.Status.NodeName, path.Base(claim.Annotations[v1alpha1.MachineAnnotation]))),
		NodePool: text(claim.Labels[karpv1.NodePoolLabelKey]), NodeClass: text(claim.Spec.NodeClassRef.Name),
		InstanceType: text(claim.Labels[corev1.LabelInstanceTypeStable]), Zone: text(claim.Labels[corev1.LabelTopologyZone]),
		CapacityType: text(claim.Labels[karpv1.CapacityTypeLabelKey]),
	}}
	lived := max(end.Sub(launched), 0)
	if price, err := strconv.ParseFloat(claim.Labels[v1alpha1.NodePriceLabel], 64); err == nil && price >= 0 && price < 1e6 {
		record.Launch.PricePerHour, cost = text(fmt.Sprintf("$%.3f", price)), fmt.Sprintf("$%.2f", price*lived.Hours())
	}
	if end.IsZero() {
		return record
	}
	why := c.causeOf(claim, end)
	record.End = &v1alpha1.NodeEnd{
		Time: timeOf(end), Lived: text(duration.HumanDuration(lived)), Cost: text(cost), Reason: why.Reason,
		LaunchedAfter: after(created, karpv1.ConditionTypeLaunched), RegisteredAfter: after(created, karpv1.ConditionTypeRegistered),
		InitializedAfter: after(created, karpv1.ConditionTypeInitialized),
	}
	if claim.DeletionTimestamp != nil && why.Drain != "" && !since(claim, karpv1.ConditionTypeDrained).IsZero() {
		record.End.Drain = why.Drain + " moved in " + after(claim.DeletionTimestamp.Time, karpv1.ConditionTypeDrained)
		why.Because += "; " + string(record.End.Drain)
	}
	record.End.Because = message.Cut(message.Line(why.Reason+": "+why.Because), maxBecause)
	return record
}

// Note remembers why one of our controllers deletes a NodeClaim.
func (c *Controller) Note(claim *karpv1.NodeClaim, reason, details string) {
	c.causes.Store(claim.UID, v1alpha1.NodeEnd{Reason: reason, Because: details})
}

// Deleted gets each NodeClaim that Karpenter core deletes. The disruption queue still has its command then.
func (c *Controller) Deleted(claim *karpv1.NodeClaim) {
	ctx, why, node, pool := context.Background(), v1alpha1.NodeEnd{}, &corev1.Node{}, &karpv1.NodePool{}
	err := errors.Join(c.read(ctx, claim.Status.NodeName, node), c.read(ctx, claim.Labels[karpv1.NodePoolLabelKey], pool))
	if pods, err := nodeutils.ReschedulablePods(ctx, c.Guest, claim.Status.NodeName); err == nil && len(pods) > 0 && node.UID != "" {
		why.Drain = text(english.Plural(len(pods), "pod", ""))
	}
	known, _ := c.causes.Load(claim.UID)
	noted, _ := known.(v1alpha1.NodeEnd)
	running, _, _ := c.Cluster.NodePoolState.GetNodeCount(pool.Name)
	commands := slices.DeleteFunc(c.Queue().GetCommands(), func(command *disruption.Command) bool {
		return !slices.ContainsFunc(command.Candidates, func(c *disruption.Candidate) bool { return c.NodeClaim.UID == claim.UID })
	})
	switch {
	case len(commands) > 0:
		why.Reason, why.Because = reasonOf(string(commands[0].Reason()), claim), describe(commands[0], claim)
	case noted.Reason == "LaunchFailed" && since(claim, karpv1.ConditionTypeRegistered).IsZero(): // its deadline has passed
		why.Reason, why.Because = noted.Reason, noted.Because
	case err != nil || node.DeletionTimestamp != nil || expired(claim, c.Clock.Now()): // causeOf decides
	case pool.Spec.Replicas != nil && int64(running) > *pool.Spec.Replicas:
		why.Reason, why.Because = "ScaledDown", fmt.Sprintf("NodePool %s has %d replicas", pool.Name, *pool.Spec.Replicas)
	default:
		why.Reason, why.Because = "Interrupted", "Karpenter found no machine, or no healthy node of it"
	}
	c.causes.Store(claim.UID, why)
}

// causeOf returns why a node is gone: from memory, otherwise from its NodeClaim.
func (c *Controller) causeOf(claim *karpv1.NodeClaim, at time.Time) v1alpha1.NodeEnd {
	known, _ := c.causes.Load(claim.UID)
	why, _ := known.(v1alpha1.NodeEnd)
	if claim.DeletionTimestamp != nil {
		at = claim.DeletionTimestamp.Time
	}
	disrupted := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason)
	switch {
	// A slow launch is reported before it fails.
	case why.Reason != "" && (why.Reason != "LaunchFailed" || since(claim, karpv1.ConditionTypeRegistered).IsZero()):
	case expired(claim, at):
		why.Reason, why.Because = "Expired", fmt.Sprintf("expireAfter %s passed", claim.Spec.ExpireAfter.Duration)
	case at.Before(c.started) && disrupted.IsTrue():
		why.Reason, why.Because = reasonOf(disrupted.Reason, claim), "details lost in a restart"
	case at.Before(c.started):
		why.Reason, why.Because = "Unknown", "details lost in a restart"
	default:
		why.Reason, why.Because = "Deleted", "by a request; see the API server's audit log"
	}
	return why
}

// reasonOf returns the reason of Karpenter core's decision about a NodeClaim.
func reasonOf(decision string, claim *karpv1.NodeClaim) string {
	switch {
	case decision == "Drifted" && nodeupgrade.IsUpgrade(claim):
		return "Upgrade"
	case decision == autonodev1alpha1.CapacityReclaimedReason:
		return "Reclaimed"
	case slices.Contains([]string{"Empty", "Underutilized", "Drifted", "Unhealthy"}, decision):
		return decision
	}
	return "Unknown"
}

func describe(command *disruption.Command, claim *karpv1.NodeClaim) string {
	details := fmt.Sprintf("%s became %d", english.Plural(len(command.Candidates), "node", ""), len(command.Replacements))
	if d := claim.StatusConditions().Get(karpv1.ConditionTypeDrifted); d.IsTrue() && command.Reason() == karpv1.DisruptionReasonDrifted {
		details = d.Reason + ", " + details
	}
	if savings := command.EstimatedSavings(); command.ConsolidationType() != "" && savings > 0 {
		details += fmt.Sprintf(", saves $%.3f/h", savings)
	}
	return details
}

func expired(claim *karpv1.NodeClaim, at time.Time) bool {
	after := claim.Spec.ExpireAfter.Duration
	return after != nil && !at.Before(claim.CreationTimestamp.Add(*after))
}

// since returns since when a condition of a NodeClaim has been true; zero if it isn't.
func since(claim *karpv1.NodeClaim, condition string) time.Time {
	if c := claim.StatusConditions().Get(condition); c.IsTrue() {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

func day(t time.Time) string            { return t.UTC().Format(time.DateOnly) }
func timeOf(t time.Time) *scalar.Time   { return new(scalar.NewTime(t).Stored()) }
func text(s string) v1alpha1.RecordText { return v1alpha1.RecordText(message.Cut(s, maxText)) }
