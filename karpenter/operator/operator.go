// SPDX-License-Identifier: Apache-2.0

// Package operator connects Karpenter to both clusters: the guest is Karpenter core's operator, the management cluster has caches of its
// own. It makes the providers that Create and GetInstanceTypes ask. The program runs controllers with them; `autonode why` simulates with
// them.
package operator

import (
	"context"
	"fmt"
	"path/filepath"

	coreoperator "sigs.k8s.io/karpenter/pkg/operator"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/kubeadm"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/nodeupgrade"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// Providers serve Create and GetInstanceTypes.
type Providers struct {
	Versions      version.Resolver
	Machines      *machine.Provider
	Inventory     *inventory.Inventory
	Unavailable   *offering.Unavailable
	Rejections    *offering.Rejections
	Capacity      capacityprovider.Limiter
	Vacancies     *vacancy.Keeper
	PriceFile     *pricing.File
	Profiles      *profile.Profiles
	Images        *nodeimage.File
	Upgrade       *nodeupgrade.Upgrade
	InstanceTypes *instancetype.Provider
	CloudProvider *cloudprovider.CloudProvider
	Extensions
}

// NewProviders connects the providers to both clusters, without controllers. simulated means that the process launches nothing.
func NewProviders(
	ctx context.Context, guest *coreoperator.Operator, management *Management, opts Options, simulated bool, extensions ...Extend,
) (p *Providers, err error) {
	p = &Providers{
		Capacity:    capacityprovider.Unlimited{},
		Unavailable: offering.NewUnavailable(guest.Clock), Rejections: offering.NewRejections(guest.Clock),
		Images: nodeimage.NewFile(opts.NodeImageFile), PriceFile: pricing.NewFile(opts.PriceFile),
	}
	discovery, err := version.NewDiscovery(guest.GetConfig())
	if err != nil {
		return nil, err
	}
	p.Versions = version.Resolver{Tracker: version.NewTracker(discovery, version.ResolvedOf(guest.GetClient())), Payload: opts.NodeVersion}
	kinds := machine.NewKinds(machine.KindsConfig{Guest: guest.GetClient(), Objects: management.Objects, Mapper: management.GetRESTMapper()})
	if err := kinds.Watch(ctx, management.GetCache()); err != nil {
		return nil, fmt.Errorf("following Machines' kinds: %w", err)
	}
	caCertHashes, err := kubeadm.CACertHashes(guest.GetConfig())
	if err != nil {
		return nil, err
	}
	if p.Profiles, err = profile.New(opts.ProfileFile); err != nil {
		return nil, err
	}
	if err := guest.Add(p.Profiles); err != nil {
		return nil, fmt.Errorf("following the profiles: %w", err)
	}
	p.Machines = machine.New(machine.Config{
		Management:  management.GetClient(),
		Live:        management.GetAPIReader(),
		Namespace:   opts.Namespace,
		ClusterName: opts.ClusterName,
		Tokens:      bootstraptoken.Minter{Guest: guest.GetClient(), Clock: guest.Clock},
		ChildKinds:  kinds.List,

		CACertHashes:   caCertHashes,
		Infrastructure: management.Infrastructure,
	})
	if err := p.Machines.Watch(ctx, management.GetCache()); err != nil {
		return nil, err
	}
	p.Upgrade = nodeupgrade.New(nodeupgrade.Config{
		Path: filepath.Join(filepath.Dir(opts.NodeImageFile), upgradeplan.Key), Version: opts.NodeVersion, TooOld: p.Versions.TooOld,
		Guest: guest.GetClient(), Machines: p.Machines, Clock: guest.Clock,
	})
	p.Inventory = inventory.New(inventory.Config{None: p.Machines.None, Clock: guest.Clock})
	if err := p.Inventory.Watch(ctx, management.GetCache(), guest.GetCache(), p.Machines.Owns); err != nil {
		return nil, fmt.Errorf("following Machines and Nodes: %w", err)
	}
	environment := &Environment{Providers: p, Guest: guest, Management: management, Options: opts, Simulated: simulated}
	for _, extend := range extensions {
		if err := extend(ctx, environment); err != nil {
			return nil, err
		}
	}
	p.Vacancies = vacancy.New(vacancy.Config{
		Guest: guest.GetClient(), Clock: guest.Clock, Capacity: p.Capacity, Inventory: p.Inventory, Unavailable: p.Unavailable,
		Recorder: guest.EventRecorder,
	})
	if err := p.Vacancies.Watch(ctx, management.GetCache(), p.Machines.Owns); err != nil {
		return nil, err
	}
	if err := guest.Add(p.PriceFile); err != nil {
		return nil, fmt.Errorf("following the prices: %w", err)
	}
	if err := guest.Add(p.Images); err != nil {
		return nil, fmt.Errorf("following the node images: %w", err)
	}
	next := func(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
		return p.Versions.ResolveFor(p.Upgrade.Launch(nil).Version, nodeClass, tmpl)
	}
	p.InstanceTypes = instancetype.New(instancetype.Config{
		Templates: template.NewResolver(template.Config{
			Objects: management.Objects, ClusterName: opts.ClusterName, Namespace: opts.Namespace, Shared: opts.SharedNamespace,
			Secrets:  management.GetAPIReader(),
			Profiles: p.Profiles, SharedCatalogs: management.catalogs(), ControlPlanes: management.ControlPlanes,
		}),
		Check: machine.CheckPatches, Kubelet: machine.PatchedKubelet, Version: next, Pricing: pricing.New(p.PriceFile),
		Unavailable: p.Unavailable, Inventory: p.Inventory,
		Capacity: p.Capacity, MemoryOverhead: opts.Parsed.MemoryOverhead,
	})
	p.CloudProvider = cloudprovider.New(cloudprovider.Config{
		Guest:          guest.GetClient(),
		Management:     management.GetClient(),
		Recorder:       guest.EventRecorder,
		Machines:       p.Machines,
		AllowedPatches: opts.Parsed.AllowedPatches,
		KubeletBounds:  opts.Parsed.KubeletBounds,
		Images:         p.Images,
		InstanceTypes:  p.InstanceTypes,
		Inventory:      p.Inventory,
		Capacity:       p.Capacity,
		Vacancies:      p.Vacancies,
		Rejections:     p.Rejections,
		Overlays:       guest.InstanceTypeStore,
		RepairPolicies: opts.Parsed.RepairPolicies,
		InPlaceReboot:  opts.InPlaceReboot,
		ManagementLive: management.GetAPIReader(),
		Profiles:       p.Profiles,
		Release:        p.Upgrade.Launch,
		Version:        p.Versions.ResolveFor,
		Drift: drift.New(drift.Config{
			InstanceTypes: p.InstanceTypes, Images: p.Images, Version: p.Versions.Resolve, Upgrades: opts.Parsed.Upgrades,
			Rollout: opts.RolloutID, Clock: guest.Clock,
		}),
	})
	return p, nil
}
