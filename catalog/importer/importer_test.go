// SPDX-License-Identifier: Apache-2.0

package importer_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/importer"
)

var update = flag.Bool("update", false, "write what tests got into testdata")

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		file    string
		options importer.Options
	}{
		"aws":       {"aws.json", importer.Options{Prices: read(t, "aws-prices.json"), SpotPrices: read(t, "aws-spot-prices.json"), Zones: []string{"us-east-1a", "us-east-1b"}, Region: "us-east-1"}},
		"azure":     {"azure.json", importer.Options{Prices: read(t, "azure-prices.json"), Region: "westeurope"}},
		"gcp":       {"gcp.json", importer.Options{Prices: read(t, "prices.csv"), Region: "us-central1"}},
		"openstack": {"openstack.json", importer.Options{}},
		"vsphere":   {"vsphere.yaml", importer.Options{}},
		"csv":       {"csv.csv", importer.Options{}},
	} {
		t.Run(fmt.Sprintf("When the sample of %s is imported, it should be what the golden file has, and a catalog of it should be usable", name), func(t *testing.T) {
			format, err := importer.FormatOf(name)
			if err != nil {
				t.Fatal(err)
			}
			imported, err := format.Read(read(t, tc.file), tc.options)
			if err != nil {
				t.Fatal(err)
			}
			var problems []string
			for _, problem := range imported.Problems {
				problems = append(problems, problem.Error())
			}
			got, err := yaml.Marshal(map[string]any{"instanceTypes": imported.Types, "problems": problems})
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, name+".golden")), string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			patches := format.Patches
			if name == "csv" {
				patches = append(patches, v1alpha1.CatalogPatch{Op: "add", Path: "/spec/type", ValueFrom: &v1alpha1.CatalogPatchValue{Template: "{{ .instanceType }}-{{ .reservationID }}"}})
			}
			usable := catalog.Read(&v1alpha1.InstanceTypeCatalogSpec{Patches: patches, InstanceTypes: imported.Types})
			if usable.Err != nil || len(usable.Problems) > 0 || len(usable.Types) != len(imported.Types) {
				t.Errorf("err %v, problems %v", usable.Err, usable.Problems)
			}
		})
	}
}

func TestBadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		format, input string
		options       importer.Options
		want          string
	}{
		"the JSON breaks off":              {"aws", "{\n \"InstanceTypes\": [\n {", importer.Options{}, "line 3: unexpected end of JSON input"},
		"it is something else":             {"aws", `{"Images": []}`, importer.Options{}, "it has no InstanceTypes"},
		"a list is needed":                 {"azure", `{"value": []}`, importer.Options{}, "not the output of az vm list-skus"},
		"it isn't JSON":                    {"gcp", "NAME ZONE\ne2 a", importer.Options{}, "not the output of gcloud"},
		"it is empty":                      {"openstack", "", importer.Options{}, "not the output of openstack flavor list"},
		"it is another kind":               {"vsphere", "kind: ConfigMap", importer.Options{}, "it has no items"},
		"it isn't YAML":                    {"vsphere", "a: [", importer.Options{}, "not YAML or JSON"},
		"a column is missing":              {"csv", "name,cpu\nx,1", importer.Options{}, "line 1: column memory is missing"},
		"a column is unknown":              {"csv", "name,cpu,memory,colour\nx,1,1Gi,red", importer.Options{}, `line 1: unknown column "colour"`},
		"a price list is of another cloud": {"gcp", "[]", importer.Options{Prices: []byte("{}")}, "only a table can be read"},
		"a price list is something else":   {"aws", `{"InstanceTypes": []}`, importer.Options{Prices: []byte("{}")}, "neither products nor PriceList"},
		"a table of prices lacks a column": {"azure", "[]", importer.Options{Prices: []byte("instanceType\nx")}, "column price is missing"},
	} {
		t.Run(fmt.Sprintf("When %s, it should say so", name), func(t *testing.T) {
			format, err := importer.FormatOf(tc.format)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := format.Read([]byte(tc.input), tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("When the format is unknown, it should name those that there are", func(t *testing.T) {
		if _, err := importer.FormatOf("xml"); err == nil || !strings.Contains(err.Error(), "aws, azure, gcp, openstack, vsphere, csv") {
			t.Errorf("got %v", err)
		}
	})
}

func TestPriceListOfProducts(t *testing.T) {
	t.Run("When prices come from get-products, it should read each product", func(t *testing.T) {
		format, err := importer.FormatOf("aws")
		if err != nil {
			t.Fatal(err)
		}
		product := `{"product":{"sku":"S","attributes":{"instanceType":"m5.large","operatingSystem":"Linux","tenancy":"Shared","preInstalledSw":"NA","capacitystatus":"Used","regionCode":"us-east-1"}},` +
			`"terms":{"OnDemand":{"S.1":{"priceDimensions":{"S.1.2":{"unit":"Hrs","pricePerUnit":{"USD":"0.096"}}}}}}}`
		imported, err := format.Read(read(t, "aws.json"), importer.Options{Prices: []byte(fmt.Sprintf(`{"PriceList": [%q, "not JSON"]}`, product))})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range imported.Types {
			if entry.Name == "m5.large" && (len(entry.Offerings) != 1 || entry.Offerings[0].Price != "0.096") {
				t.Errorf("offerings %+v", entry.Offerings)
			}
		}
		if last := imported.Problems[len(imported.Problems)-1]; !strings.Contains(last.Error(), "PriceList[1]") {
			t.Errorf("problems %v", imported.Problems)
		}
	})
}

// FuzzFormats gives what a person may have saved by mistake to each format. None panics.
func FuzzFormats(f *testing.F) {
	for _, file := range []string{"aws.json", "azure.json", "gcp.json", "openstack.json", "vsphere.yaml", "csv.csv", "prices.csv", "aws-prices.json"} {
		content, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, format := range importer.Formats {
			for _, options := range []importer.Options{{}, {Prices: raw}, {SpotPrices: raw}} {
				if imported, err := format.Read(raw, options); err == nil && imported == nil {
					t.Errorf("%s: nothing", format.Name)
				}
			}
		}
	})
}
