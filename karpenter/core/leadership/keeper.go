// SPDX-License-Identifier: Apache-2.0

// Package leadership keeps Karpenter's Lease during an outage of the management cluster's API server, and stops
// Karpenter from acting until the outage ends.
//
// Without it, the process would exit ten seconds after its last renewal and restart for as long as the outage lasts.
// After the outage it would have to fill the caches of two clusters first. No other process can acquire a Lease that
// can't be written. If only this process is cut off, another one can: so this process stops acting after the same ten
// seconds, and the API server's next answer shows whether it still holds the Lease.
//
// Upstream gap: Karpenter core can't keep running while the cluster that holds its Lease is unreachable, and some of
// its controllers delete NodeClaims without asking the cloud provider (docs/internals/upstream/management-outage.md).
package leadership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// RenewDeadline is how long after its last renewal a leader may act. It is controller-runtime's default, and shorter
// than the Lease's duration, after which another process may take over.
const RenewDeadline = 10 * time.Second

// LeaseDuration is how long other candidates wait after a renewal: one second more than the holder may act.
// controller-runtime's default of fifteen seconds would only lengthen a failover. Candidates poll every 2 to 4.4
// seconds, both to see the last renewal and to see it expire, so a failover takes less than twenty seconds.
const LeaseDuration = RenewDeadline + time.Second

// Config of a Keeper.
type Config struct {
	Clock clock.WithDelayedExecution
	// Logger logs when the management cluster stops answering and when it answers again.
	Logger logr.Logger
}

// Keeper answers for a Lease while the API server doesn't.
type Keeper struct {
	Config

	mu sync.Mutex
	// latest is the last write of the Lease that the API server has accepted, or nil. The elector finds out when another
	// process has acquired the Lease, and then the process exits.
	latest *written
	// renewed is when the last write that the API server accepted was sent.
	renewed time.Time
	// away: this process is suspended, and has said so.
	away bool
	// resume is called after each write that the API server has accepted.
	resume []func()

	// unread: as a candidate, the last read got no answer.
	unread bool
	// back is when the first read after that was answered.
	back time.Time
}

// New returns a Keeper that holds no Lease yet.
func New(config Config) *Keeper {
	return &Keeper{Config: config}
}

// Suspended reports whether this process held the Lease and may have lost it. Nothing may act until that is known.
func (k *Keeper) Suspended() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.suspended()
}

// Err returns ErrSuspended while suspended.
func (k *Keeper) Err() error {
	if k.Suspended() {
		return ErrSuspended
	}
	return nil
}

func (k *Keeper) suspended() bool {
	return k.latest != nil && k.Clock.Since(k.renewed) >= RenewDeadline
}

// Metric is 1 while Karpenter is suspended because the management cluster doesn't answer, and 0 otherwise.
func (k *Keeper) Metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "karpenter",
		Subsystem: "clusterapi",
		Name:      "suspended",
		Help:      "1 while Karpenter is suspended because the management cluster doesn't answer, 0 otherwise.",
	}, func() float64 {
		if k.Suspended() {
			return 1
		}
		return 0
	})
}

// Wrap wraps the transport of leader election's rest.Config. Don't use it for another client.
func (k *Keeper) Wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper{keeper: k, inner: inner}
}

type roundTripper struct {
	keeper *Keeper
	inner  http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport that cancels requests.
func (r roundTripper) WrappedRoundTripper() http.RoundTripper { return r.inner }

// RoundTrip sends the request, and lowers the Lease's duration to LeaseDuration. Once this process holds the Lease, the
// elector sees only what an API server has decided: that the update is stored, or what the Lease is now. For anything
// else (no connection, an answer that comes too late, an error) RoundTrip answers as an API server that has accepted
// the update, or that has the Lease as this process last wrote it, and the elector continues. So only a Lease with
// another holder ends its leadership. An update also conflicts with an earlier one of this process that was stored
// although its answer was lost, as with a slow API server: RoundTrip sends that one again.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	if !strings.Contains(request.URL.Path, "/leases") {
		return r.inner.RoundTrip(request)
	}
	switch request.Method {
	case http.MethodPut, http.MethodPost:
		return r.write(request)
	case http.MethodGet:
		return r.read(request)
	default:
		return r.inner.RoundTrip(request)
	}
}

func (r roundTripper) write(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPut && r.keeper.waits() {
		return conflict(request), nil
	}
	var body []byte
	if request.Body != nil {
		var err error
		body, err = io.ReadAll(request.Body)
		if err = errors.Join(err, request.Body.Close()); err != nil {
			return nil, fmt.Errorf("reading the update of the lease: %w", err)
		}
	}
	body = shorten(body, request.Header)
	sent := r.keeper.Clock.Now()
	response, err := r.send(request, request.Method, body)
	if err == nil && response.StatusCode == http.StatusConflict && r.keeper.holds() {
		response, err = r.retryConflict(request, body, response)
	}
	switch {
	case err == nil && response.StatusCode < http.StatusMultipleChoices:
		r.keeper.accepted(sent, written{header: request.Header, body: body})
	case errors.Is(request.Context().Err(), context.Canceled):
		// The process is shutting down.
	case !decided(response, err) && r.keeper.unanswered() != nil:
		return echo(request, request.Header, body), nil
	}
	return response, err
}

// read sends a read of the Lease. The elector of a holder reads it after an update that conflicted, that of a candidate
// before each attempt to acquire it.
func (r roundTripper) read(request *http.Request) (*http.Response, error) {
	response, err := r.send(request, request.Method, nil)
	if errors.Is(request.Context().Err(), context.Canceled) {
		return response, err
	}
	answered := decided(response, err)
	r.keeper.observe(answered, response)
	if answered {
		return response, err
	}
	if last := r.keeper.unanswered(); last != nil {
		return echo(request, last.header, last.body), nil
	}
	return response, err
}

