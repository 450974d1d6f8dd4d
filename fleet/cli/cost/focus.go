// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"cmp"
	"encoding/csv"
	"io"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/fleet/division"
)

// focusRow is a charge of an hour with the column names of FOCUS, the FinOps Open Cost and Usage Specification. Columns that it doesn't
// have begin with x_. https://focus.finops.org/focus-specification/
type focusRow struct {
	// BillingAccountName is the CapacityAccount, and SubAccountName the HostedCluster.
	BillingAccountName, SubAccountName, BillingCurrency, ChargeCategory, ServiceCategory string
	// ListCost is what it would cost on demand, ContractedCost what it is billed at without commitments, EffectiveCost with them.
	ListCost, ContractedCost, EffectiveCost float64
	// PricingCategory is Standard on demand and reserved, and Dynamic at spot.
	PricingCategory string
	// ConsumedQuantity of machines, or the unused amount of a commitment.
	ConsumedQuantity               float64
	ConsumedUnit, AvailabilityZone string
	// The commitment or reservation that is unused, and Unused.
	CommitmentDiscountName, CommitmentDiscountType, CommitmentDiscountStatus string

	CapacityReservationID     string `json:"CapacityReservationId"`
	CapacityReservationStatus string
	NodePool                  string `json:"x_NodePool"`
	InstanceType              string `json:"x_InstanceType"`
	CapacityType              string `json:"x_CapacityType"`
}

// focusColumns are the columns of a table, in the order of focusRow's fields.
var focusColumns = func() (columns []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[focusRow]()) {
		columns = append(columns, cmp.Or(field.Tag.Get("json"), field.Name))
	}
	return columns
}()

// focusRows returns a row for each kind of machine of each NodePool, and for what is unused. Their EffectiveCost is the bill.
func focusRows(costs []accountCost) []focusRow {
	rows := []focusRow{}
	for _, c := range costs {
		add := func(row focusRow) {
			row.BillingAccountName, row.BillingCurrency, row.ChargeCategory, row.ServiceCategory = c.Account, "USD", "Usage", "Compute"
			rows = append(rows, row)
		}
		for i := range c.Rows {
			m := &c.Rows[i]
			row := focusRow{
				SubAccountName: m.Cluster, NodePool: m.NodePool, InstanceType: m.InstanceType, CapacityType: m.CapacityType, AvailabilityZone: m.Zone,
				PricingCategory: "Standard", ConsumedQuantity: float64(m.Machines), ConsumedUnit: string(division.Instances),
				ListCost: m.OnDemand, ContractedCost: m.List, EffectiveCost: m.Paid,
			}
			if m.CapacityType == "spot" {
				row.PricingCategory = "Dynamic"
			}
			if m.Reservation != "" {
				row.CapacityReservationID, row.CapacityReservationStatus = m.Reservation, "Used"
			}
			add(row)
		}
		for _, use := range c.Commitments {
			if use.Unused > 0 {
				add(focusRow{
					PricingCategory: "Committed", ConsumedQuantity: use.Unused, ConsumedUnit: string(use.Unit), EffectiveCost: ptr.Deref(use.Wasted, 0),
					CommitmentDiscountName: use.Name, CommitmentDiscountType: string(use.Kind), CommitmentDiscountStatus: "Unused",
				})
			}
		}
		for i := range c.Reservations {
			use := &c.Reservations[i]
			if use.Unused == 0 || use.Expired {
				continue
			}
			list := use.Each.Price * float64(use.Unused)
			add(focusRow{
				PricingCategory: "Standard", CapacityReservationID: use.ID, CapacityReservationStatus: "Unused",
				InstanceType: use.InstanceType, AvailabilityZone: use.Zone, CapacityType: "reserved",
				ConsumedQuantity: float64(use.Unused), ConsumedUnit: string(division.Instances),
				ListCost: list, ContractedCost: list, EffectiveCost: ptr.Deref(use.Wasted, 0),
			})
		}
	}
	round(reflect.ValueOf(rows))
	return rows
}

// printFOCUS prints a table in CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe.
func printFOCUS(to io.Writer, costs []accountCost) error {
	table := [][]string{focusColumns}
	for _, row := range focusRows(costs) {
		var cells []string
		for _, value := range reflect.ValueOf(row).Fields() {
			cell := value.String()
			if value.CanFloat() {
				cell = strconv.FormatFloat(value.Float(), 'f', -1, 64)
			} else if cell != "" && strings.Contains("=+-@\t\r", cell[:1]) {
				cell = "'" + cell
			}
			cells = append(cells, cell)
		}
		table = append(table, cells)
	}
	return csv.NewWriter(to).WriteAll(table)
}
