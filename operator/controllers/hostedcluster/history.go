// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// maxHistory is the API's limit.
const maxHistory = 16

// recordHistory begins an entry when another payload is desired, and completes it once Karpenter was rolled out whole and every
// node runs the payload's version.
func (r *Reconciler) recordHistory(s *scope.Scope, o *outcome) {
	version := s.HostedCluster.Status.Version
	if version == nil || version.Desired == nil {
		return
	}
	desired, now := version.Desired, scalar.NewTime(r.clock.Now()).Stored()
	for i := range version.History {
		// The API server would reject an entry that it once admitted.
		if entry := &version.History[i]; entry.StartedTime.Malformed != "" ||
			entry.CompletionTime != nil && entry.CompletionTime.Malformed != "" {
			entry.StartedTime, entry.CompletionTime = now, nil
		}
	}
	if len(version.History) == 0 || version.History[0].Image != desired.Image || version.History[0].Version != desired.Version {
		version.History = prune(slices.Insert(version.History, 0, v1beta1.UpdateHistory{
			State: v1beta1.UpdatePartial, Version: desired.Version, Image: desired.Image, StartedTime: now,
		}))
	}
	entry := &version.History[0]
	if entry.State != v1beta1.UpdateCompleted && updated(s, o) {
		entry.State, entry.CompletionTime = v1beta1.UpdateCompleted, &now
	}
	if entry.State == v1beta1.UpdateCompleted {
		entry.NodeVersion = desired.NodeVersion
	}
}

// updated reports whether the desired release runs. It takes a reconciliation that saw everything: an earlier status could be about the
// payload before.
func updated(s *scope.Scope, o *outcome) bool {
	if o.state != on || o.blocked || s.Sleep.Wanted() || len(o.errs) > 0 || s.Release == nil || s.Component == nil {
		return false
	}
	desired, component := s.HostedCluster.Status.Version.Desired, s.Component.Status
	return s.Release.Image == desired.Image && component.Version == desired.Version &&
		meta.IsStatusConditionTrue(component.Conditions, v1beta1.RolloutComplete) &&
		meta.IsStatusConditionTrue(s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)
}

// prune drops the oldest entries, but never the newest payload that ran whole: that one runs while an update is under way.
func prune(history []v1beta1.UpdateHistory) []v1beta1.UpdateHistory {
	completed := slices.IndexFunc(history, func(h v1beta1.UpdateHistory) bool { return h.State == v1beta1.UpdateCompleted })
	for len(history) > maxHistory {
		last := len(history) - 1
		if last == completed {
			last--
		}
		history = slices.Delete(history, last, last+1)
	}
	return history
}

func newest(version *v1beta1.VersionStatus) *v1beta1.UpdateHistory {
	if version != nil && len(version.History) > 0 {
		return &version.History[0]
	}
	return nil
}
