// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
)

const (
	failingPool = "failing"
	// passes of the disruption controller within which another NodePool's turn comes.
	passes = 4
)

// exhausted offers a NodePool nothing.
type exhausted struct {
	provider
	nodePool string
}

func (e exhausted) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	offered := e.provider
	offered.full = nodePool.Name == e.nodePool
	return offered.GetInstanceTypes(ctx, nodePool)
}

// driftedIn returns a drifted node of a NodePool, and its pod, which runs in that NodePool alone.
func driftedIn(pool, name string, since time.Time) []client.Object {
	nodePool := newPool("1")
	nodePool.Name, nodePool.UID = pool, types.UID(pool)
	node, claim := newNode(name, "c4", karpv1.CapacityTypeOnDemand, room("4"), karpv1.ConditionTypeDrifted)
	node.Labels[karpv1.NodePoolLabelKey] = pool // the NodeClaim's labels, too
	for i := range claim.Status.Conditions {
		claim.Status.Conditions[i].LastTransitionTime = metav1.NewTime(since)
	}
	pod := newPod(name, name)
	pod.Spec.Containers, pod.Spec.NodeSelector = requesting("3"), map[string]string{karpv1.NodePoolLabelKey: pool}
	return []client.Object{nodePool, node, claim, pod}
}

// TestDriftOfOtherPools: core disrupts one drifted node in a pass, and begins with the one that drifted first.
func TestDriftOfOtherPools(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	rejects := func(_ context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
		if object.GetLabels()[karpv1.NodePoolLabelKey] == failingPool {
			return apierrors.NewForbidden(schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, object.GetName(), errors.New("no budget left"))
		}
		return c.Create(context.Background(), object, options...)
	}
	for name, tc := range map[string]struct {
		exhausted string
		create    func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error
	}{
		"has no offering for the replacement":   {exhausted: failingPool},
		"has each of its NodeClaims rejected":   {create: rejects},
		"waits for the replacement's provision": {},
	} {
		t.Run("When the node that drifted first is of a NodePool that "+name+", the drifted node of another should be replaced", func(t *testing.T) {
			g, now, recorder := NewWithT(t), time.Now(), &environment.Recorder{}
			clock := clocktesting.NewFakeClock(now)
			objects := append(driftedIn(failingPool, "first", now.Add(-time.Hour)), driftedIn(poolName, "second", now.Add(-time.Minute))...)
			intercepted := interceptor.NewClient(newGuest(objects...).(client.WithWatch), interceptor.Funcs{Create: tc.create})
			backoff := staticbackoff.New(staticbackoff.Config{
				Guest: intercepted, Rejected: reconciler.IsRefusal, Recorder: recorder, Clock: clock,
				Closed: func(it *karpcloudprovider.InstanceType, closes func(*karpcloudprovider.Offering) bool) *karpcloudprovider.InstanceType {
					closed := &karpcloudprovider.InstanceType{Name: it.Name, Requirements: it.Requirements, Capacity: it.Capacity, Overhead: it.Overhead}
					for _, offering := range it.Offerings {
						copied := *offering
						copied.Available = copied.Available && !closes(offering)
						closed.Offerings = append(closed.Offerings, &copied)
					}
					return closed
				},
			})
			guest := guestclient.New(intercepted, guestclient.Config{
				Suspended: func() error { return nil }, Declares: func(string, string) bool { return false }, Created: backoff.Created,
				AwaitsTaints: func(context.Context, *corev1.Node) bool { return true }, Written: func(client.Object) {},
			})
			core := newCore(t, coreConfig{
				Guest: guest, CloudProvider: backoff.Launches(exhausted{nodePool: tc.exhausted}), Recorder: recorder, Clock: clock,
			}, objects)
			controller := disruption.NewController(core.Context, clock, guest, core.Provisioner, core.CloudProvider, recorder, core.State, core.Queue, nil,
				disruption.WithMethods(methods.OnDemand(disruption.NewMethods(core.Context, clock, core.State, guest, core.Provisioner, core.CloudProvider, recorder, core.Queue))...))
			claims := &karpv1.NodeClaimList{}
			for range passes {
				_, err := controller.Reconcile(core.Context)
				g.Expect(err == nil || tc.create != nil && apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
				g.Expect(guest.List(t.Context(), claims)).To(Succeed())
				for i := range claims.Items { // our Create returns at once, with a provider ID
					claim := &claims.Items[i]
					if claim.Status.ProviderID == "" {
						claim.Status.ProviderID = "test://" + claim.Name
						g.Expect(guest.Status().Update(t.Context(), claim)).To(Succeed())
					}
					core.State.UpdateNodeClaim(claim)
				}
			}
			g.Expect(core.Queue.HasAny("test://second")).To(BeTrue(), "the other NodePool's node is being replaced")
			g.Expect(guest.List(t.Context(), claims, client.MatchingLabels{karpv1.NodePoolLabelKey: poolName})).To(Succeed())
			g.Expect(claims.Items).To(HaveLen(2), "its replacement is launched")
		})
	}
}
