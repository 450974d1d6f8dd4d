// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	opmetrics "github.com/awslabs/operatorpkg/metrics"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/metrics"
)

const (
	// MinBackOff is the time until a refused reconciliation is tried again. It doubles with each refusal.
	MinBackOff = time.Second
	// MaxBackOff is the longest of these times.
	MaxBackOff = time.Minute
	// LogInterval is how often a controller logs a refusal, or that it waits, at most.
	LogInterval = 10 * time.Second
)

var refused = opmetrics.NewPrometheusCounter(crmetrics.Registry, prometheus.CounterOpts{
	Namespace: metrics.Namespace,
	Subsystem: "clusterapi",
	Name:      "refused_reconciliations_total",
	Help: "Reconciliations that ended because an API server refused a request, as an admission policy does. They aren't among " +
		"controller_runtime_reconcile_errors_total. Labeled by controller.",
}, []opmetrics.Label{{Name: "controller", Help: "The controller's name."}}, opmetrics.Beta)

// BackOff spaces out requests that an API server refuses, and passes that Karpenter core can't do yet. Core's singletons, whose requests
// name no object, keep their own back-off: one that waits a minute for one NodePool's sake would make the others wait.
//
// Upstream gap: controller-runtime retries a failed reconciliation after 5 ms, whatever the error, and logs each attempt. An admission
// policy of a guest's admin refuses a write until a person changes it, for each of their NodeClaims. And a Karpenter that starts in a
// guest with nodes has an error for each NodeClaim until it has evaluated the NodeOverlays
// (docs/internals/upstream/management-outage.md names the hook).
func BackOff(clock clock.PassiveClock) Middleware {
	return func(r Registered) reconcile.Reconciler {
		return &backOff{
			name: r.Name, inner: r.Inner, clock: clock,
			limiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](MinBackOff, MaxBackOff),
		}
	}
}

// backOff is a reconciler that isn't retried at once after a refusal, or before core can do it.
type backOff struct {
	name    string
	inner   reconcile.Reconciler
	clock   clock.PassiveClock
	limiter workqueue.TypedRateLimiter[reconcile.Request]

	mu sync.Mutex
	// logged is when a refusal was logged last, and unlogged the number since.
	logged   time.Time
	unlogged int
}

// Reconcile implements reconcile.Reconciler.
func (b *backOff) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := b.inner.Reconcile(ctx, request)
	unevaluated := karpcloudprovider.IsUnevaluatedNodePoolError(err)
	if request.Name == "" || !unevaluated && !IsRefusal(err) {
		b.limiter.Forget(request)
		return result, err
	}
	retry := b.limiter.When(request)
	if unevaluated {
		// The first time it is what a start looks like.
		if retry > MinBackOff {
			b.log(ctx, err, "Node overlays of a NodePool aren't evaluated; Karpenter tries again", retry)
		}
		return reconcile.Result{RequeueAfter: retry}, nil
	}
	refused.Inc(map[string]string{"controller": b.name})
	b.log(ctx, err, "An API server refuses a request; Karpenter tries again", retry)
	return reconcile.Result{RequeueAfter: retry}, nil
}

func (b *backOff) log(ctx context.Context, err error, message string, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.clock.Since(b.logged) < LogInterval {
		b.unlogged++
		return
	}
	log.FromContext(ctx).Error(err, message, "after", retry.String(), "likewiseSinceLastLine", b.unlogged)
	b.logged, b.unlogged = b.clock.Now(), 0
}

// IsRefusal reports whether an API server has answered that it won't do what was asked, for a reason that seldom passes within seconds. An
// admission policy or webhook may give its answer any code of these; that of a ValidatingAdmissionPolicy is 422 unless it declares
// otherwise.
func IsRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity:
		return true
	}
	return false
}
