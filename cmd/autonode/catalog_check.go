// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func newCatalogCheckCommand() *cobra.Command {
	var files []string
	var printed string
	cmd := &cobra.Command{
		Use:   "check -f FILE...",
		Short: "Render the machine of each instance type, without a cluster",
		Long: `Render the machine of each instance type, without a cluster.

The files contain catalogs and the infrastructure templates that they refer to, and may contain the node class with its
bootstrap template. Each instance type is rendered once for each capacity type that it is sold in. What can't be used is
named, and is an error.`,
		Example: `  autonode catalog check -f catalog.yaml -f templates.yaml
  autonode catalog check -f catalog.yaml -f templates.yaml --print m5.large`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return errors.New("name the files with the catalogs and their templates: -f FILE")
			}
			return checkCatalogs(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), files, printed)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file with objects in YAML or JSON, or - for standard input; may be repeated")
	cmd.Flags().StringVar(&printed, "print", "", "name of the instance type whose machines to print")
	return cmd
}

// checkCatalogs reads catalogs as Karpenter does. The error joins what can't be used.
func checkCatalogs(ctx context.Context, stdin io.Reader, out io.Writer, files []string, printed string) error {
	catalogs, objects, err := readCatalogs(stdin, files)
	if err != nil {
		return err
	}
	for _, object := range objects {
		object.SetNamespace(corev1.NamespaceDefault)
	}
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	if classes, err := objects.List(ctx, schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}, labels.Everything()); err == nil && len(classes) > 0 {
		if nodeClass, err = objects.nodeClass(); err != nil {
			return err
		}
	}
	// All of the files, wherever they would be.
	nodeClass.Spec.TemplateSelectors = v1alpha1.TemplateSelectors{CatalogSelectors: []v1alpha1.CatalogSelector{{}}}
	resolver := template.NewResolver(template.Config{Objects: objects, ClusterName: "example", Namespace: corev1.NamespaceDefault, Secrets: anySecret{}})
	found, err := resolver.Resolve(ctx, nodeClass)
	if err != nil {
		return err
	}
	found = found.Checked(func(tmpl *template.Template) error { return machine.CheckPatches(nodeClass, tmpl) })
	problems := slices.Concat(found.SelectorErrs, found.Unreadable, found.Closed)
	for _, invalid := range found.Invalid {
		problems = append(problems, invalid)
	}
	machines, offerings, shown := 0, 0, false
	for i := range found.Templates {
		tmpl := &found.Templates[i]
		machines, offerings = machines+len(tmpl.CapacityTypes()), offerings+len(tmpl.Offerings)
		if tmpl.InstanceType != printed {
			continue
		}
		for _, capacityType := range tmpl.CapacityTypes() {
			if err := printMachine(out, nodeClass, tmpl, capacityType); err != nil {
				return err
			}
			shown = true
		}
	}
	if printed != "" && !shown {
		problems = append(problems, fmt.Errorf("no usable instance type is called %s", printed))
	}
	if printed == "" {
		printf(out, "%d catalogs: %d usable instance types, %d offerings, %d machines rendered\n", len(catalogs), len(found.Templates), offerings, machines)
	}
	return errors.Join(problems...)
}

func printMachine(out io.Writer, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, capacityType string) error {
	chosen := machine.Chosen{ClusterName: "example", Version: "1.36.3", CapacityType: capacityType}
	for i := range tmpl.Offerings {
		if o := &tmpl.Offerings[i]; o.CapacityType == capacityType {
			chosen.Zone, chosen.ReservationID = o.Zone, o.Reservation
			break
		}
	}
	return renderTemplate(out, nodeClass, tmpl, chosen)
}

func newCatalogDiffCommand() *cobra.Command {
	fail := false
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what an update of catalogs would change, and which nodes it would replace",
		Long: `Say what an update of catalogs would change, and which nodes it would replace. It needs no cluster.

Prices, offerings, capacity and labels replace no node. Patches, overhead and the template reference do, of the instance types
whose patches or overhead they are. A type that is removed closes its offerings, and its nodes stay.`,
		Example: `  kubectl -n clusters-blue get instancetypecatalog general -o yaml | autonode catalog diff - catalog.yaml
  autonode catalog diff old.yaml new.yaml --fail-on-drift`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, _, err := readCatalogs(cmd.InOrStdin(), args[:1])
			if err != nil {
				return err
			}
			after, _, err := readCatalogs(cmd.InOrStdin(), args[1:])
			if err != nil {
				return err
			}
			drifting := diffCatalogs(cmd.OutOrStdout(), before, after)
			if fail && drifting > 0 {
				return fmt.Errorf("the nodes of %d instance types would be replaced", drifting)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&fail, "fail-on-drift", false, "exit with an error if nodes would be replaced")
	return cmd
}

// catalogType is an instance type with what its catalog adds.
type catalogType struct {
	entry    *v1alpha1.CatalogInstanceType
	template v1alpha1.InfrastructureTemplateReference
	// machine is of the patches and the overhead: a node with another one is replaced.
	machine string
	problem string
}

