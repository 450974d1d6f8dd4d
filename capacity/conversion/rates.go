// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/autonode-io/autonode/message"
)

// maxRates bounds the rates of a file, as rates of a commitment are.
const maxRates = 2000

// ParseRates reads hourly prices within a savings plan, by instance type: the output of aws savingsplans
// describe-savings-plans-offering-rates, or a table in CSV with the columns instanceType and rate.
// https://docs.aws.amazon.com/savingsplans/latest/APIReference/API_SavingsPlanOfferingRate.html
func ParseRates(text string) (map[string]float64, error) {
	read := ratesTable
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		read = ratesAWS
	}
	rates := map[string]float64{}
	err := read(text, func(where, instanceType, rate string) error {
		value, ok := decimal(strings.TrimSpace(rate))
		switch before, twice := rates[instanceType]; {
		case !ok || value == 0 || value > maxPrice:
			return fmt.Errorf("%s: rate %q of %s is not a positive amount in US dollars an hour", where, message.Cut(rate, maxNumber), message.Cut(instanceType, maxNumber))
		case twice && before != value:
			return fmt.Errorf("%s: %s has the rates %v and %v; leave the rates of one region and plan in the file", where, message.Cut(instanceType, maxNumber), before, value)
		case len(rates) == maxRates && !twice:
			return fmt.Errorf("there are more than %d rates", maxRates)
		}
		rates[instanceType] = value
		return nil
	})
	if err == nil && len(rates) == 0 {
		err = errors.New("there is no rate of a shared Linux machine")
	}
	return rates, err
}

// ratesAWS takes the rates of shared Linux machines: others run more.
func ratesAWS(text string, set func(where, instanceType, rate string) error) error {
	input := struct {
		SearchResults []struct {
			Rate, Unit, ProductType, UsageType string
			Properties                         []struct{ Name, Value string }
		}
	}{}
	if err := json.Unmarshal([]byte(text), &input); err != nil {
		return fmt.Errorf("not the output of aws savingsplans describe-savings-plans-offering-rates: %w", err)
	}
	for i := range input.SearchResults {
		item := &input.SearchResults[i]
		properties := map[string]string{}
		for _, property := range item.Properties {
			properties[property.Name] = property.Value
		}
		instanceType := properties["instanceType"]
		system, tenancy := properties["productDescription"], properties["tenancy"]
		// An unused reservation has the same rate.
		if instanceType == "" || item.Unit != "" && item.Unit != "Hrs" || system != "" && system != "Linux/UNIX" || tenancy != "" && tenancy != "shared" ||
			item.UsageType != "" && !strings.Contains(item.UsageType, "BoxUsage") {
			continue
		}
		if err := set(fmt.Sprintf("searchResults[%d]", i), instanceType, item.Rate); err != nil {
			return err
		}
	}
	return nil
}

func ratesTable(text string, set func(where, instanceType, rate string) error) error {
	reader := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "\ufeff")))
	reader.FieldsPerRecord, reader.TrimLeadingSpace, reader.Comment = 2, true, '#'
	for line := 1; ; line++ {
		record, err := reader.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("not a table of instanceType and rate: %w", err)
		case line == 1 && (record[0] != "instanceType" || record[1] != "rate"):
			return errors.New("line 1: the columns are instanceType and rate")
		case line > 1:
			if err := set(fmt.Sprintf("line %d", line), record[0], record[1]); err != nil {
				return err
			}
		}
	}
}
