// SPDX-License-Identifier: Apache-2.0

// Package conformance runs Karpenter's regression and disruption suites, unmodified from Karpenter's module, against AutoNode's
// provider and against Karpenter's kwok provider, in a world of its own, and compares the results.
//
// The suite expects an exclusive cluster, and mostly waits. So each spec runs in its own process, and several guests of
// one world run specs concurrently.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/internal/message"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/progress"
)

const leftoversTimeout = time.Minute

// The suites.
const (
	Regression = "regression"
	Disruption = "disruption"
	DRA        = "dra"
)

// MaxGuests is the maximum number of guests per provider.
const MaxGuests = 20

// Config of Run.
type Config struct {
	// Providers to run: ClusterAPI, Kwok or both, or Bare.
	Providers []string
	// Suites to run: Regression, Disruption, DRA or several of them.
	Suites []string
	// Guests is the number of guests per provider, from 1 to MaxGuests.
	Guests int
	// Focus selects specs by a regular expression; empty means all.
	Focus string
	// Karpenter is the path of AutoNode's provider, for Bare: the world builds what the operator runs.
	Karpenter string
	// Results is the folder with the last results of each provider, and the logs.
	Results string
	Out     io.Writer
}

// Run runs the suite and prints the table. It returns an error if a spec fails with AutoNode's provider, unless it also
// failed with Karpenter's in the same run, or if an object of a machine is left.
func Run(ctx context.Context, cfg Config) (err error) {
	focus, err := regexp.Compile(cfg.Focus)
	if err != nil {
		return fmt.Errorf("reading the focus: %w", err)
	}
	if cfg.Results, err = filepath.Abs(cfg.Results); err != nil {
		return fmt.Errorf("finding the results' folder: %w", err)
	}
	printer := progress.New(cfg.Out)
	task := printer.Task("Building Karpenter's test suites", "")
	bin, err := build(ctx, regressionSuite, disruptionSuite, draSuite, draDriver, kwokProgram)
	if err != nil {
		task.Fail()
		return err
	}
	task.End("built in " + progress.Duration(task.Elapsed()))
	r := &run{cfg: cfg, bin: bin, printer: printer, claims: newClaims(), results: map[string]*Results{},
		starts: newGate(), began: time.Now().UTC().Truncate(time.Second)}
	for _, s := range suites(bin) {
		if !slices.Contains(cfg.Suites, s.name) {
			continue
		}
		specs, err := s.load(ctx)
		if err != nil {
			return err
		}
		for _, spec := range specs {
			r.all = append(r.all, spec.text)
			if focus.MatchString(spec.text) {
				r.chosen = append(r.chosen, spec)
			}
		}
	}
	if len(r.chosen) == 0 {
		return fmt.Errorf("no spec matches %q", cfg.Focus)
	}
	r.cfg.Guests = min(r.cfg.Guests, len(r.chosen))
	failed := r.run(ctx)
	if err := errors.Join(failed, r.print()); err != nil {
		return err
	}
	return r.check()
}

// suites lists the suites to run.
func suites(bin string) []*suite {
	return []*suite{
		{
			name: Regression, path: filepath.Join(bin, regressionSuite.name),
			needs: func(spec string) string {
				switch {
				case strings.HasPrefix(spec, "Chaos "):
					return "port 8080" // these start a manager, which serves metrics there
				case strings.HasPrefix(spec, "Performance "), strings.HasPrefix(spec, "Integration Utilization "):
					return "the CPUs" // these make 100 nodes, and others time out when several do
				default:
					return ""
				}
			},
		},
		{
			name: Disruption, path: filepath.Join(bin, disruptionSuite.name),
			needs: func(string) string { return "" },
		},
		{
			name: DRA, path: filepath.Join(bin, draSuite.name), driver: filepath.Join(bin, draDriver.name),
			needs: func(string) string { return "ports 8082 and 8083" }, // the driver's
		},
	}
}

// run is one run of the suites.
type run struct {
	cfg     Config
	bin     string
	all     []string
	chosen  []spec
	printer *progress.Printer
	claims  *claims
	starts  *gate

	// began is the start of this run: results that finished earlier are of another one.
	began time.Time

	mu        sync.Mutex
	results   map[string]*Results // by provider
	done      int
	leftovers []string
}

