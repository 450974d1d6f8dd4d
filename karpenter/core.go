// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/object"
	"github.com/awslabs/operatorpkg/status"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	cloudprovidermetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/capacitybuffer"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	metricsnode "sigs.k8s.io/karpenter/pkg/controllers/metrics/node"
	metricsnodepool "sigs.k8s.io/karpenter/pkg/controllers/metrics/nodepool"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	nodehydration "sigs.k8s.io/karpenter/pkg/controllers/node/hydration"
	"sigs.k8s.io/karpenter/pkg/controllers/node/legacyrepair"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/consistency"
	nodeclaimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"
	nodeclaimgarbagecollection "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/garbagecollection"
	nodeclaimhydration "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/hydration"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/podevents"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/reboot"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/counter"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/hash"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/readiness"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/registrationhealth"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/validation"
	"sigs.k8s.io/karpenter/pkg/controllers/pod/deletioncost"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/controllers/state/nodeclaimgc"
	staticdeprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/deprovisioning"
	staticprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/provisioning"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/controllers/noderecord"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
	"github.com/autonode-io/autonode/karpenter/operator"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// karpenterCore is Karpenter core with the alterations of package core.
type karpenterCore struct {
	guest     *coreoperator.Operator
	keeper    *leadership.Keeper
	providers *operator.Providers
	static    *staticbackoff.Backoff
	// writes are those of client, which is core's of the guest.
	writes *reconciler.Ledger
	client client.Client
	// cloudProvider decorates undecorated with NodeOverlays.
	cloudProvider, undecorated karpcloudprovider.CloudProvider

	state       *state.Cluster
	provisioner *provisioning.Provisioner
	queue       *disruption.Queue
	// nodeClaims configures our NodeClaim controller, which owns the deadlines.
	nodeClaims nodeclaim.Config
	records    *noderecord.Controller
}

func newCore(
	ctx context.Context, guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper, opts operator.Options,
	p *operator.Providers,
) (*karpenterCore, error) {
	k := &karpenterCore{guest: guest, keeper: keeper, providers: p, writes: reconciler.NewLedger()}
	k.static = staticbackoff.New(staticbackoff.Config{
		Guest: guest.GetClient(), Missing: missing(p.CloudProvider, keeper.Suspended), Rejected: reconciler.IsRefusal, Closed: offering.Closed,
		Recorder: guest.EventRecorder, Clock: guest.Clock,
	})
	k.undecorated = cloudprovidermetrics.Decorate(k.static.Launches(leadership.Gate(p.CloudProvider, keeper.Suspended)))
	k.cloudProvider = methods.CheaperSpot(overlay.Decorate(k.undecorated, guest.GetClient(), guest.InstanceTypeStore), offering.Closed)
	repairs, err := health.NewRepairPolicyMatcher(ctx, k.cloudProvider)
	if err != nil {
		return nil, fmt.Errorf("reading the repair policies: %w", err)
	}
	k.state = state.NewCluster(guest.Clock, guest.GetClient(), k.cloudProvider, state.WithRepairPolicyMatcher(repairs))
	k.static.Cluster = k.state
	queue := func() *disruption.Queue { return k.queue }
	terminated := methods.Terminated(queue, guest.EventRecorder, p.Vacancies.Hold)
	k.records = noderecord.New(noderecord.Config{
		Guest: guest.GetClient(), Cluster: k.state, Queue: queue, Unavailable: p.Unavailable, Clock: guest.Clock,
		Days: opts.NodeRecordDays, Limit: opts.NodeRecordLimit,
	})
	k.client = guestclient.New(guest.GetClient(), guestclient.Config{
		Suspended: keeper.Err, Declares: p.InstanceTypes.Declares, AwaitsTaints: p.Machines.HasTaints, UnknownZone: offering.DefaultZone,
		Created: k.static.Created, Written: k.writes.Note,
		Deleted: func(nodeClaim *karpv1.NodeClaim) {
			k.records.Deleted(nodeClaim)
			terminated(nodeClaim)
		},
	})
	p.Machines.IsReplacement = func(nodeClaim string) bool { return isReplacement(k.queue, nodeClaim) }
	retry := func() {
		k.static.Retry()
		k.provisioner.Trigger(waitingForCapacity)
	}
	p.Capacity.OnGrant(retry)
	p.Vacancies.OnChange(retry)
	k.nodeClaims = nodeclaim.Config{
		Guest:           guest.GetClient(),
		GuestLive:       guest.GetAPIReader(),
		ManagementCache: management.GetCache(),
		CloudProvider:   k.cloudProvider,
		Machines:        p.Machines,
		Infrastructure:  management.Infrastructure,
		Profiles:        p.Profiles,
		Unavailable:     p.Unavailable,
		InstanceTypes:   p.InstanceTypes,
		Alternative:     p.CloudProvider.Alternative,
		Rejections:      p.Rejections,
		Suspended:       keeper.Suspended,
		Recorder:        launchEvents{guest.EventRecorder, guest.GetClient(), k.state.PodNodeClaimMapping, p.Upgrade.Fail, k.records.Note},
		Clock:           guest.Clock,
	}
	return k, nil
}

