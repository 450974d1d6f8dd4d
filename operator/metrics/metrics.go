// SPDX-License-Identifier: Apache-2.0

// Package metrics serves metrics of each hosted cluster's state. It reads HostedClusters and ControlPlaneComponents
// from the cache at scrape time, so no series is stale, and a deleted HostedCluster leaves none.
//
// Steps count their own actions: see Counter, and the packages release and guest.
package metrics

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Namespace is the prefix of the names of all the operator's own metrics.
const Namespace = "autonode"

// desc describes a metric of one HostedCluster, which its first two labels name.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(Namespace, "", name), help, append([]string{"namespace", "name"}, labels...), nil)
}

var (
	componentInfo = desc("component_info",
		"1 for each component in a control-plane namespace. Labeled by that namespace, the component, and the version and digest of the "+
			"release of its last complete rollout.",
		"control_plane_namespace", "component", "version", "digest")
	enabled = desc("enabled",
		"1 while Karpenter of the release runs, 0 otherwise, and for hosted clusters without AutoNode.")
	state = desc("state",
		"1 for the state that AutoNode is in. Labeled by state.",
		"state")
	condition = desc("condition",
		"1 for each condition of the HostedCluster. Labeled by the condition's type, status and reason.",
		"type", "status", "reason")
	progressing = desc("progressing_seconds",
		"Seconds since the current rollout of Karpenter started, 0 while there is none.")
	updating = desc("updating_seconds",
		"Seconds since the newest release was resolved while Karpenter or a node doesn't run it, 0 otherwise.")
	drainDeadline = desc("drain_deadline_timestamp_seconds",
		"When the nodes of a HostedCluster that is deleted, or in which AutoNode was turned off, are to be drained, in seconds since the epoch.")
	guestReachable = desc("guest_reachable",
		"1 while the guest's API server answers, 0 otherwise.")
	nodes = desc("nodes",
		"Nodes that Karpenter made and that have joined. Labeled by the version of their kubelet.",
		"version")
	nodeClaims    = desc("nodeclaims", "NodeClaims, joined or not.")
	outdatedNodes = desc("outdated_nodes", "Nodes that run another version than they should.")
	driftedNodes  = desc("drifted_nodes", "Nodes that Karpenter is going to replace because what they were made from changed.")
	vcpus         = desc("vcpus", "Virtual CPUs of Karpenter's nodes.")
	sleepSaved    = desc("sleep_saved_dollars_per_hour",
		"List prices of the nodes that a cluster had before it fell asleep, in US dollars, while it is asleep.")

	hostedClusterMetrics = []*prometheus.Desc{
		componentInfo, enabled, state, condition, progressing, updating, drainDeadline, guestReachable,
		nodes, nodeClaims, outdatedNodes, driftedNodes, vcpus, sleepSaved,
	}
)

// conditionTypes are the operator's own, so that other controllers can't add label values.
var conditionTypes = []string{
	v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable, v1beta1.AutoNodeEnabled, v1beta1.NodesUpToDate,
	v1beta1.ImageOverridden, v1beta1.FeatureGatesAccepted, v1beta1.NodeClassReady, v1beta1.OfferingsAvailable,
	v1beta1.NodeIdentityEnforced,
}

// Config is the input of New.
type Config struct {
	// Management reads HostedClusters and ControlPlaneComponents from the cache.
	Management client.Reader
	// Holder is the operator's name in status.operator. HostedClusters with another holder are skipped. If empty, all
	// are reported.
	Holder string
	// DrainTimeout is how long nodes may drain where the HostedCluster doesn't say it.
	DrainTimeout time.Duration
	// Clock is the time; nil is the real one.
	Clock clock.PassiveClock
	// Counters forget the HostedClusters that are gone.
	Counters []*Counter
}

// Collector is a prometheus.Collector.
type Collector struct{ Config }

var _ prometheus.Collector = (*Collector)(nil)

// New returns a collector.
func New(config Config) *Collector {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Collector{config}
}

