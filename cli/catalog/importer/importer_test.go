// SPDX-License-Identifier: Apache-2.0

package importer_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/cli/catalog/importer"
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

func opened(t *testing.T, name string) io.Reader { return bytes.NewReader(read(t, name)) }

func TestFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		file    string
		options importer.Options
	}{
		"aws": {"aws.json", importer.Options{Prices: opened(t, "aws-prices.json"), SpotPrices: opened(t, "aws-spot-prices.json"),
			Zones: []string{"us-east-1a", "us-east-1b"}, Region: "us-east-1"}},
		"azure":     {"azure.json", importer.Options{Prices: opened(t, "azure-prices.json"), Region: "westeurope"}},
		"gcp":       {"gcp.json", importer.Options{Prices: opened(t, "prices.csv"), Region: "us-central1"}},
		"hetzner":   {"hetzner.json", importer.Options{Rates: map[string]float64{"EUR": 1.1}}},
		"openstack": {"openstack.json", importer.Options{}},
		"vsphere":   {"vsphere.yaml", importer.Options{}},
		"csv":       {"csv.csv", importer.Options{}},
	} {
		t.Run(fmt.Sprintf("When the sample of %s is imported, it should be what the golden file has, and a catalog of it should be usable", name), func(t *testing.T) {
			format, err := importer.FormatOf(name)
			if err != nil {
				t.Fatal(err)
			}
			imported, err := format.Read(opened(t, tc.file), tc.options)
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
		"the JSON breaks off":              {"aws", "{\n \"InstanceTypes\": [\n {", importer.Options{}, "line 3: unexpected EOF"},
		"it is something else":             {"aws", `{"Images": []}`, importer.Options{}, "it has no InstanceTypes"},
		"a list is needed":                 {"azure", `{"value": []}`, importer.Options{}, "not the output of az vm list-skus"},
		"it isn't JSON":                    {"gcp", "NAME ZONE\ne2 a", importer.Options{}, "not the output of gcloud"},
		"it is empty":                      {"openstack", "", importer.Options{}, "it is empty"},
		"it is another kind":               {"vsphere", "kind: ConfigMap", importer.Options{}, "it has no items"},
		"it isn't YAML":                    {"vsphere", "a: [", importer.Options{}, "not YAML or JSON"},
		"a column is missing":              {"csv", "name,cpu\nx,1", importer.Options{}, "line 1: column memory is missing"},
		"a column is unknown":              {"csv", "name,cpu,memory,colour\nx,1,1Gi,red", importer.Options{}, `line 1: unknown column "colour"`},
		"a price list is of another cloud": {"gcp", "[]", importer.Options{Prices: strings.NewReader("{}")}, "only a table can be read"},
		"a price list is something else":   {"aws", `{"InstanceTypes": []}`, importer.Options{Prices: strings.NewReader("{}")}, "neither products nor PriceList"},
		"a table of prices lacks a column": {"azure", "[]", importer.Options{Prices: strings.NewReader("instanceType\nx")}, "column price is missing"},
	} {
		t.Run(fmt.Sprintf("When %s, it should say so", name), func(t *testing.T) {
			format, err := importer.FormatOf(tc.format)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := format.Read(strings.NewReader(tc.input), tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("When the format is unknown, it should name those that there are", func(t *testing.T) {
		if _, err := importer.FormatOf("xml"); err == nil || !strings.Contains(err.Error(),
			"aws, azure, gcp, hetzner, openstack, vsphere, csv") {
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
		imported, err := format.Read(opened(t, "aws.json"),
			importer.Options{Prices: strings.NewReader(fmt.Sprintf(`{"PriceList": [%q, "not JSON"]}`, product))})
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
	for _, file := range []string{"aws.json", "azure.json", "gcp.json", "hetzner.json", "openstack.json", "vsphere.yaml", "csv.csv",
		"prices.csv", "aws-prices.json"} {
		content, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, format := range importer.Formats {
			for _, options := range []importer.Options{{}, {Prices: bytes.NewReader(raw)}, {SpotPrices: bytes.NewReader(raw)}} {
				if imported, err := format.Read(bytes.NewReader(raw), options); err == nil && imported == nil {
					t.Errorf("%s: nothing", format.Name)
				}
			}
		}
	})
}

// imported imports a text.
func imported(t *testing.T, format, input string, options importer.Options) *importer.Imported {
	t.Helper()
	f, err := importer.FormatOf(format)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Read(strings.NewReader(input), options)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// entries are "capacity of a resource" and "capacity type zones price" of each instance type.
func entries(i *importer.Imported, resource string) map[string]string {
	byName := map[string]string{}
	for _, entry := range i.Types {
		quantity := entry.Capacity[resource]
		text := quantity.String()
		for _, o := range entry.Offerings {
			text += fmt.Sprint(" ", o.CapacityType, o.Zones, o.Price)
		}
		byName[entry.Name] = text
	}
	return byName
}

func problemsOf(i *importer.Imported) string {
	var text strings.Builder
	for _, problem := range i.Problems {
		text.WriteString(problem.Error() + "\n")
	}
	return text.String()
}

func TestAWS(t *testing.T) {
	t.Run("When a machine has several network cards, it should count pods by the addresses of the default one", func(t *testing.T) {
		got := entries(imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{}), "pods")
		for name, want := range map[string]string{"p5.48xlarge": "100 ", "p4d.24xlarge": "737 ", "trn1.32xlarge": "247 "} {
			if !strings.HasPrefix(got[name], want) {
				t.Errorf("%s: %q, want %q", name, got[name], want)
			}
		}
	})
	t.Run("When a machine has a part of a GPU, it should have a GPU", func(t *testing.T) {
		got := entries(imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{}), "nvidia.com/gpu")
		if !strings.HasPrefix(got["g6f.large"], "1 ") || !strings.HasPrefix(got["p5.48xlarge"], "8 ") {
			t.Errorf("got %v", got)
		}
	})
	t.Run("When a price list has a Capacity Block, it should take the price on demand", func(t *testing.T) {
		i := imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{Prices: opened(t, "aws-capacity-block-prices.json")})
		if got := entries(i, "nvidia.com/gpu"); got["p5.48xlarge"] != "8 on-demand[]55.04" {
			t.Errorf("got %v", got)
		}
	})
	product := func(sku, price string) string {
		return fmt.Sprintf(`{"product":{"sku":%q,"attributes":{"instanceType":"p5.48xlarge","operatingSystem":"Linux","tenancy":"Shared","preInstalledSw":"NA","capacitystatus":"Used","regionCode":"us-east-1","marketoption":"OnDemand"}},`+
			`"terms":{"OnDemand":{"S.1":{"priceDimensions":{"S.1.2":{"unit":"Hrs","pricePerUnit":{"USD":%q}}}}}}}`, sku, price)
	}
	page := func(products ...string) string {
		for i := range products {
			products[i] = fmt.Sprintf("%q", products[i])
		}
		return `{"FormatVersion": "aws_v1", "NextToken": "x", "PriceList": [` + strings.Join(products, ",") + `]}`
	}
	for _, tc := range []struct{ name, list, want, problem string }{
		{"When a price is zero, it should refuse it", page(product("a", "0.0000000000")), "8", "costs nothing"},
		{"When prices conflict, it should keep the higher one and name both", page(product("a", "60"), product("b", "55.04")),
			"8 on-demand[]60", "has the prices 60 and 55.04; the higher one is kept"},
		{"When the same price is there twice, it should take it", page(product("a", "60"), product("b", "60.0")), "8 on-demand[]60", ""},
		{"When pages follow each other, it should read all", page(product("a", "60")) + "\n" + page(), "8 on-demand[]60", ""},
		{"When pages are in a list, it should read all", "[" + page() + "," + page(product("a", "60")) + "]", "8 on-demand[]60", ""},
		{"When only products are in a list, it should read all", fmt.Sprintf("[%q]", product("a", "60")), "8 on-demand[]60", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{Prices: strings.NewReader(tc.list)})
			if got := entries(i, "nvidia.com/gpu")["p5.48xlarge"]; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if problems := problemsOf(i); !strings.Contains(problems, tc.problem) || tc.problem == "" && problems != "" {
				t.Errorf("problems %q, want %q", problems, tc.problem)
			}
		})
	}
}

func TestAzure(t *testing.T) {
	sku := func(name, location, zones, capabilities, restrictions string) string {
		return fmt.Sprintf(`{"name": %q, "resourceType": "virtualMachines", "locations": [%q], "locationInfo": [{"location": %q, "zones": [%s]}], "restrictions": [%s],
			"capabilities": [{"name": "MemoryGB", "value": "8"}, {"name": "CpuArchitectureType", "value": "x64"}, %s]}`, name, location, location, zones, restrictions, capabilities)
	}
	const two, zones = `{"name": "vCPUs", "value": "2"}`, `"1", "2"`
	d2 := sku("Standard_D2s_v5", "EastUS", zones, two, "")
	for _, tc := range []struct{ name, skus, region, resource, want string }{
		{"When a size is offered in zones, it should name them as nodes do", "[" + d2 + "]", "", "cpu", "2 on-demand[eastus-1 eastus-2]"},
		{
			"When a zone is restricted, it should not be offered there",
			"[" + sku("Standard_D2s_v5", "eastus", zones, two, `{"type": "Zone", "restrictionInfo": {"locations": ["eastus"], "zones": ["2"]}}`) + "]", "", "cpu", "2 on-demand[eastus-1]",
		},
		{
			"When the region is restricted, it should not be offered",
			"[" + sku("Standard_D2s_v5", "eastus", zones, two, `{"type": "Location", "restrictionInfo": {"locations": ["eastus"]}}`) + "]", "", "cpu", "",
		},
		{
			"When another region is restricted, it should be offered",
			"[" + sku("Standard_D2s_v5", "eastus", zones, two, `{"type": "Location", "restrictionInfo": {"locations": ["westus"]}}`) + "]", "", "cpu", "2 on-demand[eastus-1 eastus-2]",
		},
		{"When the list has several regions, it should take the one that is asked for", "[" + sku("Standard_D2s_v5", "westus", "", two, "") +
			"," + d2 + "]", "eastus", "cpu", "2 on-demand[eastus-1 eastus-2]"},
		{"When vCPUs are constrained, it should have those that are available", "[" + sku("Standard_D2s_v5", "eastus", zones,
			two+`, {"name": "vCPUsAvailable", "value": "1"}`, "") + "]", "", "cpu", "1 on-demand[eastus-1 eastus-2]"},
		{"When a GPU is AMD's, it should be AMD's device", "[" + sku("Standard_NV4as_v4", "eastus", "", two+`, {"name": "GPUs", "value": "1"}`,
			"") + "]", "", "amd.com/gpu", "1 on-demand[]"},
		{"When a GPU is a part, it should be one", "[" + sku("Standard_NV6ads_A10_v5", "eastus", "", two+`, {"name": "GPUs", "value": "0.167"}`,
			"") + "]", "", "nvidia.com/gpu", "1 on-demand[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			for _, text := range entries(imported(t, "azure", tc.skus, importer.Options{Region: tc.region}), tc.resource) {
				got = text
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("When the list has several regions and none is asked for, it should name them", func(t *testing.T) {
		format, err := importer.FormatOf("azure")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := format.Read(strings.NewReader("["+sku("Standard_D2s_v5", "westus", "", two, "")+","+d2+"]"),
			importer.Options{}); err == nil ||
			!strings.Contains(err.Error(), "eastus and westus; choose one with --region") {
			t.Errorf("got %v", err)
		}
	})
	item := func(product, currency, price string) string {
		return fmt.Sprintf(`{"currencyCode": %q, "armSkuName": "Standard_D2s_v5", "skuName": "D2s v5", "productName": %q, "type": "Consumption", "unitOfMeasure": "1 Hour", "armRegionName": "eastus", "retailPrice": %s}`, currency, product, price)
	}
	page := func(items ...string) string {
		return `{"BillingCurrency": "USD", "Items": [` + strings.Join(items, ",") + `], "NextPageLink": "https://example.com", "Count": 1}`
	}
	machines, services := item("Virtual Machines Dsv5 Series", "USD", "0.096"), item("Dsv5 Series CloudServices", "USD", "0.163")
	for _, tc := range []struct{ name, list, want, problem string }{
		{"When a price is of Cloud Services, it should not count", page(machines, services), "0.096", ""},
		{"When pages follow each other, it should read all", page() + page(machines), "0.096", ""},
		{"When pages are in a list, it should read all", "[" + page() + "," + page(machines) + "]", "0.096", ""},
		{"When only items are in a list, it should read all", "[" + machines + "]", "0.096", ""},
		{"When a price is in another currency, it should refuse it", page(item("Virtual Machines Dsv5 Series", "EUR", "0.09")), "", "is in EUR"},
		{"When a price is zero, it should refuse it", page(item("Virtual Machines Dsv5 Series", "USD", "0")), "", "costs nothing"},
		{"When prices conflict, it should keep the higher one", page(machines, item("Virtual Machines Dsv5 Series", "USD", "0.2")), "0.2", "has the prices 0.096 and 0.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := imported(t, "azure", "["+d2+"]", importer.Options{Prices: strings.NewReader(tc.list)})
			got := ""
			if len(i.Types[0].Offerings) > 0 {
				got = i.Types[0].Offerings[0].Price
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if problems := problemsOf(i); !strings.Contains(problems, tc.problem) || tc.problem == "" && problems != "" {
				t.Errorf("problems %q, want %q", problems, tc.problem)
			}
		})
	}
}

// endless is a price list that is made while it is read: begin, then each so often, then end.
type endless struct {
	begin, each, end string
	remaining        int
	rest             string
	// live is the most memory that was in use when a part of the list was read.
	live uint64
}

func (e *endless) Read(into []byte) (int, error) {
	if e.rest == "" {
		switch {
		case e.begin != "":
			e.rest, e.begin = e.begin, ""
		case e.remaining > 0:
			if e.remaining--; e.remaining%64 == 0 {
				goruntime.GC()
				var stats goruntime.MemStats
				goruntime.ReadMemStats(&stats)
				e.live = max(e.live, stats.HeapAlloc)
			}
			e.rest = e.each
		case e.end != "":
			e.rest, e.end = e.end, ""
		default:
			return 0, io.EOF
		}
	}
	n := copy(into, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func TestLargePriceList(t *testing.T) {
	term := `"S.1": {"offerTermCode": "` + strings.Repeat("x", 1000) + `"},`
	list := &endless{
		begin: `{"products": {"A2": {"sku": "A2", "attributes": {"instanceType": "p5.48xlarge", "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}}},
			"terms": {"OnDemand": {"A2": {"A2.1": {"priceDimensions": {"A2.1.2": {"unit": "Hrs", "pricePerUnit": {"USD": "55.04"}}}}}}, "Reserved": {`,
		each: strings.Repeat(term, 256), remaining: 270, end: `"end": {}}}}`,
	}
	size := len(list.each) * list.remaining
	i := imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{Prices: list})
	t.Run("When a price list is larger than memory should be, it should be read as it comes", func(t *testing.T) {
		if got := entries(i, "nvidia.com/gpu")["p5.48xlarge"]; got != "8 on-demand[]55.04" {
			t.Errorf("got %q of a list of %d bytes: %s", got, size, problemsOf(i))
		}
		if list.live > 48<<20 {
			t.Errorf("%d bytes of memory for a list of %d", list.live, size)
		}
	})
	t.Run("When one value of it is too large, it should say so", func(t *testing.T) {
		format, err := importer.FormatOf("aws")
		if err != nil {
			t.Fatal(err)
		}
		list := &endless{begin: `{"PriceList": ["`, each: strings.Repeat("x", 1<<20), remaining: 40, end: `"]}`}
		if _, err := format.Read(strings.NewReader(`{"InstanceTypes": []}`), importer.Options{Prices: list}); err == nil ||
			!strings.Contains(err.Error(), "a value has more than") {
			t.Errorf("got %v", err)
		}
	})
}
