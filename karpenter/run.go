// SPDX-License-Identifier: Apache-2.0

// Package karpenter is Karpenter with a cloud provider for Cluster API. It runs in the control-plane namespace of one guest
// cluster: NodePools, NodeClaims and Nodes are in the guest, Machines in the management cluster.
//
// This file lists what runs: newCore and newControllers, with the providers of package operator.
package karpenter

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/option"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	cloudprovidermetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	nodeclaimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	staticprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/provisioning"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/capacitylease"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	karpentermetrics "github.com/autonode-io/autonode/karpenter/controllers/metrics"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
	"github.com/autonode-io/autonode/karpenter/controllers/nodepool"
	"github.com/autonode-io/autonode/karpenter/controllers/registration"
	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
	"github.com/autonode-io/autonode/karpenter/controllers/vacancies"
	"github.com/autonode-io/autonode/karpenter/controllers/wanted"
	"github.com/autonode-io/autonode/karpenter/core"
	"github.com/autonode-io/autonode/karpenter/core/capacitybuffer"
	"github.com/autonode-io/autonode/karpenter/core/deadlines"
	"github.com/autonode-io/autonode/karpenter/core/declaredlabels"
	"github.com/autonode-io/autonode/karpenter/core/departure"
	"github.com/autonode-io/autonode/karpenter/core/launching"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/nodecount"
	"github.com/autonode-io/autonode/karpenter/core/nodelock"
	"github.com/autonode-io/autonode/karpenter/core/ondemand"
	"github.com/autonode-io/autonode/karpenter/core/ownwrites"
	"github.com/autonode-io/autonode/karpenter/core/providerid"
	"github.com/autonode-io/autonode/karpenter/core/reclaim"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/refusal"
	"github.com/autonode-io/autonode/karpenter/core/shutdown"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
	"github.com/autonode-io/autonode/karpenter/core/statusonly"
	"github.com/autonode-io/autonode/karpenter/core/terminatefirst"
	"github.com/autonode-io/autonode/karpenter/core/undecodable"
	"github.com/autonode-io/autonode/karpenter/core/uninitialized"
	"github.com/autonode-io/autonode/karpenter/core/unlaunched"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/core/zones"
	"github.com/autonode-io/autonode/karpenter/operator"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/lenient"
)

// ErrUsage wraps what is wrong with the command line.
var ErrUsage = errors.New("usage")

