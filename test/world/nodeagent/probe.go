// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// probeKind is the word that events use.
type probeKind string

const (
	probeStartup   probeKind = "Startup"
	probeLiveness  probeKind = "Liveness"
	probeReadiness probeKind = "Readiness"
)

// prober probes one run of one container, in one goroutine per probe.
type prober struct {
	container *corev1.Container
	started   time.Time
	check     func(ctx context.Context, probe *corev1.Probe) error
	// changed is called after every change of what the methods below return.
	changed func()
	// failed is called for every failed probe.
	failed func(kind probeKind, err error)

	mu        sync.Mutex
	isStarted bool
	isReady   bool
	unhealthy probeKind // the probe that wants the container restarted
	startedCh chan struct{}
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

func (p *prober) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.startedCh = make(chan struct{})
	p.isReady = p.container.ReadinessProbe == nil
	if p.container.StartupProbe == nil {
		p.isStarted = true
		close(p.startedCh)
	} else {
		p.running.Go(func() { p.watch(ctx, probeStartup, p.container.StartupProbe) })
	}
	if p.container.LivenessProbe != nil {
		p.running.Go(func() { p.afterStartup(ctx, probeLiveness, p.container.LivenessProbe) })
	}
	if p.container.ReadinessProbe != nil {
		p.running.Go(func() { p.afterStartup(ctx, probeReadiness, p.container.ReadinessProbe) })
	}
}

// stop ends the probes and waits for the one under way.
func (p *prober) stop() {
	p.cancel()
	p.running.Wait()
}

// state tells whether the container has started, is ready, and which probe wants it restarted, if any.
func (p *prober) state() (started, ready bool, unhealthy probeKind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isStarted, p.isStarted && p.isReady, p.unhealthy
}

func (p *prober) afterStartup(ctx context.Context, kind probeKind, probe *corev1.Probe) {
	select {
	case <-ctx.Done():
	case <-p.startedCh:
		p.watch(ctx, kind, probe)
	}
}

const (
	// eagerPeriod is how often a program that hasn't answered yet is asked, between the probe's own times: a program takes
	// a moment to listen, and a rollout needn't wait a whole period for that. Only success counts then.
	eagerPeriod = 200 * time.Millisecond
	// firstProbe is when a probe first counts that has no initial delay. The kubelet's first probe falls anywhere in the
	// first period.
	firstProbe = time.Second
)

// watch runs one probe until the container ends, or until the probe has said all it has to say.
func (p *prober) watch(ctx context.Context, kind probeKind, probe *corev1.Probe) {
	period := time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
	begin := p.started.Add(time.Duration(probe.InitialDelaySeconds) * time.Second)
	due := begin
	if probe.InitialDelaySeconds == 0 {
		due = due.Add(min(period, firstProbe))
	}
	eager := kind != probeLiveness
	next := due
	if eager {
		next = begin
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	var count thresholds
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-timer.C:
			counts := !now.Before(due)
			if counts {
				due = now.Add(period)
			}
			err := p.once(ctx, probe)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				eager = false
			} else if counts {
				p.failed(kind, err)
			}
			if counts || err == nil {
				if decided, good := count.add(err == nil, probe); decided && p.decide(kind, good) {
					return
				}
			}
			next = due
			if soon := time.Now().Add(eagerPeriod); eager && soon.Before(due) {
				next = soon
			}
			timer.Reset(time.Until(next))
		}
	}
}

func (p *prober) once(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	return p.check(ctx, probe)
}

// decide notes a probe's verdict and tells whether the probe is done.
func (p *prober) decide(kind probeKind, good bool) (done bool) {
	p.mu.Lock()
	changed := false
	switch {
	case kind == probeReadiness:
		changed = p.isReady != good
		p.isReady = good
	case kind == probeStartup && good:
		p.isStarted, changed, done = true, true, true
		close(p.startedCh)
	case !good:
		p.unhealthy, changed, done = kind, true, true
	}
	p.mu.Unlock()
	if changed {
		p.changed()
	}
	return done
}

