// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/message"
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
	wanted := i.wanted(desired)
	outdated := map[string]int{} // by version
	byPool, sizes := map[string]int{}, map[string]int{}
	total, unsupported := 0, false
	for n := range i.nodes {
		node := &i.nodes[n]
		pool := node.Labels[karpv1.NodePoolLabelKey]
		sizes[pool]++
		if v := kubelet(node); v != wanted[node.Name] {
			outdated[v]++
			byPool[pool]++
			total++
			unsupported = unsupported || guest.Unsupported(v, server)
		}
	}
	given := guest.PlainVersion(upgrade.Version) // to new nodes
	held := given != "" && given != desired
	v := decision{outdated: count(total), status: metav1.ConditionFalse}
	switch {
	case server != "" && guest.CompareVersions(server, desired) < 0:
		// Report this even without nodes: new ones get the older version.
		v.reason = v1beta1.ControlPlaneOlderReason
		v.message = fmt.Sprintf("nodes stay on %s until the control plane is upgraded to %s", server, desired)
		if held {
			v.message = fmt.Sprintf("new nodes get %s; %s comes once the control plane is upgraded to it; %s", given, desired, upgrade.Waits)
		}
	case total > 0 && upgrade.Waits != "":
		v.reason = v1beta1.NodeUpgradeHeldReason
		v.message = fmt.Sprintf("%d of %d %s %s %s rather than %s; %s", total, len(i.nodes), english.PluralWord(len(i.nodes), "node", "nodes"),
			english.PluralWord(total, "runs", "run"), runs(outdated), desired, upgrade.Waits)
	case held:
		v.reason = v1beta1.NodeUpgradeHeldReason
		v.message = fmt.Sprintf("new nodes get %s rather than %s; %s", given, desired, upgrade.Waits)
	case total > 0:
		v.reason = v1beta1.NodesOutdatedReason
		v.message = fmt.Sprintf("%d of %d %s still %s %s", total, len(i.nodes), english.PluralWord(len(i.nodes), "node", "nodes"),
			english.PluralWord(total, "runs", "run"), runs(outdated))
		if limit := i.limit(byPool, sizes, clk); limit != "" {
			v.message += "; " + limit
		}
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

// limit returns the NodePool whose disruption budget delays the replacement most, if any.
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
	default:
		return fmt.Sprintf("NodePool %s allows %d %s at a time", message.Quoted(tightest), allowed, english.PluralWord(allowed, "disruption", "disruptions"))
	}
}
