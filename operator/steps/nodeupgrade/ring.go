// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
)

// rings are the rings that a HostedCluster waits for.
func rings(hostedCluster *v1beta1.HostedCluster) []v1beta1.NodeUpgradeAfter {
	if a := hostedCluster.Spec.AutoNode; a != nil && a.NodeUpgrade != nil {
		return a.NodeUpgrade.After
	}
	return nil
}

// WaitsFor reports whether a HostedCluster has rings that a change of an object concerns: one that they select, or its own labels.
func WaitsFor(hostedCluster *v1beta1.HostedCluster, changed client.Object) bool {
	return slices.ContainsFunc(rings(hostedCluster), func(ring v1beta1.NodeUpgradeAfter) bool {
		selector, err := lenient.Selector(&ring.HostedClusterSelector)
		return hostedCluster.Name == changed.GetName() || err == nil && selector.Matches(labels.Set(changed.GetLabels()))
	})
}

// members are the HostedClusters of a ring, which may not be modified.
func members(ctx context.Context, management client.Reader, namespace string, ring v1beta1.NodeUpgradeAfter,
) ([]v1beta1.HostedCluster, error) {
	list := &v1beta1.HostedClusterList{}
	selector, err := lenient.Selector(&ring.HostedClusterSelector)
	if err == nil && selector.Empty() {
		err = errors.New("it may not be empty")
	}
	if err == nil {
		err = management.List(ctx, list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector},
			client.UnsafeDisableDeepCopy)
	}
	return list.Items, err
}

// checkRings returns what is wrong with a HostedCluster's rings. By the labels that HostedClusters have now, it may not wait for itself.
func checkRings(ctx context.Context, management client.Reader, hostedCluster *v1beta1.HostedCluster) error {
	queue, seen := []*v1beta1.HostedCluster{hostedCluster}, sets.New[string]()
	for ; len(queue) > 0; queue = queue[1:] {
		for i, ring := range rings(queue[0]) {
			selected, err := members(ctx, management, hostedCluster.Namespace, ring)
			if err != nil && queue[0] == hostedCluster {
				return fmt.Errorf("spec.autoNode.nodeUpgrade.after[%d].hostedClusterSelector: %w", i, err)
			}
			for m := range selected {
				if selected[m].Name == hostedCluster.Name {
					return fmt.Errorf("spec.autoNode.nodeUpgrade.after is a cycle, as HostedCluster %s waits for this one", queue[0].Name)
				}
				if !seen.Has(selected[m].Name) {
					seen.Insert(selected[m].Name)
					queue = append(queue, &selected[m])
				}
			}
		}
	}
	return nil
}

// ring describes the HostedClusters that nodes wait for, empty for none, and returns the time until the next of them has soaked. A release
// whose canaries were launched waits no longer.
func (n *NodeUpgrade) ring(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (waits string, after time.Duration, err error) {
	version := ptr.Deref(hostedCluster.Status.Version, v1beta1.VersionStatus{})
	desired, begun := ptr.Deref(version.Desired, v1beta1.DesiredVersion{}), ptr.Deref(version.NodeUpgrade, v1alpha1.NodeUpgradeStatus{})
	if completed(version, nil) < 0 || completed(version, &desired) >= 0 ||
		begun.Image == desired.Image && begun.Version == guest.PlainVersion(desired.NodeVersion) {
		return "", 0, nil
	}
	var texts []string
	for _, ring := range rings(hostedCluster) {
		selected, err := members(ctx, n.Management, hostedCluster.Namespace, ring)
		if err != nil {
			return "", 0, err
		}
		left := 0
		for i := range selected {
			lacks, remaining, counts := proof(&selected[i], &desired, ring.SoakDuration.Duration, n.Clock.Now())
			if counts && lacks != "" {
				texts, after = append(texts, "HostedCluster "+selected[i].Name+" "+lacks), scope.Sooner(after, remaining)
			}
			if counts {
				left++
			}
		}
		if left == 0 {
			texts = append(texts, fmt.Sprintf("no HostedCluster with %s has nodes and isn't deleted, paused, asleep or halted by pods",
				message.Cut(metav1.FormatLabelSelector(&ring.HostedClusterSelector), 128)))
		}
	}
	if len(texts) == 0 {
		return "", 0, nil
	}
	slices.Sort(texts)
	return fmt.Sprintf("release %s waits for its ring: %s", desired.Version, message.List(texts, 3, "; ")), after, nil
}

// completed returns where the history has a release as Completed, or any for nil; negative for nowhere. A release is known by its digest,
// and the default release by its version, which has those of the operator and of nodes.
func completed(version v1beta1.VersionStatus, release *v1beta1.DesiredVersion) int {
	return slices.IndexFunc(version.History, func(entry v1beta1.UpdateHistory) bool {
		switch _, has, _ := strings.Cut(entry.Image, "@"); {
		case entry.State != v1beta1.UpdateCompleted:
			return false
		case release == nil:
			return true
		case release.Source == v1beta1.ReleaseSourceDefault:
			return entry.Version == release.Version
		default:
			return strings.HasSuffix(release.Image, "@"+has)
		}
	})
}

// hasNodes reports whether a HostedCluster shows what a release does.
func hasNodes(hostedCluster *v1beta1.HostedCluster) bool {
	status := hostedCluster.Status.AutoNode
	return hostedCluster.Spec.AutoNode != nil && hostedCluster.DeletionTimestamp.IsZero() && status != nil && status.Sleep == nil &&
		status.State != v1beta1.AutoNodeStatePaused && ptr.Deref(status.NodeCount, 0) > 0
}

// ready is the condition Ready.
func ready(hostedCluster *v1beta1.HostedCluster) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.Ready), metav1.Condition{})
}

