// SPDX-License-Identifier: Apache-2.0

// Package karpenter is Karpenter with a cloud provider for Cluster API. It runs in the control-plane namespace of one guest
// cluster: NodePools, NodeClaims and Nodes are in the guest, Machines in the management cluster.
package karpenter

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/option"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/dynamic"
	guestscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	nodeclaimlifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/buffer"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/drift"
	"github.com/autonode-io/autonode/karpenter/fleet"
	"github.com/autonode-io/autonode/karpenter/floor"
	"github.com/autonode-io/autonode/karpenter/informer"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/leadership"
	"github.com/autonode-io/autonode/karpenter/learned"
	"github.com/autonode-io/autonode/karpenter/lifecycle"
	"github.com/autonode-io/autonode/karpenter/limit"
	"github.com/autonode-io/autonode/karpenter/machine"
	"github.com/autonode-io/autonode/karpenter/nodeclass"
	"github.com/autonode-io/autonode/karpenter/nodeimage"
	"github.com/autonode-io/autonode/karpenter/offering"
	"github.com/autonode-io/autonode/karpenter/orphan"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/registration"
	"github.com/autonode-io/autonode/karpenter/running"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/surplus"
	"github.com/autonode-io/autonode/karpenter/version"
)

const (
	// patience is how long Karpenter's controllers wait for a node class to be read for the first time.
	patience = 5 * time.Second
	// releaseTimeout bounds how long the start may be held up by an attempt to make it shorter.
	releaseTimeout = 5 * time.Second
)

// ErrUsage wraps what is wrong with the command line.
var ErrUsage = errors.New("usage")

// Run reads the command line, connects to both clusters and runs until ctx ends. programVersion is this program's own.
func Run(ctx context.Context, programVersion string) error {
	opts, err := parseOptions(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}

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
	if err := v1alpha1.AddToScheme(guestscheme.Scheme); err != nil {
		return fmt.Errorf("registering node classes: %w", err)
	}
	operator.AppName = "karpenter-clusterapi"
	options.Injectables = append(options.Injectables, &Options{})

	keeper := leadership.New(leadership.Config{Clock: clock.RealClock{}, Logger: ctrl.Log.WithName("leadership")})
	if err := crmetrics.Registry.Register(keeper.Metric()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	leaseConfig := rest.CopyConfig(managementConfig)
	leaseConfig.Wrap(keeper.Wrap)
	leaderElection := []option.Function[operator.Options]{operator.WithLeaderElectionConfig(leaseConfig)}
	pod := os.Getenv("POD_NAME")
	if pod != "" {
		leaderElection = append(leaderElection, operator.WithLeaderElectionLabels(map[string]string{v1alpha1.LeaderPodLabel: pod}))
	}
	guestCtx, guest := operator.NewOperator(leaderElection...)
	management, err := newManagement(managementConfig, opts)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := guest.Add(file); err != nil {
			return fmt.Errorf("following kubeconfig %s: %w", file.path, err)
		}
	}
	ctrls, err := newControllers(guestCtx, guest, management, keeper, opts)
	if err != nil {
		return err
	}
	for _, c := range ctrls {
		if err := c.Register(guestCtx, guest.Manager); err != nil {
			return fmt.Errorf("registering controller: %w", err)
		}
	}
	releasePredecessor(guestCtx, managementConfig, pod)
	// Karpenter core's own Start knows no signals, and would keep the Lease when it is asked to go.
	runCtx, stop := context.WithCancel(guestCtx)
	defer stop()
	defer context.AfterFunc(ended, stop)()
	err = guest.Manager.Start(runCtx)
	if cause := context.Cause(ended); errors.Is(cause, ErrKubeconfigChanged) {
		return errors.Join(cause, err)
	}
	return err
}

