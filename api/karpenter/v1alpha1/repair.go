// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of repair policies. A node's heartbeat may be missing for most of a minute without a fault.
const (
	MaxRepairPolicies    = 32
	MinRepairToleration  = time.Minute
	MaxRepairToleration  = 7 * 24 * time.Hour
	MaxRepairReason      = 256
	MaxRepairPriority    = 100
	MaxRepairGracePeriod = MaxRepairToleration
)

// RepairAction is Karpenter's way to repair an unhealthy node.
type RepairAction string

const (
	// RepairReplace launches a replacement, drains the node and deletes its machine.
	RepairReplace RepairAction = "Replace"
	// RepairReboot drains the node and reboots its machine in place. A machine that can't be rebooted, or doesn't recover, is replaced.
	RepairReboot RepairAction = "Reboot"
)

// RepairPolicy has Karpenter repair nodes that have had a condition for too long, where its feature gate NodeRepair is on.
//
// +kubebuilder:object:generate=false
type RepairPolicy struct {
	// ConditionType of the node, such as GPUHealthy.
	ConditionType corev1.NodeConditionType `json:"conditionType"`
	// ConditionStatus is True, False or Unknown.
	ConditionStatus corev1.ConditionStatus `json:"conditionStatus"`
	// Reason is a regular expression that is searched for in the condition's reason, such as ^Xid(79|119)$. Empty matches every reason.
	Reason string `json:"reason,omitempty"`
	// TolerationDuration is how long a node may have the condition before it is repaired, such as 10m.
	TolerationDuration metav1.Duration `json:"tolerationDuration"`
	// TerminationGracePeriod bounds the drain, also of pods that a PodDisruptionBudget protects; 0s skips the drain. A shorter
	// terminationGracePeriod of the NodePool wins. Nil is the built-in policy's for the condition and status, or Karpenter's default.
	TerminationGracePeriod *metav1.Duration `json:"terminationGracePeriod,omitempty"`
	// Priority from 0 to 100 orders nodes that wait for a repair: higher first.
	Priority int `json:"priority,omitempty"`
	// Action is Replace or Reboot; empty is Replace.
	Action RepairAction `json:"action,omitempty"`
}

// RepairPolicyProblems returns the problems of a platform's repair policies, each with the entry's index. Operator and
// Karpenter both ask it, so that Karpenter starts with every setting that the operator accepts.
func RepairPolicyProblems(policies []RepairPolicy) (problems []string) {
	if count := len(policies); count > MaxRepairPolicies {
		return []string{fmt.Sprintf(": %d entries exceed the limit of %d", count, MaxRepairPolicies)}
	}
	for i, policy := range policies {
		report := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("[%d]", i)+fmt.Sprintf(format, args...))
		}
		for _, message := range validation.IsQualifiedName(string(policy.ConditionType)) {
			report(".conditionType: %q: %s", policy.ConditionType, message)
		}
		switch policy.ConditionStatus {
		case corev1.ConditionTrue:
			if policy.ConditionType == corev1.NodeReady {
				report(": it would repair every node that is ready")
			}
		case corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			report(".conditionStatus: %q is not one of True, False, Unknown", policy.ConditionStatus)
		}
		if length := len(policy.Reason); length > MaxRepairReason {
			report(".reason: %d bytes exceed the limit of %d", length, MaxRepairReason)
		} else if _, err := regexp.Compile(policy.Reason); err != nil {
			report(".reason: %q is not a regular expression: %s", policy.Reason, err)
		}
		if toleration := policy.TolerationDuration.Duration; toleration < MinRepairToleration || toleration > MaxRepairToleration {
			report(".tolerationDuration: %s is not between %s and %s", toleration, MinRepairToleration, MaxRepairToleration)
		}
		if period := policy.TerminationGracePeriod; period != nil && (period.Duration < 0 || period.Duration > MaxRepairGracePeriod) {
			report(".terminationGracePeriod: %s is not between 0s and %s", period.Duration, MaxRepairGracePeriod)
		}
		if policy.Priority < 0 || policy.Priority > MaxRepairPriority {
			report(".priority: %d is not between 0 and %d", policy.Priority, MaxRepairPriority)
		}
		if policy.Action != "" && policy.Action != RepairReplace && policy.Action != RepairReboot {
			report(".action: %q is not one of %s, %s", policy.Action, RepairReplace, RepairReboot)
		}
		if first := slices.IndexFunc(policies, func(other RepairPolicy) bool {
			return other.ConditionType == policy.ConditionType && other.ConditionStatus == policy.ConditionStatus && other.Reason == policy.Reason
		}); first < i {
			report(": the policy of %s=%s is in [%d] too", policy.ConditionType, policy.ConditionStatus, first)
		}
	}
	return problems
}

// ParseRepairPolicies reads a JSON list of repair policies; empty text is none. The error names every entry that makes no sense.
func ParseRepairPolicies(text string) ([]RepairPolicy, error) {
	if text == "" {
		return nil, nil
	}
	var policies []RepairPolicy
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&policies); err != nil {
		return nil, fmt.Errorf("it isn't a JSON list of {conditionType, conditionStatus, reason, tolerationDuration, terminationGracePeriod, "+
			"priority, action}: %w", err)
	}
	if problems := RepairPolicyProblems(policies); len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return policies, nil
}
