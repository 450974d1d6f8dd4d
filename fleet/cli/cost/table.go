// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/message"
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

// view is what is printed as JSON and YAML: a format that scripts may rely on. Amounts are in US dollars an hour.
type view struct {
	Accounts []accountView `json:"accounts"`
	// FOCUS are the same costs with the column names of FOCUS, by NodePool and instance type.
	FOCUS []focusRow `json:"focus"`
}

type accountView struct {
	// Account is empty for clusters without one.
	Account      string            `json:"account"`
	Rows         []rowView         `json:"rows"`
	Total        sumsView          `json:"total"`
	Wasted       float64           `json:"wasted"`
	Commitments  []commitmentView  `json:"commitments,omitempty"`
	Reservations []reservationView `json:"reservations,omitempty"`
	Problems     []string          `json:"problems,omitempty"`
}

type rowView struct {
	Cluster      string `json:"cluster,omitempty"`
	NodePool     string `json:"nodePool,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	sumsView
}

type sumsView struct {
	Machines  int64     `json:"machines"`
	Unpriced  int64     `json:"unpriced,omitempty"`
	OnDemand  float64   `json:"onDemand"`
	List      float64   `json:"list"`
	Paid      float64   `json:"paid"`
	Committed float64   `json:"committed"`
	Saved     savedView `json:"saved"`
}

type savedView struct {
	Spot         float64 `json:"spot"`
	Reservations float64 `json:"reservations"`
	Commitments  float64 `json:"commitments"`
}

// commitmentView has amounts of money, of machines, of vCPUs or of GiB. Wasted is what is unused costs, and null if that isn't known.
type commitmentView struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Unit      string   `json:"unit"`
	Committed float64  `json:"committed"`
	Used      float64  `json:"used"`
	Unused    float64  `json:"unused"`
	Wasted    *float64 `json:"wasted"`
}

type reservationView struct {
	ID      string   `json:"id"`
	Count   int64    `json:"count"`
	Used    int64    `json:"used"`
	Unused  int64    `json:"unused"`
	Wasted  *float64 `json:"wasted"`
	Expired bool     `json:"expired,omitempty"`
}

// wasted is null if it isn't known.
func wasted(amount float64, unknown bool) *float64 {
	if unknown {
		return nil
	}
	amount = rounded(amount)
	return &amount
}

// units of a commitment, as JSON and tables name them.
var units = map[division.Measure]string{division.Money: "dollars", division.Instances: "machines",
	division.CPUs: "vCPUs", division.GiBs: "GiB"}

// rounded cuts what floating-point arithmetic adds.
func rounded(amount float64) float64 { return math.Round(amount*1e6) / 1e6 }

func viewSums(s *cost.Sums) sumsView {
	return sumsView{
		Machines: s.Machines, Unpriced: s.Unpriced, OnDemand: rounded(s.OnDemand), List: rounded(s.List), Paid: rounded(s.Paid),
		Committed: rounded(s.Committed),
		Saved:     savedView{rounded(s.SavedBySpot), rounded(s.SavedByReservations), rounded(s.SavedByCommitments)},
	}
}

func viewCosts(costs []accountCost, group group) view {
	view := view{Accounts: []accountView{}, FOCUS: focusRows(costs)}
	for i := range costs {
		c := &costs[i]
		account := accountView{Account: c.name, Rows: []rowView{}, Total: viewSums(&c.Total), Wasted: rounded(c.Wasted), Problems: c.problems}
		for _, row := range c.Group(group.keyOf) {
			account.Rows = append(account.Rows, rowView{row.Cluster, row.NodePool, row.InstanceType, row.CapacityType, viewSums(&row.Sums)})
		}
		for _, use := range c.Commitments {
			account.Commitments = append(account.Commitments, commitmentView{
				use.Name, string(use.Kind), units[use.Measure], rounded(use.Committed), rounded(use.Used), rounded(use.Unused),
				wasted(use.Wasted, use.Unknown),
			})
		}
		for _, use := range c.Reservations {
			account.Reservations = append(account.Reservations, reservationView{use.ID, use.Count, use.Used, use.Unused,
				wasted(use.Wasted, use.Unknown), use.Expired})
		}
		view.Accounts = append(view.Accounts, account)
	}
	return view
}

func printCosts(to io.Writer, costs []accountCost, group group, output string) error {
	if output == "csv" {
		return printFOCUS(to, costs)
	}
	return printer.Print(to, output, viewCosts(costs, group), func(to io.Writer) error { return tabulate(to, costs, group) })
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
	uses := false
	for i := range costs {
		c := &costs[i]
		uses = uses || len(c.Commitments)+len(c.Reservations) > 0
		for _, row := range c.Group(group.keyOf) {
			cells := []any{c.name}
			for _, column := range group {
				cells = append(cells, *columns[column](&row.Key))
			}
			table.Row(append(cells, row.Machines, printer.Dollars(row.OnDemand), printer.Dollars(row.List), printer.Dollars(row.Paid),
				printer.Dollars(row.Saved()))...)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if uses {
		fmt.Fprintln(to)
		table = printer.NewTable(to, "ACCOUNT", "POOL", "COMMITTED", "USED", "UNUSED", "WASTED/H")
		for i := range costs {
			used(table, &costs[i])
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(to)
	for i := range costs {
		fmt.Fprintln(to, summary(&costs[i]))
	}
	return nil
}

// used adds the rows about an account's commitments and reservations.
func used(table *printer.Table, c *accountCost) {
	for _, use := range c.Commitments {
		format := func(amount float64) string { return printer.Dollars(amount) + "/h" }
		if use.Measure != division.Money {
			format = func(amount float64) string { return fmt.Sprintf("%.4g %s", amount, units[use.Measure]) }
		}
		table.Row(c.name, "commitment/"+use.Name, format(use.Committed), format(use.Used), format(use.Unused), dollarsOr(use.Wasted, use.Unknown))
	}
	for _, use := range c.Reservations {
		committed := fmt.Sprintf("%d machines", use.Count)
		if use.Expired {
			committed += ", expired"
		}
		table.Row(c.name, "reservation/"+use.ID, committed, fmt.Sprintf("%d machines", use.Used), fmt.Sprintf("%d machines", use.Unused),
			dollarsOr(use.Wasted, use.Unknown))
	}
}

// dollarsOr is a question mark if an amount isn't known.
func dollarsOr(amount float64, unknown bool) string {
	if unknown {
		return "?"
	}
	return printer.Dollars(amount)
}

// summary reports what an account's machines cost, and why that is less than on demand.
func summary(c *accountCost) string {
	total := &c.Total
	text := fmt.Sprintf("%s: %s for %s an hour", cmp.Or(message.Line(c.name), "without an account"),
		english.Plural(int(total.Machines), "machine", ""), printer.Dollars(total.Paid))
	if c.Wasted > 0 {
		text += fmt.Sprintf(", and %s for what is unused", printer.Dollars(c.Wasted))
	}
	var saved []string
	for _, by := range []struct {
		what   string
		amount float64
	}{{"spot", total.SavedBySpot}, {"reservations", total.SavedByReservations}, {"commitments", total.SavedByCommitments}} {
		if rounded(by.amount) != 0 {
			saved = append(saved, printer.Dollars(by.amount)+" by "+by.what)
		}
	}
	if len(saved) > 0 {
		text += fmt.Sprintf("\n  %s as nodes of their own on demand; saved: %s", printer.Dollars(total.OnDemand), strings.Join(saved, ", "))
	}
	if total.Unpriced > 0 {
		text += fmt.Sprintf("\n  %s without a price", english.Plural(int(total.Unpriced), "machine", ""))
	}
	for _, problem := range c.problems {
		text += "\n  " + message.Line(problem)
	}
	return text
}
