// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// decision is the content of NodesUpToDate.
type decision struct {
	outdated int32
	status   metav1.ConditionStatus
	reason   string
	message  string
}

// decide compares the nodes' versions with the desired ones. Versions are plain; server may be empty, which is
// unknown.
func decide(i inventory, desired, server string, upgrade scope.NodeUpgrade, clk clock.Clock) decision {
	wanted, imaged := i.wanted(desired)
	outdated, newer := map[string]int{}, map[string]int{} // by version; newer are those of outdated that are ahead
	ahead, replaced := 0, 0                               // replaced are some of those ahead
	drifted := sets.New(i.drifted()...)
	byPool, sizes := map[string]int{}, map[string]int{}
	total, unsupported := 0, false
	waiting := images{}
	for n := range i.nodes {
		node := &i.nodes[n]
		pool := node.Labels[karpv1.NodePoolLabelKey]
		sizes[pool]++
		if v := kubelet(node); v != wanted[node.Name] {
			outdated[v]++
			total++
			if isAhead(v, wanted[node.Name]) {
				newer[v]++
				ahead++
				if drifted.Has(node.Name) {
					replaced++
				} else {
					continue // no budget delays what Karpenter doesn't replace
				}
			}
			if image, ok := imaged[node.Name]; ok && guest.PlainVersion(image.Version) == v {
				waiting.add(image, wanted[node.Name])
			} else {
				byPool[pool]++
			}
			unsupported = unsupported || guest.Unsupported(v, server)
		}
	}
	given := guest.PlainVersion(upgrade.Version) // to new nodes
	blocked := given != "" && given != desired
	v := decision{outdated: count(total), status: metav1.ConditionFalse}
	switch {
	case server != "" && guest.CompareVersions(server, desired) < 0:
		// Report this even without nodes: new ones get the older version.
		v.reason = v1beta1.ControlPlaneOlderReason
		v.message = fmt.Sprintf("nodes stay on %s until the control plane is upgraded to %s", server, desired)
		if blocked {
			v.message = fmt.Sprintf("new nodes get %s; %s comes once the control plane is upgraded to it; %s", given, desired, upgrade.Waits)
		}
	case upgrade.Ring:
		v.reason = v1beta1.WaitsForRingReason
		v.message = fmt.Sprintf("%d of %d %s on %s; %s", len(i.nodes)-total, len(i.nodes),
			english.PluralWord(len(i.nodes), "node is", "nodes are"), desired, upgrade.Waits)
	case upgrade.Progress != nil:
		v.reason = v1beta1.UpgradeProvingReason
		v.message = fmt.Sprintf("%d of %d %s on %s; others wait until it is proved: ", len(i.nodes)-total, len(i.nodes),
			english.PluralWord(len(i.nodes), "node is", "nodes are"), desired)
		if upgrade.Progress.Phase == v1alpha1.NodeUpgradeHalted {
			v.reason = v1beta1.UpgradeHaltedReason
			v.message = fmt.Sprintf("upgrade to %s halted, with %d of %d nodes on it: ", desired, len(i.nodes)-total, len(i.nodes))
		}
		v.message += cmp.Or(message.CutUpTo(upgrade.Progress.Message, 512), "Karpenter hasn't reported yet")
		if upgrade.Resume != "" {
			v.message += "; move to another release, or resume with: " + upgrade.Resume
		}
	case total > 0 && waiting.nodes == total:
		v.reason = v1beta1.NodeImageOlderReason
		v.message = fmt.Sprintf("%d of %d %s %s %s: %s", total, len(i.nodes), english.PluralWord(len(i.nodes), "node", "nodes"),
			english.PluralWord(total, "runs", "run"), runs(outdated), waiting)
		if upgrade.Waits != "" {
			v.message += "; " + upgrade.Waits
		}
	case total > 0 && upgrade.Waits != "":
		v.reason = v1beta1.NodeUpgradeHeldReason
		v.message = fmt.Sprintf("%d of %d %s %s %s rather than %s; %s", total, len(i.nodes), english.PluralWord(len(i.nodes), "node", "nodes"),
			english.PluralWord(total, "runs", "run"), runs(outdated), desired, upgrade.Waits)
		v.message += waiting.besides()
	case blocked:
		v.reason = v1beta1.NodeUpgradeHeldReason
		v.message = fmt.Sprintf("new nodes get %s rather than %s; %s", given, desired, upgrade.Waits)
	case total > 0 && ahead == total && replaced == 0:
		v.reason = v1beta1.NodesAheadReason
		v.message = fmt.Sprintf("%s; move to a release with the version of their image, or provide a template whose image has %s",
			runAhead(ahead, len(i.nodes), newer, desired), desired)
	case total > 0:
		v.reason = v1beta1.NodesOutdatedReason
		v.message = runBehind(total-ahead, ahead, len(i.nodes), outdated, newer, desired)
		if limit := i.limit(byPool, sizes, clk); limit != "" {
			v.message += "; " + limit
		}
		v.message += waiting.besides()
	default:
		v.status, v.reason = metav1.ConditionTrue, v1beta1.AsExpectedReason
		if len(i.nodes) > 0 {
			v.message = fmt.Sprintf("all %d nodes run the version that they should", len(i.nodes))
			if len(i.pinned) == 0 {
				v.message = fmt.Sprintf("all nodes run %s", desired)
			}
		}
	}
	if unsupported {
		v.reason = v1beta1.NodeVersionUnsupportedReason
		v.message += fmt.Sprintf("; the control plane, at %s, doesn't support nodes that old", server)
	}
	return v
}

