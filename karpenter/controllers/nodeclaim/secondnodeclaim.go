// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"slices"

	utilrand "k8s.io/apimachinery/pkg/util/rand"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// copiedAnnotations are those that Karpenter core gives a NodeClaim when it creates it, beside those of the NodePool's template.
var copiedAnnotations = []string{
	karpv1.NodePoolHashAnnotationKey, karpv1.NodePoolHashVersionAnnotationKey, karpv1.NodeClaimMinValuesRelaxedAnnotationKey, karpv1.DRADriversAnnotationKey,
	karpv1alpha1.PriceOverlayAppliedAnnotationKey, karpv1alpha1.CapacityOverlayAppliedAnnotationKey,
}

// newName returns a name such as the API server generates for a NodeClaim of a NodePool.
func newName(nodePool string) string {
	const random, limit = 5, 63
	return nodePool[:min(len(nodePool), limit-random-1)] + "-" + utilrand.String(random)
}

// secondNodeClaim is a NodeClaim as Karpenter core created the first one, before that had an offering.
func secondNodeClaim(nodePool *karpv1.NodePool, first *karpv1.NodeClaim, name string) *karpv1.NodeClaim {
	nodeClaim := &karpv1.NodeClaim{}
	nodeClaim.Name = name
	nodeClaim.OwnerReferences = slices.Clone(first.OwnerReferences)
	nodeClaim.Spec = *first.Spec.DeepCopy()
	nodeClaim.Annotations = map[string]string{v1alpha1.SecondOfAnnotation: first.Name}
	nodeClaim.Labels = map[string]string{}
	annotation := func(key string) {
		if value, ok := first.Annotations[key]; ok {
			nodeClaim.Annotations[key] = value
		}
	}
	label := func(key string) {
		if value, ok := first.Labels[key]; ok {
			nodeClaim.Labels[key] = value
		}
	}
	for key := range nodePool.Spec.Template.Annotations {
		annotation(key)
	}
	for _, key := range copiedAnnotations {
		annotation(key)
	}
	for key := range nodePool.Spec.Template.Labels {
		label(key)
	}
	// Those of the offering are the provider's to give.
	for _, requirement := range first.Spec.Requirements {
		if !karpv1.WellKnownLabels.Has(requirement.Key) && !karpv1.RestrictedLabels.Has(requirement.Key) {
			label(requirement.Key)
		}
	}
	label(karpv1.NodePoolLabelKey)
	if ref := first.Spec.NodeClassRef; ref != nil {
		label(karpv1.NodeClassLabelKey(ref.GroupKind()))
	}
	return nodeClaim
}
