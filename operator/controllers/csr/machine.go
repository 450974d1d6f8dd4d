// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/internal/clusterstatus"
)

// Indexes of Machines: by their nodes' possible names, and by the bootstrap token that they were made with.
const (
	nodeNameIndex = "autonode.io/node-name"
	tokenIndex    = "autonode.io/bootstrap-token"
)

// The labels and annotations of a Machine that are kept; fleet/operator/capacityaccount counts by some.
var (
	retainedLabels = append([]string{
		clusterv1.ClusterNameLabel, clusterv1.MachineControlPlaneLabel, v1alpha1.NodeClaimLabel, v1alpha1.NodeClaimUIDLabel,
	}, annotation.MachineLabels...)
	retainedAnnotations = append([]string{
		v1alpha1.BootstrapTokenIDAnnotation, v1alpha1.NodeClaimNameAnnotation,
	}, annotation.MachineAnnotations...)
)

// MachineCache keeps the fields of Machines that validation reads, the phase, for operator/controllers/machines, and while a Machine is
// being deleted the fields that clusterstatus reads: a large installation has tens of thousands. Other readers select Karpenter's by
// v1alpha1.NodeClaimUIDLabel.
func MachineCache(kinds infrastructure.Kinds) cache.ByObject {
	return cache.ByObject{Transform: shrinkMachine(kinds)}
}

// worker reports whether a Machine is a worker that Karpenter didn't make, such as a MachineDeployment's. A Machine with only some of
// Karpenter's marks isn't one.
func worker(machine *clusterv1.Machine) bool {
	meta := machine.ObjectMeta
	return !metav1.HasLabel(meta, clusterv1.MachineControlPlaneLabel) &&
		!metav1.HasLabel(meta, v1alpha1.NodeClaimLabel) && !metav1.HasLabel(meta, v1alpha1.NodeClaimUIDLabel) &&
		!metav1.HasAnnotation(meta, v1alpha1.BootstrapTokenIDAnnotation) && !metav1.HasAnnotation(meta, v1alpha1.NodeClaimNameAnnotation)
}

func shrinkMachine(kinds infrastructure.Kinds) func(object any) (any, error) {
	return func(object any) (any, error) {
		if machine, ok := object.(*clusterv1.Machine); ok {
			return shrunk(kinds, machine), nil
		}
		return object, nil
	}
}

func shrunk(kinds infrastructure.Kinds, machine *clusterv1.Machine) *clusterv1.Machine {
	retained := map[string]string{}
	for _, key := range retainedLabels {
		if value, ok := machine.Labels[key]; ok {
			retained[key] = value
		}
	}
	var annotations map[string]string
	for _, key := range retainedAnnotations {
		if value, ok := machine.Annotations[key]; ok {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[key] = strings.Clone(value[:min(len(value), 512)]) // Karpenter writes none that is longer
		}
	}
	ref := clusterv1.ContractVersionedObjectReference{Name: machine.Spec.InfrastructureRef.Name}
	if ref.Name == machine.Name {
		ref.Name = ""
	}
	if kind := kinds.For(machine.Spec.InfrastructureRef.GroupKind()); kind.ReportsAddresses() {
		// The strings of the profile are shared by all Machines of the kind.
		ref.APIGroup, ref.Kind = kind.GroupKind().Group, kind.GroupKind().Kind
	}
	cached := &clusterv1.Machine{
		Spec: clusterv1.MachineSpec{InfrastructureRef: ref},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: machine.Namespace, Name: machine.Name, UID: machine.UID, ResourceVersion: machine.ResourceVersion,
			CreationTimestamp: machine.CreationTimestamp, DeletionTimestamp: machine.DeletionTimestamp, Labels: retained, Annotations: annotations,
		},
		Status: clusterv1.MachineStatus{
			NodeRef:   machine.Status.NodeRef,
			Phase:     machine.Status.Phase,
			Addresses: machine.Status.Addresses,
		},
	}
	if machine.DeletionTimestamp != nil {
		cached.Spec.ProviderID = machine.Spec.ProviderID
		cached.Status.Conditions = slices.DeleteFunc(slices.Clone(machine.Status.Conditions), func(c metav1.Condition) bool {
			return !clusterstatus.Reads(c.Type)
		})
	}
	return cached
}

// chosen reports whether software in the machine decides this address of it, so that its root user does.
func chosen(kinds infrastructure.Kinds, machine *clusterv1.Machine, address clusterv1.MachineAddress) bool {
	return kinds.For(machine.Spec.InfrastructureRef.GroupKind()).FromMachine(string(address.Type))
}

// chose reports whether a machine reports an address, and only where its software decides it.
func chose(kinds infrastructure.Kinds, machine *clusterv1.Machine, wanted string) (only bool) {
	for _, address := range machine.Status.Addresses {
		if normal(address.Address) != wanted {
			continue
		}
		if !chosen(kinds, machine, address) {
			return false
		}
		only = true
	}
	return only
}

// ownNames returns the names that management gave a Machine: its own, and that of its infrastructure machine.
func ownNames(machine *clusterv1.Machine) []string {
	return v1alpha1.NodeNames(machine.Name, machine.Spec.InfrastructureRef.Name)
}

// owns reports whether management gave a Machine this name, which is in normal form.
func owns(machine *clusterv1.Machine, name string) bool {
	return slices.ContainsFunc(ownNames(machine), func(candidate string) bool { return normal(candidate) == name })
}

// nodeNames returns the possible names of a Machine's node: those that management gave it, which most infrastructure
// providers use, or one that the provider reports. A name that the machine itself decides doesn't count: its root could take another's.
func nodeNames(kinds infrastructure.Kinds) func(client.Object) []string {
	return func(object client.Object) []string {
		machine, ok := object.(*clusterv1.Machine)
		if !ok {
			return nil
		}
		names := sets.New(ownNames(machine)...)
		for _, address := range machine.Status.Addresses {
			switch address.Type {
			case clusterv1.MachineHostName, clusterv1.MachineInternalDNS:
				if name := normal(address.Address); name != "" && !isIP(name) && !chosen(kinds, machine, address) {
					names.Insert(name)
				}
			}
		}
		return sets.List(names)
	}
}

// tokens returns the public part of the bootstrap token that a Machine was made with; empty for none.
func tokens(object client.Object) []string {
	machine, ok := object.(*clusterv1.Machine)
	if !ok || !v1alpha1.MadeForNodeClaim(machine) {
		return nil
	}
	if token, fixed := machine.Annotations[v1alpha1.BootstrapTokenIDAnnotation]; fixed {
		return []string{token}
	}
	return nil
}

// madeWith returns a Cluster's Machine that was made with a bootstrap token, the one whose node may have the name first;
// nil for none.
func (a *Approver) madeWith(ctx context.Context, cluster client.ObjectKey, token, node string) (*clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := a.Management.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{tokenIndex: token},
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}); err != nil {
		return nil, fmt.Errorf("looking for the Machine of bootstrap token %s: %w", token, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	named := slices.IndexFunc(list.Items, func(m clusterv1.Machine) bool { return slices.Contains(nodeNames(a.Infrastructure)(&m), node) })
	return &list.Items[max(named, 0)], nil
}

// machines returns a Cluster's Machines whose node may have the name.
func (a *Approver) machines(ctx context.Context, cluster client.ObjectKey, node string) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := a.Management.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{nodeNameIndex: node},
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}); err != nil {
		return nil, fmt.Errorf("looking for the Machine of node %s: %w", node, err)
	}
	return list.Items, nil
}
