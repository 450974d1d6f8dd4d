// SPDX-License-Identifier: Apache-2.0

// Package offerings is `autonode offerings`, which shows what a platform offers a cluster, at what price, and why some of it can't be
// launched now.
package offerings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// reasons are what the values of unavailable in a node class's status mean.
var reasons = map[string]string{
	"Paused":                 "its source or the Cluster is paused",
	v1alpha1.TemplateFull:    "its source is at its max size",
	"ImageNewer":             "its image is newer than nodes may run yet",
	"NoBootstrap":            "the node class's bootstrap can't be used",
	v1alpha1.TemplateBackOff: "all its offerings failed recently",
	v1alpha1.TemplateQuota:   "a quota of the infrastructure is exhausted",
	"NoPrice":                "the catalog has no price for it",
	"NoZone":                 "the catalog has no zone for it",
}

// Options are those of `autonode offerings`.
type Options struct {
	Cluster           cluster.Flags
	NodeClass, Output string
}

// NewCommand returns `autonode offerings`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "offerings",
		Short: "Show instance types with prices and zones, and those that are unavailable now",
		Long: `Show instance types with prices and zones, and those that are unavailable now.

The command reads the status of the guest's ClusterAPINodeClasses, which lists the hundred cheapest machine templates
and catalog entries that each selects. A NodePool's requirements restrict them further: see "autonode why pod".`,
		Example: `  autonode offerings
  autonode offerings --node-class default -o json`,
	}, &o)
	o.Cluster.Add(cmd, cluster.Guest, nil)
	cmd.Flags().StringVar(&o.NodeClass, "node-class", "", "show the offerings of one ClusterAPINodeClass; by default all")
	o.Cluster.Complete(cmd, &v1alpha1.ClusterAPINodeClass{}, "node-class")
	printer.AddFlag(cmd, &o.Output)
	return cmd
}

// Run prints the offerings.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	list := &v1alpha1.ClusterAPINodeClassList{}
	if err := o.Cluster.List(ctx, list, "ClusterAPINodeClasses", "node classes"); err != nil {
		return err
	}
	return o.print(streams.Out, list.Items)
}

// Listed are the offerings as --output json and yaml print them. Scripts may rely on the fields.
type Listed struct {
	NodeClasses []NodeClass `json:"nodeClasses"`
}

// NodeClass is what one node class offers.
type NodeClass struct {
	Name string `json:"name"`
	// TemplateCount is the number of usable templates, of which the status has one hundred at most.
	TemplateCount int32                     `json:"templateCount"`
	Templates     []v1alpha1.TemplateStatus `json:"templates"`
	// Problems are the node class's conditions that aren't True.
	Problems []status.Condition `json:"problems,omitempty"`
}

// print prints the node classes to show, by their names.
func (o *Options) print(to io.Writer, all []v1alpha1.ClusterAPINodeClass) error {
	slices.SortFunc(all, func(a, b v1alpha1.ClusterAPINodeClass) int { return strings.Compare(a.Name, b.Name) })
	classes, err := cluster.Named(all, v1alpha1.Kind, o.NodeClass, func(class *v1alpha1.ClusterAPINodeClass) string { return class.Name })
	if err != nil {
		return err
	}
	listed, names := Listed{NodeClasses: []NodeClass{}}, []string{}
	for i := range classes {
		class := &classes[i]
		shown := NodeClass{Name: class.Name, TemplateCount: ptr.Deref(class.Status.TemplateCount, 0), Templates: class.Status.Templates,
			Problems: problemsOf(class)}
		listed.NodeClasses = append(listed.NodeClasses, shown)
		for j := range shown.Templates {
			names = append(names, shown.Templates[j].InstanceType)
		}
	}
	return printer.Print(to, o.Output, listed, func(to io.Writer) error { return printTable(to, listed) }, names...)
}

// problemsOf returns the conditions that aren't True, or name exhausted quotas, without Ready, which repeats them.
func problemsOf(class *v1alpha1.ClusterAPINodeClass) []status.Condition {
	var problems []status.Condition
	for _, condition := range class.Status.Conditions {
		if condition.Type != status.ConditionReady && (condition.Status != "True" || condition.Reason == v1alpha1.QuotaExhaustedReason) {
			problems = append(problems, condition)
		}
	}
	return problems
}

func printTable(to io.Writer, listed Listed) error {
	table := printer.NewTable(to, "NODECLASS", "TYPE", "ARCH", "CPU", "MEMORY", "PODS", "GPU", "PRICE/H", "SPOT/H", "ZONES",
		"SOURCE", "AVAILABLE")
	rows := 0
	for _, class := range listed.NodeClasses {
		for i := range class.Templates {
			t := &class.Templates[i]
			rows++
			table.Row(class.Name, t.InstanceType, t.Architecture, t.CPU.String(), t.Memory.String(), t.Pods, gpus(t),
				dollars(t.Price), dollars(t.SpotPrice),
				cmp.Or(strings.Join(t.Zones, ","), "any"), t.Source, available(t))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(to, english.Plural(rows, "template", ""))
	for _, class := range listed.NodeClasses {
		if more := int(class.TemplateCount) - len(class.Templates); more > 0 {
			printer.Printf(to, "%s: the status leaves out %d that cost more\n", class.Name, more)
		}
		for _, problem := range class.Problems {
			printer.Printf(to, "%s: %s is %s (%s): %s\n", class.Name, problem.Type, string(problem.Status), problem.Reason, problem.Message)
		}
	}
	if rows == 0 {
		return errors.New("the platform offers nothing: no node class selects a machine template; see the lines above and " +
			"`kubectl get clusterapinodeclasses`")
	}
	return nil
}

// available reports why nothing launches from a template now, or yes.
func available(t *v1alpha1.TemplateStatus) string {
	switch reason, known := reasons[t.Unavailable]; {
	case t.Unavailable == "":
		return "yes"
	case known:
		return fmt.Sprintf("no, %s (%s)", reason, t.Unavailable)
	default:
		return fmt.Sprintf("no (%s)", t.Unavailable)
	}
}

func dollars(price string) string {
	if price == "" {
		return ""
	}
	return "$" + price
}

// gpus lists the GPUs by resource name.
func gpus(t *v1alpha1.TemplateStatus) string {
	var all []string
	for name, count := range t.GPU {
		all = append(all, fmt.Sprintf("%s %s", count.String(), name))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
