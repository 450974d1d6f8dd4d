// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of repair policies. A node's heartbeat may be missing for most of a minute without a fault.
const (
	MaxRepairPolicies   = 32
	MinRepairToleration = time.Minute
	MaxRepairToleration = 7 * 24 * time.Hour
)

// RepairPolicy has Karpenter replace nodes that have had a condition for too long, where its feature gate NodeRepair is on.
//
// +kubebuilder:object:generate=false
type RepairPolicy struct {
	// ConditionType of the node, such as GPUHealthy.
	ConditionType corev1.NodeConditionType `json:"conditionType"`
	// ConditionStatus is True, False or Unknown.
	ConditionStatus corev1.ConditionStatus `json:"conditionStatus"`
	// TolerationDuration is how long a node may have the condition before it is replaced, such as 10m.
	TolerationDuration metav1.Duration `json:"tolerationDuration"`
}

// RepairPolicyProblems returns what is wrong with a platform's repair policies, each problem with the entry's index. Operator and
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
				report(": it would replace every node that is ready")
			}
		case corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			report(".conditionStatus: %q is not one of True, False, Unknown", policy.ConditionStatus)
		}
		if toleration := policy.TolerationDuration.Duration; toleration < MinRepairToleration || toleration > MaxRepairToleration {
			report(".tolerationDuration: %s is not between %s and %s", toleration, MinRepairToleration, MaxRepairToleration)
		}
		if first := slices.IndexFunc(policies, func(other RepairPolicy) bool {
			return other.ConditionType == policy.ConditionType && other.ConditionStatus == policy.ConditionStatus
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
		return nil, fmt.Errorf("it isn't a JSON list of {conditionType, conditionStatus, tolerationDuration}: %w", err)
	}
	if problems := RepairPolicyProblems(policies); len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return policies, nil
}
