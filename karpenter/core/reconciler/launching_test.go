// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// passes is a controller whose passes tell when they begin, and end when they may.
type passes struct {
	begun chan string
	end   chan struct{}
}

// Reconcile implements reconcile.Reconciler.
func (p passes) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case p.begun <- request.Name:
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
	select {
	case <-p.end:
		return reconcile.Result{}, nil
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
}

func nodeClaim(name string, launched metav1.ConditionStatus) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if launched != "" {
		claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: launched}}
	}
	return claim
}

func guestWith(objects ...client.Object) client.Client {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{})
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func requestOf(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
}

func TestPasses(t *testing.T) {
	t.Run("When as many NodeClaims are being launched as may, the next one should wait, and no other NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		going := nodeClaim("going", "")
		going.DeletionTimestamp, going.Finalizers = ptr.To(metav1.Now()), []string{karpv1.TerminationFinalizer}
		objects := []client.Object{nodeClaim("waiting", ""), nodeClaim("running", metav1.ConditionTrue), going}
		for i := range paceSlots {
			objects = append(objects, nodeClaim(fmt.Sprint("new-", i), metav1.ConditionUnknown))
		}
		guest, core := guestWith(objects...), passes{begun: make(chan string), end: make(chan struct{})}
		paced := Pace(guest, clocktesting.NewFakeClock(time.Unix(0, 0)))(Registered{Inner: core})
		ended := make(chan error, paceSlots+1)
		pass := func(name string) {
			go func() {
				_, err := paced.Reconcile(t.Context(), requestOf(name))
				ended <- err
			}()
		}
		for i := range paceSlots {
			pass(fmt.Sprint("new-", i))
			g.Eventually(core.begun).Should(Receive())
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := paced.Reconcile(over, requestOf("waiting"))
		g.Expect(err).To(MatchError(ContainSubstring("waiting for other NodeClaims")))
		for _, name := range []string{"running", "going", "gone"} {
			_, err := paced.Reconcile(over, requestOf(name))
			g.Expect(err).To(BeIdenticalTo(over.Err()), "it got no pass")
		}

		pass("waiting")
		core.end <- struct{}{}
		g.Eventually(core.begun).Should(Receive(Equal("waiting")))
		close(core.end)
		for range paceSlots + 1 {
			g.Eventually(ended).Should(Receive(BeNil()))
		}
	})

	for launched, begins := range map[metav1.ConditionStatus]bool{"": false, metav1.ConditionUnknown: false, metav1.ConditionFalse: false, metav1.ConditionTrue: true} {
		t.Run(fmt.Sprintf("When a NodeClaim's condition Launched is %q, what it may be disrupted for should be found out (%t)", launched, begins), func(t *testing.T) {
			g := NewWithT(t)
			guest, core := guestWith(nodeClaim("one", launched)), passes{begun: make(chan string, 1), end: make(chan struct{})}
			close(core.end)
			after := IgnoreUnlaunched(guest)(Registered{Inner: core})
			g.Expect(after.Reconcile(t.Context(), requestOf("one"))).To(BeZero())
			g.Expect(core.begun).To(HaveLen(map[bool]int{true: 1, false: 0}[begins]))
		})
	}
}
