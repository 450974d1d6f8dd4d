// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func desired(version string) *v1beta1.DesiredVersion {
	return &v1beta1.DesiredVersion{Version: version, Image: "registry.example/release@sha256:" + version}
}

func update(state v1beta1.UpdateState, version string) v1beta1.UpdateHistory {
	return v1beta1.UpdateHistory{State: state, Version: version, Image: desired(version).Image}
}

// running is a scope in which Karpenter runs as the payload of the version given reports.
func running(version string) *scope.Scope {
	s := &scope.Scope{
		HostedCluster: &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Status:     v1beta1.HostedClusterStatus{Version: &v1beta1.VersionStatus{Desired: desired(version)}},
		},
		Component: &v1beta1.ControlPlaneComponent{Status: v1beta1.ControlPlaneComponentStatus{Version: version, ReleaseImage: desired(version).Image}},
		Release:   &payload.Release{Version: version, Image: desired(version).Image},
	}
	for _, condition := range []string{v1beta1.RolloutComplete, v1beta1.Available} {
		meta.SetStatusCondition(&s.Component.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: v1beta1.AsExpectedReason})
	}
	setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionTrue, v1beta1.AsExpectedReason, "")
	return s
}

func TestRecordHistory(t *testing.T) {
	type entry struct {
		State     v1beta1.UpdateState
		Version   string
		Completed bool
	}
	for _, test := range []struct {
		name    string
		history []v1beta1.UpdateHistory
		change  func(*scope.Scope, *outcome)
		want    []entry
	}{
		{
			name: "When the first payload runs whole, it should be Completed at once",
			want: []entry{{v1beta1.UpdateCompleted, "1.36.3", true}},
		}, {
			name:    "When another payload is desired, it should begin an entry before the old one",
			history: []v1beta1.UpdateHistory{update(v1beta1.UpdateCompleted, "1.36.2")},
			change:  func(s *scope.Scope, _ *outcome) { s.Component.Status.Version = "1.36.2" },
			want:    []entry{{v1beta1.UpdatePartial, "1.36.3", false}, {v1beta1.UpdateCompleted, "1.36.2", false}},
		}, {
			name:    "When the default release gives nodes another version, it should begin an entry, although the image is the same",
			history: []v1beta1.UpdateHistory{{State: v1beta1.UpdateCompleted, Version: "1.36.2+autonode.0.1.0", Image: desired("1.36.3").Image}},
			want:    []entry{{v1beta1.UpdateCompleted, "1.36.3", true}, {v1beta1.UpdateCompleted, "1.36.2+autonode.0.1.0", false}},
		}, {
			name: "When nodes are outdated, it should stay Partial",
			change: func(s *scope.Scope, _ *outcome) {
				setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.NodesOutdatedReason, "")
			},
			want: []entry{{v1beta1.UpdatePartial, "1.36.3", false}},
		}, {
			name:   "When a step waited, it should not trust what was written before",
			change: func(_ *scope.Scope, o *outcome) { o.blocked = true },
			want:   []entry{{v1beta1.UpdatePartial, "1.36.3", false}},
		}, {
			name:   "When the cluster is asleep, it should stay Partial, although its payload is applied",
			change: func(s *scope.Scope, _ *outcome) { s.Sleep = scope.Sleep{Until: "someone wakes it", Asleep: true} },
			want:   []entry{{v1beta1.UpdatePartial, "1.36.3", false}},
		}, {
			name:   "When the payload in use is an older one, it should stay Partial",
			change: func(s *scope.Scope, _ *outcome) { s.Release.Image = desired("1.36.2").Image },
			want:   []entry{{v1beta1.UpdatePartial, "1.36.3", false}},
		}, {
			name:    "When an entry is Completed, it should stay so whatever nodes do later",
			history: []v1beta1.UpdateHistory{update(v1beta1.UpdateCompleted, "1.36.3")},
			change:  func(s *scope.Scope, _ *outcome) { s.Component.Status.Conditions = nil },
			want:    []entry{{v1beta1.UpdateCompleted, "1.36.3", false}},
		}, {
			name: "When times of entries are malformed, it should write others: the API server would refuse these",
			history: []v1beta1.UpdateHistory{
				{State: v1beta1.UpdateCompleted, Version: "1.36.3", Image: desired("1.36.3").Image, StartedTime: scalar.NewTime(noon), CompletionTime: &scalar.Time{Malformed: "noon"}},
				{State: v1beta1.UpdateCompleted, Version: "1.36.2", Image: desired("1.36.2").Image, StartedTime: scalar.Time{Malformed: "noon"}},
			},
			want: []entry{{v1beta1.UpdateCompleted, "1.36.3", false}, {v1beta1.UpdateCompleted, "1.36.2", false}},
		}, {
			name:    "When an update is taken back before it ended, it should be an update of its own",
			history: []v1beta1.UpdateHistory{update(v1beta1.UpdatePartial, "1.37.0"), update(v1beta1.UpdateCompleted, "1.36.3")},
			want:    []entry{{v1beta1.UpdateCompleted, "1.36.3", true}, {v1beta1.UpdatePartial, "1.37.0", false}, {v1beta1.UpdateCompleted, "1.36.3", false}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}
			s, o := running("1.36.3"), &outcome{state: on}
			s.HostedCluster.Status.Version.History = test.history
			if test.change != nil {
				test.change(s, o)
			}
			r.recordHistory(s, o)
			var got []entry
			for _, h := range s.HostedCluster.Status.Version.History {
				if h.StartedTime.Malformed != "" || h.CompletionTime != nil && h.CompletionTime.Malformed != "" {
					t.Errorf("%s has malformed times: %+v", h.Version, h)
				}
				got = append(got, entry{h.State, h.Version, h.CompletionTime != nil && h.CompletionTime.At().Equal(noon)})
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHistoryNodeVersion(t *testing.T) {
	for _, test := range []struct {
		name    string
		history []v1beta1.UpdateHistory
		outdate bool
		want    []string
	}{
		{name: "When a payload completes, its entry should have the nodes' version", want: []string{"1.36.3"}},
		{
			name:    "When an older operator completed the payload, its entry should get the nodes' version",
			history: []v1beta1.UpdateHistory{update(v1beta1.UpdateCompleted, "1.36.3")}, outdate: true, want: []string{"1.36.3"},
		},
		{
			name:    "When the payload isn't completed, its entry should have none, and the completed one keep its own",
			history: []v1beta1.UpdateHistory{{State: v1beta1.UpdateCompleted, Version: "1.36.2", NodeVersion: "1.36.2"}}, outdate: true,
			want: []string{"", "1.36.2"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, s := &Reconciler{clock: clocktesting.NewFakePassiveClock(noon)}, running("1.36.3")
			s.HostedCluster.Status.Version.Desired.NodeVersion, s.HostedCluster.Status.Version.History = "1.36.3", test.history
			if test.outdate {
				setCondition(s.HostedCluster, v1beta1.NodesUpToDate, metav1.ConditionFalse, v1beta1.UpgradeProvingReason, "")
			}
			r.recordHistory(s, &outcome{state: on})
			var got []string
			for _, entry := range s.HostedCluster.Status.Version.History {
				got = append(got, entry.NodeVersion)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("node versions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrune(t *testing.T) {
	t.Run("When there are more entries than allowed, it should keep the newest Completed one", func(t *testing.T) {
		history := make([]v1beta1.UpdateHistory, 0, maxHistory+1)
		for i := range maxHistory {
			history = append(history, v1beta1.UpdateHistory{State: v1beta1.UpdatePartial, Version: fmt.Sprint(i)})
		}
		history = prune(append(history, v1beta1.UpdateHistory{State: v1beta1.UpdateCompleted, Version: "runs"}))
		if len(history) != maxHistory || history[maxHistory-1].Version != "runs" || history[0].Version != "0" {
			t.Errorf("got %+v", history)
		}
	})
	t.Run("When a newer one is Completed, it should drop the oldest", func(t *testing.T) {
		history := []v1beta1.UpdateHistory{{State: v1beta1.UpdateCompleted, Version: "new"}}
		for i := range maxHistory {
			history = append(history, v1beta1.UpdateHistory{State: v1beta1.UpdateCompleted, Version: fmt.Sprint(i)})
		}
		history = prune(history)
		if len(history) != maxHistory || history[0].Version != "new" || history[maxHistory-1].Version != fmt.Sprint(maxHistory-2) {
			t.Errorf("got %+v", history)
		}
	})
}
