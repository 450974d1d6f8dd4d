// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// ProviderIDPrefix begins a synthetic provider ID, which a NodeClaim has until its infrastructure reports the real one.
const ProviderIDPrefix = "capi://"

// Indexes of Machines in the management cluster's cache.
const (
	providerIDIndex   = "karpenter.providerID"
	nodeClaimUIDIndex = "karpenter.nodeClaimUID"
	sourceIndex       = "karpenter.source"
)

// SyntheticProviderID is a NodeClaim's provider ID before its machine has one: capi://<namespace>/<machine>.
// Karpenter's state stalls on an empty one.
func SyntheticProviderID(machine types.NamespacedName) string {
	return ProviderIDPrefix + machine.Namespace + "/" + machine.Name
}

// ParseSyntheticProviderID is the reverse of SyntheticProviderID; ok is false for any other provider ID.
func ParseSyntheticProviderID(providerID string) (machine types.NamespacedName, ok bool) {
	rest, ok := strings.CutPrefix(providerID, ProviderIDPrefix)
	if !ok {
		return types.NamespacedName{}, false
	}
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, true
}

// ProviderID is the real one when the Machine has it, else the synthetic one.
func ProviderID(machine *clusterv1.Machine) string {
	if machine.Spec.ProviderID != "" {
		return machine.Spec.ProviderID
	}
	return SyntheticProviderID(client.ObjectKeyFromObject(machine))
}

// Source is the template source that a Machine was made from, empty if unknown.
func Source(machine *clusterv1.Machine) string {
	return machine.Annotations[v1alpha1.TemplateSourceAnnotation]
}

// Index adds the indexes by which Provider finds Machines. It is called once per cache, before the cache starts.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &clusterv1.Machine{}, providerIDIndex, func(o client.Object) []string {
		machine := o.(*clusterv1.Machine)
		// Both are indexed: a Delete may still use the synthetic one after the real one was set.
		ids := []string{SyntheticProviderID(client.ObjectKeyFromObject(machine))}
		if machine.Spec.ProviderID != "" {
			ids = append(ids, machine.Spec.ProviderID)
		}
		return ids
	}); err != nil {
		return fmt.Errorf("indexing Machines by provider ID: %w", err)
	}
	if err := indexer.IndexField(ctx, &clusterv1.Machine{}, nodeClaimUIDIndex, func(o client.Object) []string {
		if uid := o.GetLabels()[v1alpha1.NodeClaimUIDLabel]; uid != "" {
			return []string{uid}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("indexing Machines by NodeClaim: %w", err)
	}
	if err := indexer.IndexField(ctx, &clusterv1.Machine{}, sourceIndex, func(o client.Object) []string {
		if source := Source(o.(*clusterv1.Machine)); source != "" {
			return []string{source}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("indexing Machines by template source: %w", err)
	}
	return nil
}
