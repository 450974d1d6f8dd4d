// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestOwnStatus(t *testing.T) {
	t.Run("When the status has a field, it should be written by the operator or by the shard", func(t *testing.T) {
		written := append([]string{"conditions", "operator"}, ownStatus.Names...)
		status := reflect.TypeFor[v1beta1.HostedClusterStatus]()
		if status.NumField() != len(written) {
			t.Errorf("%d fields, of which %d are written", status.NumField(), len(written))
		}
		for i := range status.NumField() {
			if name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ","); !slices.Contains(written, name) {
				t.Errorf("no code writes %s", name)
			}
		}
	})
}

// conflict is the answer to a write that came too late.
var conflict = apierrors.NewConflict(schema.GroupResource{Resource: "hostedclusters"}, "blue", errors.New("modified"))

// componentSays gives Karpenter's component a condition.
func componentSays(conditionType string, status metav1.ConditionStatus, message string) func(*scope.Scope) {
	return func(s *scope.Scope) {
		meta.SetStatusCondition(&s.Component.Status.Conditions, metav1.Condition{Type: conditionType, Status: status, Reason: "Reason", Message: message})
	}
}

// conclusion is what became of a reconciliation, and what the status is to say.
type conclusion struct {
	name    string
	outcome outcome
	change  []func(*scope.Scope)
	// want is status/reason of AutoNodeEnabled, then the state, then the message in the list.
	want, message string
	state         v1beta1.AutoNodeState
	// detail is what the condition's message has to hold beside it.
	detail string
}

// concludeAll concludes each in a subtest.
func concludeAll(t *testing.T, tests []conclusion) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
			s := running("1.36.3")
			for _, change := range test.change {
				change(s)
			}
			o := test.outcome
			r.conclude(s, &o)
			got, status := "", s.HostedCluster.Status
			if c := meta.FindStatusCondition(status.Conditions, v1beta1.AutoNodeEnabled); c != nil {
				got = string(c.Status) + "/" + c.Reason
				if !strings.Contains(c.Message, test.message) || !strings.Contains(c.Message, test.detail) || c.Message == "" {
					t.Errorf("the condition's message is %q, want %q and %q", c.Message, test.message, test.detail)
				}
			}
			if got != test.want || status.AutoNode.State != test.state || status.AutoNode.Message != test.message {
				t.Errorf("got %s, %q, %q; want %s, %q, %q", got, status.AutoNode.State, status.AutoNode.Message, test.want, test.state, test.message)
			}
		})
	}
}

func TestConcludeRollout(t *testing.T) {
	concludeAll(t, []conclusion{
		{
			name: "When all is well, it should have nothing to say",
			want: "True/AsExpected", state: v1beta1.AutoNodeStateEnabled,
		}, {
			name: "When another image runs than the payload's, it should be enabled and say so in the condition",
			change: []func(*scope.Scope){func(s *scope.Scope) {
				s.Component.Status.ImageOverride = "registry.example/case-4711@sha256:b"
			}},
			want: "True/AsExpected", state: v1beta1.AutoNodeStateEnabled,
			detail: "Karpenter runs as payload 1.36.3 says, but its image is registry.example/case-4711@sha256:b, by annotation autonode.io/override-image",
		}, {
			name:   "When Karpenter was never rolled out, it should be Progressing",
			change: []func(*scope.Scope){func(s *scope.Scope) { s.Component.Status = v1beta1.ControlPlaneComponentStatus{} }},
			want:   "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing, message: "Karpenter of payload 1.36.3 is being installed",
		}, {
			name: "When another payload is rolled out, it should be Upgrading, from what to what",
			change: []func(*scope.Scope){
				componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"),
				func(s *scope.Scope) { s.Component.Status.Version = "1.36.2" },
			},
			want: "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading,
			message: "Karpenter is being upgraded from payload 1.36.2 to 1.36.3: 1 of 2 replicas are updated",
		}, {
			name: "When another build of the same version is rolled out, it should be Upgrading too",
			change: []func(*scope.Scope){
				componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"),
				func(s *scope.Scope) { s.Component.Status.ReleaseImage = "registry.example/release@sha256:other" },
			},
			want: "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading,
			message: "Karpenter is being upgraded to another build of payload 1.36.3: 1 of 2 replicas are updated",
		}, {
			name:    "When the guest takes its time while another payload is rolled out, it should still be Upgrading",
			outcome: outcome{blocked: true, message: "connecting to blue"},
			change: []func(*scope.Scope){
				componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "1 of 2 replicas are updated"),
				func(s *scope.Scope) { s.Component.Status.Version = "1.36.2" },
			},
			want: "False/AutoNodeUpgrading", state: v1beta1.AutoNodeStateUpgrading, message: "connecting to blue",
		}, {
			name:   "When Karpenter starts again with the same payload, as after a pause, it should not be Upgrading",
			change: []func(*scope.Scope){componentSays(v1beta1.RolloutComplete, metav1.ConditionFalse, "0 of 2 replicas are updated")},
			want:   "False/AutoNodeProgressing", state: v1beta1.AutoNodeStateProgressing,
			message: "Karpenter of payload 1.36.3 is being rolled out again: 0 of 2 replicas are updated",
		}, {
			name:   "When Karpenter crashes after its rollout, it should be degraded",
			change: []func(*scope.Scope){componentSays(v1beta1.Available, metav1.ConditionFalse, "none of 2 replicas is available")},
			want:   "False/AutoNodeDegraded", state: v1beta1.AutoNodeStateDegraded,
			message: "Karpenter of payload 1.36.3 isn't available: none of 2 replicas is available",
		}, {
			name: "When nodes are outdated, it should be Upgrading while Karpenter is as expected",
			change: []func(*scope.Scope){func(s *scope.Scope) {
				setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "5 of 8 nodes still run 1.36.2")
			}},
			want: "True/AsExpected", state: v1beta1.AutoNodeStateUpgrading, message: "5 of 8 nodes still run 1.36.2",
		},
	})
}
