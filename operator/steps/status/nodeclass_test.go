// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestReportClasses(t *testing.T) {
	condition := func(status metav1.ConditionStatus, generation int64, reason, text string) *metav1.Condition {
		return &metav1.Condition{Status: status, ObservedGeneration: generation, Reason: reason, Message: text}
	}
	fine := provider.NodeClassReport{Name: "default", Default: true, Generation: 2, Ready: condition("True", 2, "Ready", "")}
	exhausted := condition("False", 2, "NoCapacity", "nothing can be launched; 12 pods wait")
	const waits = "waiting for Karpenter to report on the default node class"
	for name, test := range map[string]struct {
		classes []provider.NodeClassReport
		change  func(*scope.Scope)
		// ready and offerings are status/reason: message of the conditions; empty for none.
		ready, offerings string
	}{
		"When the default node class is ready, it should say so and no more": {
			classes: []provider.NodeClassReport{fine}, ready: "True/AsExpected: ",
		},
		"When it isn't, it should repeat why": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 2,
				Ready: condition("False", 2, "NoTemplates", "no machine template in namespace clusters-blue matches pool=general\n2 exist")}},
			ready: "False/NoTemplates: node class default isn't ready: no machine template in namespace clusters-blue matches pool=general; 2 exist",
		},
		"When its reason is none that Karpenter has, it should keep the message": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 2, Ready: condition("False", 2, "", "")}},
			ready:   "False/NodeClassNotReady: node class default isn't ready: no reason given",
		},
		"When the message is long, it should cut it": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 2, Ready: condition("False", 2, "AllInvalid", strings.Repeat("a", 2000))}},
			ready:   "False/AllInvalid: node class default isn't ready: " + strings.Repeat("a", maxText-len("…")) + "…",
		},
		"When Karpenter has reported nothing, it should wait": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 1}}, ready: "Unknown/NodeClassPending: " + waits,
		},
		"When the node class isn't in the cache yet, it should wait": {ready: "Unknown/NodeClassPending: " + waits},
		"When the report is on an earlier generation, it should wait": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 3, Ready: condition("True", 2, "Ready", "")}}, ready: "Unknown/NodeClassPending: " + waits,
		},
		"When the generation that was just applied isn't in the cache yet, it should wait": {
			classes: []provider.NodeClassReport{fine}, change: func(s *scope.Scope) { s.NodeClassGeneration = 3 }, ready: "Unknown/NodeClassPending: " + waits,
		},
		"When Karpenter doesn't know yet, it should wait and say for what": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Ready: condition("Unknown", 0, "VersionUnknown", "the API server hasn't reported its version")}},
			ready:   "Unknown/NodeClassPending: " + waits + ": the API server hasn't reported its version",
		},
		"When nothing can be launched, it should say so and stay ready": {
			classes: []provider.NodeClassReport{{Name: "default", Default: true, Generation: 2, Ready: fine.Ready, Offerings: exhausted}},
			ready:   "True/AsExpected: ", offerings: "False/NoCapacity: node class default: nothing can be launched; 12 pods wait",
		},
		"When other node classes have nothing either, it should count them": {
			classes: []provider.NodeClassReport{{Name: "a", Offerings: exhausted}, {Name: "b", Offerings: exhausted}, fine}, ready: "True/AsExpected: ",
			offerings: "False/NoCapacity: node class a: nothing can be launched; 12 pods wait; 1 more of 3 node classes likewise",
		},
		"When the platform has no default node class, it should have no condition": {
			change: func(s *scope.Scope) { s.Profile = aws.New() },
		},
		"When AutoNode is being turned off, it should have no condition": {
			classes: []provider.NodeClassReport{fine}, change: func(s *scope.Scope) { s.HostedCluster.Spec.AutoNode = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := &scope.Scope{HostedCluster: &v1beta1.HostedCluster{Spec: v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{}}}, Profile: clusterapi.New(clusterapi.DefaultGroups)}
			// What was said before doesn't stay.
			for _, conditionType := range []string{v1beta1.NodeClassReady, v1beta1.OfferingsAvailable} {
				meta.SetStatusCondition(&s.HostedCluster.Status.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: "Before"})
			}
			if test.change != nil {
				test.change(s)
			}
			reportClasses(s, test.classes)
			said := func(conditionType string) string {
				c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, conditionType)
				if c == nil {
					return ""
				}
				return string(c.Status) + "/" + c.Reason + ": " + c.Message
			}
			g.Expect(said(v1beta1.NodeClassReady)).To(Equal(test.ready))
			g.Expect(said(v1beta1.OfferingsAvailable)).To(Equal(test.offerings))
		})
	}
}

func TestReportApprovals(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	approved, reason := false, v1beta1.ApprovedByAnotherReason
	step := New(Config{Clock: clocktesting.NewFakeClock(noon), ApprovedByOthers: func(*v1beta1.HostedCluster) (string, string, time.Time, bool) {
		return reason, "certificate request csr-1 was approved by another approver", noon.Add(10 * time.Minute), approved
	}})
	s := &scope.Scope{HostedCluster: &v1beta1.HostedCluster{}}
	condition := func() *metav1.Condition {
		return meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.NodeIdentityEnforced)
	}
	t.Run("When another approver approves, it should say so until that is an hour ago", func(t *testing.T) {
		g := NewWithT(t)
		approved = true
		g.Expect(step.reportApprovals(s)).To(Equal(10 * time.Minute))
		g.Expect(condition()).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ApprovedByAnotherReason),
			HaveField("Message", "certificate request csr-1 was approved by another approver; take away that approver's permission")))
	})
	t.Run("When a request waits for another approver, it should say which", func(t *testing.T) {
		reason = v1beta1.ApprovalPendingReason
		step.reportApprovals(s)
		NewWithT(t).Expect(condition()).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.ApprovalPendingReason),
			HaveField("Message", "certificate request csr-1 was approved by another approver")))
	})
	t.Run("When none does, it should have no condition", func(t *testing.T) {
		g := NewWithT(t)
		approved = false
		g.Expect(step.reportApprovals(s)).To(BeZero())
		g.Expect(condition()).To(BeNil())
	})
}
