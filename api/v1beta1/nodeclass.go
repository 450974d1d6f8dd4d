// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// DefaultNodeClass returns the node class that the operator applies in the guest. It has the fields that the HostedCluster sets; every
// other field is the guest admin's.
func (c *ClusterAPI) DefaultNodeClass() *v1alpha1.ClusterAPINodeClass {
	settings := c.DeepCopy()
	if high, low, ok := settings.Kubelet.ImageGCThresholds(); ok {
		// Both, so that the one which an admin set can't make the other one invalid, and the apply fail.
		settings.Kubelet.ImageGCHighThresholdPercent, settings.Kubelet.ImageGCLowThresholdPercent = &high, &low
	}
	return &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			TemplateSelectors: settings.TemplateSelectors,
			Bootstrap:         settings.Bootstrap,
			Kubelet:           settings.Kubelet,
			BootstrapPatches:  settings.BootstrapPatches,
		},
	}
}
