// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// unreported is the value of providerIDIndex for Machines whose provider ID Cluster API hasn't written yet.
const unreported = "unreported"

// ProviderID is the real one if Cluster API or the infrastructure has reported it, else the synthetic one.
func (p *Provider) ProviderID(ctx context.Context, machine *clusterv1.Machine) string {
	return cmp.Or(p.InstanceID(ctx, machine), SyntheticProviderID(client.ObjectKeyFromObject(machine)))
}

// InstanceID is the real provider ID, empty if none is reported yet. Cluster API copies it from the infrastructure machine in a later
// reconcile of the Machine, which it runs at most once a second; this reads it there as soon as Cluster API would.
func (p *Provider) InstanceID(ctx context.Context, machine *clusterv1.Machine) string {
	if machine.Spec.ProviderID != "" || p.Infrastructure == nil {
		return machine.Spec.ProviderID
	}
	ref := machine.Spec.InfrastructureRef
	infrastructure, err := p.Infrastructure.Get(ctx, ref.GroupKind(), ref.Name)
	if err != nil || infrastructure.GetLabels()[v1alpha1.NodeClaimUIDLabel] != machine.Labels[v1alpha1.NodeClaimUIDLabel] ||
		!provisioned(infrastructure) {
		return ""
	}
	id, _, _ := unstructured.NestedString(infrastructure.Object, "spec", "providerID")
	return id
}

// provisioned reports whether Cluster API would copy the provider ID: its contract v1beta2 has the first field, v1beta1 the second.
func provisioned(infrastructure *unstructured.Unstructured) bool {
	for _, path := range [][]string{{"status", "initialization", "provisioned"}, {"status", "ready"}} {
		if done, _, err := unstructured.NestedBool(infrastructure.Object, path...); err == nil && done {
			return true
		}
	}
	return false
}

// HasTaints reports whether a node's Machine has taints that Cluster API writes to the node. It returns true if the Machine isn't known.
func (p *Provider) HasTaints(ctx context.Context, node *corev1.Node) bool {
	machine, err := p.ForProviderID(ctx, node.Spec.ProviderID)
	return err != nil || len(machine.Spec.Taints) > 0
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
		return []string{SyntheticProviderID(client.ObjectKeyFromObject(machine)), cmp.Or(machine.Spec.ProviderID, unreported)}
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
	return nil
}
