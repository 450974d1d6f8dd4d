// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestPace(t *testing.T) {
	t.Run("When launches hang, they should hold up others no longer than the limit, and free their slots once", func(t *testing.T) {
		g := NewWithT(t)
		var objects []client.Object
		for i := range 2*paceSlots + 1 {
			objects = append(objects, nodeClaim(fmt.Sprint("new-", i), ""))
		}
		clock, core := clocktesting.NewFakeClock(time.Now()), passes{begun: make(chan string), end: make(chan struct{})}
		paced, ended := Pace(guestWith(objects...), clock)(Registered{Inner: core}), make(chan error)
		begin := func(ctx context.Context, from int) {
			for i := range paceSlots {
				go func() {
					_, err := paced.Reconcile(ctx, requestOf(fmt.Sprint("new-", from+i)))
					ended <- err
				}()
				g.Eventually(core.begun).Should(Receive())
			}
		}
		// waits reports whether one more would have to wait.
		waits := func() bool {
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for range 20 { // select takes any case that is ready
				if _, err := paced.Reconcile(over, requestOf(fmt.Sprint("new-", 2*paceSlots))); !strings.Contains(err.Error(), "waiting for") {
					return false
				}
			}
			return true
		}
		hanging, end := context.WithCancel(t.Context())
		begin(hanging, 0)
		clock.Step(paceLimit - time.Millisecond)
		g.Expect(waits()).To(BeTrue())
		clock.Step(time.Millisecond)
		g.Expect(waits()).To(BeFalse(), "the limit has passed")
		begin(t.Context(), paceSlots)
		end()
		for range paceSlots {
			g.Eventually(ended).Should(Receive(MatchError(context.Canceled)))
		}
		g.Expect(waits()).To(BeTrue(), "the slots are the next ones'")
		close(core.end)
		for range paceSlots {
			g.Eventually(ended).Should(Receive(BeNil()))
		}
		g.Expect(waits()).To(BeFalse())
		g.Expect(clock.HasWaiters()).To(BeFalse(), "an ended one's timer runs")
	})
}
