// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probeKind is the word that events use.
type probeKind string

const (
	probeLiveness  probeKind = "Liveness"
	probeReadiness probeKind = "Readiness"
)

const (
	// eagerPeriod is how often a program that hasn't been ready yet is asked between the probe's own times: a program takes
	// a moment to listen, and a rollout needn't wait a whole period for that. Only success counts then.
	eagerPeriod = 200 * time.Millisecond
	// firstProbe is when a probe first counts that has no initial delay. The kubelet's first probe falls anywhere in the
	// first period.
	firstProbe = time.Second
)

// prober probes one run of one container, in one goroutine per probe.
type prober struct {
	started time.Time
	// port is the port of this machine behind a probe's.
	port func(get *corev1.HTTPGetAction) (int32, error)
	// changed is called after every change of what ready and unhealthy return, failed for every failed probe.
	changed func()
	failed  func(kind probeKind, err error)

	mu     sync.Mutex
	isWell bool
	isSick bool

	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newProber(container *corev1.Container, ports podPorts, started time.Time, changed func(), failed func(probeKind, error)) *prober {
	ctx, cancel := context.WithCancel(context.Background())
	p := &prober{started: started, changed: changed, failed: failed, cancel: cancel, isWell: container.ReadinessProbe == nil}
	p.port = func(get *corev1.HTTPGetAction) (int32, error) {
		if get.Port.Type == intstr.Int {
			return ports.actual(get.Port.IntVal), nil
		}
		for _, port := range container.Ports {
			if get.Port.StrVal == port.Name {
				return ports.actual(port.ContainerPort), nil
			}
		}
		return 0, fmt.Errorf("couldn't find port: %q", get.Port.StrVal)
	}
	for kind, probe := range map[probeKind]*corev1.Probe{probeLiveness: container.LivenessProbe, probeReadiness: container.ReadinessProbe} {
		if probe != nil {
			p.running.Go(func() { p.watch(ctx, kind, probe) })
		}
	}
	return p
}

// stop ends the probes and waits for the one in progress.
func (p *prober) stop() {
	p.cancel()
	p.running.Wait()
}

// ready reports whether the container is ready.
func (p *prober) ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isWell
}

// unhealthy reports whether the liveness probe requires the container restarted.
func (p *prober) unhealthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isSick
}

// watch runs one probe until the container ends.
func (p *prober) watch(ctx context.Context, kind probeKind, probe *corev1.Probe) {
	period := time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
	begin := p.started.Add(time.Duration(probe.InitialDelaySeconds) * time.Second)
	due := begin
	if probe.InitialDelaySeconds == 0 {
		due = due.Add(min(period, firstProbe))
	}
	eager, next := kind == probeReadiness, due
	if eager {
		next = begin
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	var count thresholds
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-timer.C:
		}
		counts := !now.Before(due)
		if counts {
			due = now.Add(period)
		}
		err := p.get(ctx, probe)
		if ctx.Err() != nil {
			return
		}
		eager = eager && err != nil
		if err != nil && counts {
			p.failed(kind, err)
		}
		if counts || err == nil {
			if decided, good := count.add(err == nil, probe); decided {
				p.decide(kind, good)
			}
		}
		next = due
		if soon := time.Now().Add(eagerPeriod); eager && soon.Before(due) {
			next = soon
		}
		timer.Reset(time.Until(next))
	}
}

// decide notes what a probe has decided.
func (p *prober) decide(kind probeKind, good bool) {
	p.mu.Lock()
	was := [2]bool{p.isWell, p.isSick}
	if kind == probeReadiness {
		p.isWell = good
	} else {
		p.isSick = !good
	}
	changed := was != [2]bool{p.isWell, p.isSick}
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// thresholds counts equal results in a row.
type thresholds struct {
	good  bool
	count int32
}

// add reports whether a result, with those before it, decides, and how.
func (t *thresholds) add(good bool, probe *corev1.Probe) (decided, result bool) {
	if t.count == 0 || t.good != good {
		t.good, t.count = good, 0
	}
	t.count++
	if good {
		return t.count >= probe.SuccessThreshold, good
	}
	return t.count >= probe.FailureThreshold, good
}

// probeClient is as the kubelet's: it follows no redirects, which count as success, verifies no certificate, and never
// shares a connection.
var probeClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	},
}

// get probes once. The API server has filled in the probe's defaults.
func (p *prober) get(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	get := probe.HTTPGet
	port, err := p.port(get)
	if err != nil {
		return err
	}
	url := strings.ToLower(string(get.Scheme)) + "://" + net.JoinHostPort(loopback, strconv.Itoa(int(port))) + path.Join("/", get.Path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for _, header := range get.HTTPHeaders {
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
