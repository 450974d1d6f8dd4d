// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// unansweredError is that of a call which got no answer from the guest's API server.
type unansweredError struct{ err error }

func (e *unansweredError) Error() string {
	return fmt.Sprintf("the guest's API server didn't answer: %s", e.err)
}
func (e *unansweredError) Unwrap() error { return e.err }

// SlowError is that of a call which wasn't made, because earlier ones of the same reconciliation took too long. The
// guest has answered them.
type SlowError struct{ limit time.Duration }

// Error implements error.
func (e *SlowError) Error() string {
	return fmt.Sprintf("the guest's API server answers slowly: it took %s of one reconciliation, and the rest waits for the next", e.limit)
}

const (
	// callsPerPass is how many calls that take as long as one may a reconciliation makes.
	callsPerPass = 3
	// slowAfter is how much of one reconciliation makes a guest slow, and slowFor how long it counts as such.
	slowAfter = 10 * time.Second
	slowFor   = 5 * time.Minute
)

// failFast fails the calls of a reconciliation at once after one that got no answer: each would hold a worker as long
// as the first, and the steps make several. It does the same once the answered ones have taken too long together.
type failFast struct {
	clock clock.PassiveClock
	// limit of the time that all calls take, but for that of the last one.
	limit time.Duration
	// slow is called once they have taken slowAfter; nil for nothing.
	slow func()

	mu    sync.Mutex
	lost  error
	taken time.Duration
}

func (f *failFast) call(ctx context.Context, do func() error) error {
	f.mu.Lock()
	lost := f.lost
	f.mu.Unlock()
	if lost != nil {
		return lost
	}
	began := f.clock.Now()
	err := message.Error(do()) // a guest may write any text
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.taken
	f.taken += f.clock.Since(began)
	if f.slow != nil && before < slowAfter && f.taken >= slowAfter {
		f.slow()
	}
	switch {
	case err != nil && ctx.Err() == nil && unanswered(err):
		f.lost = &unansweredError{err}
		return f.lost
	case f.taken >= f.limit && f.lost == nil:
		f.lost = &SlowError{f.limit}
	}
	return err
}

// unanswered is true for errors that come from no API server: of the network, of a call's own time limit, and of a cache that can't be
// filled.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return apierrors.IsTimeout(err) && strings.Contains(err.Error(), "Informer") // controller-runtime's own, for a cache
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || utilnet.IsProbableEOF(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// Lost reports whether an error of a step means that the guest doesn't answer any more in this reconciliation. Errors of
// the management cluster's API server may look the same but for the address.
func Lost(guest *scope.Guest, err error) bool {
	var known *unansweredError
	var slow *SlowError
	if errors.As(err, &known) || errors.As(err, &slow) {
		return true
	}
	var request *url.Error
	return errors.As(err, &request) && unanswered(err) && hostOf(request.URL) == hostOf(guest.Config.Host)
}

func hostOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// failFastClient is a client of a guest for one reconciliation.
type failFastClient struct {
	client.Client
	failFast *failFast
}

var _ client.Client = failFastClient{}

func (c failFastClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Get(ctx, key, obj, opts...) })
}

func (c failFastClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.List(ctx, list, opts...) })
}

func (c failFastClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Apply(ctx, obj, opts...) })
}

func (c failFastClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Create(ctx, obj, opts...) })
}

func (c failFastClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Delete(ctx, obj, opts...) })
}

func (c failFastClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Update(ctx, obj, opts...) })
}

func (c failFastClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.Patch(ctx, obj, patch, opts...) })
}

func (c failFastClient) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return c.failFast.call(ctx, func() error { return c.Client.DeleteAllOf(ctx, obj, opts...) })
}

func (c failFastClient) Status() client.SubResourceWriter { return c.SubResource("status") }

func (c failFastClient) SubResource(name string) client.SubResourceClient {
	return failFastSubResource{c.Client.SubResource(name), c.failFast}
}

type failFastSubResource struct {
	client.SubResourceClient
	failFast *failFast
}

func (c failFastSubResource) Get(ctx context.Context, obj, subResource client.Object, opts ...client.SubResourceGetOption) error {
	return c.failFast.call(ctx, func() error { return c.SubResourceClient.Get(ctx, obj, subResource, opts...) })
}

func (c failFastSubResource) Create(ctx context.Context, obj, subResource client.Object, opts ...client.SubResourceCreateOption) error {
	return c.failFast.call(ctx, func() error { return c.SubResourceClient.Create(ctx, obj, subResource, opts...) })
}

func (c failFastSubResource) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	return c.failFast.call(ctx, func() error { return c.SubResourceClient.Update(ctx, obj, opts...) })
}

func (c failFastSubResource) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return c.failFast.call(ctx, func() error { return c.SubResourceClient.Patch(ctx, obj, patch, opts...) })
}

func (c failFastSubResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	return c.failFast.call(ctx, func() error { return c.SubResourceClient.Apply(ctx, obj, opts...) })
}
