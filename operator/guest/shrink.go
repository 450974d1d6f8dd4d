// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Limits of a guest's object in the cache. The guest's admin creates objects as large as its API server accepts.
const (
	// maxMetadata limits an object's labels and its annotations, each, in bytes. Of larger ones only keptDomains stay.
	maxMetadata = 8 << 10
	// maxOwners limits owner references and finalizers, each.
	maxOwners = 32
	// maxBudgets is the limit in the CRD, which the guest's admin can raise.
	maxBudgets = 50
	// maxText limits a text of a status that the operator counts or compares.
	maxText = 512
)

// keptDomains are the domains of keys that the operator reads.
var keptDomains = []string{"autonode.io", "app.kubernetes.io", "karpenter.sh", "karpenter.cluster.x-k8s.io", "karpenter.k8s.aws"}

func dropSchemas(object any) (any, error) {
	if crd, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok {
		crd.Annotations, crd.Labels = bounded(crd.Annotations), bounded(crd.Labels)
		crd.ManagedFields = nil
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema = nil
			crd.Spec.Versions[i].AdditionalPrinterColumns = nil
		}
	}
	return object, nil
}

// shrinkNode keeps the fields that the operator counts.
func shrinkNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields, node.Annotations, node.OwnerReferences, node.Finalizers = nil, nil, nil, nil
		node.Labels = map[string]string{karpv1.NodePoolLabelKey: strings.Clone(node.Labels[karpv1.NodePoolLabelKey])}
		node.Spec = corev1.NodeSpec{ProviderID: start(node.Spec.ProviderID)}
		node.Status = corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourceCPU: node.Status.Capacity[corev1.ResourceCPU]},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: start(node.Status.NodeInfo.KubeletVersion)},
		}
	}
	return object, nil
}

// shrink drops the fields of Karpenter's kinds that the operator doesn't read, and of every kind metadata that is too
// large.
func shrink(object any) (any, error) {
	switch o := object.(type) {
	case *karpv1.NodeClaim:
		o.Spec.Requirements = nil
		conditions := o.Status.Conditions[:min(len(o.Status.Conditions), maxOwners)]
		for i := range conditions {
			conditions[i].Message = start(conditions[i].Message)
		}
		o.Status.Conditions = conditions
	case *karpv1.NodePool:
		var limits karpv1.Limits
		if nodes, ok := o.Spec.Limits[resources.Node]; ok {
			limits = karpv1.Limits{resources.Node: *resource.NewQuantity(nodes.Value(), resource.DecimalSI)} // whatever its length was
		}
		o.Spec = karpv1.NodePoolSpec{
			Replicas: o.Spec.Replicas, Limits: limits,
			Disruption: karpv1.Disruption{Budgets: o.Spec.Disruption.Budgets[:min(len(o.Spec.Disruption.Budgets), maxBudgets)]},
		}
		o.Status = karpv1.NodePoolStatus{}
	}
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
		accessor.SetLabels(bounded(accessor.GetLabels()))
		accessor.SetAnnotations(bounded(accessor.GetAnnotations()))
		if owners := accessor.GetOwnerReferences(); len(owners) > maxOwners {
			accessor.SetOwnerReferences(nil)
		}
	}
	return object, nil
}

// bounded returns metadata of up to maxMetadata bytes unchanged. Of larger metadata it keeps short values of
// keptDomains.
func bounded(metadata map[string]string) map[string]string {
	size := 0
	for key, value := range metadata {
		size += len(key) + len(value)
	}
	if size <= maxMetadata {
		return metadata
	}
	kept := maps.Clone(metadata)
	maps.DeleteFunc(kept, func(key, value string) bool {
		domain, _, _ := strings.Cut(key, "/")
		return len(value) > maxText || !slices.ContainsFunc(keptDomains, func(kept string) bool { return domain == kept || strings.HasSuffix(domain, "."+kept) })
	})
	return kept
}

// start returns the beginning of a text, in memory of its own.
func start(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.Clone(text[:maxText])
}

func specDiffers(before, after client.Object) bool {
	return before.GetGeneration() != after.GetGeneration() || !after.GetDeletionTimestamp().Equal(before.GetDeletionTimestamp())
}

// nodeClassDiffers ignores a node class's status except for the nodes' version: Karpenter writes the status, and the
// guest's admin may in a loop.
func nodeClassDiffers(before, after client.Object) bool {
	if specDiffers(before, after) || !maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		len(before.GetFinalizers()) != len(after.GetFinalizers()) {
		return true
	}
	a, ok := before.(*v1alpha1.ClusterAPINodeClass)
	b, ok2 := after.(*v1alpha1.ClusterAPINodeClass)
	return ok && ok2 && a.Status.Version != b.Status.Version
}

// nodeDiffers ignores heartbeats.
func nodeDiffers(before, after client.Object) bool {
	a, ok := before.(*corev1.Node)
	b, ok2 := after.(*corev1.Node)
	return !ok || !ok2 ||
		!a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		!equality.Semantic.DeepEqual(a.Labels, b.Labels) ||
		!equality.Semantic.DeepEqual(a.Status, b.Status)
}

func nodeClaimDiffers(before, after client.Object) bool {
	a, ok := before.(*karpv1.NodeClaim)
	b, ok2 := after.(*karpv1.NodeClaim)
	return !ok || !ok2 ||
		!a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		a.Status.NodeName != b.Status.NodeName ||
		isDrifted(a) != isDrifted(b)
}

func isDrifted(claim *karpv1.NodeClaim) bool {
	for _, condition := range claim.Status.Conditions {
		if condition.Type == karpv1.ConditionTypeDrifted {
			return condition.Status == metav1.ConditionTrue
		}
	}
	return false
}
