// SPDX-License-Identifier: Apache-2.0

// Package leadership keeps Karpenter's Lease while the management cluster's API server is away, and keeps Karpenter from
// deciding anything meanwhile.
//
// Without it, the process would end ten seconds after its last renewal and start anew, again and again, for as long as the
// outage lasts, and would then have to read two clusters before it could go on. Nobody else can take a Lease that
// can't be written. Where only this process is cut off, another one can: so after those same ten seconds nothing is decided
// here any more, and the first answer of the API server tells whether the Lease is still ours.
//
// Upstream gap: Karpenter core can't run on while the cluster that holds its Lease is away, and some of its controllers delete
// NodeClaims without asking the cloud provider (docs/upstream/management-outage.md).
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

// RenewDeadline is how long after its last renewal a leader may act. It is controller-runtime's default, and less than the
// Lease's duration, after which another process may take over.
const RenewDeadline = 10 * time.Second

// LeaseDuration is how long after a renewal others leave the Lease alone: a second more than its holder may act. controller-runtime's
// fifteen seconds would only make a failover longer: others find out about the last renewal and about its expiry at their own
// attempts, 2 to 4.4 seconds apart, which with this makes less than twenty seconds in all.
const LeaseDuration = RenewDeadline + time.Second

// Config of a Keeper.
type Config struct {
	Clock clock.PassiveClock
	// Logger is told when the management cluster goes and when it comes back.
	Logger logr.Logger
}

// Keeper answers the renewals of a Lease in the place of an API server that doesn't.
type Keeper struct {
	Config

	mu sync.Mutex
	// held: the API server has accepted a write of the Lease. Whether it still is ours is for the elector to find out, and when
	// it isn't, the process ends.
	held bool
	// renewed is when the last write that the API server accepted was sent.
	renewed time.Time
	// away: the last write wasn't answered.
	away bool
}

// New returns a Keeper that holds no Lease yet.
func New(config Config) *Keeper {
	return &Keeper{Config: config}
}

// Suspended tells whether the Lease is ours and may have been lost since: nothing may be decided then.
func (k *Keeper) Suspended() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held && k.Clock.Since(k.renewed) >= RenewDeadline
}

// Metric is 1 while nothing is decided because the management cluster doesn't answer, and 0 otherwise.
func (k *Keeper) Metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "karpenter",
		Subsystem: "clusterapi",
		Name:      "suspended",
		Help:      "1 while nothing is decided because the management cluster doesn't answer, 0 otherwise.",
	}, func() float64 {
		if k.Suspended() {
			return 1
		}
		return 0
	})
}

// Wrap is for the rest.Config of leader election, and for no other.
func (k *Keeper) Wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper{keeper: k, inner: inner}
}

type roundTripper struct {
	keeper *Keeper
	inner  http.RoundTripper
}

// RoundTrip sends the request, with LeaseDuration where it would ask others to wait longer. When it is the update of a Lease that
// we hold and no API server answers, it answers as one that accepted it, and the elector goes on. Had somebody else taken the Lease
// meanwhile, the next update that is answered conflicts, and the elector gives up, as it has to. An update also conflicts with
// one of our own that was stored though its answer was lost, as a slow API server does it: then it is sent again.
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
		// We are asked to end.
	case err != nil || response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError:
		if r.keeper.unanswered() {
			return echo(request, body), nil
		}
	}
	return response, err
}

// send sends a request like this one, and reads all of the answer: what doesn't arrive whole is no answer.
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

// again sends an update that met a conflict once more, if the Lease is still ours. Else it returns the conflict.
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
		k.Logger.Info("the management cluster is back; going on", "away", sent.Sub(k.renewed).Round(time.Second).String())
	}
	k.held, k.renewed, k.away = true, sent, false
}

// holds tells whether the API server has ever said that the Lease is ours.
func (k *Keeper) holds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// unanswered tells whether there is a Lease to keep.
func (k *Keeper) unanswered() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held && !k.away {
		k.away = true
		k.Logger.Info("the management cluster doesn't answer; keeping the lease, and deciding nothing until it does")
	}
	return k.held
}

// decode reads a Lease in any format of an API server; nil if it isn't one.
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

// shorten returns a Lease with LeaseDuration at most. What isn't one is returned as it is.
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

// echo is the response of an API server that has stored what the request says.
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
