// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestForeign(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakePassiveClock(now)
	f := newForeign(clock)
	blue, green := types.NamespacedName{Namespace: "clusters", Name: "blue"}, types.NamespacedName{Namespace: "clusters", Name: "green"}
	for _, step := range []struct {
		name  string
		note  *approval
		first bool
		want  string
	}{
		{name: "When nothing was approved by others, it should know none"},
		{name: "When a request is older than an hour, it should not count", note: &approval{message: "old", until: now}},
		{name: "When another approver approves, it should be the first", note: &approval{message: "one", until: now.Add(30 * time.Minute)}, first: true, want: "one"},
		{name: "When it approves again, it should have the newest, and not be the first", note: &approval{message: "two", until: now.Add(40 * time.Minute)}, want: "two"},
		{name: "When an older request is seen again, it should keep the newest", note: &approval{message: "one", until: now.Add(30 * time.Minute)}, want: "two"},
	} {
		t.Run(step.name, func(t *testing.T) {
			g := NewWithT(t)
			if step.note != nil {
				g.Expect(f.note(blue, *step.note)).To(Equal(step.first))
			}
			found, ok := f.find(blue)
			g.Expect(found.message).To(Equal(step.want))
			g.Expect(ok).To(Equal(step.want != ""))
			_, ok = f.find(green)
			g.Expect(ok).To(BeFalse())
		})
	}
	t.Run("When the hour is over, it should forget it, and the next approval should be the first again", func(t *testing.T) {
		g := NewWithT(t)
		clock.SetTime(now.Add(40 * time.Minute))
		_, ok := f.find(blue)
		g.Expect(ok).To(BeFalse())
		g.Expect(f.note(blue, approval{message: "three", until: now.Add(50 * time.Minute)})).To(BeTrue())
	})
}
