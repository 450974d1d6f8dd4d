// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// DiffOptions are those of `autonode catalog diff`.
type DiffOptions struct {
	// Files are the old one and the new one.
	Files       [2]string
	FailOnDrift bool
}

func newDiffCommand() *cobra.Command {
	var o DiffOptions
	cmd := command.New(&cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare two versions of catalogs, and list the nodes that an update would replace",
		Long: `Compare two versions of catalogs, and list the nodes that an update would replace. It needs no cluster.

Changed prices, offerings, capacity and labels replace no node. Changed patches, overhead or template references replace
the nodes of their instance types. Removing an instance type closes its offerings; its nodes stay.`,
		Example: `  kubectl -n clusters-blue get instancetypecatalog general -o yaml | autonode catalog diff - catalog.yaml
  autonode catalog diff old.yaml new.yaml --fail-on-drift`,
		Args: command.ExactlyTwo(&o.Files, "OLD", "NEW", "two files with catalogs, or - for standard input"),
	}, &o)
	cmd.Flags().BoolVar(&o.FailOnDrift, "fail-on-drift", false, "exit with an error if nodes would be replaced")
	return cmd
}

// Run prints the difference.
func (o *DiffOptions) Run(_ context.Context, streams command.Streams) error {
	before, _, err := readCatalogs(streams.In, o.Files[:1])
	if err != nil {
		return err
	}
	after, _, err := readCatalogs(streams.In, o.Files[1:])
	if err != nil {
		return err
	}
	if drifting := diffCatalogs(streams.Out, before, after); o.FailOnDrift && drifting > 0 {
		return fmt.Errorf("the nodes of %d instance types would be replaced", drifting)
	}
	return nil
}

// catalogType is an instance type with what its catalog adds.
type catalogType struct {
	entry    *v1alpha1.CatalogInstanceType
	template v1alpha1.InfrastructureTemplateReference
	// machine is of the patches and the overhead: a node with another one is replaced.
	machine string // empty for an unusable type
}

func typesOf(catalogs []*v1alpha1.InstanceTypeCatalog) map[string]catalogType {
	types := map[string]catalogType{}
	for _, c := range catalogs {
		machines, read := map[string]string{}, catalog.Read(&c.Spec)
		for i := range read.Types {
			usable := &read.Types[i]
			machines[usable.Name] = usable.Patches.Hash() + "/" + usable.OverheadHash
		}
		for i := range c.Spec.InstanceTypes {
			entry := &c.Spec.InstanceTypes[i]
			if _, twice := types[entry.Name]; !twice { // the first one counts
				types[entry.Name] = catalogType{entry, c.Spec.TemplateRef, machines[entry.Name]}
			}
		}
	}
	return types
}

// diffCatalogs prints the difference, and returns the number of instance types whose nodes would be replaced.
func diffCatalogs(out io.Writer, before, after []*v1alpha1.InstanceTypeCatalog) (drifting int) {
	old, now := typesOf(before), typesOf(after)
	names := sets.KeySet(old).Union(sets.KeySet(now))
	added, removed, changed := 0, 0, 0
	for _, name := range sets.List(names) {
		was, existed := old[name]
		is, exists := now[name]
		switch {
		case !existed:
			added++
			printer.Printf(out, "+ %s\n", name)
			continue
		case !exists:
			removed++
			printer.Printf(out, "- %s: its offerings close, and its nodes stay\n", name)
			continue
		}
		parts, drifts := changesOf(was, is)
		if len(parts) == 0 {
			continue
		}
		changed++
		note := ""
		if drifts {
			drifting++
			note = "; its nodes are replaced"
		}
		printer.Printf(out, "~ %s: %s%s\n", name, strings.Join(parts, ", "), note)
	}
	summary := "no node is replaced"
	if drifting > 0 {
		summary = fmt.Sprintf("the nodes of %d instance types are replaced", drifting)
	}
	printer.Printf(out, "%d added, %d removed, %d changed; %s\n", added, removed, changed, summary)
	return drifting
}

// changesOf reports what has changed of an instance type, and whether its nodes drift.
func changesOf(was, is catalogType) (parts []string, drifts bool) {
	if was.template != is.template {
		// The other template may have the same content, but a diff of catalogs can't tell.
		parts, drifts = append(parts, fmt.Sprintf("template %s → %s", was.template.Name, is.template.Name)), true
	}
	switch {
	case is.machine == "" && was.machine != "":
		return append(parts, "becomes unusable: nothing more launches"), false
	case is.machine != "" && was.machine == "":
		return append(parts, "becomes usable"), false
	}
	if was.machine != is.machine {
		parts, drifts = append(parts, "patches or overhead"), true
	}
	if prices := pricesOf(was.entry, is.entry); prices != "" {
		parts = append(parts, prices)
	}
	for _, field := range []struct {
		name string
		same bool
	}{
		{"capacity", maps.Equal(was.entry.Capacity, is.entry.Capacity)}, {"memoryOverhead", was.entry.MemoryOverhead == is.entry.MemoryOverhead},
		{"labels", maps.Equal(was.entry.Labels, is.entry.Labels)}, {"architecture", was.entry.Architecture == is.entry.Architecture},
		{"operatingSystem", was.entry.OperatingSystem == is.entry.OperatingSystem},
	} {
		if !field.same {
			parts = append(parts, field.name)
		}
	}
	return parts, drifts
}

// pricesOf reports how the offerings of two entries differ.
func pricesOf(was, is *v1alpha1.CatalogInstanceType) string {
	old, now := pricesBy(was), pricesBy(is)
	changes := map[string]int{}
	for at, price := range now {
		before, existed := old[at]
		x, errX := strconv.ParseFloat(price, 64)
		y, errY := strconv.ParseFloat(before, 64)
		switch {
		case !existed || before == "" && price != "":
			changes["opened"]++
		case price == "" && before != "":
			changes["closed"]++
		case errX == nil && errY == nil && x > y:
			changes["dearer"]++
		case errX == nil && errY == nil && x < y:
			changes["cheaper"]++
		}
	}
	for at := range old {
		if _, exists := now[at]; !exists {
			changes["closed"]++
		}
	}
	var parts []string
	for _, change := range []string{"opened", "closed", "dearer", "cheaper"} {
		if count := changes[change]; count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count, change))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "offerings: " + strings.Join(parts, ", ")
}

func pricesBy(entry *v1alpha1.CatalogInstanceType) map[[3]string]string {
	prices := map[[3]string]string{}
	for i := range entry.Offerings {
		o := &entry.Offerings[i]
		zones, reservation := o.Zones, ""
		if len(zones) == 0 {
			zones = []v1alpha1.CatalogValue{""}
		}
		if o.Reservation != nil {
			reservation = o.Reservation.ID
		}
		for _, zone := range zones {
			prices[[3]string{string(zone), cmp.Or(o.CapacityType, catalog.OnDemand), reservation}] = o.Price
		}
	}
	return prices
}
