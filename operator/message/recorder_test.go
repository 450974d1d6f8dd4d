// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/operator/message"
)

func TestRecorder(t *testing.T) {
	object := func(uid types.UID) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	drain := func(recorder *events.FakeRecorder) (count int, longest int) {
		for {
			select {
			case event := <-recorder.Events:
				count, longest = count+1, max(longest, len(event))
			default:
				return count, longest
			}
		}
	}

	t.Run("When one object has events without end, it should write the first ones and all of another object's", func(t *testing.T) {
		g := NewWithT(t)
		fake, clk := events.NewFakeRecorder(10_000), clocktesting.NewFakePassiveClock(time.Now())
		recorder := message.Recorder(fake, clk)
		for range 5000 {
			recorder.Eventf(object("a"), nil, corev1.EventTypeWarning, "Reason", "Action", "%s", "note")
		}
		count, _ := drain(fake)
		g.Expect(count).To(Equal(50))
		recorder.Eventf(object("b"), nil, corev1.EventTypeWarning, "Reason", "Action", "note")
		count, _ = drain(fake)
		g.Expect(count).To(Equal(1))
		clk.SetTime(clk.Now().Add(time.Minute))
		for range 10 {
			recorder.Eventf(object("a"), nil, corev1.EventTypeWarning, "Reason", "Action", "note")
		}
		count, _ = drain(fake)
		g.Expect(count).To(Equal(2))
	})

	t.Run("When a note is long or looks like a format, it should be cut and not be formatted again", func(t *testing.T) {
		g := NewWithT(t)
		fake := events.NewFakeRecorder(10)
		recorder := message.Recorder(fake, clocktesting.NewFakePassiveClock(time.Now()))
		recorder.Eventf(object("a"), nil, corev1.EventTypeWarning, "Reason", "Action", "%s", strings.Repeat("%s\n", 1<<20))
		_, longest := drain(fake)
		g.Expect(longest).To(BeNumerically("<=", message.Limit+len("Warning Reason ")))
	})
}
