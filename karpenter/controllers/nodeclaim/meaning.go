// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// capacityWords are reasons of insufficient capacity, and quotaWords of an exceeded quota. Each is matched against
// the reason, and as a whole word against the message. From the API references of AWS, Azure, Google Cloud,
// OpenStack, Oracle, vSphere, KubeVirt and Metal3.
var (
	capacityWords = []string{
		"InsufficientCapacity", "InsufficientInstanceCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity", "ReservationCapacityExceeded",
		"SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
		"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "stockout",
		"No valid host was found", "Out of host capacity", "InsufficientResources", "insufficient resources", "NoCompatibleHost",
		"Insufficient cpu", "Insufficient memory", "No available host found",
	}
	quotaWords = []string{
		"QuotaExceeded", "QUOTA_EXCEEDED", "Quota exceeded", "LimitExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded",
		"MaxSpotInstanceCountExceeded",
	}
	// throttledWords say that an API limits the rate of requests. Some clouds call that a quota too, such as Google Cloud's "Quota exceeded
	// for quota metric 'Queries' and limit 'Queries per minute'". The infrastructure provider retries.
	throttledWords = []string{
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "Rate exceeded", "rateLimitExceeded", "RATE_LIMIT_EXCEEDED", "rate limit exceeded",
		"userRateLimitExceeded", "per minute", "per second", "Too many requests", "TooManyRequests", "SubscriptionRequestsThrottled",
	}
)

// terminalReasons are reasons after which no provider that uses them retries. The list is short on purpose:
// BootstrapFailed, for example, is final on Azure and transient elsewhere, and AWS retries InstanceProvisionFailed. A
// node class can add more.
var terminalReasons = []string{
	clusterv1.MachineInfrastructureDeletedReason, // Cluster API: the infrastructure machine was deleted
	"InstanceTerminated",                         // AWS, Hetzner, IBM and others: the instance is gone
	"InstanceDeleted",                            // OpenStack: likewise
	"InstanceStateError",                         // OpenStack: the instance is in state ERROR, and isn't reconciled any more
}

// finding is a condition and what it means for the machine.
type finding struct {
	means     v1alpha1.FailureMeaning
	condition metav1.Condition
}

// rank orders findings: those about the offering come first.
var rank = []v1alpha1.FailureMeaning{v1alpha1.FailureQuotaExceeded, v1alpha1.FailureInsufficientCapacity, v1alpha1.FailureTerminal}

// interpret returns the highest-ranked finding. Conditions about the infrastructure match the node class's reasons
// and the built-in ones; other conditions match the node class's only. Of equal rank the first wins. For a machine
// that exists only a final failure counts: capacity and quota messages no longer concern its launch.
func interpret(reasons []v1alpha1.FailureReason, exists bool, infrastructure, others []metav1.Condition) (finding, bool) {
	var findings []finding
	add := func(means v1alpha1.FailureMeaning, condition metav1.Condition) {
		if means == v1alpha1.FailureTerminal || means != v1alpha1.FailureIgnored && !exists {
			findings = append(findings, finding{means, condition})
		}
	}
	for _, condition := range infrastructure {
		add(meaning(reasons, exists, condition), condition)
	}
	for _, condition := range others {
		means, _ := told(reasons, condition)
		add(means, condition)
	}
	if len(findings) == 0 {
		return finding{}, false
	}
	return slices.MinFunc(findings, func(a, b finding) int {
		return cmp.Compare(slices.Index(rank, a.means), slices.Index(rank, b.means))
	}), true
}

// meaning returns what one condition means; Ignored if it is no failure. The node class's reasons come first. The
// message of a final reason may contain a capacity word, as AWS's for an instance that it reclaimed: for a machine
// that exists the reason counts.
func meaning(reasons []v1alpha1.FailureReason, exists bool, condition metav1.Condition) v1alpha1.FailureMeaning {
	means, ok := told(reasons, condition)
	final := means == v1alpha1.FailureTerminal || means == v1alpha1.FailureIgnored
	if condition.Status != metav1.ConditionFalse || ok && (final || !exists) {
		return means
	}
	ignored := func(word string) bool {
		return slices.ContainsFunc(reasons, func(r v1alpha1.FailureReason) bool { return strings.EqualFold(r.Reason, word) })
	}
	says := func(word string) bool {
		return !ignored(word) && (strings.EqualFold(condition.Reason, word) || containsWord(condition.Message, word))
	}
	switch {
	case !exists && slices.ContainsFunc(quotaWords, says) && !slices.ContainsFunc(throttledWords, says):
		return v1alpha1.FailureQuotaExceeded
	case !exists && slices.ContainsFunc(capacityWords, says):
		return v1alpha1.FailureInsufficientCapacity
	case condition.Type == failureReason, slices.Contains(terminalReasons, condition.Reason):
		return v1alpha1.FailureTerminal
	}
	return v1alpha1.FailureIgnored
}