// releasePredecessor makes this pod's Lease free if a container that crashed has left it held. Where that fails the Lease expires.
func releasePredecessor(ctx context.Context, config *rest.Config, pod string) {
	opts := options.FromContext(ctx)
	if opts.DisableLeaderElection {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	released := false
	leases, err := coordinationclient.NewForConfig(config)
	if err == nil {
		released, err = leadership.Release(ctx, leases.Leases(opts.LeaderElectionNamespace), opts.LeaderElectionName, pod, clock.RealClock{})
	}
	switch logger := ctrl.Log.WithName("leadership"); {
	case err != nil:
		logger.Error(err, "unable to release the lease of the container before this one; waiting until it expires")
	case released:
		logger.Info("the container before this one held the lease when it ended; released it")
	}
}

// newManagement connects to the control-plane namespace of the management cluster, and to nothing else there. It starts on
// every replica, so that one that takes over has everything in memory.
func newManagement(config *rest.Config, opts Options) (cluster.Cluster, error) {
	config = rest.CopyConfig(config)
	// Machines are created as fast as Karpenter asks for them; the API server's own priority and fairness is the limit.
	config.QPS = -1
	// Machines are made with Cluster API's finalizer, whose name API servers warn about each time.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering Cluster API's types: %w", err)
	}
	ours, err := oursSelector(opts)
	if err != nil {
		return nil, err
	}
	management, err := cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache = cache.Options{
			DefaultNamespaces: map[string]cache.Config{opts.Namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject:          map[client.Object]cache.ByObject{&clusterv1.Machine{}: {Label: ours}},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	return management, nil
}

// oursSelector selects what this provider makes for its cluster.
func oursSelector(opts Options) (labels.Selector, error) {
	cluster, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Equals, []string{opts.ClusterName})
	if err != nil {
		return nil, fmt.Errorf("selecting Machines of Cluster %s: %w", opts.ClusterName, err)
	}
	claimed, err := labels.NewRequirement(v1alpha1.NodeClaimUIDLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting Machines of NodeClaims: %w", err)
	}
	return labels.NewSelector().Add(*cluster, *claimed), nil
}

// newControllers lists everything that runs: Karpenter core's controllers, and ours.
func newControllers(ctx context.Context, guest *operator.Operator, management cluster.Cluster, keeper *leadership.Keeper, opts Options) ([]controller.Controller, error) {
	allowedPatches, err := opts.allowedPatches()
	if err != nil {
		return nil, err
	}
	if err := machine.Index(ctx, management.GetFieldIndexer()); err != nil {
		return nil, err
	}
	// Asked for now, so that it is synced before anything reads it.
	if _, err := management.GetCache().GetInformer(ctx, &clusterv1.Cluster{}); err != nil {
		return nil, fmt.Errorf("caching Clusters: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(management.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	objects := informer.New(informer.Config{
		Management: dynamicClient,
		Mapper:     management.GetRESTMapper(),
		Namespace:  opts.Namespace,
		Versions:   shape.Versions,
	})
	ours, err := oursSelector(opts)
	if err != nil {
		return nil, err
	}
	// Infrastructure machines change often while they start: what watches templates needn't hear of it.
	infrastructure := informer.New(informer.Config{
		Management: dynamicClient,
		Mapper:     management.GetRESTMapper(),
		Namespace:  opts.Namespace,
		Selector:   ours,
	})
	if err := errors.Join(guest.Add(management), guest.Add(objects), guest.Add(infrastructure)); err != nil {
		return nil, fmt.Errorf("adding the management cluster: %w", err)
	}
	if err := guest.AddReadyzCheck("management", func(req *http.Request) error {
		if !management.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("the management cluster's objects haven't been read yet")
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("adding the management cluster's readiness: %w", err)
	}

	unavailable := offering.NewUnavailable(guest.Clock)
	upgrades, err := version.ParseUpgrades(opts.NodeUpgradeWindow)
	if err != nil {
		return nil, fmt.Errorf("reading --node-upgrade-window: %w", err)
	}
	discovery, err := version.NewDiscovery(guest.GetConfig())
	if err != nil {
		return nil, err
	}
	versions := version.Resolver{Tracker: version.NewTracker(discovery, guest.Clock, version.ResolvedOf(guest.GetClient())), Payload: opts.NodeVersion}
	kinds := machine.Kinds{
		Guest:      guest.GetClient(),
		Management: management.GetClient(),
		Objects:    objects,
		Mapper:     management.GetRESTMapper(),
		Namespace:  opts.Namespace,
	}
	machines := machine.New(machine.Config{
		Management:  management.GetClient(),
		Live:        management.GetAPIReader(),
		Namespace:   opts.Namespace,
		ClusterName: opts.ClusterName,
		Tokens:      bootstraptoken.Minter{Guest: guest.GetClient(), Clock: guest.Clock},
		ChildKinds:  kinds.List,
	})
	limits, err := limit.Watch(ctx, management.GetCache(), machines.Owns, guest.Clock)
	if err != nil {
		return nil, fmt.Errorf("counting Machines: %w", err)
	}
	inUse, err := running.Watch(ctx, management.GetCache(), machines.Owns)
	if err != nil {
		return nil, fmt.Errorf("learning what Machines were made as: %w", err)
	}
	memory := learned.NewMemory()
	prices, priceFile := pricing.Default(), (*pricing.File)(nil)
	if opts.PriceFile != "" {
		priceFile = pricing.NewFile(opts.PriceFile)
		prices = pricing.WithFile(priceFile)
		if err := guest.Add(priceFile); err != nil {
			return nil, fmt.Errorf("following the prices: %w", err)
		}
	}
	var images *nodeimage.File
	if opts.NodeImageFile != "" {
		images = nodeimage.NewFile(opts.NodeImageFile)
		if err := guest.Add(images); err != nil {
			return nil, fmt.Errorf("following the node images: %w", err)
		}
	}
	instanceTypes := instancetype.NewStore(instancetype.Config{Pricing: prices, Unavailable: unavailable, Limits: limits, Memory: memory, Running: inUse})
	provider := cloudprovider.New(cloudprovider.Config{
		Guest:          guest.GetClient(),
		Management:     management.GetClient(),
		Recorder:       guest.EventRecorder,
		Machines:       machines,
		AllowedPatches: allowedPatches,
		Images:         images,
		InstanceTypes:  instanceTypes,
		Limits:         limits,
		Overlays:       guest.InstanceTypeStore,
		Patience:       patience,
		Version:        versions.Resolve,
		Drift:          drift.New(drift.Config{InstanceTypes: instanceTypes, Images: images, Version: versions.Resolve, Upgrades: upgrades, Rollout: opts.RolloutID, Clock: guest.Clock}),
	})
	undecorated := metrics.Decorate(leadership.Gate(provider, keeper.Suspended))
	decorated := overlay.Decorate(undecorated, guest.GetClient(), guest.InstanceTypeStore)

	clusterState := state.NewCluster(guest.Clock, guest.GetClient(), decorated)
	core := controllers.NewControllers(ctx, guest.Manager, guest.Clock, leadership.Guest(guest.GetClient(), keeper.Suspended), guest.EventRecorder,
		decorated, undecorated, clusterState, guest.InstanceTypeStore)
	provisioner, _, err := find[*provisioning.Provisioner](core)
	if err != nil {
		return nil, err
	}
	_, nodeClaims, err := find[*nodeclaimlifecycle.Controller](core)
	if err != nil {
		return nil, err
	}
	lifecycleConfig := lifecycle.Config{
		Guest:           guest.GetClient(),
		ManagementCache: management.GetCache(),
		CloudProvider:   decorated,
		Machines:        machines,
		Infrastructure:  infrastructure,
		Unavailable:     unavailable,
		Suspended:       keeper.Suspended,
		Recorder:        guest.EventRecorder,
		Clock:           guest.Clock,
	}
	core[nodeClaims] = lifecycle.Patient(core[nodeClaims], lifecycleConfig)
	recorder := guest.GetEventRecorderFor("karpenter") //nolint:staticcheck // operatorpkg's status controller takes no other yet.
	return append(
		core,
		versions.Tracker,
		nodeclass.New(nodeclass.Config{
			Guest:          guest.GetClient(),
			Namespace:      opts.Namespace,
			AllowedPatches: allowedPatches,
			Objects:        objects,
			Shapes: shape.NewResolver(shape.Config{
				Objects: objects, ClusterName: opts.ClusterName, Namespace: opts.Namespace, Secrets: management.GetAPIReader(),
			}),
			Store:    instanceTypes,
			Prices:   priceFile,
			Images:   images,
			Version:  versions,
			Recorder: guest.EventRecorder,
			Clock:    guest.Clock,
		}),
		status.NewController[*v1alpha1.ClusterAPINodeClass](guest.GetClient(), recorder),
		learned.New(learned.Config{Guest: guest.GetClient(), Machines: machines, Memory: memory}),
		buffer.New(buffer.Config{Guest: guest.GetClient(), CloudProvider: decorated, Cluster: clusterState, Provisioner: provisioner}),
		lifecycle.New(lifecycleConfig),
		surplus.New(surplus.Config{
			Guest:     guest.GetClient(),
			Needed:    surplus.ByScheduler(guest.GetClient(), clusterState, provisioner, guest.Clock, guest.EventRecorder),
			Suspended: keeper.Suspended,
			Recorder:  guest.EventRecorder,
			Clock:     guest.Clock,
		}),
		registration.New(registration.Config{
			Guest:           guest.GetClient(),
			ManagementCache: management.GetCache(),
			Machines:        machines,
		}),
		floor.New(floor.Config{
			Guest:           guest.GetClient(),
			ManagementCache: management.GetCache(),
			Machines:        machines,
			InstanceTypes:   instanceTypes,
			Suspended:       keeper.Suspended,
		}),
		fleet.New(fleet.Config{Machines: machines, Unavailable: unavailable}),
		orphan.New(orphan.Config{
			Guest:           guest.GetClient(),
			GuestLive:       guest.GetAPIReader(),
			ManagementLive:  management.GetAPIReader(),
			ManagementCache: management.GetCache(),
			Machines:        machines,
			Clock:           guest.Clock,
		}),
	), nil
}

// find returns the controller of a type among Karpenter core's, which it makes and doesn't name, and its place among them.
func find[T controller.Controller](all []controller.Controller) (T, int, error) {
	for i, c := range all {
		if found, ok := c.(T); ok {
			return found, i, nil
		}
	}
	var none T
	return none, 0, fmt.Errorf("this version of Karpenter core has no %T", none)
}
