// SPDX-License-Identifier: Apache-2.0

// Package karpenter is Karpenter with a cloud provider for Cluster API. It runs in the control-plane namespace of one guest
// cluster: NodePools, NodeClaims and Nodes are in the guest, Machines in the management cluster.
//
// This file lists our controllers, core.go those of Karpenter core, and package operator the providers.
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
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	fleet "github.com/autonode-io/autonode/fleet/karpenter"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	karpentermetrics "github.com/autonode-io/autonode/karpenter/controllers/metrics"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
	"github.com/autonode-io/autonode/karpenter/controllers/nodepool"
	"github.com/autonode-io/autonode/karpenter/controllers/registration"
	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/operator"
)

// extensions are features that some platforms don't need: each goes with its line and its folder.
var extensions = []operator.Extend{
	fleet.Extend,
}

// ErrUsage wraps the problem of a command line.
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
	restore := guestManagers()
	guestCtx, guest := coreoperator.NewOperator(leaderElection...)
	restore()
	management, err := operator.NewManagement(managementConfig, opts, reportMachines(guest.EventRecorder))
	if err != nil {
		return err
	}
	if err := crmetrics.Registry.Register(management.Typed); err != nil {
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
func register(ctx context.Context, guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper,
	opts operator.Options,
) error {
	if err := management.AddTo(ctx, guest); err != nil {
		return err
	}
	p, err := operator.NewProviders(ctx, guest, management, opts, false, extensions...)
	if err != nil {
		return err
	}
	k, err := newCore(ctx, guest, management, keeper, opts, p)
	if err != nil {
		return err
	}
	all := k.controllers(ctx)
	for _, c := range append(all, newControllers(guest, management, keeper, opts, p, k)...) {
		if err := reconciler.Wrap(c, leadership.Hold(keeper), reconciler.BackOff(guest.Clock)).Register(ctx, guest.Manager); err != nil {
			return fmt.Errorf("registering controller: %w", err)
		}
	}
	return nil
}

// newControllers lists our controllers.
func newControllers(guest *coreoperator.Operator, management *operator.Management, keeper *leadership.Keeper, opts operator.Options,
	p *operator.Providers, k *karpenterCore,
) []controller.Controller {
	recorder := guest.GetEventRecorderFor("karpenter") //nolint:staticcheck // operatorpkg's status controller takes no other yet.
	core := methods.Core{
		Guest: guest.GetClient(), Cluster: k.state, Provisioner: k.provisioner, Recorder: guest.EventRecorder, Clock: guest.Clock,
	}
	ours := []controller.Controller{
		p.Versions.Tracker,
		p.Upgrade,
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
			Upgrade:        p.Upgrade,
			Recorder:       guest.EventRecorder,
			Pending:        core.Pending,
			Clock:          guest.Clock,
		}),
		status.NewController[*v1alpha1.ClusterAPINodeClass](guest.GetClient(), recorder),
		nodepool.New(guest.GetClient(), p.InstanceTypes.Declared, guest.EventRecorder),
		nodeclaim.New(k.nodeClaims),
		reconciler.Wrap(k.records, leadership.Refuse(keeper)),
		unneeded.New(unneeded.Config{
			Guest:     guest.GetClient(),
			Needed:    unneeded.ByScheduler(guest.GetClient(), k.state, k.provisioner, guest.Clock, guest.EventRecorder),
			Suspended: keeper.Suspended,
			Recorder:  k.nodeClaims.Recorder,
			Clock:     guest.Clock,
		}),
		registration.New(registration.Config{Guest: guest.GetClient(), ManagementCache: management.GetCache(), Machines: p.Machines}),
		p.Vacancies,
		karpentermetrics.New(karpentermetrics.Config{Machines: p.Machines, Unavailable: p.Unavailable,
			Rejections: p.Rejections, Vacancies: p.Vacancies}),
		reconciler.Wrap(garbagecollection.New(garbagecollection.Config{
			Guest:           guest.GetClient(),
			GuestLive:       guest.GetAPIReader(),
			ManagementLive:  management.GetAPIReader(),
			ManagementCache: management.GetCache(),
			Machines:        p.Machines,
			Infrastructure:  management.Infrastructure,
			Clock:           guest.Clock,
		}), leadership.Refuse(keeper)),
	}
	for _, controller := range p.Controllers {
		ours = append(ours, controller(core))
	}
	return ours
}
