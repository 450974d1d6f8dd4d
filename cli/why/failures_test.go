// SPDX-License-Identifier: Apache-2.0

package why

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/cli/explain"
)

func TestFailures(t *testing.T) {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	const large = "no capacity for on-demand large in zone a: none left; not tried again before 12:03:00 UTC"
	t.Run("When events say which offerings aren't tried, it should be those, the newest first", func(t *testing.T) {
		NewWithT(t).Expect(failuresOf([]corev1.Event{
			{Reason: "InsufficientCapacity", Message: large, LastTimestamp: metav1.NewTime(noon)},
			{Reason: "Launched", Message: "Status condition transitioned", LastTimestamp: metav1.NewTime(noon)},
			{
				Reason: "Rejected", Message: "no machine of spot small: denied\nby a policy; not tried again before 12:04:00 UTC for NodePool general",
				EventTime: metav1.NewMicroTime(noon.Add(-time.Hour)), Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(noon.Add(time.Minute))},
			},
		})).To(Equal([]explain.Failure{
			{InstanceType: "small", CapacityType: "spot", NodePool: "general", Until: noon.Add(4 * time.Minute),
				Message: "Rejected: no machine of spot small: denied by a policy; not tried again before 12:04:00 UTC for NodePool general"},
			{InstanceType: "large", CapacityType: "on-demand", Zone: "a", Until: noon.Add(3 * time.Minute), Message: "InsufficientCapacity: " + large},
		}))
	})
	t.Run("When an event has no time of its own, it should be that of its creation", func(t *testing.T) {
		event := corev1.Event{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon)}, Message: large}
		NewWithT(t).Expect(failuresOf([]corev1.Event{event})).To(HaveLen(1))
		event.EventTime = metav1.NewMicroTime(noon.Add(-24 * time.Hour))
		NewWithT(t).Expect(failuresOf([]corev1.Event{event})).To(ConsistOf(HaveField("Until", noon.Add(3*time.Minute-24*time.Hour))))
	})
}
