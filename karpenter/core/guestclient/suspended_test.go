// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/legacyrepair"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/expiration"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

var errSuspended = errors.New("management cluster is away")

// repairing is a provider of which only constant answers are used.
type repairing struct {
	karpcloudprovider.CloudProvider
}

func (repairing) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

func (repairing) RepairPolicies() []karpcloudprovider.RepairPolicy {
	return []karpcloudprovider.RepairPolicy{{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: 30 * time.Minute,
		Action: karpcloudprovider.ReplaceNode}}
}

// tempted is a NodeClaim that has expired, and whose node is unhealthy.
type tempted struct {
	*environment.Environment
	t         *testing.T
	clock     *clocktesting.FakeClock
	suspended bool
	guest     client.Client
	nodeClaim *karpv1.NodeClaim
	node      *corev1.Node
}

func tempt(t *testing.T) *tempted {
	t.Helper()
	g := NewWithT(t)
	f := &tempted{Environment: environment.New(t), t: t, clock: clocktesting.NewFakeClock(time.Now().Add(2 * time.Hour))}
	f.guest = ruled(f.Guest.GetClient(), func(c *guestclient.Config) {
		c.Suspended = func() error {
			if f.suspended {
				return errSuspended
			}
			return nil
		}
	})
	labels := map[string]string{karpv1.NodePoolLabelKey: f.Namespace}
	f.nodeClaim = &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: f.Namespace + "-old", Labels: labels},
		Spec:       f.NodeClaim(t.Context(), "like-this").Spec,
	}
	f.nodeClaim.Spec.ExpireAfter = karpv1.MustParseNillableDuration("1h")
	g.Expect(f.Admin.Create(t.Context(), f.nodeClaim)).To(Succeed())
	f.nodeClaim.Status.ProviderID, f.nodeClaim.Status.NodeName = "cloud://"+f.Namespace, f.Namespace
	g.Expect(f.Admin.Status().Update(t.Context(), f.nodeClaim)).To(Succeed())
	f.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.Namespace, Labels: labels, Finalizers: []string{karpv1.TerminationFinalizer}},
		Spec:       corev1.NodeSpec{ProviderID: f.nodeClaim.Status.ProviderID},
	}
	g.Expect(f.Admin.Create(t.Context(), f.node)).To(Succeed())
	f.node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	g.Expect(f.Admin.Status().Update(t.Context(), f.node)).To(Succeed())
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = f.Admin.Patch(ctx, f.node, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
		_ = f.Admin.Delete(ctx, f.node)
		_ = f.Admin.Delete(ctx, f.nodeClaim)
	})
	f.Settle(f.Guest, f.nodeClaim)
	f.Settle(f.Guest, f.node)
	return f
}

// there reports whether the NodeClaim is there, as it was.
func (f *tempted) there() bool {
	f.t.Helper()
	nodeClaim := &karpv1.NodeClaim{}
	err := f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)
	NewWithT(f.t).Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil && nodeClaim.ResourceVersion == f.nodeClaim.ResourceVersion
}

func TestSuspended(t *testing.T) {
	for name, reconcile := range map[string]func(ctx context.Context, f *tempted) error{
		"When a NodeClaim expires while the management cluster is away, it should keep it until that is back": func(ctx context.Context, f *tempted) error {
			_, err := expiration.NewController(f.clock, f.guest, repairing{}).Reconcile(ctx, f.nodeClaim.DeepCopy())
			return err
		},
		"When a node is unhealthy while the management cluster is away, it should keep it until that is back": func(ctx context.Context, f *tempted) error {
			_, err := legacyrepair.NewController(f.guest, repairing{}, f.clock, &environment.Recorder{}).Reconcile(ctx, f.node.DeepCopy())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := tempt(t)
			f.suspended = true
			g.Expect(reconcile(t.Context(), f)).To(MatchError(errSuspended))
			g.Expect(f.there()).To(BeTrue(), "and nothing is written to it either")
			f.suspended = false
			g.Expect(reconcile(t.Context(), f)).To(Succeed())
			g.Expect(f.there()).To(BeFalse())
		})
	}

	t.Run("When a person deletes a Node while the management cluster is away, it should let its NodeClaim go with it", func(t *testing.T) {
		g := NewWithT(t)
		f := tempt(t)
		f.suspended = true
		g.Expect(f.Admin.Delete(t.Context(), f.node)).To(Succeed())
		f.Settle(f.Guest, f.node)
		g.Expect(f.guest.Delete(t.Context(), f.nodeClaim)).To(Succeed())
		g.Expect(f.there()).To(BeFalse())
	})

	t.Run("When the management cluster is away, it should let everything else be written", func(t *testing.T) {
		g := NewWithT(t)
		f := tempt(t)
		f.suspended = true
		patched := f.nodeClaim.DeepCopy()
		patched.Labels["changed"] = "true"
		g.Expect(f.guest.Patch(t.Context(), patched, client.MergeFrom(f.nodeClaim))).To(Succeed())
		g.Expect(f.guest.Delete(t.Context(), f.node)).To(Succeed())
	})
}