// isAhead reports whether a node's version is newer than the one that it should run.
func isAhead(v, wanted string) bool {
	return v != unknown && guest.CompareVersions(v, wanted) > 0
}

// runAhead returns which newer versions nodes run.
func runAhead(n, total int, newer map[string]int, desired string) string {
	return fmt.Sprintf("%d of %d %s %s %s, ahead of %s", n, total, english.PluralWord(total, "node", "nodes"),
		english.PluralWord(n, "runs", "run"), runs(newer), desired)
}

// runBehind returns which older versions nodes run, and how many nodes are ahead.
func runBehind(behind, ahead, total int, outdated, newer map[string]int, desired string) string {
	if behind == 0 {
		return runAhead(ahead, total, newer, desired)
	}
	older := maps.Clone(outdated)
	maps.DeleteFunc(older, func(v string, n int) bool { return newer[v] == n })
	text := fmt.Sprintf("%d of %d %s still %s %s", behind, total, english.PluralWord(total, "node", "nodes"),
		english.PluralWord(behind, "runs", "run"), runs(older))
	if ahead > 0 {
		text += fmt.Sprintf("; %d %s %s, ahead of %s", ahead, english.PluralWord(ahead, "runs", "run"), runs(newer), desired)
	}
	return text
}

// images counts the nodes that wait for newer images.
type images struct {
	nodes int
	// byTemplate are the nodes by their template, and the versions that it has and that they should have.
	byTemplate map[olderTemplate]int
}

type olderTemplate struct{ name, has, wanted string }

func (w *images) add(image provider.OlderImage, wanted string) {
	if w.byTemplate == nil {
		w.byTemplate = map[olderTemplate]int{}
	}
	w.nodes++
	w.byTemplate[olderTemplate{image.Template, guest.PlainVersion(image.Version), wanted}]++
}

// String returns which template holds most nodes, and the remedy.
func (w images) String() string {
	templates := slices.SortedFunc(maps.Keys(w.byTemplate), func(a, b olderTemplate) int {
		return cmp.Or(cmp.Compare(w.byTemplate[b], w.byTemplate[a]), cmp.Compare(a.name, b.name), cmp.Compare(a.has, b.has),
			cmp.Compare(a.wanted, b.wanted))
	})
	if len(templates) == 0 {
		return ""
	}
	first, more := templates[0], ""
	if n := len(templates) - 1; n > 0 {
		more = ", and " + english.Plural(n, "other template's image is older", "other templates' images are older")
	}
	return fmt.Sprintf("the image of machine template %s still has %s%s; provide a template whose image has %s", message.Quoted(first.name),
		message.Quote(first.has), more, message.Quote(first.wanted))
}

// besides reports that some of the nodes wait for an image, and the others for something else.
func (w images) besides() string {
	if w.nodes == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of them %s: %s", w.nodes, english.PluralWord(w.nodes, "waits for an image", "wait for an image"), w)
}

// runs lists versions with their counts, newest first; without the count if there is one version.
func runs(outdated map[string]int) string {
	versions := frequent(outdated)
	if len(versions) == 1 {
		return versions[0].Version
	}
	texts := make([]string, 0, len(versions))
	for _, v := range versions {
		texts = append(texts, fmt.Sprintf("%s (%d)", v.Version, v.Count))
	}
	return strings.Join(texts, ", ")
}

// full reports whether a static NodePool's limit leaves no room for a replacement beside its node: Karpenter terminates that first.
func full(pool *karpv1.NodePool) bool {
	limit, ok := pool.Spec.Limits[resources.Node]
	return ok && pool.Spec.Replicas != nil && limit.Value() <= *pool.Spec.Replicas
}

// limit returns the NodePool whose disruption budget or limit of nodes delays the replacement most, if any.
func (i inventory) limit(outdated, sizes map[string]int, clk clock.Clock) string {
	tightest, allowed := "", 0
	for name, n := range outdated {
		pool, ok := i.pools[name]
		if !ok {
			continue
		}
		a := pool.MustGetAllowedDisruptions(clk, sizes[name], karpv1.DisruptionReasonDrifted)
		if a >= n {
			continue
		}
		if tightest == "" || a < allowed || a == allowed && (n > outdated[tightest] || n == outdated[tightest] && name < tightest) {
			tightest, allowed = name, a
		}
	}
	switch {
	case tightest == "":
		return ""
	case allowed == 0:
		return fmt.Sprintf("NodePool %s allows no disruption now", message.Quoted(tightest))
	}
	text := fmt.Sprintf("NodePool %s allows %d %s at a time", message.Quoted(tightest), allowed,
		english.PluralWord(allowed, "disruption", "disruptions"))
	if pool := i.pools[tightest]; full(pool) {
		limit := pool.Spec.Limits[resources.Node]
		text += fmt.Sprintf(", and terminates nodes before it launches their replacements: spec.limits.nodes %d isn't above spec.replicas %d",
			limit.Value(), *pool.Spec.Replicas)
	}
	return text
}
