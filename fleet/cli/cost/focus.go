// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"encoding/csv"
	"io"
	"reflect"
	"slices"
	"strconv"

	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

// focusRow is a charge of an hour with the column names of FOCUS, the FinOps Open Cost and Usage Specification. Columns that it doesn't
// have begin with x_. https://focus.finops.org/focus-specification/
type focusRow struct {
	// BillingAccountName is the CapacityAccount, and SubAccountName the HostedCluster.
	BillingAccountName string `json:"BillingAccountName"`
	SubAccountName     string `json:"SubAccountName"`
	BillingCurrency    string `json:"BillingCurrency"`
	ChargeCategory     string `json:"ChargeCategory"`
	ServiceCategory    string `json:"ServiceCategory"`
	// ListCost is what it would cost on demand, ContractedCost what it is billed at without commitments, EffectiveCost with them.
	ListCost       float64 `json:"ListCost"`
	ContractedCost float64 `json:"ContractedCost"`
	EffectiveCost  float64 `json:"EffectiveCost"`
	// PricingCategory is Standard on demand and reserved, and Dynamic at spot.
	PricingCategory string `json:"PricingCategory"`
	// ConsumedQuantity of machines, or what is unused of a commitment.
	ConsumedQuantity float64 `json:"ConsumedQuantity"`
	ConsumedUnit     string  `json:"ConsumedUnit"`
	AvailabilityZone string  `json:"AvailabilityZone"`
	// What is unused, and Unused.
	CommitmentDiscountName    string `json:"CommitmentDiscountName"`
	CommitmentDiscountType    string `json:"CommitmentDiscountType"`
	CommitmentDiscountStatus  string `json:"CommitmentDiscountStatus"`
	CapacityReservationID     string `json:"CapacityReservationId"`
	CapacityReservationStatus string `json:"CapacityReservationStatus"`
	NodePool                  string `json:"x_NodePool"`
	InstanceType              string `json:"x_InstanceType"`
	CapacityType              string `json:"x_CapacityType"`
}

// focusColumns are the columns of a table, in the order of focusRow's fields.
var focusColumns = func() (columns []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[focusRow]()) {
		columns = append(columns, field.Tag.Get("json"))
	}
	return columns
}()

func (r *focusRow) cells() (cells []string) {
	for _, value := range reflect.ValueOf(*r).Fields() {
		cell := value.String()
		if value.CanFloat() {
			cell = strconv.FormatFloat(value.Float(), 'f', -1, 64)
		}
		cells = append(cells, cell)
	}
	return cells
}

// focusRows returns a row for each kind of machine of each NodePool, and for what is unused. Their EffectiveCost is the bill.
func focusRows(costs []accountCost) []focusRow {
	rows := []focusRow{}
	for i := range costs {
		c := &costs[i]
		base := focusRow{BillingAccountName: c.name, BillingCurrency: "USD", ChargeCategory: "Usage", ServiceCategory: "Compute"}
		for j := range c.Rows {
			rows = append(rows, base.ofMachines(&c.Rows[j]))
		}
		for j := range c.Commitments {
			use := &c.Commitments[j]
			if !(use.Unused > 0) {
				continue
			}
			row := base
			row.PricingCategory, row.CommitmentDiscountName, row.CommitmentDiscountStatus = "Committed", use.Name, "Unused"
			row.CommitmentDiscountType = string(use.Kind)
			row.ConsumedQuantity, row.ConsumedUnit, row.EffectiveCost = rounded(use.Unused), units[use.Measure], rounded(use.Wasted)
			rows = append(rows, row)
		}
		for j := range c.Reservations {
			use := &c.Reservations[j]
			if use.Unused == 0 || use.Expired {
				continue
			}
			row := base
			row.PricingCategory, row.CapacityReservationID, row.CapacityReservationStatus = "Standard", use.ID, "Unused"
			row.InstanceType, row.AvailabilityZone, row.CapacityType = use.InstanceType, use.Zone, "reserved"
			row.ConsumedQuantity, row.ConsumedUnit, row.EffectiveCost = float64(use.Unused), units[division.Instances], rounded(use.Wasted)
			row.ContractedCost = rounded(use.Each * float64(use.Unused))
			row.ListCost = row.ContractedCost
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *focusRow) ofMachines(machines *cost.Row) focusRow {
	row := *r
	row.SubAccountName, row.NodePool, row.InstanceType, row.CapacityType, row.AvailabilityZone = machines.Cluster, machines.NodePool,
		machines.InstanceType, machines.CapacityType, machines.Zone
	row.PricingCategory = "Standard"
	if machines.CapacityType == "spot" {
		row.PricingCategory = "Dynamic"
	}
	if machines.Reservation != "" {
		row.CapacityReservationID, row.CapacityReservationStatus = machines.Reservation, "Used"
	}
	row.ListCost, row.ContractedCost, row.EffectiveCost = rounded(machines.OnDemand), rounded(machines.List), rounded(machines.Paid)
	row.ConsumedQuantity, row.ConsumedUnit = float64(machines.Machines), units[division.Instances]
	return row
}

// printFOCUS prints a table in CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe.
func printFOCUS(to io.Writer, costs []accountCost) error {
	table := csv.NewWriter(to)
	if err := table.Write(focusColumns); err != nil {
		return err
	}
	rows := focusRows(costs)
	for i := range rows {
		cells := rows[i].cells()
		for j, cell := range cells {
			if cell != "" && slices.Contains([]byte("=+-@\t\r"), cell[0]) {
				if _, err := strconv.ParseFloat(cell, 64); err != nil {
					cells[j] = "'" + cell
				}
			}
		}
		if err := table.Write(cells); err != nil {
			return err
		}
	}
	table.Flush()
	return table.Error()
}