// Serve registers a collector in a registry while it runs; nil is controller-runtime's. A manager runs it where that holds the Lease only:
// two replicas would count everything twice.
func Serve(collector prometheus.Collector, registry prometheus.Registerer) manager.RunnableFunc {
	if registry == nil {
		registry = crmetrics.Registry
	}
	return func(ctx context.Context) error {
		if err := registry.Register(collector); err != nil {
			return err
		}
		defer registry.Unregister(collector)
		<-ctx.Done()
		return nil
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range hostedClusterMetrics {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(samples chan<- prometheus.Metric) {
	ctx := context.Background()
	hostedClusters, components := &v1beta1.HostedClusterList{}, &v1beta1.ControlPlaneComponentList{}
	for _, list := range []client.ObjectList{hostedClusters, components} {
		if err := c.Management.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			// Log only: an error would fail the whole scrape.
			log.Log.V(1).Info("counting hosted clusters", "error", err.Error())
			return
		}
	}
	byOwner := map[client.ObjectKey][]*v1beta1.ControlPlaneComponent{}
	for i := range components.Items {
		owned := components.Items[i].Labels
		owner := client.ObjectKey{Namespace: owned[v1beta1.HostedClusterNamespaceLabel], Name: owned[v1beta1.HostedClusterLabel]}
		byOwner[owner] = append(byOwner[owner], &components.Items[i])
	}
	there := sets.New[client.ObjectKey]()
	for i := range hostedClusters.Items {
		there.Insert(client.ObjectKeyFromObject(&hostedClusters.Items[i]))
	}
	for _, counter := range c.Counters {
		counter.keep(there)
	}
	for i := range hostedClusters.Items {
		hostedCluster := &hostedClusters.Items[i]
		if holder := hostedCluster.Status.Operator; c.Holder != "" && holder != "" && holder != c.Holder {
			continue
		}
		c.collect(samples, hostedCluster, byOwner[client.ObjectKeyFromObject(hostedCluster)])
	}
}

// collect reports one hosted cluster. One without AutoNode has a single sample.
func (c *Collector) collect(samples chan<- prometheus.Metric, hostedCluster *v1beta1.HostedCluster,
	components []*v1beta1.ControlPlaneComponent,
) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		samples <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value,
			append([]string{hostedCluster.Namespace, hostedCluster.Name}, labels...)...)
	}
	status := &hostedCluster.Status
	gauge(enabled, boolean(meta.IsStatusConditionTrue(status.Conditions, v1beta1.AutoNodeEnabled)))
	if status.AutoNode != nil && status.AutoNode.Sleep == nil && !status.AutoNode.DrainStartedTime.IsZero() {
		// The guest may have answered later.
		begin := cmp.Or(status.AutoNode.DrainRequestedTime.At(), status.AutoNode.DrainStartedTime.At())
		gauge(drainDeadline, float64(begin.Add(hostedCluster.Spec.NodeDrain.TimeoutOr(c.DrainTimeout)).Unix()))
	}
	for _, component := range components {
		_, digest, _ := strings.Cut(component.Status.ReleaseImage, "@")
		gauge(componentInfo, 1, component.Namespace, component.Name, component.Status.Version, digest)
	}
	if status.AutoNode == nil {
		return
	}
	counts := status.AutoNode
	if counts.State != "" {
		gauge(state, 1, string(counts.State))
	}
	for _, conditionType := range conditionTypes {
		if known := meta.FindStatusCondition(status.Conditions, conditionType); known != nil {
			gauge(condition, 1, known.Type, string(known.Status), known.Reason)
		}
	}
	gauge(progressing, c.since(progressingSince(hostedCluster, components)))
	gauge(updating, c.since(updatingSince(hostedCluster)))
	if reachable := meta.FindStatusCondition(status.Conditions, v1beta1.GuestReachable); reachable != nil {
		gauge(guestReachable, boolean(reachable.Status == metav1.ConditionTrue))
	}
	if counts.Sleep != nil && counts.Sleep.Since != nil {
		saved, _ := strconv.ParseFloat(strings.TrimPrefix(counts.Sleep.SavedPerHour, "$"), 64) // zero where it isn't known
		gauge(sleepSaved, saved)
	}
	for _, version := range counts.NodeVersions {
		gauge(nodes, float64(version.Count), version.Version)
	}
	for _, counted := range []struct {
		desc  *prometheus.Desc
		count *int32
	}{
		{nodeClaims, counts.NodeClaimCount}, {outdatedNodes, counts.OutdatedNodeCount},
		{driftedNodes, counts.DriftedNodeCount}, {vcpus, counts.VCPUs},
	} {
		if counted.count != nil { // else not counted yet
			gauge(counted.desc, float64(*counted.count))
		}
	}
}

// moves reports whether the operator is working towards the spec: AutoNode is on, and neither paused, asleep nor being
// removed.
func moves(hostedCluster *v1beta1.HostedCluster) bool {
	return hostedCluster.Spec.AutoNode != nil && hostedCluster.DeletionTimestamp.IsZero() &&
		hostedCluster.Status.AutoNode.State != v1beta1.AutoNodeStatePaused && hostedCluster.Status.AutoNode.Sleep == nil
}

// progressingSince returns when Karpenter's current rollout started; zero without one. AutoNodeEnabled can't show it:
// its transition time doesn't change while it stays False, as it was before AutoNode was turned on.
func progressingSince(hostedCluster *v1beta1.HostedCluster, components []*v1beta1.ControlPlaneComponent) time.Time {
	if !moves(hostedCluster) {
		return time.Time{}
	}
	for _, component := range components {
		if component.Name != hostedCluster.Names().Karpenter {
			continue
		}
		switch rolledOut := meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete); {
		case rolledOut == nil:
			return component.CreationTimestamp.Time
		case rolledOut.Status != metav1.ConditionTrue:
			return rolledOut.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// updatingSince returns when the newest payload was resolved, zero if it runs everywhere.
func updatingSince(hostedCluster *v1beta1.HostedCluster) time.Time {
	version := hostedCluster.Status.Version
	if !moves(hostedCluster) || version == nil || len(version.History) == 0 || version.History[0].State == v1beta1.UpdateCompleted {
		return time.Time{}
	}
	return version.History[0].StartedTime.At()
}

func (c *Collector) since(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, c.Clock.Since(t).Seconds())
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