// proof returns what a HostedCluster lacks of the proof of a release, empty for nothing, the rest of its soak, and whether it counts: a
// halt without a failed node doesn't, so that no tenant's pods hold another tenant.
func proof(of *v1beta1.HostedCluster, release *v1beta1.DesiredVersion, soak time.Duration, now time.Time,
) (lacks string, remaining time.Duration, counts bool) {
	version := ptr.Deref(of.Status.Version, v1beta1.VersionStatus{})
	upgrade, at := ptr.Deref(version.NodeUpgrade, v1alpha1.NodeUpgradeStatus{}), completed(version, release)
	switch halted := upgrade.Phase == v1alpha1.NodeUpgradeHalted; {
	case !hasNodes(of), at < 0 && halted && len(upgrade.FailedNodes) == 0:
		return "", 0, false
	case at < 0 && halted:
		return "hasn't completed it: failed are " + message.List(upgrade.FailedNodes, 1, ", "), 0, true
	case at < 0:
		return "hasn't completed it", 0, true
	}
	from, until := version.History[at].CompletionTime.At(), now
	if is := ready(of); at > 0 {
		next := version.History[at-1]
		if slices.ContainsFunc(version.History[at+1:], func(e v1beta1.UpdateHistory) bool { return e.Image == next.Image }) {
			return "went back from it to release " + next.Version, 0, true
		}
		until = next.StartedTime.At()
	} else if is.Status != metav1.ConditionTrue {
		return "isn't Ready", 0, true
	} else if is.LastTransitionTime.After(from) {
		from = is.LastTransitionTime.Time
	}
	switch remaining = from.Add(soak).Sub(until); {
	case remaining <= 0:
		return "", 0, true
	case at > 0:
		return "went on to another release before it had soaked", 0, true
	}
	return "soaks until " + from.Add(soak).UTC().Format("Mon 2 Jan 15:04:05 MST"), remaining, true
}

// RingChanged reports whether those that wait for a HostedCluster have to decide again.
func RingChanged(before, after client.Object) bool {
	a, ok := before.(*v1beta1.HostedCluster)
	b, ok2 := after.(*v1beta1.HostedCluster)
	return ok && ok2 && !equality.Semantic.DeepEqual(seen(a), seen(b))
}

// seen is what others see of a HostedCluster.
func seen(of *v1beta1.HostedCluster) []any {
	version := ptr.Deref(of.Status.Version, v1beta1.VersionStatus{})
	upgrade := ptr.Deref(version.NodeUpgrade, v1alpha1.NodeUpgradeStatus{})
	return []any{of.Labels, rings(of), hasNodes(of), ready(of).Status, version.Desired, version.History, upgrade.Phase, upgrade.FailedNodes}
}
