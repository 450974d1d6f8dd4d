// SPDX-License-Identifier: Apache-2.0

// Package condition decides which conditions of AutoNode's objects are wrong, and what to do about each. `autonode check` and `autonode
// describe` print the same decision.
package condition

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// pipeline are the HostedCluster's conditions in the order in which they wait for each other.
var pipeline = []string{
	v1beta1.ValidConfiguration, v1beta1.GuestReachable, v1beta1.ReleaseResolved, v1beta1.FeatureGatesAccepted, v1beta1.AutoNodeEnabled,
	v1beta1.NodeClassReady, v1beta1.OfferingsAvailable, v1beta1.NodeIdentityEnforced, v1beta1.ImageOverridden, v1beta1.NodesUpToDate,
}

// expected are reasons of False conditions with which nothing is wrong: they take time, or a person intends them.
var expected = map[string]bool{
	v1beta1.AutoNodeNotConfiguredReason: true, v1beta1.PausedReason: true, v1beta1.AutoNodeProgressingReason: true,
	v1beta1.AutoNodeUpgradingReason: true,
	v1beta1.AutoNodeDrainingReason:  true, v1beta1.NodesOutdatedReason: true, v1beta1.NodesAheadReason: true,
	v1beta1.NodeUpgradeHeldReason: true, v1beta1.WaitsForRingReason: true,
	v1beta1.UpgradeProvingReason:    true,
	v1beta1.ControlPlaneOlderReason: true, v1beta1.AsleepReason: true,
}

// WrongOfHostedCluster returns the HostedCluster's conditions with which something is wrong, in the order in which they wait for each
// other.
func WrongOfHostedCluster(hostedCluster *v1beta1.HostedCluster) []metav1.Condition {
	return wrong(hostedCluster.Status.Conditions, pipeline)
}

// WrongOfComponent returns those of a ControlPlaneComponent. RollingOut is among them: the rollout may take its time, or hang.
func WrongOfComponent(component *v1beta1.ControlPlaneComponent) []metav1.Condition {
	return wrong(component.Status.Conditions, []string{v1beta1.RolloutComplete, v1beta1.Available})
}

func wrong(conditions []metav1.Condition, kinds []string) []metav1.Condition {
	var found []metav1.Condition
	for _, kind := range kinds {
		if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Status == metav1.ConditionFalse && !expected[c.Reason] {
			found = append(found, *c)
		}
	}
	return found
}
