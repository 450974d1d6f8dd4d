// SPDX-License-Identifier: Apache-2.0

// Package upgradeplan is the plan of an upgrade of nodes that proves itself, which the operator writes into a file of Karpenter's.
package upgradeplan

import (
	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
)

// Key of the plan in the ConfigMap of node images, whose volume has it beside them.
const Key = "upgrade.json"

// Release is a payload: its image by digest, and its Kubernetes version of nodes without a leading v.
type Release struct {
	Image   string `json:"image"`
	Version string `json:"version"`
}

// Plan is the upgrade to one payload. The zero value plans none: nodes follow the payload at once.
type Plan struct {
	// To is the desired payload, From the one that was Completed last. Where both are the same, nothing is to be proved.
	To   Release `json:"to"`
	From Release `json:"from"`
	// Canaries is how many nodes get the payload first, and Soak how long nodes have to be healthy.
	Canaries int             `json:"canaries"`
	Soak     scalar.Duration `json:"soak"`
	// MaxFailures failed nodes halt the upgrade, and so does a number or a percentage of unready pods; empty for any.
	MaxFailures int    `json:"maxFailures"`
	MaxUnready  string `json:"maxUnready,omitempty"`
	// Resumed: failed nodes don't halt the upgrade. Status is Karpenter's last report, for a Karpenter that has restarted.
	Resumed bool                        `json:"resumed,omitempty"`
	Status  *v1alpha1.NodeUpgradeStatus `json:"status,omitempty"`
}

// Resume returns a report that is about the plan's payload, otherwise the first status.
func (p Plan) Resume(report *v1alpha1.NodeUpgradeStatus) *v1alpha1.NodeUpgradeStatus {
	if report != nil && report.Image == p.To.Image {
		return report.DeepCopy()
	}
	phase := v1alpha1.NodeUpgradeRolling
	if p.Canaries > 0 {
		phase = v1alpha1.NodeUpgradeCanary
	}
	return &v1alpha1.NodeUpgradeStatus{Image: p.To.Image, Version: p.To.Version, Phase: phase}
}
