// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/process"
)

const (
	// scaleTimeout limits a burst, and its removal.
	scaleTimeout = 15 * time.Minute
	// joinTimeout is the time for machines to join after all pods run: there may be more machines than pods.
	joinTimeout = time.Minute
	// An API server is calm when its audit log has grown by so many bytes at most, about ten requests, in so long.
	calmBytes    = 15 << 10
	calmInterval = time.Second
	// concurrentDeletions of NodeClaims.
	concurrentDeletions = 20
	// settleTimeout is the timeout for that.
	settleTimeout = 30 * time.Second
)

// measure asks for nodes, waits until all pods run or all nodes are ready, and cleans up. It always returns its measurements.
func (m *subject) measure(ctx context.Context, size Size) (Measurement, error) {
	result := Measurement{Contestant: m.Contestant, Size: size, Lost: []string{}, Left: []string{}}
	if err := m.settle(ctx); err != nil { // and skips what was asked until now
		return result, err
	}
	if _, _, err := m.traffic(); err != nil {
		return result, err
	}
	m.follower.reset()
	spent, err := m.startUsage()
	if err != nil {
		return result, err
	}
	started := time.Now()
	if err := m.ask(ctx, size); err != nil {
		return result, err
	}
	burst, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	profiled := m.profiler.during(ctx, fmt.Sprintf("%s-%s-up", m.file(), size.fileName()))
	err = process.Poll(burst, "pods or nodes to be ready", nil, nil, func(context.Context) error {
		if running := m.follower.running(); running < size.Pods {
			return fmt.Errorf("%d of %d are", running, size.Pods)
		}
		return nil
	})
	profiled()
	if err != nil {
		astray := m.follower.astray()
		err = fmt.Errorf("%w; %d machines haven't joined: %s", err, len(astray), few(astray))
	}
	result.times(started, m.follower.readyTimes())
	if usageErr := spent.until(&result.Up.Processes); usageErr != nil {
		return result, errors.Join(err, usageErr)
	}
	if err == nil {
		joining, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		if err := process.Poll(joining, "machines to join", nil, nil, func(context.Context) error {
			if result.Lost = m.follower.astray(); len(result.Lost) > 0 {
				return errors.New("they haven't")
			}
			return nil
		}); err != nil {
			result.Lost = m.follower.astray()
		}
		err = m.settle(ctx)
	}
	result.NodeClaims, result.Machines = m.follower.made(kindNodeClaim), m.follower.made(kindMachine)
	var trafficErr error
	if result.Up.Management, result.Up.Guest, trafficErr = m.trafficOf(size.Nodes); err != nil || trafficErr != nil {
		return result, errors.Join(err, trafficErr)
	}
	if err := m.clear(ctx, &result); err != nil {
		return result, err
	}
	if len(result.Lost) > 0 {
		return result, fmt.Errorf("%d machines never joined: %s", len(result.Lost), few(result.Lost))
	}
	return result, nil
}

