// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/autonode-io/autonode/api/scalar"
)

// NodeUpgradePhase is the phase of an upgrade that proves itself on a few nodes first.
//
// +kubebuilder:validation:Enum=Canary;Rolling;Halted
type NodeUpgradePhase string

const (
	// NodeUpgradeCanary: the first nodes of the release are launched and soak. Others get the last completed release.
	NodeUpgradeCanary NodeUpgradePhase = "Canary"
	// NodeUpgradeRolling: nodes are replaced within the NodePools' disruption budgets.
	NodeUpgradeRolling NodeUpgradePhase = "Rolling"
	// NodeUpgradeHalted: nodes of the release failed, or pods on them. No node is replaced, and new ones get the last completed release.
	NodeUpgradeHalted NodeUpgradePhase = "Halted"
)

// NodeUpgradeStatus is the progress of an upgrade to a release, as Karpenter reports it.
type NodeUpgradeStatus struct {
	// image is the release by digest.
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
	// version is the release's Kubernetes version of nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
	// phase of the upgrade.
	Phase NodeUpgradePhase `json:"phase"`
	// canaries are the first NodeClaims of the release.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	Canaries []string `json:"canaries,omitempty"`
	// soakStartTime is since when all nodes of the release have been healthy; empty while one isn't, or canaries are missing.
	// +optional
	SoakStartTime *scalar.Time `json:"soakStartTime,omitempty"`
	// failedNodes are the NodeClaims of the release whose machine or node didn't come, or was repaired, as <NodeClaim>/<reason>.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	FailedNodes []string `json:"failedNodes,omitempty"`
	// message is the cause of the phase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
