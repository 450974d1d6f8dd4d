// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestCollectProgress(t *testing.T) {
	collectAll(t, []collection{
		{
			name: "When Karpenter is installed for the first time, it should count from when its component was made, and not from when AutoNode was off",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Status.Conditions = []metav1.Condition{
					condition(v1beta1.AutoNodeEnabled, metav1.ConditionFalse, v1beta1.AutoNodeProgressingReason, 24*time.Hour),
					condition(v1beta1.GuestReachable, metav1.ConditionUnknown, v1beta1.GuestConnectingReason, time.Minute),
				}
				h.Status.Version = nil
			}), component("blue", "")},
			want: map[string]string{
				"progressing_seconds": `{name="blue",namespace="clusters"} 600`,
				"updating_seconds":    `{name="blue",namespace="clusters"} 0`,
				"guest_reachable":     `{name="blue",namespace="clusters"} 0`,
				"enabled":             `{name="blue",namespace="clusters"} 0`,
				"component_info":      `{component="karpenter",control_plane_namespace="clusters-blue",digest="",name="blue",namespace="clusters",version=""} 1`,
			},
		}, {
			name: "When a new payload is rolled out, it should count from its beginning, and report the payload that ran whole",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Status.Version.History[0].State = v1beta1.UpdatePartial
			}), component("blue", "1.36.2", condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason, 90*time.Second))},
			want: map[string]string{
				"progressing_seconds": `{name="blue",namespace="clusters"} 90`,
				"updating_seconds":    `{name="blue",namespace="clusters"} 7200`,
				"component_info":      `{component="karpenter",control_plane_namespace="clusters-blue",digest="sha256:2222",name="blue",namespace="clusters",version="1.36.2"} 1`,
			},
		}, {
			name: "When another build of the same version is rolled out, it should report the build that ran whole",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Status.Version.History = append([]v1beta1.UpdateHistory{
					{State: v1beta1.UpdatePartial, Version: "1.36.3", Image: "registry.example/release@sha256:3334", StartedTime: ago(time.Minute)},
				}, h.Status.Version.History...)
			}), component("blue", "1.36.3", condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason, time.Minute))},
			want: map[string]string{
				"component_info": `{component="karpenter",control_plane_namespace="clusters-blue",digest="sha256:3333",name="blue",namespace="clusters",version="1.36.3"} 1`,
			},
		}, {
			name: "When a cluster is paused, nothing of it should be late",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Status.AutoNode.State = v1beta1.AutoNodeStatePaused
				h.Status.Version.History[0].State = v1beta1.UpdatePartial
			}), component("blue", "", condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason, time.Hour))},
			want: map[string]string{
				"progressing_seconds": `{name="blue",namespace="clusters"} 0`,
				"updating_seconds":    `{name="blue",namespace="clusters"} 0`,
			},
		},
	})
}

func TestCollectDrain(t *testing.T) {
	collectAll(t, []collection{
		{
			name: "When a cluster drains, it should report the deadline, and not be late",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.DeletionTimestamp = ptr.To(ago(time.Hour).Time)
				h.Status.AutoNode.State, h.Status.AutoNode.DrainStartedTime = v1beta1.AutoNodeStateDraining, ptr.To(ago(10*time.Minute))
			}), component("blue", "1.36.3", condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason, time.Hour))},
			want: map[string]string{
				"drain_deadline_timestamp_seconds": `{name="blue",namespace="clusters"} 1800001200`,
				"progressing_seconds":              `{name="blue",namespace="clusters"} 0`,
				"state":                            `{name="blue",namespace="clusters",state="Draining"} 1`,
			},
		}, {
			name: "When a cluster declares itself how long it may drain, it should report that",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Spec.AutoNode, h.Spec.NodeDrain = nil, &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: time.Hour}}
				h.Status.AutoNode.DrainStartedTime = ptr.To(ago(0))
			})},
			want: map[string]string{"drain_deadline_timestamp_seconds": `{name="blue",namespace="clusters"} 1800003600`},
		},
	})
}

func TestCollectSleep(t *testing.T) {
	rolling := component("blue", "1.36.2", condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason, time.Hour))
	sleeps := func(status v1beta1.SleepStatus) *v1beta1.HostedCluster {
		return hostedCluster("blue", func(h *v1beta1.HostedCluster) {
			h.Status.AutoNode.Sleep, h.Status.AutoNode.DrainStartedTime = &status, ptr.To(ago(10*time.Minute))
			h.Status.Version.History[0].State = v1beta1.UpdatePartial
		})
	}
	// Neither is a drain that alerts are about, or late.
	want := func(saved string) map[string]string {
		return map[string]string{
			"sleep_saved_dollars_per_hour": saved, "drain_deadline_timestamp_seconds": "",
			"progressing_seconds": `{name="blue",namespace="clusters"} 0`, "updating_seconds": `{name="blue",namespace="clusters"} 0`,
		}
	}
	collectAll(t, []collection{
		{
			name:    "When a cluster falls asleep, it should report no drain, nothing late, and no savings yet",
			objects: []client.Object{sleeps(v1beta1.SleepStatus{SavedPerHour: "$1.204"}), rolling}, want: want(""),
		}, {
			name:    "When a cluster is asleep, it should report what it saves, and that nothing is under way",
			objects: []client.Object{sleeps(v1beta1.SleepStatus{Since: ptr.To(ago(time.Hour)), SavedPerHour: "$1.204"}), rolling},
			want:    want(`{name="blue",namespace="clusters"} 1.204`),
		}, {
			name:    "When it isn't known what an asleep cluster saves, it should report zero",
			objects: []client.Object{sleeps(v1beta1.SleepStatus{Since: ptr.To(ago(time.Hour))}), rolling}, want: want(`{name="blue",namespace="clusters"} 0`),
		},
	})
}
