// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"

	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// refusing is a cloud provider that launches nothing.
type refusing struct{ nothing }

func (refusing) Create(context.Context, *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nil, karpcloudprovider.NewCreateError(errors.New("not now"), "NotNow", "not now")
}

// extended returns Karpenter's own controller as it runs beside ours, for one NodeClaim.
func (r *race) extended(nodeClaim *karpv1.NodeClaim) (reconciled func() (deleted bool)) {
	r.t.Helper()
	karpenter := karplifecycle.NewController(r.clock, r.Guest.GetClient(), refusing{}, r.recorder, nil, r.health, nil)
	extended := reconciler.Extend(karpenter, r.Admin, nodeclaim.Deadlines(r.config))(reconciler.Registered{})
	return func() bool {
		r.t.Helper()
		_, _ = extended.Reconcile(r.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(nodeClaim)})
		after := &karpv1.NodeClaim{}
		r.Expect(r.Admin.Get(r.t.Context(), client.ObjectKeyFromObject(nodeClaim), after)).To(Succeed())
		return after.DeletionTimestamp != nil
	}
}

// unlaunched makes a NodeClaim that Karpenter has tried to launch in vain.
func (r *race) unlaunched() *karpv1.NodeClaim {
	r.t.Helper()
	nodeClaim := r.NodeClaim(r.t.Context(), "unlaunched")
	nodeClaim.Finalizers = []string{karpv1.TerminationFinalizer}
	r.Expect(r.Admin.Update(r.t.Context(), nodeClaim)).To(Succeed())
	nodeClaim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeLaunched, "NotNow", "not now")
	r.update(nodeClaim)
	return nodeClaim
}

func TestExtendedDeadlines(t *testing.T) {
	t.Run("When no Karpenter has run for an hour, it should keep a NodeClaim whose machine may take longer", func(t *testing.T) {
		r := newRace(t, minutes(120, 30))
		r.clock.Step(time.Hour)
		r.Expect(r.extended(r.nodeClaim)()).To(BeFalse())
		r.reconcile()
		r.Expect(r.extended(r.nodeClaim)()).To(BeFalse())
		nodeClaim, age := r.until(3 * time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(2 * time.Hour))
	})

	t.Run("When the deadline has passed while no Karpenter ran, it should give the NodeClaim up at the deadline", func(t *testing.T) {
		r := newRace(t, minutes(2, 15))
		r.clock.Step(time.Hour)
		core := r.extended(r.nodeClaim)
		r.Expect(core()).To(BeFalse(), "no request to the management cluster yet")
		r.reconcile()
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.LaunchTimeoutReason}))
		r.Expect(core()).To(BeTrue())
	})

	t.Run("When the machine is gone, it should leave the end to Karpenter's own timeout", func(t *testing.T) {
		r := newRace(t, minutes(120, 30))
		core := r.extended(r.nodeClaim)
		r.gone()
		r.clock.Step(14 * time.Minute)
		r.Expect(core()).To(BeFalse())
		r.clock.Step(2 * time.Minute)
		r.Expect(core()).To(BeTrue())
	})

	t.Run("When no Karpenter has run for an hour, it should try a launch for as long as ever", func(t *testing.T) {
		r := newRace(t, nil)
		core := r.extended(r.unlaunched())
		r.clock.Step(time.Hour)
		r.Expect(core()).To(BeFalse())
		r.clock.Step(karplifecycle.LaunchTimeout)
		r.Expect(core()).To(BeTrue())
	})

	t.Run("When the management cluster is away for an hour, it should keep what isn't launched", func(t *testing.T) {
		r := newRace(t, nil)
		core := r.extended(r.unlaunched())
		r.suspended = true
		for range 60 {
			r.Expect(core()).To(BeFalse())
			r.clock.Step(time.Minute)
		}
		r.suspended = false
		r.Expect(core()).To(BeFalse())
	})
}
