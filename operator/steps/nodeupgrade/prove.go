// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"context"
	"strings"
	"time"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
)

// prove plans an upgrade that proves itself, and copies Karpenter's report of it, which a restart of Karpenter starts from. Before a policy
// allows a version, nodes get that of the payload that was Completed last, which is proved.
func prove(ctx context.Context, s *scope.Scope, wanted, server string) error {
	status := s.HostedCluster.Status.Version
	plan, upgrade := planned(s, wanted), s.HostedCluster.Spec.AutoNode.NodeUpgrade
	switch held := !same(s.NodeUpgrade.Version, wanted); {
	case plan == nil:
	case plan.To != plan.From && (held || s.NodeUpgrade.Ring && same(plan.From.Version, wanted)) &&
		!guest.Unsupported(plan.From.Version, server):
		s.NodeUpgrade.Version, plan.To = plan.From.Version, plan.From
	case upgrade.Canary == nil && upgrade.HaltOn == nil, plan.To == plan.From && held:
		plan = nil // nothing is to be proved: nodes got it before their ring failed, or will go back to a proved one
	}
	if plan == nil || plan.To == plan.From {
		s.NodeUpgrade.Plan, status.NodeUpgrade = plan, nil
		return nil
	}
	report := status.NodeUpgrade
	if s.Guest != nil && s.Guest.Complete && s.Profile.NodeClasses != nil {
		classes, err := s.Profile.NodeClasses(ctx, s.Guest.Cached)
		if err != nil {
			return err //nolint:wrapcheck // the profile's own
		}
		for _, class := range classes {
			if class.Default && class.Upgrade != nil && class.Upgrade.Image == plan.To.Image {
				report = class.Upgrade
			}
		}
	}
	plan.Status = plan.Resume(report)
	s.NodeUpgrade.Plan, status.NodeUpgrade = plan, plan.Status
	if plan.Status.Phase == v1alpha1.NodeUpgradeRolling {
		return nil
	}
	s.NodeUpgrade.Progress = plan.Status
	if len(plan.Status.FailedNodes) > 0 && !plan.Resumed {
		s.NodeUpgrade.Resume = annotate(s.HostedCluster, v1beta1.ResumeNodeUpgradeAnnotation) + s.Release.Version
	}
	return nil
}

// planned returns the plan from the payload that was Completed last; nil where none was, or no proof is required.
func planned(s *scope.Scope, wanted string) *upgradeplan.Plan {
	upgrade := s.HostedCluster.Spec.AutoNode.NodeUpgrade
	if upgrade == nil || upgrade.Canary == nil && upgrade.HaltOn == nil && !s.NodeUpgrade.Ring {
		return nil
	}
	to := upgradeplan.Release{Image: s.Release.Image, Version: guest.PlainVersion(wanted)}
	resume := s.HostedCluster.Annotations[v1beta1.ResumeNodeUpgradeAnnotation]
	plan := &upgradeplan.Plan{
		To: to, Soak: scalar.Duration{Duration: 10 * time.Minute}, MaxFailures: 1,
		Resumed: resume != "" && (same(resume, s.Release.Version) || strings.HasSuffix(to.Image, "@"+resume)),
	}
	if canary := upgrade.Canary; canary != nil {
		plan.Canaries = int(max(canary.Nodes, 1))
		if canary.SoakDuration != nil {
			plan.Soak = *canary.SoakDuration
		}
	}
	if halt := upgrade.HaltOn; halt != nil {
		plan.MaxFailures, plan.MaxUnready = int(max(halt.FailedNodes, 1)), halt.UnavailablePods
	}
	for _, entry := range s.HostedCluster.Status.Version.History {
		switch {
		case entry.State != v1beta1.UpdateCompleted || entry.NodeVersion == "":
		case entry.Image == to.Image:
			plan.From = to // a payload that was proved before
			return plan
		case plan.From.Image == "":
			plan.From = upgradeplan.Release{Image: entry.Image, Version: guest.PlainVersion(entry.NodeVersion)}
		}
	}
	if plan.From.Image == "" {
		return nil
	}
	return plan
}