// waitingForCapacity stands for the pods whose launches were given up because they waited for a larger grant.
const waitingForCapacity types.UID = "waiting-for-capacity"

// sleepless is the clock of Karpenter core's lifecycle controller, which doesn't sleep after a pass: with reconciler.Await, the next one
// may begin as soon as something happens to the node.
type sleepless struct{ clock.Clock }

// Sleep implements clock.Clock.
func (sleepless) Sleep(time.Duration) {}

// controllers lists Karpenter core's, as controllers.NewControllers of core does, each with the middleware around its passes. A test
// compares both lists. Core's prediction by VerticalPodAutoscalers isn't in them: Karpenter's role in the guest has no right to read those
// and the objects that they scale (docs/platform/settings.md).
func (k *karpenterCore) controllers(ctx context.Context) []controller.Controller {
	opts := options.FromContext(ctx)
	guest, cached, recorder, now, provider := k.client, k.guest.GetClient(), k.guest.EventRecorder, k.guest.Clock, k.cloudProvider
	refuse := leadership.Refuse(k.keeper)
	devices, virtualPods := deviceallocation.NewController(guest), virtualpods.NewVirtualPodCache(guest)
	healths, costs := nodepoolhealth.NewState(), cost.NewClusterCost(ctx, provider, guest)
	k.provisioner = provisioning.NewProvisioner(guest, recorder, provider, k.state, now, devices, virtualPods)
	k.queue = disruption.NewQueue(guest, recorder, k.state, now, k.provisioner)
	evictions := terminator.NewQueue(now, guest, recorder)
	var wakeable, wakeableNode reconciler.Middleware
	wakeable, k.nodeClaims.WakeNodeClaim = reconciler.Wake()
	wakeableNode, k.nodeClaims.WakeNode = reconciler.Wake()
	counting := []reconciler.Middleware{
		reconciler.IgnoreNodePoolGone(), reconciler.Settle(cached, provider, k.state), reconciler.Recount(cached, k.state.NodePoolState, now),
	}
	if opts.FeatureGates.CapacityBuffer {
		counting = append(counting, reconciler.RecountBuffers(cached, k.state, k.provisioner))
	}
	lifecycle := karplifecycle.NewController(sleepless{now}, guest, provider, recorder, k.state, healths, nil)
	all := []controller.Controller{
		reconciler.Wrap(k.provisioner, refuse),
		evictions,
		reconciler.Wrap(k.queue, reconciler.Savings(k.queue)),
		reconciler.Wrap(disruption.NewController(ctx, now, guest, k.provisioner, provider, recorder, k.state, k.queue, costs,
			disruption.WithMethods(k.methods(ctx)...)), refuse),
		provisioning.NewPodController(guest, k.provisioner, k.state),
		provisioning.NewNodeController(guest, k.provisioner),
		hash.NewController(guest, provider),
		expiration.NewController(now, guest, provider), // it sleeps after a pass: nothing else keeps it from counting an expired NodeClaim twice
		informer.NewDaemonSetController(guest, k.state),
		informer.NewNodeController(guest, k.state),
		informer.NewPodController(guest, k.state),
		informer.NewNodePoolController(guest, provider, k.state, costs),
		reconciler.Wrap(informer.NewNodeClaimController(guest, provider, k.state, costs), counting...),
		informer.NewPricingController(guest, provider, costs),
		nodeclaimgc.NewController(guest, k.state),
		reconciler.Wrap(termination.NewController(now, guest, provider, terminator.NewTerminator(now, guest, evictions, recorder), recorder),
			append(terminationPasses(cached, k.writes, clock.RealClock{}), wakeableNode)...),
		readiness.NewController(now, guest, provider),
		registrationhealth.NewController(now, guest, provider, healths),
		counter.NewController(guest, provider, k.state),
		validation.NewController(now, guest, provider),
		podevents.NewController(now, guest, provider),
		consistency.NewController(now, guest, provider, recorder),
		reconciler.Wrap(reconciler.Wrap(lifecycle, wakeable, reconciler.Extend(lifecycle, cached, nodeclaim.Deadlines(k.nodeClaims))),
			lifecyclePasses(cached, k.writes, clock.RealClock{})...),
		nodeclaimgarbagecollection.NewController(now, guest, provider),
		reconciler.Wrap(nodeclaimdisruption.NewController(now, guest, provider), reconciler.IgnoreUnlaunched(cached)),
		nodeclaimhydration.NewController(guest, provider),
		nodehydration.NewController(guest, provider),
		reboot.NewController(now, guest, provider, terminator.NewTerminator(now, guest, evictions, recorder), recorder),
	}
	if !opts.IgnoreDRARequests {
		all = append(all, devices)
	}
	buckets := status.WithHistogramBuckets(prometheus.ExponentialBuckets(0.5, 2, 15))
	if !opts.DisableClusterStateObservability {
		events := k.guest.GetEventRecorderFor("karpenter") //nolint:staticcheck // operatorpkg's status controller takes no other yet.
		labels := []string{karpv1.NodePoolLabelKey}
		for _, nodeClass := range provider.GetSupportedNodeClasses() {
			labels = append(labels, karpv1.NodeClassLabelKey(object.GVK(nodeClass).GroupKind()))
		}
		all = append(all,
			metricspod.NewController(guest, k.state),
			metricsnodepool.NewController(guest, provider, costs),
			metricsnode.NewController(k.state),
			status.NewController[*karpv1.NodeClaim](guest, events, status.EmitDeprecatedMetrics, buckets, status.WithLabels(labels...)),
			status.NewController[*karpv1.NodePool](guest, events, status.EmitDeprecatedMetrics, buckets),
			status.NewGenericObjectController[*corev1.Node](guest, events, buckets,
				status.WithLabels(append(labels, karpv1.NodeInitializedLabelKey)...)),
		)
		if opts.FeatureGates.CapacityBuffer {
			all = append(all,
				status.NewGenericObjectController[*autoscalingv1beta1.CapacityBuffer](guest, events, status.EmitDeprecatedMetrics, buckets))
		}
	}
	if len(provider.RepairPolicies()) != 0 && opts.FeatureGates.NodeRepair && opts.LegacyNodeRepair {
		all = append(all, legacyrepair.NewController(guest, provider, now, recorder))
	}
	if opts.FeatureGates.StaticCapacity {
		all = append(all,
			reconciler.Wrap(staticprovisioning.NewController(guest, k.state, recorder, provider, k.provisioner, now, devices, virtualPods),
				k.static.Provisioning(), reconciler.NodeLimit(cached, recorder, !opts.FeatureGates.TerminateFirstDrift)),
			staticdeprovisioning.NewController(guest, k.state, provider, now, recorder))
	}
	if opts.FeatureGates.NodeOverlay {
		all = append(all, nodeoverlay.NewController(now, guest, k.undecorated, k.guest.InstanceTypeStore, k.state))
	}
	if opts.FeatureGates.CapacityBuffer {
		all = append(all, capacitybuffer.NewController(guest, k.provisioner, virtualPods))
	}
	if opts.FeatureGates.PodDeletionCostManagement {
		costs := deletioncost.NewQueue(guest)
		all = append(all, costs, deletioncost.NewController(now, guest, provider, k.state, costs))
	}
	return all
}

