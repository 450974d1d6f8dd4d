// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// TestSlowWrites: a guest's admin makes many objects, and a webhook that answers each write just within the timeout of a call.
func TestSlowWrites(t *testing.T) {
	const (
		objects = 12
		// answer is the guest's time for a write: all of one kind would take longer than a phase of the drain.
		answer = 4 * time.Minute
		// writes is how many one reconciliation may make: a few loops end after the first.
		writes = 6
	)
	slowly := func(f *fixture, made *int, how func(client.Client, runtime.Object) error) func(client.Client, runtime.Object) error {
		return func(c client.Client, object runtime.Object) error {
			*made++
			f.pass(answer)
			return how(c, object)
		}
	}
	deleted := func(c client.Client, object runtime.Object) error {
		return c.Delete(context.Background(), object.(client.Object))
	}
	for name, c := range map[string]struct {
		patches, deletes func(client.Client, runtime.Object) error
	}{
		"reverted-patches": {patches: reverted},
		"denied-deletes":   {deletes: denied},
		"denied-writes":    {patches: denied, deletes: denied},
		"slow-deletes":     {deletes: deleted},
	} {
		for _, removed := range []bool{false, true} {
			t.Run(fmt.Sprintf("When the guest answers %s within minutes each (deleted: %t), no pass should take longer than a few, and the drain should end at its deadline", name, removed), func(t *testing.T) {
				t.Parallel()
				g, ctx := NewWithT(t), t.Context()
				f := setUpIn(t, simulated(t), fmt.Sprintf("slow-%s-%t", name, removed))
				f.equip(t)
				for i := range objects {
					f.claim(ctx, g, fmt.Sprintf("slow-%d", i))
					g.Expect(f.clusters.Guest.Client.Create(ctx, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slow-%d", i)}})).To(Succeed())
				}
				if removed {
					f.delete()
				} else {
					f.disable()
				}
				made, began := 0, f.clock.Now()
				slow := refusing{Client: f.clusters.Guest.Client}
				if c.patches != nil {
					slow.patches = slowly(f, &made, c.patches)
				}
				if c.deletes != nil {
					slow.deletes = slowly(f, &made, c.deletes)
				}
				for wait := true; wait; {
					f.reachable()
					f.Guest.Live, made = slow, 0
					result := f.reconcile(ctx, g)
					g.Expect(made).To(BeNumerically("<=", writes), result.Message)
					if wait = result.Wait; wait {
						g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
						f.pass(result.RequeueAfter)
					}
					g.Expect(f.clock.Since(began)).To(BeNumerically("<", 3*drainTimeout), result.Message)
				}
				g.Expect(f.clock.Since(began)).To(BeNumerically("<=", drainTimeout+5*time.Minute+2*writes*answer))
				g.Expect(f.machineOf(ctx, g, "slow-0").DeletionTimestamp.IsZero()).To(BeFalse(), "ended through the management cluster")
			})
		}
	}
}
