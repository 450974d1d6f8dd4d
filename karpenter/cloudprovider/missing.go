// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// maxMissing limits how many unavailable offerings a message names.
const maxMissing = 5

// Missing returns why no node of a static NodePool can be launched now, for a person to read. It is empty if one can, or if that
// isn't known. Karpenter calls this for pods when it schedules them, but not for static NodePools.
func (c *CloudProvider) Missing(ctx context.Context, nodePool *karpv1.NodePool) string {
	instanceTypes, err := c.GetInstanceTypes(ctx, nodePool)
	if err != nil {
		return "" // Create reports the problem
	}
	if instanceTypes, err = c.overlaid(ctx, nodePool.Name, instanceTypes); err != nil {
		return ""
	}
	nodeClaim := scheduling.NewNodeClaimTemplate(nodePool).ToNodeClaim()
	requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	requests := nodeClaim.Spec.Resources.Requests
	for range offering.OrderOf(instanceTypes).Cheapest(instanceTypes, requirements, requests, "") {
		return ""
	}
	compatible, closed := 0, []string{}
	for _, it := range instanceTypes {
		if it.Requirements.Intersects(requirements) != nil {
			continue
		}
		compatible++
		for _, o := range it.Offerings {
			if requirements.IsCompatible(o.Requirements, karpscheduling.AllowUndefinedWellKnownLabels) {
				closed = append(closed, c.whyClosed(nodePool.Name, offering.KeyOf(it.Name, o)))
			}
		}
	}
	if len(closed) == 0 {
		return fmt.Sprintf("none of the %d instance types of node class %s meets its requirements%s",
			len(instanceTypes), nodePool.Spec.Template.Spec.NodeClassRef.Name, named(nodeClaim))
	}
	return fmt.Sprintf("none of the %d instance types that meet its requirements has an available offering: %s%s", compatible,
		message.List(closed, maxMissing, ", "), c.shortage())
}

// whyClosed describes an unavailable offering: the reason of its failure, and until when that counts.
func (c *CloudProvider) whyClosed(nodePool string, key offering.Key) string {
	entry, known := c.Rejections.Entry(nodePool, key)
	if !known {
		entry, known = c.InstanceTypes.Unavailable.Entry(key)
	}
	if !known {
		return key.Description()
	}
	return fmt.Sprintf("%s (%s%s)", key.Description(), entry.Reason, offering.RetryNotice(entry.Until))
}

// named returns which instance types a NodeClaim requests by name.
func named(nodeClaim *karpv1.NodeClaim) string {
	for _, requirement := range nodeClaim.Spec.Requirements {
		if requirement.Key == corev1.LabelInstanceTypeStable && requirement.Operator == corev1.NodeSelectorOpIn {
			return ", which name " + strings.Join(requirement.Values[:min(maxMissing, len(requirement.Values))], ", ")
		}
	}
	return ""
}
