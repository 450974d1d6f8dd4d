// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/progress"
)

// benchUser is the measurement's user. Its requests aren't counted.
const benchUser = "autonode-bench"

// ScaleConfig of Scale.
type ScaleConfig struct {
	// Sizes of the bursts, in their order.
	Sizes []Size
	// Providers to measure: ClusterAPI, Kwok, and MachineDeployment.
	Providers []string
	// Operator runs AutoNode's provider by the operator, as an installation does. Otherwise the provider runs alone, as
	// Karpenter's does.
	Operator bool
	// ClusterAPI is Cluster API's configuration, as in world.Config. AutoNode's provider and a MachineDeployment are measured with each.
	ClusterAPI []string
	// KwokDelays are the times after which the kwok provider's nodes join; the provider is measured with each. By default they join at
	// once.
	KwokDelays []time.Duration
	// Residents is the number of nodes that are there before the first burst, and stay. No pod of a burst fits on them.
	Residents int
	// Karpenter is the path of AutoNode's provider. With an Operator, the world builds it.
	Karpenter string
	// Profiles is the folder for profiles of Karpenter, Cluster API and the API servers: of the CPU during each measurement, of the heap after it. Empty for none.
	Profiles string
	// JSON is the file for the results, empty for none.
	JSON string
	Out  io.Writer
	// series are the bursts to measure, if not one of each size.
	series []burst
}

func (c ScaleConfig) validate() error {
	if len(c.Sizes) == 0 || len(c.Providers) == 0 {
		return errors.New("no size or no provider to measure")
	}
	for _, mode := range c.ClusterAPI {
		if err := localworld.CheckClusterAPI(mode); err != nil {
			return err
		}
	}
	if len(c.ClusterAPI) == 0 && slices.ContainsFunc(c.Providers, func(provider string) bool { return provider != Kwok }) {
		return errors.New("no way for Cluster API to run")
	}
	for _, delay := range c.KwokDelays {
		if delay < 0 || delay%time.Second != 0 { // what a KWOKNodeClass accepts
			return fmt.Errorf("kwok nodes can't join after %s: it has to be whole seconds", delay)
		}
	}
	if c.Residents < 0 || c.Residents > MaxScale {
		return fmt.Errorf("%d nodes can't be there before: it has to be from 0 to %d", c.Residents, MaxScale)
	}
	for _, size := range c.Sizes {
		if err := size.validate(); err != nil {
			return err
		}
	}
	return nil
}

// Scale measures the time until pods run that need a node each, and its cost, with AutoNode's provider and with
// Karpenter's kwok provider, and prints the ratio. Karpenter's provider creates only Nodes, so the ratio is the cost of
// Cluster API. Beside them it scales a MachineDeployment until as many Nodes are ready. They run one after the other,
// each in its own world, so that none slows the other down.
//
// Scale fails if a size isn't completed, if AutoNode's provider makes more NodeClaims than there are pods, if a machine
// doesn't join although all pods run, and if an object of a machine is left. The report always has the measurements.
func Scale(ctx context.Context, cfg ScaleConfig) (*ScaleReport, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var out *os.File
	if cfg.JSON != "" { // that it can't be written is better known before than after
		var err error
		if out, err = os.Create(cfg.JSON); err != nil {
			return nil, fmt.Errorf("opening the file for the results: %w", err)
		}
		defer out.Close()
	}
	printer := progress.New(cfg.Out)
	task := printer.Task("Building Karpenter's kwok provider", "")
	bin, err := build(ctx, kwokProgram)
	if err != nil {
		task.Fail()
		return nil, err
	}
	task.End("built in " + progress.Duration(task.Elapsed()))
	report := &ScaleReport{Started: time.Now(), CPUs: goruntime.NumCPU()}
	var failures []error
	for _, c := range cfg.contestants() {
		r := &run{
			cfg: Config{Karpenter: cfg.Karpenter, Guests: 1, Providers: []string{c.Provider}, Out: cfg.Out},
			bin: bin, printer: printer,
		}
		world := localworld.Config{WithoutOperator: !c.Operator, ClusterAPI: c.ClusterAPI, AuditAllBut: []string{benchUser}, Profiles: cfg.Profiles != ""}
		if err := r.inWorld(ctx, world, func(ctx context.Context, s setup) error {
			// Together, so that the world's logs stay for whoever looks for the cause of either.
			return errors.Join(r.scale(ctx, s, c, cfg, report), report.overProvisioned(c))
		}); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", c, err))
		}
	}
	failures = append(failures, report.print(cfg.Out))
	if out != nil {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		failures = append(failures, encoder.Encode(report))
	}
	return report, errors.Join(failures...)
}

