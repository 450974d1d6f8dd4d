// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// maxRates bounds the rates of a file, as rates of a commitment are.
	maxRates = 2000
	// maxRatesFile bounds a file that is compressed, in bytes.
	maxRatesFile = 16 << 20
)

// RatesFrom reads the rates in a key of a ConfigMap, which may be compressed with gzip: a Compute plan's rates are larger than an object.
func RatesFrom(
	ctx context.Context, reader client.Reader, source *autonodev1alpha1.CapacityRatesSource,
) (rates map[string]float64, err error) {
	object := &corev1.ConfigMap{}
	name := client.ObjectKey{Namespace: source.Namespace, Name: source.Name}
	switch err := reader.Get(ctx, name, object); {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("no permission to get ConfigMap %s; grant it by a role", name)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no ConfigMap %s", name)
	case err != nil:
		return nil, fmt.Errorf("reading ConfigMap %s: %w", name, err)
	}
	text, ok := object.Data[source.Key]
	if packed, binary := object.BinaryData[source.Key]; binary {
		var raw []byte
		raw, err = unzip(packed)
		text, ok = string(raw), true
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("ConfigMap %s has no key %s", name, source.Key)
	case err == nil:
		rates, err = ParseRates(text)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s of ConfigMap %s: %w", source.Key, name, err)
	}
	return rates, nil
}

func unzip(packed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("neither text nor gzip: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(reader, maxRatesFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unpacking: %w", err)
	case len(raw) > maxRatesFile:
		return nil, fmt.Errorf("unpacked, it is larger than %d MiB", maxRatesFile>>20)
	}
	return raw, nil
}

// packed compresses rates for a lease, since each of an account's leases has them: 1,400 types take 9 KiB instead of 40.
func packed(rates map[string]float64) []byte {
	var to bytes.Buffer
	writer := gzip.NewWriter(&to)
	if err := errors.Join(json.NewEncoder(writer).Encode(rates), writer.Close()); err != nil {
		return nil // a buffer takes all that is written, and rates are finite
	}
	return to.Bytes()
}

// unpacked is the opposite of packed.
func unpacked(packed []byte) (rates map[string]float64, err error) {
	if packed == nil {
		return nil, nil //nolint:nilnil // no rates are no error
	}
	raw, err := unzip(packed)
	if err == nil {
		err = json.Unmarshal(raw, &rates)
	}
	return rates, err
}

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
		value, ok := annotation.ParseDecimal(strings.TrimSpace(rate))
		switch before, twice := rates[instanceType]; {
		case !ok || value == 0 || value > annotation.MaxPrice:
			return fmt.Errorf("%s: rate %q of %s is not a positive amount in US dollars an hour",
				where, message.Cut(rate, maxNumber), message.Cut(instanceType, maxNumber))
		case twice && before != value:
			return fmt.Errorf("%s: %s has the rates %v and %v; leave the rates of one region and plan in the file",
				where, message.Cut(instanceType, maxNumber), before, value)
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
		if instanceType == "" || item.Unit != "" && item.Unit != "Hrs" || system != "" && system != "Linux/UNIX" ||
			tenancy != "" && tenancy != "shared" || item.UsageType != "" && !strings.Contains(item.UsageType, "BoxUsage") {
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