// observe records whether a candidate's read of the Lease was answered.
func (k *Keeper) observe(answered bool, response *http.Response) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.latest != nil:
	case !answered:
		k.unread = true
	case k.unread:
		k.unread, k.back = false, k.Clock.Now()
	}
	if answered && holderOf(response) == "" {
		k.back = time.Time{} // it has no holder to wait for
	}
}

// waits reports whether a candidate has to give the holder time to renew the Lease. The holder can't renew it during an
// outage, so it has expired when the outage ends, and the first process that writes acquires it.
func (k *Keeper) waits() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.latest == nil && !k.back.IsZero() && k.Clock.Since(k.back) < LeaseDuration
}

// holderOf is the holder that an answer names, empty if there is none. It leaves the answer as it is.
func holderOf(response *http.Response) string {
	body, err := io.ReadAll(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return ""
	}
	lease, _ := decode(body, response.Header)
	if lease == nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// conflict is the response of an API server whose Lease has changed.
func conflict(request *http.Request) *http.Response {
	response := echo(request, http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":"the holder has time to renew `+
			`the Lease after an outage"}`))
	response.StatusCode, response.Status = http.StatusConflict, http.StatusText(http.StatusConflict)
	return response
}

// decided reports whether an API server has said what the Lease is: it is stored, this is it, it differs from what was
// read, or there is none. Neither an overloaded API server nor one that rejects our credentials reports who holds it.
func decided(response *http.Response, err error) bool {
	if err != nil {
		return false
	}
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusConflict:
		return true
	default:
		return response.StatusCode < http.StatusMultipleChoices
	}
}

// send sends a request like this one and reads the whole answer. An incomplete answer counts as none.
func (r roundTripper) send(like *http.Request, method string, body []byte) (*http.Response, error) {
	request := like.Clone(like.Context())
	request.Method, request.Body, request.ContentLength = method, nil, int64(len(body))
	if len(body) > 0 {
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	response, err := r.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("reading the answer about the lease: %w", err)
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
	return response, nil
}

// retryConflict retries an update that conflicted if this process still holds the Lease. Otherwise it returns the conflict.
func (r roundTripper) retryConflict(request *http.Request, body []byte, conflict *http.Response) (*http.Response, error) {
	response, err := r.send(request, http.MethodGet, nil)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	stored, _ := decode(answer, response.Header)
	ours, serializer := decode(body, request.Header)
	if stored == nil || ours == nil || ptr.Deref(stored.Spec.HolderIdentity, "") != ptr.Deref(ours.Spec.HolderIdentity, "") {
		return conflict, nil
	}
	ours.ResourceVersion = stored.ResourceVersion
	updated, err := runtime.Encode(serializer, ours)
	if err != nil {
		return conflict, nil //nolint:nilerr // the elector reads the Lease itself then
	}
	return r.send(request, request.Method, updated)
}

// written is a Lease as this process has written it.
type written struct {
	header http.Header
	body   []byte
}

func (k *Keeper) accepted(sent time.Time, lease written) {
	k.mu.Lock()
	if k.away {
		k.Logger.Info("management cluster answers again; resuming", "away", sent.Sub(k.renewed).Round(time.Second).String())
	}
	k.latest, k.renewed, k.away = &lease, sent, false
	resume := slices.Clone(k.resume)
	k.mu.Unlock()
	for _, f := range resume {
		f()
	}
}

// onAnswer calls a function whenever the API server has accepted a write of the Lease, which ends a suspension.
func (k *Keeper) onAnswer(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resume = append(k.resume, f)
}

// holds reports whether the API server has ever confirmed that this process holds the Lease.
func (k *Keeper) holds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.latest != nil
}

// unanswered records that a request got no answer. It returns the Lease that this process has to keep, or nil if there
// is none.
func (k *Keeper) unanswered() *written {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.suspended() && !k.away {
		k.away = true
		k.Logger.Info("management cluster doesn't answer; keeping the lease and suspending all decisions")
	}
	return k.latest
}

// decode decodes a Lease in any format of the API server. It returns nil for any other object.
func decode(body []byte, header http.Header) (*coordinationv1.Lease, runtime.Serializer) {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return nil, nil
	}
	info, ok := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, nil
	}
	object, _, err := info.Serializer.Decode(body, nil, nil)
	if err != nil {
		return nil, nil
	}
	lease, _ := object.(*coordinationv1.Lease)
	return lease, info.Serializer
}

// shorten lowers the duration of a Lease to LeaseDuration. It returns any other body unchanged.
func shorten(body []byte, header http.Header) []byte {
	lease, serializer := decode(body, header)
	limit := int32(LeaseDuration.Seconds())
	if lease == nil || ptr.Deref(lease.Spec.LeaseDurationSeconds, 0) <= limit {
		return body
	}
	lease.Spec.LeaseDurationSeconds = &limit
	short, err := runtime.Encode(serializer, lease)
	if err != nil {
		return body
	}
	return short
}

// echo is the response of an API server that has the body of a request with that header.
func echo(request *http.Request, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: http.StatusText(http.StatusOK), StatusCode: http.StatusOK,
		Proto: request.Proto, ProtoMajor: request.ProtoMajor, ProtoMinor: request.ProtoMinor,
		Header:        http.Header{"Content-Type": header.Values("Content-Type")},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       request,
	}
}
