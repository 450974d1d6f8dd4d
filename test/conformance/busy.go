// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/process"
)

const (
	// BusyPods is the size of Busy's bursts.
	BusyPods = 150
	// BusyBursts is their number.
	BusyBursts = 10
	// BusyLoops is the number of processes that take a core each.
	BusyLoops = 2
	// maxSlowdown is the ratio of the time beside busy loops to the time without.
	maxSlowdown = 2.5
)

// burst is a size, beside a number of busy loops.
type burst struct {
	Size
	loops int
}

// bursts are those of the sizes, unless others were chosen.
func (c ScaleConfig) bursts() []burst {
	if len(c.series) > 0 {
		return c.series
	}
	var all []burst
	for _, size := range c.Sizes {
		all = append(all, burst{Size: size})
	}
	return all
}

// Busy measures bursts on a machine that has other work to do: BusyBursts beside BusyLoops busy loops, and one before and
// one after them without. It fails if a machine is lost, if there is a NodeClaim or a Machine more than pods, and if a
// burst takes too much longer than without. It reads JSON, Profiles and Out of cfg.
func Busy(ctx context.Context, cfg ScaleConfig) error {
	cfg.Sizes, cfg.Providers, cfg.Operator, cfg.ClusterAPI = []Size{apart(BusyPods)}, []string{ClusterAPI}, true, []string{localworld.ClusterAPITuned}
	cfg.series = []burst{{Size: apart(BusyPods)}}
	for range BusyBursts {
		cfg.series = append(cfg.series, burst{apart(BusyPods), BusyLoops})
	}
	cfg.series = append(cfg.series, burst{Size: apart(BusyPods)})
	report, err := Scale(ctx, cfg)
	if err != nil {
		return err
	}
	if findings := checkBusy(report); len(findings) > 0 {
		return fmt.Errorf("bursts beside %d busy loops: %s", BusyLoops, strings.Join(findings, "; "))
	}
	fmt.Fprintf(cfg.Out, "\nAll %d bursts beside %d busy loops ended, each with %d Machines, after at most %.1f times as long as without.\n",
		BusyBursts, BusyLoops, BusyPods, slowdown(report))
	return nil
}

// checkBusy returns what is wrong with the bursts of a report.
func checkBusy(report *ScaleReport) []string {
	var findings []string
	for _, m := range report.Measurements {
		if m.NodeClaims != m.Pods || m.Machines != m.Pods {
			findings = append(findings, fmt.Sprintf("%d NodeClaims and %d Machines for %d pods", m.NodeClaims, m.Machines, m.Pods))
		}
	}
	if ratio := slowdown(report); ratio > maxSlowdown {
		findings = append(findings, fmt.Sprintf("%.2f times as long as without, and at most %.1f are allowed", ratio, maxSlowdown))
	}
	return findings
}

// slowdown is the ratio of the slowest burst beside busy loops to the fastest without.
func slowdown(report *ScaleReport) float64 {
	var without, beside float64
	for _, m := range report.Measurements {
		switch {
		case m.BusyLoops > 0:
			beside = max(beside, m.All)
		case without == 0 || m.All < without:
			without = m.All
		}
	}
	return beside / without
}

// loops are processes that take a core each.
type loops struct {
	spawner  *process.Spawner
	children []*process.Child
}

// startLoops starts some. They end with this process too.
func startLoops(count int) (*loops, error) {
	l := &loops{spawner: process.NewSpawner()}
	for range count {
		child, err := l.spawner.Start(exec.CommandContext(context.Background(), "sh", "-c", "while :; do :; done")) // until stop
		if err != nil {
			l.stop()
			return nil, err
		}
		l.children = append(l.children, child)
	}
	return l, nil
}

func (l *loops) stop() {
	for _, child := range l.children {
		child.Kill()
		child.Exit()
	}
	l.spawner.Close()
}
