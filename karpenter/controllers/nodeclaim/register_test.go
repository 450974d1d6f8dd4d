// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// run lets the controller run by itself.
func (f *fixture) run() {
	f.t.Helper()
	management, err := dynamic.NewForConfig(f.Management.GetConfig())
	f.Expect(err).NotTo(HaveOccurred())
	set := informer.New(informer.Config{Management: management, Mapper: f.Management.GetRESTMapper(), Namespace: f.Namespace})
	guest := f.Manager()
	for field, value := range map[string]func(*karpv1.NodeClassReference) string{
		"spec.nodeClassRef.group": func(r *karpv1.NodeClassReference) string { return r.Group },
		"spec.nodeClassRef.kind":  func(r *karpv1.NodeClassReference) string { return r.Kind },
		"spec.nodeClassRef.name":  func(r *karpv1.NodeClassReference) string { return r.Name },
	} {
		f.Expect(guest.GetFieldIndexer().IndexField(f.t.Context(), &karpv1.NodeClaim{}, field, func(o client.Object) []string {
			return []string{value(o.(*karpv1.NodeClaim).Spec.NodeClassRef)}
		})).To(Succeed())
	}
	f.config.Guest, f.config.ManagementCache = guest.GetClient(), f.Management.GetCache()
	f.config.Infrastructure, f.config.CloudProvider = set, nothing{}
	f.Expect(guest.Add(set)).To(Succeed())
	f.Expect(nodeclaim.New(f.config).Register(f.t.Context(), guest)).To(Succeed())
	f.Run(f.t.Context(), guest)
}

// deleting reports whether the NodeClaim is being deleted.
func (f *fixture) deleting(ctx context.Context) (bool, error) {
	nodeClaim := &karpv1.NodeClaim{}
	err := f.Admin.Get(ctx, client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)
	return nodeClaim.DeletionTimestamp != nil, err
}

func TestRegister(t *testing.T) {
	t.Run("When only the infrastructure machine changes, it should hear of it", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(infrastructure(metav1.ConditionFalse, "NotReady", "* InstanceReady: see there"))
		f.run()
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(environment.TestMachine)
		say := func(reason string) {
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: f.machine.Spec.InfrastructureRef.Name}, u)).To(Succeed())
			u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "InstanceReady", "status": "False", "reason": reason}}}
			f.Expect(f.Admin.Status().Update(t.Context(), u)).To(Succeed())
		}
		say("InstanceProvisionStarted")
		f.Consistently(f.deleting).WithContext(t.Context()).WithTimeout(time.Second).Should(BeFalse())
		say("InsufficientInstanceCapacity")
		f.Eventually(f.deleting).WithContext(t.Context()).Should(BeTrue())
	})

	t.Run("When a machine that was in the way of a repair has recovered, it should go on with the repair", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(unhealthy)
		other := f.others(3, 2)[0]
		f.run()
		f.Eventually(f.recorder.Reasons).Should(Equal([]string{nodeclaim.RepairHeldReason}))
		f.Expect(f.deleting(t.Context())).To(BeFalse())
		mine := f.machine
		f.machine = other
		f.say(recovered)
		f.machine = mine
		f.Eventually(f.deleting).WithContext(t.Context()).Should(BeTrue())
	})

	t.Run("When many machines wait for a repair, it should not count them again for each, and replace all when fewer are marked", func(t *testing.T) {
		const marked, most = 12, 8
		f := newFixture(t)
		f.launched()
		f.say(unhealthy)
		others := f.others(most*5-marked, marked-1)
		nodeClaims := []*karpv1.NodeClaim{f.nodeClaim}
		for _, m := range others[:marked-1] {
			nodeClaim := &karpv1.NodeClaim{}
			f.Expect(f.Admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.NodeClaimOf(m)}, nodeClaim)).To(Succeed())
			f.update(nodeClaim, karpv1.ConditionTypeLaunched)
			nodeClaims = append(nodeClaims, nodeClaim)
		}
		counts := &listing{Client: f.Management.GetClient()}
		f.config.Machines = f.Machines(counts)
		f.run()
		f.Eventually(f.recorder.Reasons).Should(HaveLen(marked))

		before := int64(-1)
		f.Eventually(func() bool {
			last := before
			before = counts.all.Load()
			return before == last
		}).WithPolling(300*time.Millisecond).Should(BeTrue(), "it has counted as often as it had to")
		mine := f.machine
		f.machine = others[len(others)-1]
		f.say(infrastructure(metav1.ConditionFalse, "Trying", ""))
		f.Eventually(counts.all.Load).Should(BeNumerically(">", before), "it looks whether fewer are")
		f.Consistently(counts.all.Load).WithTimeout(time.Second).Should(BeNumerically("<=", before+2))
		for _, m := range others[:marked-most] {
			f.machine = m
			f.say(recovered)
		}
		f.machine = mine
		f.Eventually(func() (gone int) {
			for _, nodeClaim := range nodeClaims {
				after := &karpv1.NodeClaim{}
				err := f.Admin.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), after)
				if apierrors.IsNotFound(err) || err == nil && after.DeletionTimestamp != nil {
					gone++
				}
			}
			return gone
		}).Should(Equal(most))
	})
}

// listing counts how often all Machines are listed.
type listing struct {
	client.Client
	all atomic.Int64
}

func (l *listing) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if _, ok := list.(*clusterv1.MachineList); ok && options.FieldSelector == nil {
		l.all.Add(1)
	}
	return l.Client.List(ctx, list, opts...)
}
