// SPDX-License-Identifier: Apache-2.0

// Package scale measures what many hosted clusters cost the operator: how long it takes until AutoNode is on in all of them, what it requests of the
// API servers meanwhile and afterwards, and how much memory it needs.
//
// The operator is a process of its own, and so are etcd and the API servers, which count: they write down every request of the operator's.
// Guests share a few API servers. What a guest holds exists once for each of those, but each hosted cluster has a connection, caches,
// a token and everything in the management cluster for itself. Nothing runs pods: Deployments are reported as rolled out.
package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
)

const (
	// startTimeout bounds the start of the control planes and of the operator.
	startTimeout = 3 * time.Minute
	// calm is how long the operator has to write nothing before the steady state begins.
	calm = 15 * time.Second
	// maxChanged is how many hosted clusters are changed at once, to see how long that takes beside sick guests.
	maxChanged = 50
)

// Config of Run.
type Config struct {
	// Operator is the path of autonode-operator.
	Operator string
	// Definitions is the folder of the operator's own CRDs.
	Definitions string
	// Clusters is how many hosted clusters get AutoNode at once.
	Clusters int
	// APIServers is how many API servers the guests share.
	APIServers int
	// Silent and Slow are how many more hosted clusters get it at the same time whose guests accept connections and never answer, and
	// whose guests take two seconds for each answer. They aren't waited for.
	Silent, Slow int
	// HostileNodes is how many Nodes a further guest has whose admin fills and changes it without a pause; 0 for no such guest.
	HostileNodes int
	// Steady is how long to count what the operator does when there is nothing to do.
	Steady time.Duration
	// Budget is what a hosted cluster may cost of memory, in MiB; 0 for no limit. It applies to fifty hosted clusters or more.
	Budget float64
	// Timeout bounds the time until AutoNode is on everywhere.
	Timeout time.Duration
	// Dir has the logs, and profiles of the operator, afterwards.
	Dir string
	Out io.Writer
}

// Run measures and prints. It fails if the operator writes anything in the steady state, or needs more memory than its budget.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Clusters < 1 || cfg.APIServers < 1 || cfg.Silent < 0 || cfg.Slow < 0 || cfg.HostileNodes < 0 || cfg.Budget < 0 {
		return errors.New("clusters and API servers have to be at least 1, other guests and the budget at least 0")
	}
	printer := progress.New(cfg.Out)
	set, err := programs.Ensure(ctx, programs.Options{Progress: printer})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return fmt.Errorf("clearing the folder: %w", err)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return fmt.Errorf("finding the folder: %w", err)
	}
	cfg.Dir = dir
	processes, err := process.NewSupervisor(filepath.Join(dir, "logs"), nil)
	if err != nil {
		return err
	}
	defer processes.Stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-processes.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	b := &bench{cfg: cfg, programs: set, processes: processes, printer: printer}
	defer b.stop()
	return b.run(ctx)
}