// lifecyclePasses let Karpenter core launch a few NodeClaims at a time, and wait until the cache has core's writes.
func lifecyclePasses(guest client.Reader, writes *reconciler.Ledger, now clock.WithDelayedExecution) []reconciler.Middleware {
	return []reconciler.Middleware{reconciler.Pace(guest, now), reconciler.Await(guest, writes, now)}
}

// terminationPasses wait until the cache has core's writes of a Node and its NodeClaim.
func terminationPasses(guest client.Reader, writes *reconciler.Ledger, now clock.Clock) []reconciler.Middleware {
	return []reconciler.Middleware{reconciler.AwaitNode(guest, writes, now)}
}

// methods are Karpenter core's, which terminate a node first where its replacement can't be launched before, after those of extensions.
func (k *karpenterCore) methods(ctx context.Context) []disruption.Method {
	recorder, now, p := k.guest.EventRecorder, k.guest.Clock, k.providers
	all := methods.OnDemand(disruption.NewMethods(ctx, now, k.state, k.client, k.provisioner, k.cloudProvider, recorder, k.queue))
	core := methods.Core{Guest: k.client, Cluster: k.state, Provisioner: k.provisioner, Recorder: recorder, Clock: now}
	for _, method := range p.Methods {
		if first := method(core); first != nil {
			all = slices.Insert(all, 0, first)
		}
	}
	all = methods.TerminateFirst(all, methods.TerminateFirstConfig{
		Core: core, CloudProvider: k.cloudProvider, Vacancies: p.Vacancies.Count, Vacate: p.Vacate,
		WithoutPending: guestclient.WithoutPending,
	})
	return methods.Limit(all, k.queue, p.Upgrade.Counts, p.Upgrade.Disruptable)
}
