// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// admits reports whether no quota of the infrastructure keeps a choice from being launched now. Where one has been exhausted, one launch
// at a time finds out whether it still is.
func (c *CloudProvider) admits(nodeClaim *karpv1.NodeClaim, snapshot *instancetype.Snapshot, choice *instancetype.Choice) bool {
	unavailable := c.InstanceTypes.Unavailable
	return !unavailable.CountsQuotas() || unavailable.Admit(nodeClaim.Name, choice.Key, snapshot.QuotasOf(choice))
}

// withdraw lets another launch find out in place of a NodeClaim's, which has ended.
func (c *CloudProvider) withdraw(nodeClaim *karpv1.NodeClaim) {
	c.InstanceTypes.Unavailable.Withdraw(nodeClaim.Name)
}

// freed records that a NodeClaim's machine is gone: what it needed of the infrastructure's quotas has been returned, if it ever had that.
func (c *CloudProvider) freed(nodeClaim *karpv1.NodeClaim) {
	c.withdraw(nodeClaim)
	unavailable := c.InstanceTypes.Unavailable
	if !unavailable.CountsQuotas() || nodeClaim.Spec.NodeClassRef == nil || !hasInstance(nodeClaim) {
		return
	}
	snapshot, err := c.InstanceTypes.Cached(nodeClaim.Spec.NodeClassRef.Name)
	if err != nil {
		return
	}
	key := offering.Key{
		InstanceType: nodeClaim.Labels[corev1.LabelInstanceTypeStable], Zone: cmp.Or(nodeClaim.Labels[corev1.LabelTopologyZone], offering.DefaultZone),
		CapacityType: nodeClaim.Labels[karpv1.CapacityTypeLabelKey],
	}
	if choice, found := snapshot.ResolveKey(key); found {
		unavailable.Freed(snapshot.QuotasOf(&choice))
	}
}

// hasInstance reports whether the infrastructure has made a NodeClaim's machine.
func hasInstance(nodeClaim *karpv1.NodeClaim) bool {
	_, synthetic := machine.ParseSyntheticProviderID(nodeClaim.Status.ProviderID)
	return nodeClaim.Status.ProviderID != "" && !synthetic
}

// maxQuotas is how many exhausted quotas a message names.
const maxQuotas = 3

// exhaustedQuotas describes the quotas of the infrastructure that are exhausted, to append to a message; empty if there are none.
func (c *CloudProvider) exhaustedQuotas() string {
	var texts []string
	quotas := c.InstanceTypes.Unavailable.Quotas()
	for i := range quotas {
		if quotas[i].IsClosed(c.InstanceTypes.Unavailable.Now()) && len(texts) < maxQuotas {
			texts = append(texts, "; "+quotas[i].Description())
		}
	}
	return strings.Join(texts, "")
}