// Run reads the command line, connects to both clusters and runs until ctx ends. programVersion is this program's own.
func Run(ctx context.Context, programVersion string) error {
	opts, _, err := operator.ParseOptions(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	wellknown.Normalize(opts.Parsed.TopologyKeys)

	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	files, err := kubeconfigs(opts, end)
	if err != nil {
		return err
	}
	managementConfig, err := managementConfig(opts)
	if err != nil {
		return err
	}
	managementConfig.UserAgent = "karpenter-clusterapi/" + programVersion
	if err := setEnvironment(opts); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return fmt.Errorf("registering node classes: %w", err)
	}
	coreoperator.AppName = "karpenter-clusterapi"
	options.Injectables = append(options.Injectables, &operator.Options{})

	keeper := leadership.New(leadership.Config{Clock: clock.RealClock{}, Logger: ctrl.Log.WithName("leadership")})
	if err := crmetrics.Registry.Register(keeper.Metric()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	leaseConfig := rest.CopyConfig(managementConfig)
	leaseConfig.Wrap(keeper.Wrap)
	managementConfig.Wrap(keeper.Fence)
	leaderElection := []option.Function[coreoperator.Options]{coreoperator.WithLeaderElectionConfig(leaseConfig)}
	pod := os.Getenv("POD_NAME")
	if pod != "" {
		leaderElection = append(leaderElection, coreoperator.WithLeaderElectionLabels(map[string]string{v1alpha1.LeaderPodLabel: pod}))
	}
	reporter := &reporter{}
	guestObjects := reporter.guestObjects()
	restore := guestManagers(guestObjects)
	guestCtx, guest := coreoperator.NewOperator(leaderElection...)
	restore()
	reporter.recorder.Store(&guest.EventRecorder)
	management, err := operator.NewManagement(managementConfig, opts, reporter.inManagement)
	if err != nil {
		return err
	}
	if err := crmetrics.Registry.Register(lenient.Collector(undecodable.Metric, guestObjects, management.Typed)); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	for _, file := range files {
		if err := guest.Add(file); err != nil {
			return fmt.Errorf("following kubeconfig %s: %w", file.path, err)
		}
	}
	if err := register(guestCtx, guest, management, keeper, opts); err != nil {
		return err
	}
	releasePredecessor(guestCtx, managementConfig, pod)
	// Karpenter core's Start handles no signals, and would keep the Lease on shutdown.
	runCtx, stop := context.WithCancel(guestCtx)
	defer stop()
	defer context.AfterFunc(ended, stop)()
	err = guest.Manager.Start(runCtx)
	if cause := context.Cause(ended); errors.Is(cause, ErrKubeconfigChanged) {
		return errors.Join(cause, err)
	}
	return err
}

// register adds all controllers to the guest's manager.
func register(ctx context.Context, guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper, opts operator.Options) error {
	if err := management.AddTo(ctx, guest); err != nil {
		return err
	}
	p, err := operator.NewProviders(ctx, guest, management, opts, operator.Election{Config: management.GetConfig(), Options: options.FromContext(ctx)})
	if err != nil {
		return err
	}
	k, err := newCore(ctx, guest, management, keeper, p)
	if err != nil {
		return err
	}
	for _, c := range append(k.controllers, newControllers(guest, management, keeper, opts, p, k)...) {
		held := leadership.Hold(undecodable.Hold(c, guest.GetClient()), keeper)
		if err := shutdown.Promptly(refusal.BackOff(held, guest.Clock)).Register(ctx, guest.Manager); err != nil {
			return fmt.Errorf("registering controller: %w", err)
		}
	}
	return nil
}

// karpenterCore is Karpenter core with the alterations of package core.
type karpenterCore struct {
	controllers   []controller.Controller
	cloudProvider karpcloudprovider.CloudProvider
	state         *state.Cluster
	provisioner   *provisioning.Provisioner
	// nodeClaims configures our NodeClaim controller, which owns the deadlines.
	nodeClaims nodeclaim.Config
}

func newCore(ctx context.Context, guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper, p *operator.Providers) (*karpenterCore, error) {
	static := staticbackoff.New(staticbackoff.Config{
		Guest: guest.GetClient(), Missing: missing(p.CloudProvider, keeper.Suspended), Rejected: refusal.Is, Closed: offering.Closed,
		Recorder: guest.EventRecorder, Clock: guest.Clock,
	})
	undecorated := cloudprovidermetrics.Decorate(static.Launches(leadership.Gate(p.CloudProvider, keeper.Suspended)))
	decorated := ondemand.Provider(overlay.Decorate(undecorated, guest.GetClient(), guest.InstanceTypeStore), offering.Closed)
	repairs, err := health.NewRepairPolicyMatcher(ctx, decorated)
	if err != nil {
		return nil, fmt.Errorf("reading the repair policies: %w", err)
	}
	k := &karpenterCore{cloudProvider: decorated, state: state.NewCluster(guest.Clock, guest.GetClient(), decorated, state.WithRepairPolicyMatcher(repairs))}
	static.Cluster = k.state
	first := terminatefirst.NewFollower(guest.EventRecorder)
	writes := ownwrites.New()
	client := guestClient(static.NodeClaims(guest.GetClient()), keeper.Suspended, p.InstanceTypes.Declares, p.Machines.HasTaints, first, writes)
	k.controllers, err = coreControllers(ctx, guest, client, decorated, undecorated, k.state)
	if err != nil {
		return nil, err
	}
	queue, queueAt, err := core.Find[*disruption.Queue](k.controllers)
	if err != nil {
		return nil, err
	}
	p.Machines.IsReplacement = isReplacement(queue)
	k.controllers[queueAt] = reconciler.Wrap(queue, reconciler.Savings(queue))
	first.Follow(queue)
	if k.provisioner, _, err = core.Find[*provisioning.Provisioner](k.controllers); err != nil {
		return nil, err
	}
	_, disruptions, err := core.Find[*disruption.Controller](k.controllers)
	if err != nil {
		return nil, err
	}
	// Core keeps the costs of NodePools to itself; without them it sums up those of their nodes.
	k.controllers[disruptions] = disruption.NewController(ctx, guest.Clock, client, k.provisioner, decorated, guest.EventRecorder, k.state, queue, nil,
		disruption.WithMethods(disruptionMethods(ctx, guest, client, queue, k, p)...))
	_, lifecycle, err := core.Find[*karplifecycle.Controller](k.controllers)
	if err != nil {
		return nil, err
	}
	_, nodeClaims, err := core.Find[*informer.NodeClaimController](k.controllers)
	if err != nil {
		return nil, err
	}
	k.controllers[nodeClaims] = reconciler.Wrap(k.controllers[nodeClaims], reconciler.IgnoreNodePoolGone())
	k.controllers[nodeClaims] = unlaunched.Settle(k.controllers[nodeClaims],
		unlaunched.Config{Guest: guest.GetClient(), CloudProvider: decorated, Cluster: k.state})
	if options.FromContext(ctx).FeatureGates.StaticCapacity {
		_, provisioning, err := core.Find[*staticprovisioning.Controller](k.controllers)
		if err != nil {
			return nil, err
		}
		k.controllers[provisioning] = reconciler.Wrap(static.Provisioning(k.controllers[provisioning]),
			reconciler.NodeLimit(guest.GetClient(), guest.EventRecorder, !options.FromContext(ctx).FeatureGates.TerminateFirstDrift))
	}
	retry := func() {
		static.Retry()
		k.provisioner.Trigger(waitingForCapacity)
	}
	p.Capacity.OnGrant(retry)
	p.Vacancies.OnChange(retry)
	_, terminations, err := core.Find[*termination.Controller](k.controllers)
	if err != nil {
		return nil, err
	}
	k.nodeClaims = nodeclaim.Config{
		Guest:           guest.GetClient(),
		GuestLive:       guest.GetAPIReader(),
		ManagementCache: management.GetCache(),
		CloudProvider:   decorated,
		Machines:        p.Machines,
		Infrastructure:  management.Infrastructure,
		Profiles:        p.Profiles,
		Unavailable:     p.Unavailable,
		InstanceTypes:   p.InstanceTypes,
		Second:          secondLaunches(p, k.state),
		Suspended:       keeper.Suspended,
		Recorder:        guest.EventRecorder,
		Clock:           guest.Clock,
	}
	k.controllers[lifecycle], k.nodeClaims.WakeNodeClaim = lifecycleOf(k.controllers[lifecycle], guest.GetClient(), writes, clock.RealClock{}, nodeclaim.Deadlines(k.nodeClaims))
	k.controllers[terminations], k.nodeClaims.WakeNode = terminationOf(k.controllers[terminations], guest.GetClient(), writes, clock.RealClock{})
	k.controllers = append(k.controllers,
		capacitybuffer.New(capacitybuffer.Config{Guest: guest.GetClient(), CloudProvider: decorated, Cluster: k.state, Provisioner: k.provisioner}),
		nodecount.New(nodecount.Config{Guest: guest.GetClient(), Nodes: k.state.NodePoolState}))
	return k, nil
}

// coreControllers are Karpenter core's. Its controller of NodeClaims' lives doesn't sleep after a pass, and the one that marks those that may be
// disrupted waits until they are launched.
func coreControllers(ctx context.Context, guest *coreoperator.Operator, client client.Client, decorated, undecorated karpcloudprovider.CloudProvider, cluster *state.Cluster) ([]controller.Controller, error) {
	all := controllers.NewControllers(ctx, guest.Manager, ownwrites.Clock(guest.Clock),
		client, guest.EventRecorder, decorated, undecorated, cluster, guest.InstanceTypeStore, guest.PredictionStore,
		// Karpenter's role in the guest has no right to read VerticalPodAutoscalers and what they scale: docs/install.md.
		controllers.WithoutVPAPrediction())
	_, expirations, err := core.Find[*expiration.Controller](all)
	if err != nil {
		return nil, err
	}
	// This one has to sleep: nothing else keeps it from counting an expired NodeClaim twice.
	all[expirations] = expiration.NewController(guest.Clock, client, decorated)
	_, disruptions, err := core.Find[*nodeclaimdisruption.Controller](all)
	if err != nil {
		return nil, err
	}
	all[disruptions] = launching.Ignore(all[disruptions], client)
	return all, nil
}

// lifecycleOf is Karpenter core's controller of NodeClaims' lives with our deadlines, which launches a few at a time, and waits until the cache
// has what core wrote. wake makes it look whether the machine of a NodeClaim is gone.
func lifecycleOf(core controller.Controller, guest client.Client, writes *ownwrites.Ledger, now clock.WithDelayedExecution, config deadlines.Config) (lifecycle controller.Controller, wake func(nodeClaim string)) {
	core = launching.Pace(deadlines.Extend(core, config), guest, now)
	core = ownwrites.Await(core, guest, writes, now)
	return departure.Follow(core)
}

// terminationOf is Karpenter core's controller that drains nodes and terminates their machines, which waits until the cache has what core wrote.
// wake makes it look whether the machine of a Node is gone.
func terminationOf(core controller.Controller, guest client.Client, writes *ownwrites.Ledger, now clock.Clock) (termination controller.Controller, wake func(node string)) {
	return departure.Follow(ownwrites.AwaitNode(core, guest, writes, now))
}

// disruptionMethods are Karpenter core's, which terminate a node first where its replacement can't be launched before, after one that returns
// capacity to other clusters.
func disruptionMethods(ctx context.Context, guest *coreoperator.Operator, client client.Client, queue *disruption.Queue, k *karpenterCore, p *operator.Providers) []disruption.Method {
	methods := ondemand.Methods(disruption.NewMethods(ctx, guest.Clock, k.state, client, k.provisioner, k.cloudProvider, guest.EventRecorder, queue))
	methods = reclaim.Methods(methods, reclaim.Config{
		Guest: client, Cluster: k.state, Recorder: guest.EventRecorder, Clock: guest.Clock, Reclaims: reclaims(p.Capacity), Taken: taken(p.Capacity),
	})
	return terminatefirst.Methods(methods, terminatefirst.Config{
		Guest: client, Cluster: k.state, Provisioner: k.provisioner, CloudProvider: k.cloudProvider, Recorder: guest.EventRecorder, Clock: guest.Clock,
		Vacancies: vacanciesOf(p.Vacancies), Vacate: vacate(p.CloudProvider),
	})
}

// waitingForCapacity stands for the pods whose launches were given up because they waited for a larger grant.
const waitingForCapacity types.UID = "waiting-for-capacity"

// guestClient is Karpenter core's client of the guest.
func guestClient(guest client.Client, suspended func() bool, declares func(nodeClass, key string) bool, tainted func(context.Context, *corev1.Node) bool, first *terminatefirst.Follower, writes *ownwrites.Ledger) client.Client {
	guest = nodelock.Guest(guest)
	guest = ownwrites.Guest(guest, writes)
	guest = statusonly.Guest(guest)
	guest = terminatefirst.Guest(guest, first)
	guest = leadership.Guest(guest, suspended)
	guest = declaredlabels.Guest(guest, declares)
	guest = zones.Guest(guest, offering.DefaultZone)
	guest = uninitialized.Guest(guest, tainted)
	guest = providerid.Guest(guest)
	return guest
}

// newControllers lists our controllers.
func newControllers(guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper, opts operator.Options, p *operator.Providers, k *karpenterCore) []controller.Controller {
	recorder := guest.GetEventRecorderFor("karpenter") //nolint:staticcheck // operatorpkg's status controller takes no other yet.
	return []controller.Controller{
		p.Versions.Tracker,
		nodeclass.New(nodeclass.Config{
			Guest:          guest.GetClient(),
			Namespace:      opts.Namespace,
			AllowedPatches: opts.Parsed.AllowedPatches,
			KubeletBounds:  opts.Parsed.KubeletBounds,
			Objects:        management.Objects,
			SharedCatalogs: management.SharedCatalogs,
			ControlPlanes:  management.ControlPlanes,
			InstanceTypes:  p.InstanceTypes,
			Prices:         p.PriceFile,
			Images:         p.Images,
			Profiles:       p.Profiles,
			Version:        p.Versions,
			Recorder:       guest.EventRecorder,
			Pending: func(ctx context.Context) (int, error) {
				pods, err := nodeutils.GetProvisionablePods(ctx, guest.GetClient())
				return len(pods), err //nolint:wrapcheck // the caller reports what it did
			},
			Clock: guest.Clock,
		}),
		status.NewController[*v1alpha1.ClusterAPINodeClass](guest.GetClient(), recorder),
		nodepool.New(guest.GetClient(), p.InstanceTypes.Declared, guest.EventRecorder),
		nodeclaim.New(k.nodeClaims),
		unneeded.New(unneeded.Config{
			Guest:     guest.GetClient(),
			Needed:    unneeded.ByScheduler(guest.GetClient(), k.state, k.provisioner, guest.Clock, guest.EventRecorder),
			Suspended: keeper.Suspended,
			Recorder:  guest.EventRecorder,
			Clock:     guest.Clock,
		}),
		registration.New(registration.Config{Guest: guest.GetClient(), ManagementCache: management.GetCache(), Machines: p.Machines}),
		capacitylease.New(capacitylease.Config{
			Management:  management.GetClient(),
			Lease:       types.NamespacedName{Namespace: opts.Namespace, Name: opts.Names().Karpenter},
			Capacity:    p.Capacity,
			Unavailable: p.Unavailable,
			Clock:       guest.Clock,
		}),
		wanted.New(wanted.Config{
			Short:      p.Capacity.Short,
			CanReclaim: p.Capacity.CanReclaim,
			Pending:    wanted.Pending(guest.GetClient()),
			Simulate:   wanted.ByScheduler(guest.GetClient(), k.state, k.provisioner, guest.Clock, guest.EventRecorder),
			InTime:     p.CloudProvider.InTime,
			MachineOf:  p.CloudProvider.MachineOf,
			Want:       p.Capacity.Want,
			Clock:      guest.Clock,
		}),
		vacancies.New(vacancies.Config{
			Guest: guest.GetClient(), Vacancies: p.Vacancies, Inventory: p.Inventory, Unavailable: p.Unavailable, Recorder: guest.EventRecorder, Clock: guest.Clock,
		}),
		karpentermetrics.New(karpentermetrics.Config{Machines: p.Machines, Unavailable: p.Unavailable, Rejections: p.Rejections, Vacancies: p.Vacancies}),
		garbagecollection.New(garbagecollection.Config{
			Guest:           guest.GetClient(),
			GuestLive:       guest.GetAPIReader(),
			ManagementLive:  management.GetAPIReader(),
			ManagementCache: management.GetCache(),
			Machines:        p.Machines,
			Infrastructure:  management.Infrastructure,
			Clock:           guest.Clock,
		}),
	}
}
