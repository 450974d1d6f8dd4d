// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// getLive reads a NodeClaim's Machine of that name from the API server. It returns ErrNotFound if there is none, ErrTaken if another
// owner has it.
func (p *Provider) getLive(ctx context.Context, name string, nodeClaim types.UID) (*clusterv1.Machine, error) {
	machine := &clusterv1.Machine{}
	if err := p.Live.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, machine); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, ErrNotFound
		}
		return nil, fmt.Errorf("reading Machine %s/%s: %w", p.Namespace, name, err)
	}
	if !p.ownsFor(machine, nodeClaim) {
		return nil, p.taken(machine)
	}
	return machine, nil
}

// taken returns whose an object is that a NodeClaim has no use for.
func (p *Provider) taken(object client.Object) error {
	if p.Owns(object) {
		return ErrReplaced
	}
	return ErrTaken
}

// None reports whether a NodeClaim has no Machine, as the API server reports.
func (p *Provider) None(ctx context.Context, nodeClaim *karpv1.NodeClaim) (bool, error) {
	_, err := p.findLive(ctx, nodeClaim)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrTaken) {
		return true, nil
	}
	return false, err
}

// findLive is getLive by the name of the NodeClaim's instance.
func (p *Provider) findLive(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*clusterv1.Machine, error) {
	name, err := p.InstanceName(ctx, nodeClaim.Name)
	if err != nil {
		return nil, err
	}
	return p.getLive(ctx, name, nodeClaim.UID)
}

// ForNodeClaim finds a NodeClaim's Machine in the cache, or returns ErrNotFound. The Machine is shared with the cache.
func (p *Provider) ForNodeClaim(ctx context.Context, uid types.UID) (*clusterv1.Machine, error) {
	return p.find(ctx, nodeClaimUIDIndex, string(uid))
}

// Adopted finds the Machine that is bound to a NodeClaim of its name. It asks the API server where the cache has none.
func (p *Provider) Adopted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*clusterv1.Machine, error) {
	m, err := p.ForNodeClaim(ctx, nodeClaim.UID)
	if errors.Is(err, ErrNotFound) {
		return p.getLive(ctx, nodeClaim.Name, nodeClaim.UID)
	}
	return m, err
}

// ForProviderID finds the Machine with a real or synthetic provider ID in the cache, or returns ErrNotFound. The Machine is
// shared with the cache.
func (p *Provider) ForProviderID(ctx context.Context, providerID string) (*clusterv1.Machine, error) {
	if providerID == "" || providerID == unreported {
		return nil, ErrNotFound
	}
	machine, err := p.find(ctx, providerIDIndex, providerID)
	if !errors.Is(err, ErrNotFound) {
		return machine, err
	}
	launching, err := p.indexed(ctx, providerIDIndex, unreported)
	if err != nil {
		return nil, err
	}
	for i := range launching {
		if p.InstanceID(ctx, &launching[i]) == providerID {
			return &launching[i], nil
		}
	}
	return nil, ErrNotFound
}

func (p *Provider) find(ctx context.Context, index, value string) (*clusterv1.Machine, error) {
	found, err := p.indexed(ctx, index, value)
	if err != nil {
		return nil, err
	}
	switch len(found) {
	case 0:
		return nil, ErrNotFound
	case 1:
		return &found[0], nil
	default:
		return nil, fmt.Errorf("finding the Machine with %s %s: %d Machines have it", index, value, len(found))
	}
}

func (p *Provider) indexed(ctx context.Context, index, value string) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := p.Management.List(ctx, list, client.InNamespace(p.Namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("finding the Machine with %s %s: %w", index, value, err)
	}
	return p.owned(list.Items), nil
}

// List returns this cluster's Machines that were made for NodeClaims, from the cache. They are shared with the cache.
func (p *Provider) List(ctx context.Context) ([]clusterv1.Machine, error) {
	all, err := p.inNamespace(ctx)
	if err != nil {
		return nil, err
	}
	return p.owned(all), nil
}

// Each calls do for every Machine of List. It reads each one's labels once, while they are in the processor's cache.
func (p *Provider) Each(ctx context.Context, do func(*clusterv1.Machine)) error {
	all, err := p.inNamespace(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if p.Owns(&all[i]) {
			do(&all[i])
		}
	}
	return nil
}

// inNamespace returns the Machines of the control-plane namespace. A selector would look up the labels that Owns looks up.
func (p *Provider) inNamespace(ctx context.Context) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := p.Management.List(ctx, list, client.InNamespace(p.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Machines: %w", err)
	}
	return list.Items, nil
}

// owned returns the Machines that are the provider's, in the same slice: it is ours, but the objects that its items point to aren't.
// slices.DeleteFunc would copy each Machine to the heap.
func (p *Provider) owned(machines []clusterv1.Machine) []clusterv1.Machine {
	owned := machines[:0]
	for i := range machines {
		if p.Owns(&machines[i]) {
			owned = append(owned, machines[i])
		}
	}
	return owned
}
