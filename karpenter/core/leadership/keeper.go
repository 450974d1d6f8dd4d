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
// its controllers delete NodeClaims without asking the cloud provider (docs/upstream/management-outage.md).
package leadership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
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

// starting is how long an API server that answers again may refuse a write: it knows no rights until its caches are filled.
const starting = time.Minute

// Config of a Keeper.
type Config struct {
	Clock clock.PassiveClock
	// Logger logs when the management cluster stops answering and when it answers again.
	Logger logr.Logger
}

// Keeper answers renewals of a Lease while the API server doesn't.
type Keeper struct {
	Config

	mu sync.Mutex
	// held: the API server has accepted a write of the Lease. The elector finds out when another process has acquired
	// the Lease, and then the process exits.
	held bool
	// renewed is when the last write that the API server accepted was sent.
	renewed time.Time
	// away: the last write got no answer.
	away bool
	// refused is when the first answer during this outage refused a write; zero if none did.
	refused time.Time
}

// New returns a Keeper that holds no Lease yet.
func New(config Config) *Keeper {
	return &Keeper{Config: config}
}

// Suspended reports whether this process held the Lease and may have lost it. Nothing may act until that is known.
func (k *Keeper) Suspended() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held && k.Clock.Since(k.renewed) >= RenewDeadline
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

// RoundTrip sends the request, and lowers the Lease's duration to LeaseDuration. If it updates a Lease that this
// process holds and no API server answers, or one that has just started and knows no rights yet, RoundTrip returns the
// response of an API server that accepted the update, and the elector continues. If another process has acquired the Lease meanwhile, the next answered update conflicts,
// and the elector gives up. An update also conflicts with an earlier one of this process that was stored although its
// answer was lost, as with a slow API server: RoundTrip sends that one again.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodPut && request.Method != http.MethodPost || !strings.Contains(request.URL.Path, "/leases") {
		return r.inner.RoundTrip(request)
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
		response, err = r.again(request, body, response)
	}
	switch {
	case err == nil && response.StatusCode < http.StatusMultipleChoices:
		r.keeper.accepted(sent)
	case errors.Is(request.Context().Err(), context.Canceled):
		// The process is shutting down.
	case err != nil || response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError:
		if r.keeper.unanswered() {
			return echo(request, body), nil
		}
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		// Otherwise the elector would read the Lease, and give up if that takes as long as it may in an API server that starts.
		if r.keeper.starts() {
			return echo(request, body), nil
		}
	}
	return response, err
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

// again retries an update that conflicted if this process still holds the Lease. Otherwise it returns the conflict.
func (r roundTripper) again(request *http.Request, body []byte, conflict *http.Response) (*http.Response, error) {
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

func (k *Keeper) accepted(sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		k.Logger.Info("management cluster answers again; resuming", "away", sent.Sub(k.renewed).Round(time.Second).String())
	}
	k.held, k.renewed, k.away, k.refused = true, sent, false, time.Time{}
}

// holds reports whether the API server has ever confirmed that this process holds the Lease.
func (k *Keeper) holds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// unanswered records that a write got no answer, and reports whether this process has a Lease to keep.
func (k *Keeper) unanswered() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held && !k.away {
		k.away = true
		k.Logger.Info("management cluster doesn't answer; keeping the lease and suspending all decisions")
	}
	return k.held
}

// starts reports whether a write may have been refused only because the API server has just started after an outage.
func (k *Keeper) starts() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.held || !k.away {
		return false
	}
	if k.refused.IsZero() {
		k.refused = k.Clock.Now()
	}
	return k.Clock.Since(k.refused) < starting
}

// decode decodes a Lease in any format of the API server. It returns nil for any other object.
func decode(body []byte, header http.Header) (*coordinationv1.Lease, runtime.Serializer) {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return nil, nil
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
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
	most := int32(LeaseDuration.Seconds())
	if lease == nil || ptr.Deref(lease.Spec.LeaseDurationSeconds, 0) <= most {
		return body
	}
	lease.Spec.LeaseDurationSeconds = &most
	short, err := runtime.Encode(serializer, lease)
	if err != nil {
		return body
	}
	return short
}

// echo is the response of an API server that has stored the request's body.
func echo(request *http.Request, body []byte) *http.Response {
	return &http.Response{
		Status: http.StatusText(http.StatusOK), StatusCode: http.StatusOK,
		Proto: request.Proto, ProtoMajor: request.ProtoMajor, ProtoMinor: request.ProtoMinor,
		Header:        http.Header{"Content-Type": request.Header.Values("Content-Type")},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       request,
	}
}