// clear removes the pods and their nodes, so that the next measurement starts with none, and measures that.
func (m *subject) clear(ctx context.Context, result *Measurement) error {
	spent, err := m.startUsage()
	if err != nil {
		return err
	}
	started := time.Now()
	if err := m.release(ctx, result.Size); err != nil {
		return err
	}
	clearing, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	// Karpenter replaces nodes that are deleted under pods that stay.
	if err := process.Poll(clearing, "pods or nodes to terminate", nil, nil, func(context.Context) error {
		if count := m.follower.remaining(); count > 0 {
			return fmt.Errorf("%d are left", count)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := m.deleteNodeClaims(ctx); err != nil {
		return fmt.Errorf("removing the nodes: %w", err)
	}
	profiled := m.profiler.during(ctx, fmt.Sprintf("%s-%s-down", m.file(), result.fileName()))
	err = process.Poll(clearing, "nodes and machines to go", nil, nil, func(context.Context) error {
		if count := m.follower.present(); count > 0 {
			return fmt.Errorf("%d objects are left", count)
		}
		return nil
	})
	result.Gone, result.Left = time.Since(started).Seconds(), m.follower.left()
	profiled()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, few(result.Left))
	}
	result.NodeClaims, result.Machines = m.follower.made(kindNodeClaim), m.follower.made(kindMachine)
	if err := errors.Join(err, spent.until(&result.Down.Processes), m.settle(ctx)); err != nil {
		return err
	}
	result.Down.Management, result.Down.Guest, err = m.trafficOf(result.Nodes)
	return err
}

// house creates nodes that stay, and returns when they have joined and both API servers are calm. They are for the scheduler of pods, so a
// MachineDeployment has none.
func (m *subject) house(ctx context.Context, nodes int) error {
	if nodes == 0 || m.workers != nil {
		return nil
	}
	d := residents(nodes)
	if err := m.guest.Create(ctx, d); err != nil {
		return fmt.Errorf("asking for nodes before the first burst: %w", err)
	}
	housing, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	if err := process.Poll(housing, "nodes before the first burst", nil, nil, func(ctx context.Context) error {
		if err := m.guest.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if astray := m.follower.astray(); int(d.Status.ReadyReplicas) < nodes || len(astray) > 0 {
			return fmt.Errorf("%d of %d pods run, %d machines haven't joined", d.Status.ReadyReplicas, nodes, len(astray))
		}
		return nil
	}); err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	m.follower.keep()
	return nil
}

// deleteNodeClaims deletes all NodeClaims but those of residents, some at a time. One request for all of them would delete one after the other,
// and time out.
func (m *subject) deleteNodeClaims(ctx context.Context) error {
	claims := &unstructured.UnstructuredList{}
	claims.SetGroupVersionKind(guestKinds[0])
	if err := m.guest.List(ctx, claims); err != nil {
		return err
	}
	deletions, ctx := errgroup.WithContext(ctx)
	deletions.SetLimit(concurrentDeletions)
	for i := range claims.Items {
		if m.follower.keeps(claims.Items[i].GetUID()) {
			continue
		}
		deletions.Go(func() error { return client.IgnoreNotFound(m.guest.Delete(ctx, &claims.Items[i])) })
	}
	return deletions.Wait()
}

// settle waits until both API servers are calm, or for settleTimeout: a node causes requests for some time after its
// pod runs.
func (m *subject) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	ticker := time.NewTicker(calmInterval)
	defer ticker.Stop()
	for before := int64(-1); ; {
		var sizes int64
		for _, log := range []*audit.Tail{m.managementLog, m.guestLog} {
			size, err := log.Size()
			if err != nil {
				return err
			}
			sizes += size
		}
		if before >= 0 && sizes-before < calmBytes {
			return nil
		}
		before = sizes
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil
			}
			return context.Cause(ctx)
		}
	}
}

// traffic returns the requests to each API server since the last call.
func (m *subject) traffic() (management, guest audit.Traffic, err error) {
	management, guest = audit.Traffic{}, audit.Traffic{}
	err = errors.Join(m.managementLog.Each(management.Add), m.guestLog.Each(guest.Add))
	return management, guest, err
}

func (m *subject) trafficOf(nodes int) (management, guest Requests, err error) {
	managementTraffic, guestTraffic, err := m.traffic()
	return newRequests(managementTraffic, nodes), newRequests(guestTraffic, nodes), err
}

// usage has the processes' use at the start of a measurement.
type usage struct {
	world  *localworld.World
	before map[int]process.Usage
}

func (m *subject) startUsage() (*usage, error) {
	u := &usage{world: m.world, before: map[int]process.Usage{}}
	status, err := localworld.ReadStatus(m.world.Dir())
	if err != nil {
		return nil, err
	}
	for _, c := range status.Components {
		if now, err := process.UsageOf(c.PID); err == nil { // else it has just ended
			u.before[c.PID] = now
			_ = process.ResetPeak(c.PID) // if not, the peak is that since the process began
		}
	}
	return u, nil
}

// until returns each program's use since then: the sum of its processes, but their highest peak.
func (u *usage) until(into *[]ProcessUsage) error {
	status, err := localworld.ReadStatus(u.world.Dir())
	if err != nil {
		return err
	}
	seen, byName := map[int]bool{}, map[string]ProcessUsage{}
	for _, c := range status.Components {
		now, err := process.UsageOf(c.PID)
		if err != nil || seen[c.PID] {
			continue // it has just ended, or it is another part of the same process
		}
		seen[c.PID] = true
		sum := byName[c.Name]
		sum.Name = c.Name
		sum.CPUSeconds += (now.CPU - u.before[c.PID].CPU).Seconds()
		sum.PeakMiB = max(sum.PeakMiB, float64(now.Peak)/(1<<20))
		byName[c.Name] = sum
	}
	*into = slices.SortedFunc(maps.Values(byName), func(a, b ProcessUsage) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// few returns the start of a list of names.
func few(names []string) string {
	const enough = 5
	if len(names) > enough {
		return strings.Join(names[:enough], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