// run goes through the phases.
func (b *bench) run(ctx context.Context) error {
	if err := b.phase(ctx, "Starting the control planes", startTimeout, b.start); err != nil {
		return err
	}
	r := &report{cfg: b.cfg}
	if err := b.phase(ctx, "Starting the operator", startTimeout, b.startOperator); err != nil {
		return err
	}
	var err error
	if r.idle, err = b.memory(ctx); err != nil {
		return err
	}

	// The first on each API server, for what a guest costs that has nothing yet.
	firsts, others := names("first", b.cfg.APIServers), names("cluster", b.cfg.Clusters)
	if err := b.phase(ctx, "Enabling the first guests", b.cfg.Timeout, func(ctx context.Context) error {
		if err := b.createAll(ctx, firsts, b.guestKubeconfig); err != nil {
			return err
		}
		_, err := b.enableAll(ctx, firsts)
		return err
	}); err != nil {
		return err
	}
	if r.firstManagement, r.firstGuest, err = b.count(); err != nil {
		return err
	}

	if b.hostile != nil {
		if err := b.phase(ctx, fmt.Sprintf("Creating %d Nodes in a hostile guest", b.cfg.HostileNodes), b.cfg.Timeout, b.fillHostile); err != nil {
			return err
		}
	}
	silent, slow := names("silent", b.cfg.Silent), names("slow", b.cfg.Slow)
	if err := b.phase(ctx, fmt.Sprintf("Creating %d hosted clusters", len(others)+len(silent)+len(slow)), b.cfg.Timeout, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return b.createAll(ctx, others, b.guestKubeconfig) })
		group.Go(func() error { return b.createAll(ctx, silent, b.silentKubeconfig) })
		group.Go(func() error { return b.createAll(ctx, slow, b.slowKubeconfig) })
		if b.hostile != nil {
			group.Go(func() error { return b.createAll(ctx, []string{hostileName}, b.hostileKubeconfig) })
		}
		return group.Wait()
	}); err != nil {
		return err
	}
	if _, _, err = b.count(); err != nil {
		return err
	}
	before, err := process.UsageOf(b.operator.PID)
	if err != nil {
		return err
	}
	sickOnes := append(silent, slow...)
	if b.hostile != nil {
		sickOnes = append(sickOnes, hostileName)
		attack, end := context.WithCancel(ctx)
		var attacking sync.WaitGroup
		attacking.Go(func() { b.hostile.attack(attack) })
		b.onStop(func() { end(); attacking.Wait() })
	}
	if err := b.phase(ctx, "Turning AutoNode on", b.cfg.Timeout, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return b.profile(ctx, "profile", "?seconds=10") })
		group.Go(func() (err error) {
			for _, sick := range sickOnes {
				if err := b.enable(ctx, sick); err != nil {
					return err
				}
			}
			r.took, err = b.enableAll(ctx, others)
			return err
		})
		return group.Wait()
	}); err != nil {
		return err
	}
	after, err := process.UsageOf(b.operator.PID)
	if err != nil {
		return err
	}
	r.enabling = after.CPU - before.CPU
	if err := b.phase(ctx, "Waiting until nothing is written", b.cfg.Timeout, b.settle); err != nil {
		return err
	}
	r.management, r.guests = b.settling[0], b.settling[1]
	for name, query := range map[string]string{"heap": "?gc=1", "goroutine": ""} {
		if err := b.profile(ctx, name, query); err != nil {
			return err
		}
	}
	some := others[:min(len(others), maxChanged)]
	if err := b.phase(ctx, fmt.Sprintf("Changing %d hosted clusters", len(some)), b.cfg.Timeout, func(ctx context.Context) (err error) {
		r.changed, err = b.changeAll(ctx, some)
		return err
	}); err != nil {
		return err
	}
	if err := b.phase(ctx, "Waiting until nothing is written", b.cfg.Timeout, b.settle); err != nil {
		return err
	}
	if b.hostile != nil {
		if _, err := b.hostile.log.next(); err != nil {
			return err
		}
	}
	if before, err = process.UsageOf(b.operator.PID); err != nil {
		return err
	}
	if err := b.phase(ctx, fmt.Sprintf("Doing nothing for %s", b.cfg.Steady), b.cfg.Steady+time.Minute, func(ctx context.Context) error {
		return pause(ctx, b.cfg.Steady)
	}); err != nil {
		return err
	}
	if r.steadyManagement, r.steadyGuests, err = b.count(); err != nil {
		return err
	}
	if b.hostile != nil {
		if r.steadyHostile, err = b.hostile.log.next(); err != nil {
			return err
		}
		if r.hostileSays, err = b.reachable(ctx, hostileName); err != nil {
			return err
		}
	}
	if r.settled, err = b.memory(ctx); err != nil {
		return err
	}
	r.steady = r.settled.CPU - before.CPU
	if err := r.print(b.cfg.Out); err != nil {
		return err
	}
	return r.check()
}

// phase shows what is being done and bounds it.
func (b *bench) phase(ctx context.Context, title string, timeout time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	task := b.printer.Task(title, "")
	if err := do(ctx); err != nil {
		task.Fail()
		return fmt.Errorf("%s: %w; logs are in %s", title, err, b.cfg.Dir)
	}
	task.End(progress.Duration(task.Elapsed()))
	return nil
}

// settle returns when the operator hasn't written anything for a while. What it counts belongs to what was before.
func (b *bench) settle(ctx context.Context) error {
	b.settling = [2]*counts{newCounts(), newCounts()}
	for {
		management, guests, err := b.count()
		if err != nil {
			return err
		}
		b.settling[0].add(management)
		b.settling[1].add(guests)
		if last := later(b.settling[0].lastWrite, b.settling[1].lastWrite); time.Since(last) > calm {
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// pause returns after a while, or when the context ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func names(prefix string, count int) []string {
	names := make([]string, 0, count)
	for i := range count {
		names = append(names, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return names
}
