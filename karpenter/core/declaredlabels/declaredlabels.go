// SPDX-License-Identifier: Apache-2.0

// Package declaredlabels leaves the values of labels that machine templates declare to the cloud provider.
//
// Upstream gap: for a requirement that allows several values, such as In [ssd, hdd], Exists or Gt, Karpenter core gives a new
// NodeClaim one of them, at random, before a machine is chosen, and that value wins over the one of the machine. It does so for
// each label that isn't well-known, and well-known are only those that a program has when it starts
// (docs/upstream/provider-registration.md).
package declaredlabels

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Guest wraps Karpenter core's guest client: it creates NodeClaims without the labels whose value no requirement determines and
// whose key is declared by a template of the node class. The cloud provider adds them when it launches the machine.
func Guest(guest client.Client, declared func(nodeClass, key string) bool) client.Client {
	return creator{Client: guest, declared: declared}
}

type creator struct {
	client.Client
	declared func(nodeClass, key string) bool
}

// Create implements client.Client.
func (c creator) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && nodeClaim.Spec.NodeClassRef != nil {
		// The labels are shared with core's own template of the NodeClaim.
		nodeClaim.Labels = maps.Clone(nodeClaim.Labels)
		for _, requirement := range nodeClaim.Spec.Requirements {
			if !determines(requirement) && c.declared(nodeClaim.Spec.NodeClassRef.Name, requirement.Key) {
				delete(nodeClaim.Labels, requirement.Key)
			}
		}
	}
	return c.Client.Create(ctx, object, opts...)
}

func determines(requirement karpv1.NodeSelectorRequirementWithMinValues) bool {
	return requirement.Operator == corev1.NodeSelectorOpIn && len(requirement.Values) == 1
}