// told returns the meaning that a node class assigns to a condition, if any.
func told(reasons []v1alpha1.FailureReason, condition metav1.Condition) (v1alpha1.FailureMeaning, bool) {
	if condition.Status != metav1.ConditionFalse {
		return v1alpha1.FailureIgnored, false
	}
	for _, reason := range reasons {
		if strings.EqualFold(condition.Reason, reason.Reason) {
			return reason.Means, true
		}
	}
	for _, reason := range reasons {
		if reason.Means != v1alpha1.FailureIgnored && containsWord(condition.Message, reason.Reason) {
			return reason.Means, true
		}
	}
	return v1alpha1.FailureIgnored, false
}

// failureReason is the type of a condition built from status.failureReason of an infrastructure machine of Cluster
// API's contract v1beta1, where every value is final. Cluster API copies it to the Machine.
const failureReason = "FailureReason"

// conditionsOfMachine returns the conditions in which Cluster API repeats those of the infrastructure machine.
func conditionsOfMachine(m *clusterv1.Machine) []metav1.Condition {
	conditions := []metav1.Condition{machine.Condition(m, clusterv1.MachineInfrastructureReadyCondition)}
	if reason, message := finalFailure(m); reason != "" {
		conditions = append(conditions, metav1.Condition{Type: failureReason, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	}
	return conditions
}

// otherConditions returns a Machine's other conditions, without summaries.
func otherConditions(m *clusterv1.Machine) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(m.Status.Conditions), func(condition metav1.Condition) bool {
		switch condition.Type {
		case clusterv1.MachineInfrastructureReadyCondition, clusterv1.MachineReadyCondition, clusterv1.MachineAvailableCondition:
			return true
		}
		return false
	})
}

// finalFailure returns a Machine's failureReason and failureMessage.
//
//nolint:staticcheck // deprecated together with the contract v1beta1, which many providers still follow.
func finalFailure(m *clusterv1.Machine) (reason, message string) {
	if m.Status.Deprecated == nil || m.Status.Deprecated.V1Beta1 == nil {
		return "", ""
	}
	deprecated := m.Status.Deprecated.V1Beta1
	return string(ptr.Deref(deprecated.FailureReason, "")), ptr.Deref(deprecated.FailureMessage, "")
}

// conditionsOfInfrastructure returns an infrastructure machine's own conditions, wherever its contract version keeps
// them. A Machine repeats only Ready, whose reason may not be the underlying one.
func conditionsOfInfrastructure(infrastructure *unstructured.Unstructured) []metav1.Condition {
	var conditions []metav1.Condition
	for _, path := range [][]string{
		{"status", "conditions"}, {"status", "v1beta2", "conditions"}, {"status", "deprecated", "v1beta1", "conditions"},
	} {
		items, _, _ := unstructured.NestedFieldNoCopy(infrastructure.Object, path...)
		list, _ := items.([]any)
		for _, item := range list {
			fields, _ := item.(map[string]any)
			text := func(key string) string { s, _ := fields[key].(string); return s }
			conditions = append(conditions, metav1.Condition{
				Type: text("type"), Status: metav1.ConditionStatus(text("status")), Reason: text("reason"), Message: text("message"),
			})
		}
	}
	return conditions
}

// containsWord reports whether text has the word or phrase, not as part of a longer word and in any case.
func containsWord(text, word string) bool {
	text, word = strings.ToLower(text), strings.ToLower(word)
	for from := 0; ; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			return false
		}
		start, end := from+at, from+at+len(word)
		if !endsInWord(text[:start]) && !startsWithWord(text[end:]) {
			return true
		}
		from = start + 1
	}
}

func inWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

func endsInWord(text string) bool {
	runes := []rune(text)
	return len(runes) > 0 && inWord(runes[len(runes)-1])
}

func startsWithWord(text string) bool {
	for _, r := range text {
		return inWord(r)
	}
	return false
}
