// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// shrinkAfter is how long fewer nodes have to suffice before Karpenter gets smaller.
const shrinkAfter = time.Hour

// defaultSizes are for the memory that this Karpenter takes (docs/platform/sizing.md). The first node adds a standby and replaces no pod.
var defaultSizes = []Size{
	{Nodes: 0, Replicas: 1, Requests: requests(50, 110)},
	{Nodes: 1, Replicas: 2, Requests: requests(50, 110)},
	{Nodes: 26, Replicas: 2, Requests: requests(100, 256)},
	{Nodes: 151, Replicas: 2, Requests: requests(200, 640)},
}

func requests(millicores, mebibytes int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(millicores, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(mebibytes<<20, resource.BinarySI),
	}
}

// Size is what Karpenter gets from a number of nodes on.
type Size struct {
	// Nodes from which on it applies.
	Nodes int32 `json:"nodes"`
	// Replicas of Karpenter, and Requests of each.
	Replicas int32               `json:"replicas"`
	Requests corev1.ResourceList `json:"requests"`
}

// is reports whether a Deployment has the size. One that is scaled to zero has that of its container.
func (z *Size) is(deployment *appsv1.Deployment) bool {
	replicas := ptr.Deref(deployment.Spec.Replicas, 1)
	return (replicas == z.Replicas || replicas == 0) &&
		equality.Semantic.DeepEqual(deployment.Spec.Template.Spec.Containers[0].Resources.Requests, z.Requests)
}

// adapt writes the size into a Deployment. It comes after the rollout's ID, which doesn't depend on it.
func (z *Size) adapt(deployment *appsv1.Deployment) {
	if z != nil {
		deployment.Spec.Replicas = ptr.To(z.Replicas)
		deployment.Spec.Template.Spec.Containers[0].Resources.Requests = z.Requests
	}
}

// sizes are the platform's, or the default where it sets no resources either. Those of another provider's Karpenter weren't measured.
func (c *Component) sizes(profile *provider.Profile) []Size {
	set := c.Settings
	if len(set.ResourcesByNodes)+len(set.Resources.Requests)+len(set.Resources.Limits) == 0 && profile.Platform == v1beta1.PlatformClusterAPI {
		return defaultSizes
	}
	return set.ResourcesByNodes
}

// size chooses the size for a guest, nil where there are none, and when to look again. Karpenter gets larger at once, unless it is
// launching, and smaller when fewer nodes have sufficed for long enough: to resize it is to replace its pods.
func (c *Component) size(ctx context.Context, s *scope.Scope) (*Size, time.Duration, error) {
	sizes := c.sizes(s.Profile)
	if len(sizes) == 0 {
		return nil, 0, nil
	}
	live, err := c.deployment(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	current := -1
	if live != nil {
		current = slices.IndexFunc(sizes, func(z Size) bool { return z.is(live) })
	}
	if current >= 0 && (s.Guest == nil || !s.Guest.Complete) {
		return &sizes[current], 0, nil
	}
	claims, launching := &karpv1.NodeClaimList{}, false
	if s.Guest != nil && s.Guest.Complete {
		if err := s.Guest.Cached.List(ctx, claims); err != nil {
			return nil, 0, fmt.Errorf("listing NodeClaims in the guest: %w", err)
		}
	}
	claims.Items = slices.DeleteFunc(claims.Items, func(claim karpv1.NodeClaim) bool { // Karpenter ignores those of others
		return claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Group != s.Profile.NodeClass.Group
	})
	for i := range claims.Items {
		launching = launching || !claims.Items[i].StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()
	}
	wanted := 0
	for i := range sizes {
		if int(sizes[i].Nodes) <= len(claims.Items) {
			wanted = i
		}
	}
	key, now := s.HostedCluster.UID, c.Clock.Now()
	since, known := c.smaller.Get(key)
	switch {
	case wanted >= current:
		c.smaller.Remove(key)
		if current >= 0 && launching {
			wanted = current
		}
	case !known:
		c.smaller.Add(key, now)
		return &sizes[current], shrinkAfter, nil
	case now.Sub(since) < shrinkAfter:
		return &sizes[current], since.Add(shrinkAfter).Sub(now), nil
	}
	return &sizes[wanted], 0, nil
}

// validateSizes reports what is wrong with ResourcesByNodes.
func (s Settings) validateSizes(report func(format string, args ...any)) {
	for i, z := range s.ResourcesByNodes {
		switch {
		case i == 0 && z.Nodes != 0:
			report("resourcesByNodes[0].nodes: %d is not 0", z.Nodes)
		case i > 0 && z.Nodes <= s.ResourcesByNodes[i-1].Nodes:
			report("resourcesByNodes[%d].nodes: %d is not more than that of the entry before", i, z.Nodes)
		case z.Replicas < 1 || z.Replicas > 5:
			report("resourcesByNodes[%d].replicas: %d is not between 1 and 5", i, z.Replicas)
		case len(z.Requests) == 0:
			report("resourcesByNodes[%d].requests: required", i)
		}
	}
	if len(s.ResourcesByNodes) > 0 && len(s.Resources.Requests) > 0 {
		report("resources.requests: not beside resourcesByNodes")
	}
}
