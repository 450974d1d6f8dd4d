// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// reportClasses sets NodeClassReady and OfferingsAvailable by the reports of the guest's node classes.
func reportClasses(s *scope.Scope, classes []provider.NodeClassReport) {
	conditions := &s.HostedCluster.Status.Conditions
	if s.Draining() {
		meta.RemoveStatusCondition(conditions, v1beta1.NodeClassReady)
		meta.RemoveStatusCondition(conditions, v1beta1.OfferingsAvailable)
		return
	}
	if s.Profile.DefaultNodeClass == nil || s.Profile.NodeClasses == nil {
		meta.RemoveStatusCondition(conditions, v1beta1.NodeClassReady)
	} else {
		s.SetCondition(ready(s, classes))
	}
	if failing, ok := unavailable(classes); ok {
		s.SetCondition(failing)
	} else {
		meta.RemoveStatusCondition(conditions, v1beta1.OfferingsAvailable)
	}
}

// ready is NodeClassReady. A report on an earlier generation of the node class is none.
func ready(s *scope.Scope, classes []provider.NodeClassReport) metav1.Condition {
	pending := metav1.Condition{
		Type: v1beta1.NodeClassReady, Status: metav1.ConditionUnknown, Reason: v1beta1.NodeClassPendingReason,
		Message: "waiting for Karpenter to report on the default node class",
	}
	i := slices.IndexFunc(classes, func(class provider.NodeClassReport) bool { return class.Default })
	if i < 0 || classes[i].Ready == nil || classes[i].Ready.ObservedGeneration < max(classes[i].Generation, s.NodeClassGeneration) {
		return pending
	}
	class, condition := classes[i], classes[i].Ready
	switch condition.Status {
	case metav1.ConditionTrue:
		return metav1.Condition{Type: v1beta1.NodeClassReady, Status: metav1.ConditionTrue, Reason: v1beta1.AsExpectedReason}
	case metav1.ConditionFalse:
		return metav1.Condition{
			Type: v1beta1.NodeClassReady, Status: metav1.ConditionFalse, Reason: cmp.Or(condition.Reason, v1beta1.NodeClassNotReadyReason),
			Message: fmt.Sprintf("node class %s isn't ready: %s", message.Quote(class.Name), text(condition)),
		}
	default:
		if condition.Message != "" {
			pending.Message += ": " + text(condition)
		}
		return pending
	}
}

// unavailable is OfferingsAvailable if a node class reports that nothing can be launched, the default one first.
func unavailable(classes []provider.NodeClassReport) (metav1.Condition, bool) {
	var failing []provider.NodeClassReport
	for _, class := range classes {
		if class.Offerings != nil && class.Offerings.Status == metav1.ConditionFalse {
			failing = append(failing, class)
		}
	}
	if len(failing) == 0 {
		return metav1.Condition{}, false
	}
	slices.SortFunc(failing, func(a, b provider.NodeClassReport) int {
		if a.Default != b.Default {
			if a.Default {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	first := failing[0]
	more := ""
	if n := len(failing) - 1; n > 0 {
		more = fmt.Sprintf("; %d more of %d node classes likewise", n, len(classes))
	}
	return metav1.Condition{
		Type: v1beta1.OfferingsAvailable, Status: metav1.ConditionFalse, Reason: cmp.Or(first.Offerings.Reason, v1beta1.NodeClassNotReadyReason),
		Message: fmt.Sprintf("node class %s: %s%s", message.Quote(first.Name), text(first.Offerings), more),
	}, true
}

// text is a condition's message, on one line.
func text(condition *metav1.Condition) string {
	return cmp.Or(strings.TrimSpace(message.CutUpTo(condition.Message, maxText)), "no reason given")
}

// maxText limits the repeated part of a node class's message, in bytes.
const maxText = 512
