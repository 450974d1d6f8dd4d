// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/internal/upgradeplan"
)

const minPodAge, maxNamed = 2 * time.Minute, 3 // until which a pod may become ready; names in a message

// nodes are the NodeClaims of the payload by name, those among them that aren't initialized, and those that were and aren't Ready.
type nodes struct {
	upgraded, joining, notReady []string
	// former is how many others the payload is to replace.
	former int
	// workloads by owner.
	workloads map[string]*workload
}

// workload counts the pods of one owner on nodes of the payload, and on the others.
type workload struct {
	upgraded, former struct{ ready, total int }
	daemon           bool
}

func (n *nodes) add(claim *karpv1.NodeClaim, ready bool) {
	n.upgraded = append(n.upgraded, claim.Name)
	if !claim.StatusConditions(status.WithObservedOnly()).IsTrue(karpv1.ConditionTypeInitialized) {
		n.joining = append(n.joining, claim.Name)
	} else if !ready {
		n.notReady = append(n.notReady, claim.Name)
	}
}

// OwnerOf returns the kind and the name of a pod's controller, the Deployment above a ReplicaSet. A bare pod has its own name and no kind.
func OwnerOf(pod *corev1.Pod) (kind, name string) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return "", pod.Name
	}
	if deployment, ok := strings.CutSuffix(owner.Name, "-"+pod.Labels["pod-template-hash"]); ok && owner.Kind == "ReplicaSet" {
		return "Deployment", deployment
	}
	return owner.Kind, owner.Name
}

// addPod counts a pod, unless it is finished, terminating, bare or young.
func (n *nodes) addPod(pod *corev1.Pod, upgraded bool, now time.Time) {
	kind, name := OwnerOf(pod)
	if kind == "" || pod.DeletionTimestamp != nil || podutils.IsTerminal(pod) || now.Sub(pod.CreationTimestamp.Time) < minPodAge {
		return
	}
	key := fmt.Sprintf("%s %s/%s", kind, pod.Namespace, name)
	w := n.workloads[key]
	if w == nil {
		w = &workload{daemon: kind == "DaemonSet"}
		n.workloads[key] = w
	}
	side := &w.former
	if upgraded {
		side = &w.upgraded
	}
	side.total++
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		side.ready++
	}
}

// compare returns the workloads whose share of ready pods is lower on nodes of the payload than on others, their unready pods there, and
// how many pods there were compared.
func (n *nodes) compare() (worse []string, unready, compared int) {
	for _, owner := range slices.Sorted(maps.Keys(n.workloads)) {
		w := n.workloads[owner]
		if w.former.total == 0 && w.daemon {
			w.former.ready, w.former.total = 1, 1
		}
		if w.former.total == 0 {
			continue
		}
		compared += w.upgraded.total
		if w.upgraded.ready*w.former.total < w.former.ready*w.upgraded.total {
			unready += w.upgraded.total - w.upgraded.ready
			worse = append(worse, fmt.Sprintf("%s (%d of %d pods ready)", owner, w.upgraded.ready, w.upgraded.total))
		}
	}
	return worse, unready, compared
}

// decide returns the status that follows another one.
func decide(plan upgradeplan.Plan, before *v1alpha1.NodeUpgradeStatus, n nodes, now time.Time) *v1alpha1.NodeUpgradeStatus {
	status := before.DeepCopy()
	worse, unready, compared := n.compare()
	failed := status.FailedNodes
	if plan.Resumed {
		failed = nil
	}
	missing := max(plan.Canaries-len(n.upgraded), 0)
	if n.former == 0 && len(n.upgraded) > 0 {
		missing = 0 // there are no more nodes
	}
	halted := len(failed)+len(n.notReady) >= plan.MaxFailures
	if bound := intstr.Parse(plan.MaxUnready); plan.MaxUnready != "" && unready > 0 {
		limit, err := intstr.GetScaledValueFromIntOrPercent(&bound, compared, true)
		halted = halted || err == nil && unready >= limit
	}
	healthy := missing == 0 && len(n.joining)+len(n.notReady)+len(worse) == 0
	switch {
	case halted || !healthy:
		status.SoakStartTime = nil
	case status.SoakStartTime.IsZero():
		start := scalar.NewTime(now).Stored()
		status.SoakStartTime = &start
	}
	switch {
	case halted:
		status.Phase = v1alpha1.NodeUpgradeHalted
	case healthy && now.Sub(status.SoakStartTime.At()) >= plan.Soak.Duration:
		status.Phase = v1alpha1.NodeUpgradeRolling
	case status.Phase == v1alpha1.NodeUpgradeHalted && missing > 0:
		status.Phase = v1alpha1.NodeUpgradeCanary
	}
	if status.Phase == v1alpha1.NodeUpgradeCanary {
		status.Canaries = n.upgraded[:min(len(n.upgraded), maxNames)]
	}
	var texts []string
	for _, list := range []struct {
		of    string
		names []string
	}{{"failed", failed}, {"not Ready", n.notReady}, {"not initialized", n.joining}, {"less available than elsewhere", worse}} {
		if len(list.names) > 0 {
			texts = append(texts, list.of+": "+message.List(list.names, maxNamed, ", "))
		}
	}
	status.Message = message.Cut(strings.Join(texts, "; "), 1000) // the API allows 1024
	switch {
	case status.Phase == v1alpha1.NodeUpgradeRolling:
		status.Message, status.SoakStartTime = "", nil
	case status.Message != "":
	case missing > 0:
		status.Message = english.Plural(missing, "canary isn't", "canaries aren't") + " launched yet"
	default:
		status.Message = fmt.Sprintf("%s healthy, until %s", english.Plural(len(n.upgraded), "node has to stay", "nodes have to stay"),
			status.SoakStartTime.At().Add(plan.Soak.Duration).UTC().Format("Mon 15:04:05 MST"))
	}
	return status
}