// Contestant is a provider that is measured in its own world.
type Contestant struct {
	Provider string `json:"provider"`
	// Operator: AutoNode's operator runs the provider.
	Operator bool `json:"operator"`
	// ClusterAPI is Cluster API's configuration, empty for a provider that doesn't use it.
	ClusterAPI string `json:"clusterAPI,omitempty"`
	// KwokDelay is the time after which the kwok provider's nodes join.
	KwokDelay time.Duration `json:"kwokDelayNanoseconds,omitempty"`
}

// installed is the provider as the suite names it.
func (c Contestant) installed() string {
	if c.Provider == ClusterAPI && !c.Operator {
		return Bare
	}
	return c.Provider
}

// String is the name in tables.
func (c Contestant) String() string {
	if c.ClusterAPI != "" && c.ClusterAPI != localworld.ClusterAPITuned {
		return c.Provider + ", " + c.ClusterAPI
	}
	if c.KwokDelay > 0 {
		return c.Provider + ", " + c.KwokDelay.String()
	}
	return c.Provider
}

// file is the name in files: two contestants may have one provider.
func (c Contestant) file() string { return strings.ReplaceAll(c.String(), ", ", "-") }

func (c ScaleConfig) contestants() []Contestant {
	var all []Contestant
	for _, provider := range c.Providers {
		if provider == Kwok {
			delays := c.KwokDelays
			if len(delays) == 0 {
				delays = []time.Duration{0}
			}
			for _, delay := range delays {
				all = append(all, Contestant{Provider: provider, KwokDelay: delay})
			}
			continue
		}
		for _, mode := range c.ClusterAPI {
			all = append(all, Contestant{Provider: provider, Operator: c.Operator && provider == ClusterAPI, ClusterAPI: mode})
		}
	}
	return all
}

// scale measures one provider in its own world.
func (r *run) scale(ctx context.Context, s setup, c Contestant, cfg ScaleConfig, report *ScaleReport) error {
	p, err := r.provider(c.installed(), s)
	if err != nil {
		return err
	}
	defer p.stop()
	subject, err := newSubject(ctx, s, c, p, cfg.Profiles)
	if err != nil {
		return err
	}
	defer subject.stop()
	if err := subject.house(ctx, cfg.Residents); err != nil {
		return err
	}
	for _, b := range cfg.bursts() {
		loops, err := startLoops(b.loops)
		if err != nil {
			return err
		}
		size := b.Size
		if c.Provider == MachineDeployment {
			size = apart(b.Nodes) // no pods share them
		}
		m, err := subject.measure(ctx, size)
		loops.stop()
		m.Size, m.BusyLoops = b.Size, b.loops
		if err != nil {
			m.Failure = err.Error()
		}
		report.Measurements = append(report.Measurements, m)
		if m.All > 0 {
			r.printer.Println(fmt.Sprintf("%s: %s ready after %s, gone after %s", m.name(), b.Size, after(m.All), after(m.Gone)))
		}
		if err != nil {
			return fmt.Errorf("%s pods: %w", b.Size, err)
		}
	}
	return nil
}
