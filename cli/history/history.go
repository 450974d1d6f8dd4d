// SPDX-License-Identifier: Apache-2.0

// Package history is `autonode history`, which shows when nodes came and went, why, and what they cost.
package history

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// Options are those of `autonode history`.
type Options struct {
	Cluster          cluster.Flags
	NodePool, Output string
	Since            time.Duration
}

// NewCommand returns `autonode history`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "history",
		Short: "Show when nodes came and went, why, and what they cost",
		Long: `Show when nodes came and went, why, and what they cost.

The command reads the guest's NodeRecords, which Karpenter keeps for a week by default. A node's cost is its price at the launch
times the time that it lived; that of a running node isn't in the sum.`,
		Example: `  autonode history
  autonode history --since 168h --nodepool general -o json`,
	}, &o)
	o.Cluster.Add(cmd, cluster.Guest, nil)
	flags := cmd.Flags()
	flags.StringVar(&o.NodePool, "nodepool", "", "show the nodes of one NodePool; by default all")
	flags.DurationVar(&o.Since, "since", 24*time.Hour, "show what happened in that time")
	o.Cluster.Complete(cmd, &karpv1.NodePool{}, "nodepool")
	printer.AddFlag(cmd, &o.Output)
	return cmd
}

// Event is a node's launch or end as --output json and yaml print it. Scripts may rely on the fields.
type Event struct {
	Time         time.Time           `json:"time"`
	Node         v1alpha1.RecordText `json:"node"`
	NodePool     v1alpha1.RecordText `json:"nodePool,omitempty"`
	InstanceType v1alpha1.RecordText `json:"instanceType,omitempty"`
	// Reason is empty for a launch.
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text"`
}

// Run prints the timeline.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	list := &v1alpha1.NodeRecordList{}
	if err := o.Cluster.List(ctx, list, "NodeRecords", "NodeRecords"); err != nil {
		return err
	}
	events, names, gone, cost := o.timeline(list.Items, time.Now().Add(-o.Since))
	return printer.Print(streams.Out, o.Output, struct {
		Events []Event `json:"events"`
	}{events}, func(to io.Writer) error {
		if len(events) == 0 {
			printer.Printf(to, "no node came or went in the last %s; --since looks back further\n", duration.HumanDuration(o.Since))
			return nil
		}
		table := printer.NewTable(to, "TIME", "NODE", "POOL", "TYPE", "EVENT")
		for _, e := range events {
			table.Row(e.Time.UTC().Format(time.DateTime), e.Node, e.NodePool, e.InstanceType, e.Text)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		printer.Printf(to, "%s launched, %d gone for %s\n", english.Plural(len(events)-gone, "node", ""), gone, printer.Dollars(cost))
		return nil
	}, names...)
}

// timeline returns the events after a time, oldest first, and the names of their records. The guest's admin may edit costs.
func (o *Options) timeline(records []v1alpha1.NodeRecord, after time.Time) (events []Event, names []string, gone int, cost float64) {
	events = []Event{}
	for i := range records {
		r, before := &records[i], len(events)
		if o.NodePool != "" && string(r.Launch.NodePool) != o.NodePool {
			continue
		}
		event := Event{Node: r.Launch.Node, NodePool: r.Launch.NodePool, InstanceType: r.Launch.InstanceType}
		if event.Time = r.Launch.Time.At(); event.Time.After(after) {
			event.Text = strings.TrimSuffix(fmt.Sprintf("launched for %s, %s/h", r.Launch.For, r.Launch.PricePerHour), ", /h") // some have no price
			events = append(events, event)
		}
		if r.End != nil && r.End.Time.At().After(after) {
			event.Time, event.Reason = r.End.Time.At(), r.End.Reason
			event.Text = fmt.Sprintf("gone after %s, %s: %s", cmp.Or(r.End.Lived, "an unknown time"), cmp.Or(r.End.Cost, "no price"), r.End.Because)
			events = append(events, event)
			if dollars, err := strconv.ParseFloat(strings.TrimPrefix(string(r.End.Cost), "$"), 64); err == nil {
				cost += dollars
			}
			gone++
		}
		if len(events) > before {
			names = append(names, r.Name)
		}
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return events, names, gone, cost
}