// thresholds counts equal results in a row.
type thresholds struct {
	good  bool
	count int32
}

// add tells whether a result, with those before it, decides, and how.
func (t *thresholds) add(good bool, probe *corev1.Probe) (decided, verdict bool) {
	if t.count == 0 || t.good != good {
		t.good, t.count = good, 0
	}
	t.count++
	need := max(probe.FailureThreshold, 1)
	if probe.FailureThreshold == 0 {
		need = 3
	}
	if good {
		need = max(probe.SuccessThreshold, 1)
	}
	return t.count >= need, good
}

// handler runs probes and hooks against a container.
type handler struct {
	container *corev1.Container
	ports     func(containerPort int32) int32
	exec      func(ctx context.Context, command []string) error
}

func (h handler) probe(ctx context.Context, probe *corev1.Probe) error {
	switch {
	case probe.HTTPGet != nil:
		return h.httpGet(ctx, probe.HTTPGet)
	case probe.TCPSocket != nil:
		port, err := h.port(probe.TCPSocket.Port.IntVal, probe.TCPSocket.Port.StrVal)
		if err != nil {
			return err
		}
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(hostOr(probe.TCPSocket.Host), port))
		if err != nil {
			return err
		}
		return connection.Close()
	case probe.Exec != nil:
		return h.exec(ctx, probe.Exec.Command)
	case probe.GRPC != nil:
		return h.grpc(ctx, strconv.Itoa(int(h.ports(probe.GRPC.Port))), ptr.Deref(probe.GRPC.Service, ""))
	}
	return fmt.Errorf("the probe has no handler")
}

// hook runs a lifecycle hook.
func (h handler) hook(ctx context.Context, hook *corev1.LifecycleHandler) error {
	switch {
	case hook.Exec != nil:
		return h.exec(ctx, hook.Exec.Command)
	case hook.HTTPGet != nil:
		return h.httpGet(ctx, hook.HTTPGet)
	case hook.Sleep != nil:
		timer := time.NewTimer(time.Duration(hook.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func hostOr(host string) string {
	if host == "" {
		return loopback
	}
	return host
}

// port finds a port by number or by name.
func (h handler) port(number int32, name string) (string, error) {
	if name != "" {
		for _, port := range h.container.Ports {
			if port.Name == name {
				return strconv.Itoa(int(h.ports(port.ContainerPort))), nil
			}
		}
		parsed, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return "", fmt.Errorf("couldn't find port: %q", name)
		}
		number = int32(parsed)
	}
	return strconv.Itoa(int(h.ports(number))), nil
}

// Probes follow no redirects, which count as success, verify no certificate, and never share a connection: as the kubelet.
var probeClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	},
}

func (h handler) httpGet(ctx context.Context, get *corev1.HTTPGetAction) error {
	port, err := h.port(get.Port.IntVal, get.Port.StrVal)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	path := get.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(hostOr(get.Host), port)+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/1.36")
	for _, header := range get.HTTPHeaders {
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			request.Host = header.Value
			continue
		}
		request.Header.Add(header.Name, header.Value)
	}
	response, err := probeClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", response.StatusCode)
	}
	return nil
}

// grpc asks the standard health service, whose messages are small enough to write by hand: a request holds field 1, the
// service's name; a response holds field 1, the status, where 1 is SERVING. https://github.com/grpc/grpc/blob/master/doc/health-checking.md
func (h handler) grpc(ctx context.Context, port, service string) error {
	var message []byte
	if service != "" {
		message = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service))), service...)
	}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+net.JoinHostPort(loopback, port)+"/grpc.health.v1.Health/Check", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	if len(answer) == 7 && answer[5] == 1<<3 && answer[6] == 1 {
		return nil
	}
	grpcStatus := response.Trailer.Get("Grpc-Status")
	if grpcStatus == "" { // an answer without a message has it among its headers
		grpcStatus = response.Header.Get("Grpc-Status")
	}
	return fmt.Errorf("service unhealthy (grpc-status %q)", grpcStatus)
}
