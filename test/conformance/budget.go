// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// BudgetPods is the size of the budget's burst.
const BudgetPods = 100

// budget limits what a node costs in a burst of BudgetPods.
var budget = []struct {
	what string
	// limit may depend on the kwok provider's requests in a burst of that size.
	limit func(kwok Measurement) float64
	spent func(ours Measurement) float64
}{
	{
		"management: all requests",
		func(Measurement) float64 { return 19 },
		func(ours Measurement) float64 { return ours.Up.Management.PerNode },
	},
	{
		"management: conflicts",
		func(Measurement) float64 { return 1 },
		func(ours Measurement) float64 { return ours.Up.Management.ConflictsPerNode },
	},
	{
		"management: Karpenter's requests",
		func(Measurement) float64 { return 5 },
		func(ours Measurement) float64 { return ours.Up.Management.Of(byKarpenter) },
	},
	{
		// A real kubelet's two certificates are eight of those.
		"guest: all requests, as many as with the kwok provider",
		func(kwok Measurement) float64 { return kwok.Up.Guest.PerNode },
		func(ours Measurement) float64 { return ours.Up.Guest.PerNode },
	},
	{
		// Karpenter core has three of its own.
		"guest: conflicts",
		func(Measurement) float64 { return 6 },
		func(ours Measurement) float64 { return ours.Up.Guest.ConflictsPerNode },
	},
	{
		// Those of API servers, etcd, Cluster API, the operator, Karpenter and the world.
		"CPU time of all processes, in seconds",
		func(Measurement) float64 { return 1.1 },
		Measurement.CPUPerNode,
	},
}

func byKarpenter(r audit.Request) bool {
	return strings.HasPrefix(r.User, "system:serviceaccount:"+hosting.Namespace+"-") && strings.HasSuffix(r.User, ":"+localworld.KarpenterServiceAccount)
}

// Budget measures the budget's burst, with the operator and with the kwok provider, and fails if a node exceeds it. It
// reads JSON and Out of cfg.
func Budget(ctx context.Context, cfg ScaleConfig) error {
	cfg.Sizes, cfg.Providers, cfg.Operator, cfg.ClusterAPI = []Size{apart(BudgetPods)}, []string{ClusterAPI, Kwok}, true, []string{localworld.ClusterAPITuned}
	report, err := Scale(ctx, cfg)
	if err != nil {
		return err
	}
	findings, err := checkBudget(cfg.Out, report)
	if err != nil {
		return err
	}
	if len(findings) > 0 {
		return fmt.Errorf("a node costs too much: %s", strings.Join(findings, "; "))
	}
	return nil
}

// checkBudget prints what a node costs beside the limits, and returns the exceeded ones. The report needs both
// measurements.
func checkBudget(out io.Writer, report *ScaleReport) ([]string, error) {
	ours, haveOurs := report.find(ClusterAPI)
	kwok, haveKwok := report.find(Kwok)
	if !haveOurs || !haveKwok {
		return nil, fmt.Errorf("a burst of %d pods wasn't measured with both providers", BudgetPods)
	}
	var findings []string
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nFor each of %d nodes\tbudget\tspent\t\n", BudgetPods)
	for _, row := range budget {
		limit, spent, outcome := row.limit(kwok), row.spent(ours), ""
		if spent > limit {
			outcome = "too much"
			findings = append(findings, fmt.Sprintf("%s: %.1f for each node, and %.1f are the budget", row.what, spent, limit))
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%s\n", row.what, limit, spent, outcome)
	}
	return findings, table.Flush()
}

// find returns a provider's measurement of the budget's burst.
func (r *ScaleReport) find(provider string) (Measurement, bool) {
	for _, m := range r.Measurements {
		if m.Provider == provider && m.Pods == BudgetPods && m.Failure == "" {
			return m, true
		}
	}
	return Measurement{}, false
}
