// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestDeadlineStops(t *testing.T) {
	t.Run("When the management cluster is away for an hour, it should keep Karpenter from giving up what it can't see", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.suspended = true
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).To(BeNil(), "after %s", age)
		r.suspended = false
		nodeClaim, age = r.until(2 * time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(And(BeNumerically(">", time.Hour), BeNumerically("<=", time.Hour+3*time.Minute)))
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
	})

	t.Run("When the Machine is paused, it should wait, and restart the count when it is resumed", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		pause := func(status metav1.ConditionStatus) func(*clusterv1.Machine) {
			return func(m *clusterv1.Machine) {
				m.Status.Conditions = []metav1.Condition{{
					Type: clusterv1.PausedCondition, Status: status, Reason: "Test", LastTransitionTime: metav1.NewTime(r.clock.Now()),
				}}
			}
		}
		r.say(pause(metav1.ConditionTrue))
		nodeClaim, _ := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).To(BeNil())
		r.say(pause(metav1.ConditionFalse))
		nodeClaim, age := r.until(2 * time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(62 * time.Minute))
	})
}

// answers stands in for a management cluster that answers differently from the cache.
type answers struct {
	client.Reader
	get func(*clusterv1.Machine) error
}

func (a answers) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := a.Reader.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	return a.get(o.(*clusterv1.Machine))
}

func TestDeadlineOfWhatCannotBeSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		get  func(*clusterv1.Machine) error
		want OmegaMatcher
	}{
		"When the cache hasn't seen that the machine has come, it should not give it up": {
			func(m *clusterv1.Machine) error { m.Spec.ProviderID = "cloud://late"; return nil }, Not(HaveOccurred()),
		},
		"When the management cluster can't be asked, it should not give anything up": {
			func(*clusterv1.Machine) error { return errors.New("network is unreachable") }, MatchError(ContainSubstring("before timing it out")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRace(t, minutes(2, 15))
			machines := r.Machines(nil).Config
			machines.Live = answers{machines.Live, tc.get}
			r.config.Machines = machine.New(machines)
			r.controller = nodeclaim.New(r.config)
			r.clock.Step(3 * time.Minute)
			before := r.stored()
			_, err := r.controller.Reconcile(t.Context(), before)
			r.Expect(err).To(tc.want)
			r.Expect(r.stored().ResourceVersion).To(Equal(before.ResourceVersion))
			r.Expect(r.recorder.Reasons()).To(BeEmpty())
			r.Expect(r.unavailable.Entries()).To(BeEmpty())
		})
	}
}
