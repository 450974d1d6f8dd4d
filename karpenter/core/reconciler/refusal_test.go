// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// failing is a controller whose reconciliations end with an error.
type failing struct{ err error }

// Reconcile implements reconcile.Reconciler.
func (f *failing) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{RequeueAfter: time.Hour}, f.err
}

func TestBackOff(t *testing.T) {
	nodeClaims := schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}
	denied := fmt.Errorf("deleting NodeClaim a: %w", apierrors.NewForbidden(nodeClaims, "a", errors.New("ValidatingAdmissionPolicy 'mine' denied request")))
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "NodeClaim"}, "a", nil)
	conflict := apierrors.NewConflict(nodeClaims, "a", errors.New("the object has been modified"))

	type wrapped struct {
		Gomega
		inner *failing
		outer reconcile.Reconciler
		clock *clocktesting.FakeClock
		lines int
	}
	wrap := func(t *testing.T, err error) *wrapped {
		t.Helper()
		w := &wrapped{Gomega: NewWithT(t), inner: &failing{err}, clock: clocktesting.NewFakeClock(time.Now())}
		w.outer = BackOff(w.clock)(Registered{Name: "failing", Inner: w.inner})
		return w
	}
	reconcileOnce := func(t *testing.T, w *wrapped, name string) (time.Duration, error) {
		t.Helper()
		ctx := log.IntoContext(t.Context(), logr.New(funcr.New(func(string, string) { w.lines++ }, funcr.Options{}).GetSink()))
		result, err := w.outer.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		return result.RequeueAfter, err
	}

	for name, refused := range map[string]error{
		"When a policy denies a write, it should be tried again after a second, then later and later, at least once a minute": denied,
		"When a write is invalid, as a policy reports unless it has a reason of its own, it should be the same":               invalid,
	} {
		t.Run(name, func(t *testing.T) {
			w := wrap(t, refused)
			var waits []time.Duration
			for range 8 {
				wait, err := reconcileOnce(t, w, "a")
				w.Expect(err).NotTo(HaveOccurred(), "controller-runtime would try again after milliseconds")
				waits = append(waits, wait)
			}
			const s = time.Second
			w.Expect(waits).To(Equal([]time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s}))
		})
	}
	t.Run("When a request has been admitted, the back-off after its next refusal should be the shortest again", func(t *testing.T) {
		w := wrap(t, denied)
		for range 5 {
			_, _ = reconcileOnce(t, w, "a")
		}
		w.inner.err = nil
		wait, err := reconcileOnce(t, w, "a")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(wait).To(Equal(time.Hour), "what the controller itself requests")
		w.inner.err = denied
		wait, _ = reconcileOnce(t, w, "a")
		w.Expect(wait).To(Equal(MinBackOff))
	})
	t.Run("When the writes of five hundred objects are denied, it should log a line in ten seconds", func(t *testing.T) {
		w := wrap(t, denied)
		for range 3 {
			for i := range 500 {
				_, _ = reconcileOnce(t, w, fmt.Sprint(i))
			}
			w.clock.Step(LogInterval)
		}
		w.Expect(w.lines).To(Equal(3))
	})
	t.Run("When node overlays aren't evaluated yet, it should be tried again after a second, and log only what lasts", func(t *testing.T) {
		w := wrap(t, fmt.Errorf("applying nodeoverlays, %w", karpcloudprovider.NewUnevaluatedNodePoolError("general")))
		for i := range 500 {
			wait, err := reconcileOnce(t, w, fmt.Sprint(i))
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(wait).To(Equal(MinBackOff))
		}
		w.Expect(w.lines).To(BeZero())
		for i := range 500 {
			_, _ = reconcileOnce(t, w, fmt.Sprint(i))
		}
		w.Expect(w.lines).To(Equal(1))
	})
	t.Run("When another error ends a reconciliation, it should stay one", func(t *testing.T) {
		for _, other := range []error{conflict, errors.New("no answer"), apierrors.NewTooManyRequests("busy", 1), apierrors.NewNotFound(nodeClaims, "a")} {
			w := wrap(t, other)
			_, err := reconcileOnce(t, w, "a")
			w.Expect(err).To(MatchError(other))
			w.Expect(w.lines).To(BeZero())
		}
	})
	t.Run("When a request names no object, as those of Karpenter core's singletons, its error should stay one", func(t *testing.T) {
		w := wrap(t, denied)
		_, err := reconcileOnce(t, w, "")
		w.Expect(err).To(MatchError(denied))
	})
}