// guests names a provider's guests.
func (r *run) guests(provider string) []string {
	var names []string
	for i := range r.cfg.Guests {
		names = append(names, fmt.Sprintf("%s-%d", provider, i+1))
	}
	return names
}

// run runs the specs.
func (r *run) run(ctx context.Context) error {
	return r.inWorld(ctx, localworld.Config{WithoutOperator: !slices.Contains(r.cfg.Providers, ClusterAPI)}, func(ctx context.Context, s setup) error {
		providers, ctx := errgroup.WithContext(ctx)
		for _, name := range r.cfg.Providers {
			providers.Go(func() error { return r.runProvider(ctx, name, s) })
		}
		return providers.Wait()
	})
}

// inWorld starts a world with the providers' guests, and stops it when do returns. After a failure the world's folder
// stays.
func (r *run) inWorld(ctx context.Context, cfg localworld.Config, do func(context.Context, setup) error) (err error) {
	dir, err := os.MkdirTemp("", "autonode-conformance-")
	if err != nil {
		return fmt.Errorf("making a folder for the world: %w", err)
	}
	// The pods' users need access to the images that the node agent unpacks.
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("opening the world's folder to its pods: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "world.log"))
	if err != nil {
		return fmt.Errorf("opening the world's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	localworld.RedirectLogs(log)
	cfg.Dir, cfg.Progress = dir, r.printer
	for _, provider := range r.cfg.Providers {
		cfg.Guests = append(cfg.Guests, r.guests(provider)...)
	}
	w, err := localworld.Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("starting a world in %s: %w", dir, err)
	}
	module, err := karpenterModule(ctx, r.bin)
	if err != nil {
		return errors.Join(err, w.Stop())
	}
	definitions, err := crd.Read(filepath.Join(module, draDefinitions))
	if err != nil {
		return errors.Join(err, w.Stop())
	}
	processes, err := process.NewSupervisor(w.LogDir(), nil)
	if err != nil {
		return errors.Join(err, w.Stop())
	}
	ports := port.New()
	defer func() {
		processes.Stop()
		ports.Close()
		err = errors.Join(err, w.Stop())
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w\nthe world's logs are in %s", err, w.LogDir())
		}
	}()

	group, ctx := errgroup.WithContext(ctx)
	stopWatch := make(chan struct{})
	group.Go(func() error {
		select {
		case err := <-w.Failed():
			return err
		case err := <-processes.Failed():
			return err
		case <-stopWatch:
			return nil
		}
	})
	group.Go(func() error {
		defer close(stopWatch)
		return do(ctx, setup{world: w, ports: ports, processes: processes, definitions: definitions})
	})
	return group.Wait()
}

func (r *run) provider(name string, s setup) (provider, error) {
	switch name {
	case ClusterAPI:
		return newOperated(s.world.Management(), s.world.Dir())
	case Bare:
		return newClusterAPI(r.cfg.Karpenter, s.world.Management(), s.world.Dir())
	case MachineDeployment:
		return newMachineDeployment(s.world.Management(), s.world.Dir())
	case Kwok:
		return newKwok(filepath.Join(r.bin, kwokProgram.name), s.world.Kubeconfig, ctrl.Log), nil
	default:
		return nil, fmt.Errorf("provider %q: there are %s, %s and %s", name, ClusterAPI, Bare, Kwok)
	}
}

// runProvider distributes the specs over a provider's guests.
func (r *run) runProvider(ctx context.Context, name string, s setup) error {
	p, err := r.provider(name, s)
	if err != nil {
		return err
	}
	defer p.stop()
	logs := filepath.Join(r.cfg.Results, name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("making the results' folder: %w", err)
	}
	results, err := readResults(r.cfg.Results, name)
	if err != nil {
		return err
	}
	results.Began = r.began
	r.mu.Lock()
	r.results[name] = &results
	r.mu.Unlock()

	committed, err := readCommitted(name)
	if err != nil {
		return err
	}
	specs := newQueue(r.chosen, results, committed, r.claims)
	group, ctx := errgroup.WithContext(ctx)
	for _, guest := range r.guests(name) {
		group.Go(func() error {
			on, err := s.start(ctx, p, guest)
			if err != nil {
				return err
			}
			if err := r.work(ctx, s, on, specs, p, logs); err != nil {
				return err
			}
			return r.lookForLeftovers(ctx, p, guest)
		})
	}
	return group.Wait()
}

// work runs specs in one guest until none is left.
func (r *run) work(ctx context.Context, s setup, on runner, specs *queue, p provider, logs string) error {
	for ctx.Err() == nil {
		next, done, ok := specs.take(ctx)
		if !ok {
			break
		}
		if err := r.starts.pass(ctx); err != nil {
			done()
			return err
		}
		result, err := r.runSpec(ctx, s, on, next, p, logs)
		done()
		if err != nil {
			return err
		}
		if err := r.record(on.provider, result); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *run) runSpec(ctx context.Context, s setup, on runner, next spec, p provider, logs string) (Result, error) {
	if next.suite.driver != "" {
		stop, err := s.drive(next.suite.driver, on)
		if err != nil {
			return Result{}, err
		}
		defer stop()
	}
	stop, err := p.accompany(ctx, next, s.world.Guest(on.guest))
	if err != nil {
		return Result{}, err
	}
	defer stop()
	return next.run(ctx, p.suiteArgs(next), on.kubeconfig, logs)
}

func (r *run) record(provider string, result Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := r.results[provider]
	results.record(r.all, result)
	results.Finished, results.Guests, results.CPUs = time.Now(), len(r.guests(provider)), goruntime.NumCPU()
	r.done++
	r.printer.Println(fmt.Sprintf("%3d/%d  %-10s  %-11s  %s", r.done, len(r.chosen)*len(r.cfg.Providers), provider, cell(*results, result.Spec), result.Spec))
	if e, ok := explained(provider, result); ok {
		r.printer.Println("         " + e.why)
	} else if !result.Passed {
		r.printer.Println(fmt.Sprintf("         %s\n         %s", message.Cut(result.Failure, 300), result.Log))
	}
	return results.write(r.cfg.Results)
}

// lookForLeftovers waits until no object of a machine is left: the suite sees Nodes only.
func (r *run) lookForLeftovers(ctx context.Context, p provider, guest string) error {
	ctx, cancel := context.WithTimeout(ctx, leftoversTimeout)
	defer cancel()
	var names []string
	err := process.Poll(ctx, "machines to go", nil, nil, func(ctx context.Context) error {
		var err error
		if names, err = p.leftovers(ctx, guest); err == nil && len(names) > 0 {
			err = fmt.Errorf("%d objects are left", len(names))
		}
		return err
	})
	if err != nil && len(names) == 0 {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leftovers = append(r.leftovers, names...)
	return nil
}

// print shows the results of this run and of earlier ones.
func (r *run) print() error {
	var table []Results
	for _, name := range []string{ClusterAPI, Bare, Kwok} {
		results, err := readResults(r.cfg.Results, name)
		if err != nil {
			return err
		}
		if name == Bare && r.results[Bare] == nil {
			continue
		}
		table = append(table, results)
	}
	return printTable(r.cfg.Out, r.all, table)
}

// resultOf returns a provider's result of a spec in this run, or nil. An earlier result is of other code: it neither
// passes nor excuses a failure.
func (r *run) resultOf(provider string, spec spec) *Result {
	results := r.results[provider]
	if results == nil {
		return nil
	}
	if result, ok := results.find(spec.text); ok && !results.isOlder(result) {
		return &result
	}
	return nil
}

// check compares AutoNode's provider with Karpenter's.
func (r *run) check() error {
	var errs []error
	for _, provider := range []string{ClusterAPI, Bare} {
		if r.results[provider] != nil {
			errs = append(errs, r.failures(provider)...)
		}
	}
	if ours := r.results[ClusterAPI]; ours != nil {
		errs = append(errs, outdated(r.cfg.Suites, r.all, *ours)...)
	}
	for _, name := range r.leftovers {
		errs = append(errs, fmt.Errorf("was left behind: %s", name))
	}
	return errors.Join(errs...)
}

// failures are the specs that neither pass nor are explained, unless they fail with Karpenter's kwok provider too.
func (r *run) failures(provider string) []error {
	var errs []error
	for _, spec := range r.chosen {
		ours, measured := r.resultOf(provider, spec), r.resultOf(Kwok, spec)
		if ours != nil && ours.Passed || measured != nil && !measured.Passed {
			continue
		}
		if ours != nil {
			if _, ok := explained(provider, *ours); ok {
				continue
			}
		}
		errs = append(errs, fmt.Errorf("fails: %s", spec.text))
	}
	return errs
}
