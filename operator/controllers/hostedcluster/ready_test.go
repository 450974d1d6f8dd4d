// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"errors"
	"testing"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// TestReady asks kstatus, the library by which Flux and others decide whether an object is as its spec says.
func TestReady(t *testing.T) {
	for _, test := range []struct {
		name    string
		outcome outcome
		change  func(*scope.Scope)
		// want is status/reason of Ready.
		want    string
		kstatus kstatus.Status
	}{
		{
			name: "When Karpenter runs as the spec says, it should be ready",
			want: "True/AsExpected", kstatus: kstatus.CurrentStatus,
		}, {
			name: "When only nodes are outdated, it should be ready, as they may stay so until the next maintenance window",
			change: func(s *scope.Scope) {
				setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "5 of 8 nodes still run 1.36.2")
			},
			want: "True/AsExpected", kstatus: kstatus.CurrentStatus,
		}, {
			name:   "When Karpenter is being installed, it should be in progress",
			change: func(s *scope.Scope) { s.Component.Status = v1beta1.ControlPlaneComponentStatus{} },
			want:   "False/AutoNodeProgressing", kstatus: kstatus.InProgressStatus,
		}, {
			name:    "When an input is missing while Karpenter runs on, it should not be ready although AutoNode is enabled",
			outcome: outcome{blocked: true, message: "no such image"},
			change: func(s *scope.Scope) {
				setCondition(s.HostedCluster, v1beta1.ReleaseResolved, metav1.ConditionFalse, v1beta1.ImageNotFoundReason, "")
			},
			want: "False/AutoNodeWaiting", kstatus: kstatus.InProgressStatus,
		}, {
			name:    "When it is paused, it should not be ready",
			outcome: outcome{state: paused, message: "paused"},
			want:    "False/Paused", kstatus: kstatus.InProgressStatus,
		}, {
			name:    "When its nodes drain, it should not be ready",
			outcome: outcome{state: draining, blocked: true, message: "4 of 12 nodes left"},
			want:    "False/AutoNodeDraining", kstatus: kstatus.InProgressStatus,
		}, {
			name:    "When the operator can't tell, it should not be ready",
			outcome: outcome{errs: []error{errors.New("crd: boom")}},
			want:    "Unknown/AutoNodeEvaluationFailed", kstatus: kstatus.InProgressStatus,
		}, {
			name:    "When AutoNode is off, it should be ready",
			outcome: outcome{state: off},
			want:    "True/AutoNodeNotConfigured", kstatus: kstatus.CurrentStatus,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			s := running("1.36.3")
			s.HostedCluster.Generation = 2
			if test.change != nil {
				test.change(s)
			}
			o := test.outcome
			(&Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}).conclude(s, &o)
			ready := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.Ready)
			g.Expect(ready).NotTo(BeNil())
			g.Expect(string(ready.Status) + "/" + ready.Reason).To(Equal(test.want))
			g.Expect(computed(g, s.HostedCluster)).To(Equal(test.kstatus))

			s.HostedCluster.Generation++
			g.Expect(computed(g, s.HostedCluster)).To(Equal(kstatus.InProgressStatus), "a spec that the operator hasn't seen yet")
		})
	}
}

func computed(g Gomega, hostedCluster *v1beta1.HostedCluster) kstatus.Status {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(hostedCluster)
	g.Expect(err).NotTo(HaveOccurred())
	result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	g.Expect(err).NotTo(HaveOccurred())
	return result.Status
}
