// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
)

// columns are those of a row's subject, beside the account's.
var columns = map[string]func(*cost.Key) *string{
	"CLUSTER":  func(k *cost.Key) *string { return &k.Cluster },
	"NODEPOOL": func(k *cost.Key) *string { return &k.NodePool },
	"TYPE":     func(k *cost.Key) *string { return &k.InstanceType },
	"CAPACITY": func(k *cost.Key) *string { return &k.CapacityType },
}

// group has the columns of a row's subject.
type group []string

// keyOf returns a key with the group's columns alone.
func (g group) keyOf(k cost.Key) (grouped cost.Key) {
	for _, column := range g {
		*columns[column](&grouped) = *columns[column](&k)
	}
	return grouped
}

// groupNames are the values of --by.
var groupNames = []string{"account", "cluster", "nodepool", "type", "capacity-type"}

var groups = map[string]group{
	"account": {}, "cluster": {"CLUSTER"}, "nodepool": {"CLUSTER", "NODEPOOL"}, "type": {"TYPE"}, "capacity-type": {"CAPACITY"},
}

// view is printed as JSON and YAML: a format that scripts may rely on. Amounts are in US dollars an hour.
type view struct {
	Accounts []accountCost `json:"accounts"`
	// FOCUS are the same costs with the column names of FOCUS, by NodePool and instance type.
	FOCUS []focusRow `json:"focus"`
}

func viewCosts(costs []accountCost, group group) *view {
	view := &view{Accounts: []accountCost{}, FOCUS: focusRows(costs)}
	for _, c := range costs {
		report := *c.Report
		report.Rows = c.Group(group.keyOf)
		c.Report = &report
		view.Accounts = append(view.Accounts, c)
	}
	round(reflect.ValueOf(view))
	return view
}

// round cuts the rounding errors of all amounts that are printed.
func round(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(math.Round(v.Float()*1e6) / 1e6)
	case reflect.Pointer:
		round(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			round(v.Index(i))
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() && field.Tag.Get("json") != "-" {
				round(value)
			}
		}
	}
}

func printCosts(to io.Writer, costs []accountCost, group group, output string) error {
	if output == "csv" {
		return printFOCUS(to, costs)
	}
	var names []string
	for _, c := range costs {
		names = append(names, cmp.Or(c.Account, "without an account"))
	}
	return printer.Print(to, output, viewCosts(costs, group), func(to io.Writer) error { return tabulate(to, costs, group) }, names...)
}

// tabulate writes the rows, what is used of commitments and reservations, and what is saved in all.
func tabulate(to io.Writer, costs []accountCost, group group) error {
	if len(costs) == 0 {
		_, err := fmt.Fprintln(to, "no CapacityAccounts, and no Machines that Karpenter launched")
		return err
	}
	header := []any{"ACCOUNT"}
	for _, column := range group {
		header = append(header, column)
	}
	table := printer.NewTable(to, append(header, "MACHINES", "ON-DEMAND/H", "LIST/H", "PAID/H", "SAVED/H")...)
	for _, c := range costs {
		for _, row := range c.Group(group.keyOf) {
			cells := []any{c.Account}
			for _, column := range group {
				cells = append(cells, *columns[column](&row.Key))
			}
			table.Row(append(cells, row.Machines, printer.Dollars(row.OnDemand), printer.Dollars(row.List), printer.Dollars(row.Paid),
				printer.Dollars(row.OnDemand-row.Paid))...)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(costs, func(c accountCost) bool { return len(c.Commitments)+len(c.Reservations) > 0 }) {
		fmt.Fprintln(to)
		table = printer.NewTable(to, "ACCOUNT", "POOL", "COMMITTED", "USED", "UNUSED", "WASTED/H")
		for _, c := range costs {
			used(table, c)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(to)
	for _, c := range costs {
		fmt.Fprintln(to, summary(c))
	}
	return nil
}

// used adds the rows about an account's commitments and reservations.
func used(table *printer.Table, c accountCost) {
	row := func(pool string, wasted *float64, amounts ...any) {
		cell := "?"
		if wasted != nil {
			cell = printer.Dollars(*wasted)
		}
		table.Row(slices.Concat([]any{c.Account, pool}, amounts, []any{cell})...)
	}
	for _, use := range c.Commitments {
		format := func(amount float64) string { return printer.Dollars(amount) + "/h" }
		if use.Unit != division.Money {
			format = func(amount float64) string { return fmt.Sprintf("%.4g %s", amount, use.Unit) }
		}
		row("commitment/"+use.Name, use.Wasted, format(use.Committed), format(use.Used), format(use.Unused))
	}
	for i := range c.Reservations {
		use := &c.Reservations[i]
		format := func(count int64) string { return fmt.Sprintf("%d machines", count) }
		committed := format(use.Count)
		if use.Expired {
			committed += ", expired"
		}
		row("reservation/"+use.ID, use.Wasted, committed, format(use.Used), format(use.Unused))
	}
}

// summary reports what an account's machines cost, and why that is less than on demand.
func summary(c accountCost) string {
	total := &c.Total
	text := fmt.Sprintf("%s: %s for %s an hour", cmp.Or(message.Line(c.Account), "without an account"),
		english.Plural(int(total.Machines), "machine", ""), printer.Dollars(total.Paid))
	if c.Wasted > 0 {
		text += fmt.Sprintf(", plus %s for unused commitments and reservations", printer.Dollars(c.Wasted))
	}
	var saved []string
	for i, amount := range []float64{total.Saved.Spot, total.Saved.Reservations, total.Saved.Commitments} {
		if math.Abs(amount) >= 0.5e-6 {
			saved = append(saved, printer.Dollars(amount)+" by "+[]string{"spot", "reservations", "commitments"}[i])
		}
	}
	if len(saved) > 0 {
		text += fmt.Sprintf("\n  %s at on-demand list prices; saved: %s", printer.Dollars(total.OnDemand), strings.Join(saved, ", "))
	}
	if total.Unpriced > 0 {
		text += fmt.Sprintf("\n  %s without a price", english.Plural(int(total.Unpriced), "machine", ""))
	}
	for _, problem := range c.Problems {
		text += "\n  " + message.Line(problem)
	}
	return text
}