func typesOf(catalogs []*v1alpha1.InstanceTypeCatalog) map[string]catalogType {
	types := map[string]catalogType{}
	for _, c := range catalogs {
		read := catalog.Read(&c.Spec)
		usable := map[string]*catalog.Type{}
		for i := range read.Types {
			usable[read.Types[i].Name] = &read.Types[i]
		}
		for i := range c.Spec.InstanceTypes {
			entry := &c.Spec.InstanceTypes[i]
			if _, twice := types[entry.Name]; twice {
				continue // the first one counts
			}
			t := catalogType{entry: entry, template: c.Spec.TemplateRef}
			if parsed := usable[entry.Name]; parsed != nil {
				t.machine = parsed.Patches.Hash() + "/" + parsed.OverheadHash
			} else {
				t.problem = "unusable"
			}
			types[entry.Name] = t
		}
	}
	return types
}

// diffCatalogs prints the difference, and returns the number of instance types whose nodes would be replaced.
func diffCatalogs(out io.Writer, before, after []*v1alpha1.InstanceTypeCatalog) (drifting int) {
	old, now := typesOf(before), typesOf(after)
	names := map[string]bool{}
	maps.Copy(names, keysOf(old))
	maps.Copy(names, keysOf(now))
	added, removed, changed := 0, 0, 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, existed := old[name]
		is, exists := now[name]
		switch {
		case !existed:
			added++
			printf(out, "+ %s\n", name)
			continue
		case !exists:
			removed++
			printf(out, "- %s: its offerings close, and its nodes stay\n", name)
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
		printf(out, "~ %s: %s%s\n", name, strings.Join(parts, ", "), note)
	}
	summary := "no node is replaced"
	if drifting > 0 {
		summary = fmt.Sprintf("the nodes of %d instance types are replaced", drifting)
	}
	printf(out, "%d added, %d removed, %d changed; %s\n", added, removed, changed, summary)
	return drifting
}

func keysOf(types map[string]catalogType) map[string]bool {
	keys := make(map[string]bool, len(types))
	for name := range types {
		keys[name] = true
	}
	return keys
}

// changesOf says what has changed of an instance type, and whether its nodes drift.
func changesOf(was, is catalogType) (parts []string, drifts bool) {
	if was.template != is.template {
		// The other template may have the same content, but a diff of catalogs can't tell.
		parts, drifts = append(parts, fmt.Sprintf("template %s → %s", was.template.Name, is.template.Name)), true
	}
	switch {
	case is.problem != "" && was.problem == "":
		return append(parts, "becomes unusable, so that nothing more is launched"), false
	case is.problem == "" && was.problem != "":
		return append(parts, "becomes usable"), false
	}
	if was.machine != is.machine {
		parts, drifts = append(parts, "patches or overhead"), true
	}
	if prices := pricesOf(was.entry, is.entry); prices != "" {
		parts = append(parts, prices)
	}
	for _, field := range []struct {
		name     string
		was, now any
	}{
		{"capacity", was.entry.Capacity, is.entry.Capacity}, {"memoryOverhead", was.entry.MemoryOverhead, is.entry.MemoryOverhead},
		{"labels", was.entry.Labels, is.entry.Labels}, {"architecture", was.entry.Architecture, is.entry.Architecture},
		{"operatingSystem", was.entry.OperatingSystem, is.entry.OperatingSystem},
	} {
		if !same(field.was, field.now) {
			parts = append(parts, field.name)
		}
	}
	return parts, drifts
}

// same compares as JSON: an empty map is none.
func same(a, b any) bool {
	first, errFirst := json.Marshal(a)
	second, errSecond := json.Marshal(b)
	empty := func(raw []byte) bool { return slices.Contains([]string{"null", "{}", "[]", `""`}, string(raw)) }
	return errFirst == nil && errSecond == nil && (string(first) == string(second) || empty(first) && empty(second)) || reflect.DeepEqual(a, b)
}

// pricesOf says how the offerings of two entries differ.
func pricesOf(was, is *v1alpha1.CatalogInstanceType) string {
	old, now := pricesBy(was), pricesBy(is)
	opened, closed, dearer, cheaper := 0, 0, 0, 0
	for at, price := range now {
		before, existed := old[at]
		x, errX := strconv.ParseFloat(price, 64)
		y, errY := strconv.ParseFloat(before, 64)
		switch {
		case !existed || before == "" && price != "":
			opened++
		case price == "" && before != "":
			closed++
		case errX == nil && errY == nil && x > y:
			dearer++
		case errX == nil && errY == nil && x < y:
			cheaper++
		}
	}
	for at := range old {
		if _, exists := now[at]; !exists {
			closed++
		}
	}
	var parts []string
	for _, count := range []struct {
		n    int
		what string
	}{{opened, "opened"}, {closed, "closed"}, {dearer, "dearer"}, {cheaper, "cheaper"}} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count.n, count.what))
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
