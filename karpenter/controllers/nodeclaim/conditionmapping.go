// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// finding is a condition and its meaning for the machine.
type finding struct {
	means     infrastructure.Meaning
	condition metav1.Condition
}

// rank orders findings: those about the offering come first.
var rank = []infrastructure.Meaning{
	infrastructure.NoQuota, infrastructure.NoCapacity, infrastructure.Misconfigured, infrastructure.Terminated,
	infrastructure.Interrupted, infrastructure.Failed,
}

// inputs are the conditions and fields that report a machine's state.
type inputs struct {
	// reasons of the node class come first.
	reasons []v1alpha1.FailureReason
	// kind of the infrastructure machine.
	kind infrastructure.Kind
	// exists: the machine has a provider ID.
	exists bool
	// infrastructure are the conditions about the infrastructure, and others the Machine's other ones, which match the node
	// class's reasons only.
	infrastructure, others []metav1.Condition
	// machine is the infrastructure machine; nil if it can't be read.
	machine *unstructured.Unstructured
}

// interpret returns the highest-ranked finding among the given meanings; of equal rank the first. For a machine that exists
// messages about capacity, quota and configuration no longer concern its launch.
func interpret(in inputs, among ...infrastructure.Meaning) (finding, bool) {
	var findings []finding
	add := func(means infrastructure.Meaning, condition metav1.Condition) {
		if slices.Contains(among, means) {
			findings = append(findings, finding{means, condition})
		}
	}
	for _, condition := range in.infrastructure {
		add(in.conditionMapping(condition), condition)
	}
	if in.machine != nil {
		states, means := in.kind.States(in.machine)
		for i := range states {
			add(means[i], states[i])
		}
	}
	for _, condition := range in.others {
		if means, ok := assignedMeaning(in.reasons, condition); ok && (!in.exists || means == infrastructure.Failed) {
			add(means, condition)
		}
	}
	if len(findings) == 0 {
		return finding{}, false
	}
	return slices.MinFunc(findings, func(a, b finding) int {
		return cmp.Compare(slices.Index(rank, a.means), slices.Index(rank, b.means))
	}), true
}

// conditionMapping returns the meaning of one condition; Ignored if it is no failure. The node class's reasons come first. The
// message of a final reason may contain a capacity word, as AWS's for an instance that it reclaimed: for a machine
// that exists the reason counts.
func (in inputs) conditionMapping(condition metav1.Condition) infrastructure.Meaning {
	means, ok := assignedMeaning(in.reasons, condition)
	if ok && (means == infrastructure.Failed || means == infrastructure.Ignored || !in.exists) {
		return means
	}
	question := infrastructure.Question{Exists: in.exists}
	if !in.exists {
		question.Without = func(word string) bool {
			return slices.ContainsFunc(in.reasons, func(r v1alpha1.FailureReason) bool { return strings.EqualFold(r.Reason, word) })
		}
	}
	means, _ = in.kind.Means(condition, question)
	if condition.Type == failureReason && !slices.Contains(rank, means) {
		return infrastructure.Failed
	}
	return means
}

// assignedMeaning returns the meaning that a node class assigns to a condition, if any.
func assignedMeaning(reasons []v1alpha1.FailureReason, condition metav1.Condition) (infrastructure.Meaning, bool) {
	if condition.Status != metav1.ConditionFalse {
		return infrastructure.Ignored, false
	}
	for _, reason := range reasons {
		if strings.EqualFold(condition.Reason, reason.Reason) {
			return infrastructure.Meaning(reason.Means), true
		}
	}
	for _, reason := range reasons {
		if reason.Means != v1alpha1.FailureIgnored && infrastructure.ContainsWord(condition.Message, reason.Reason) {
			return infrastructure.Meaning(reason.Means), true
		}
	}
	return infrastructure.Ignored, false
}

// failureReason is the type of a condition built from status.failureReason of an infrastructure machine of Cluster
// API's contract v1beta1, where every value is final. Cluster API copies it to the Machine.
const failureReason = "FailureReason"

// conditionsOfMachine returns the conditions in which Cluster API repeats those of the infrastructure machine.
func conditionsOfMachine(m *clusterv1.Machine) []metav1.Condition {
	conditions := append([]metav1.Condition{machine.Condition(m, clusterv1.MachineInfrastructureReadyCondition)}, formerConditions(m)...)
	if reason, message := finalFailure(m); reason != "" {
		conditions = append(conditions, metav1.Condition{Type: failureReason, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	}
	return conditions
}

// formerConditions returns the condition about the infrastructure of Cluster API's contract v1beta1, in which alone some providers say
// why a task has failed.
//
//nolint:staticcheck // deprecated together with the contract v1beta1, which many providers still follow.
func formerConditions(m *clusterv1.Machine) (conditions []metav1.Condition) {
	if m.Status.Deprecated == nil || m.Status.Deprecated.V1Beta1 == nil {
		return nil
	}
	for i := range m.Status.Deprecated.V1Beta1.Conditions {
		if c := &m.Status.Deprecated.V1Beta1.Conditions[i]; c.Type == clusterv1.InfrastructureReadyV1Beta1Condition {
			conditions = append(conditions, metav1.Condition{
				Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message,
				LastTransitionTime: c.LastTransitionTime,
			})
		}
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
func conditionsOfInfrastructure(object *unstructured.Unstructured) []metav1.Condition {
	var conditions []metav1.Condition
	for _, path := range [][]string{
		{"status", "conditions"}, {"status", "v1beta2", "conditions"}, {"status", "deprecated", "v1beta1", "conditions"},
	} {
		items, _, _ := unstructured.NestedFieldNoCopy(object.Object, path...)
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
