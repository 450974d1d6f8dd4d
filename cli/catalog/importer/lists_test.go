// SPDX-License-Identifier: Apache-2.0

package importer_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/catalog/importer"
)

// encoded writes a text as tools of Windows do.
func encoded(text, as string) io.Reader {
	switch as {
	case "UTF-8":
		return strings.NewReader("\ufeff" + text)
	case "UTF-16":
		return transform.NewReader(strings.NewReader(text), unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder())
	}
	return strings.NewReader(text)
}

func TestEncodings(t *testing.T) {
	files := map[string]string{"aws": "aws.json", "azure": "azure.json", "gcp": "gcp.json", "hetzner": "hetzner.json",
		"openstack": "openstack.json",
		"vsphere":   "vsphere.yaml", "csv": "csv.csv"}
	const table = "instanceType,price\nm5.large,0.5\n"
	for _, as := range []string{"UTF-8", "UTF-16"} {
		for name, file := range files {
			t.Run(fmt.Sprintf("When files of %s are in %s with a byte order mark, it should read them as without", name, as),
				func(t *testing.T) {
					format, err := importer.FormatOf(name)
					if err != nil {
						t.Fatal(err)
					}
					results := []string{}
					for _, encoding := range []string{"", as} {
						text := string(read(t, file))
						result, err := format.Read(encoded(text, encoding), importer.Options{Prices: encoded(table, encoding),
							Region: map[string]string{"azure": "westeurope"}[name]})
						if err != nil {
							t.Fatal(err)
						}
						raw, err := json.Marshal(result.Types)
						if err != nil {
							t.Fatal(err)
						}
						results = append(results, fmt.Sprint(len(result.Types), string(raw), result.Problems))
					}
					if diff := cmp.Diff(results[0], results[1]); diff != "" || strings.HasPrefix(results[0], "0") {
						t.Errorf("-without +with:\n%s", diff)
					}
				})
		}
	}
}

func TestTables(t *testing.T) {
	const header = "instanceType,zone,capacityType,price,currency\n"
	for name, tc := range map[string]struct {
		rows, want, problem string
	}{
		"a price is zero": {"m5.large,,,0,", "", "line 2: m5.large costs nothing"},
		"a price is there twice": {"m5.large,,,0.1,\nm5.large,,,0.2,\nm5.large,,,0.15,", " on-demand[]0.2",
			"m5.large, on-demand has the prices 0.1 and 0.2; the higher one is kept"},
		"a price is there twice in a zone": {"m5.large,a,,0.2,\nm5.large,a,,0.1,", " on-demand[a]0.2",
			"m5.large a, on-demand has the prices 0.2 and 0.1"},
		"the capacity type is spelt as in bills": {"m5.large,,On-Demand,0.1,\nm5.large,a,SPOT,0.03,", " on-demand[]0.1 spot[a]0.03",
			""},
		"the capacity type is in other words": {"m5.large,,On Demand,0.1,\nm5.large,,OnDemand,0.1,\nm5.large,,on_demand,0.1,",
			" on-demand[]0.1", ""},
		"the capacity type isn't known": {"m5.large,,Savings Plan,0.1,", "",
			`line 2: capacityType "savings-plan" is neither on-demand nor spot`},
		"a price is in yuan": {"m5.large,,,0.7,CNY\nm5.large,,spot,0.2,cny", "",
			"line 2: the price of m5.large is in CNY, like 1 more, and a catalog's prices are in US dollars; give --rates CNY="},
		"a price is in euros, whose rate is given":    {"m5.large,,,0.1,eur", " on-demand[]0.11", ""},
		"a price is in US dollars":                    {"m5.large,,,0.1,USD", " on-demand[]0.1", ""},
		"two prices are the same in other currencies": {"m5.large,,,0.1,EUR\nm5.large,,,0.11,USD", " on-demand[]0.11", ""},
	} {
		t.Run("When "+name+" in a table of prices, it should say so or take it", func(t *testing.T) {
			i := imported(t, "aws", string(read(t, "aws.json")), importer.Options{Prices: strings.NewReader(header + tc.rows),
				Rates: map[string]float64{"EUR": 1.1}})
			if got := strings.TrimPrefix(entries(i, "cpu")["m5.large"], "2"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if problems := problemsOf(i); !strings.Contains(problems, tc.problem) || tc.problem == "" && strings.Contains(problems,
				"prices") {
				t.Errorf("problems %q, want %q", problems, tc.problem)
			}
		})
		t.Run("When "+name+" in a table of machine types, it should say so or take it", func(t *testing.T) {
			rows := strings.ReplaceAll("\n"+tc.rows, "\nm5.large,", "\nm5.large,2,8Gi,")
			i := imported(t, "csv", "name,cpu,memory,zones,capacityType,price,currency"+rows,
				importer.Options{Rates: map[string]float64{"EUR": 1.1}})
			if got := entries(i, "cpu"); len(got) != 1 || strings.TrimPrefix(got["m5.large"], "2") != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if problems := problemsOf(i); !strings.Contains(problems, tc.problem) || tc.problem == "" && problems != "" {
				t.Errorf("problems %q, want %q", problems, tc.problem)
			}
		})
	}
}

// awsProduct is one of get-products, in a currency.
func awsProduct(region, currency, price string) string {
	return fmt.Sprintf(`{"product":{"sku":"S","attributes":{"instanceType":"m5.large","operatingSystem":"Linux","tenancy":"Shared","preInstalledSw":"NA","capacitystatus":"Used","regionCode":%q}},`+
		`"terms":{"OnDemand":{"S.1":{"priceDimensions":{"S.1.2":{"unit":"Hrs","pricePerUnit":{%q:%q}}}}}}}`, region, currency, price)
}

func TestRegionsAndCurrencies(t *testing.T) {
	const spot = `{"SpotPriceHistory": [
		{"AvailabilityZone": "us-east-1a", "InstanceType": "m5.large", "ProductDescription": "Linux/UNIX", "SpotPrice": "0.03", "Timestamp": "2026-11-01T00:00:00Z"},
		{"AvailabilityZone": "eu-west-1a", "InstanceType": "m5.large", "ProductDescription": "Linux/UNIX", "SpotPrice": "0.04", "Timestamp": "2026-11-01T00:00:00Z"}]}`
	for name, tc := range map[string]struct {
		prices, spot, region, want, problem, err string
	}{
		"prices are in yuan": {"[" + awsProduct("cn-north-1", "CNY", "0.687") + "]", "", "", "",
			"the price of m5.large is in CNY, like 0 more", ""},
		"prices are of several regions": {"[" + awsProduct("us-east-1", "USD", "0.096") + "," + awsProduct("eu-west-1", "USD",
			"0.107") + "]", "", "", "", "", "it has 2 regions, such as eu-west-1 and us-east-1; choose one with --region"},
		"prices are of several regions, one chosen": {"[" + awsProduct("us-east-1", "USD", "0.096") + "," + awsProduct("eu-west-1", "USD",
			"0.107") + "]", "", "US-East-1", " on-demand[]0.096", "", ""},
		"spot prices are of several regions": {"", spot, "", "", "",
			"spot prices: it has 2 regions, such as eu-west-1 and us-east-1"},
		"spot prices are of several, one chosen": {"", spot, "eu-west-1", " spot[eu-west-1a]0.04", "", ""},
	} {
		t.Run("When "+name+", it should take those of the region in US dollars", func(t *testing.T) {
			format, err := importer.FormatOf("aws")
			if err != nil {
				t.Fatal(err)
			}
			i, err := format.Read(opened(t, "aws.json"), importer.Options{Prices: strings.NewReader(tc.prices),
				SpotPrices: strings.NewReader(tc.spot), Region: tc.region})
			if tc.err != "" || err != nil {
				if err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want %q", err, tc.err)
				}
				return
			}
			if got := strings.TrimPrefix(entries(i, "cpu")["m5.large"], "2"); got != tc.want || !strings.Contains(problemsOf(i),
				tc.problem) {
				t.Errorf("got %q, want %q; problems %q", got, tc.want, problemsOf(i))
			}
		})
	}
	t.Run("When server types have prices in euros and no rate is given, it should say so and offer nothing at them", func(t *testing.T) {
		i := imported(t, "hetzner", string(read(t, "hetzner.json")), importer.Options{})
		if got := entries(i, "cpu")["cpx11"]; got != "2 on-demand[fsn1 ash]" || !strings.Contains(problemsOf(i), "is in EUR, like 2 more") {
			t.Errorf("got %q, problems %q", got, problemsOf(i))
		}
	})
	t.Run("When a price list is given for server types, it should take that instead", func(t *testing.T) {
		i := imported(t, "hetzner", string(read(t, "hetzner.json")),
			importer.Options{Prices: strings.NewReader("instanceType,price\ncpx11,0.01")})
		if got := entries(i, "cpu")["cpx11"]; got != "2 on-demand[ash fsn1]0.01" || problemsOf(i) != "" {
			t.Errorf("got %q, problems %q", got, problemsOf(i))
		}
	})
}

func TestAWSZones(t *testing.T) {
	offered := func(kind, location string) string {
		return fmt.Sprintf(`{"InstanceTypeOfferings": [{"InstanceType": "m5.large", "LocationType": %q, "Location": %q}, {"InstanceType": "m5.large", "LocationType": %q, "Location": "us-east-1f"}]}`,
			kind, location, kind)
	}
	const prices = "instanceType,price\nm5.large,0.096\ng5.xlarge,1"
	format, err := importer.FormatOf("aws")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		offered, prices string
		zones           []string
		want, without   string
	}{
		"a type is offered in two zones": {offered("availability-zone", "us-east-1b"), prices, nil,
			"2 on-demand[us-east-1b us-east-1f]0.096", "4"},
		"only some zones are wanted": {offered("availability-zone", "us-east-1b"), prices, []string{"us-east-1a", "us-east-1b"},
			"2 on-demand[us-east-1b]0.096", "4"},
		"there are no prices": {offered("availability-zone", "us-east-1b"), "", nil,
			"2 on-demand[us-east-1b us-east-1f] spot[us-east-1b us-east-1f]", "4"},
	} {
		t.Run("When "+name+", it should be offered in those and a type without any nowhere", func(t *testing.T) {
			i, err := format.Read(opened(t, "aws.json"), importer.Options{ZoneOfferings: strings.NewReader(tc.offered), Zones: tc.zones,
				Prices: strings.NewReader(tc.prices)})
			if err != nil {
				t.Fatal(err)
			}
			if got := entries(i, "cpu"); got["m5.large"] != tc.want || got["g5.xlarge"] != tc.without {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("When offerings are by the IDs of zones, it should say so", func(t *testing.T) {
		if _, err := format.Read(opened(t, "aws.json"), importer.Options{ZoneOfferings: strings.NewReader(offered("availability-zone-id",
			"use1-az1"))}); err == nil ||
			!strings.Contains(err.Error(), `--location-type availability-zone: line 1: it has offerings by "availability-zone-id"`) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("When the format has zones of its own, it should say so", func(t *testing.T) {
		gcp, err := importer.FormatOf("gcp")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gcp.Read(opened(t, "gcp.json"), importer.Options{ZoneOfferings: strings.NewReader("{}")}); err == nil ||
			!strings.Contains(err.Error(), "have their zones") {
			t.Errorf("got %v", err)
		}
	})
}

func TestDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		format, input string
		want          map[string]string
		problem       string
	}{
		"an EC2 type has network interfaces for HPC and pods": {"aws", string(read(t, "aws-accelerated.json")), map[string]string{
			"p5.48xlarge/vpc.amazonaws.com/efa": "32", "p5.48xlarge/vpc.amazonaws.com/pod-eni": "120", "p5.48xlarge/nvidia.com/gpu": "8",
			"trn1.32xlarge/vpc.amazonaws.com/efa": "8", "trn1.32xlarge/aws.amazon.com/neuron": "16",
			"trn1.32xlarge/aws.amazon.com/neuroncore": "32",
		}, ""},
		"a flavor has NICs and disks beside its GPUs": {"openstack", `[
			{"Name": "gpu", "RAM": 2048, "VCPUs": 1, "Properties": {"pci_passthrough:alias": "a100:2,mlx5-sriov:4,nvme:1"}},
			{"Name": "one", "RAM": 2048, "VCPUs": 1, "Properties": {"pci_passthrough:alias": "nvidia-h200"}},
			{"Name": "nic", "RAM": 2048, "VCPUs": 1, "Properties": {"pci_passthrough:alias": "cx6-vf:2"}}]`,
			map[string]string{"gpu/nvidia.com/gpu": "2", "one/nvidia.com/gpu": "1", "nic/nvidia.com/gpu": "0"},
			`[2] nic: property pci_passthrough:alias: "cx6-vf" isn't the name of a GPU`},
		"a machine type has TPUs": {"gcp", `[
			{"name": "tpu7x-standard-4t", "guestCpus": 224, "memoryMb": 983040, "zone": "us-central1-c", "accelerators": [{"guestAcceleratorType": "tpu7x", "guestAcceleratorCount": 4}]},
			{"name": "ct6e-standard-1t", "guestCpus": 44, "memoryMb": 180224, "zone": "us-central1-b", "accelerators": [{"guestAcceleratorType": "ct6e", "guestAcceleratorCount": 1}]}]`,
			map[string]string{"tpu7x-standard-4t/google.com/tpu": "4", "tpu7x-standard-4t/nvidia.com/gpu": "0",
				"ct6e-standard-1t/google.com/tpu": "1"}, ""},
	} {
		t.Run("When "+name+", it should have each as its own resource", func(t *testing.T) {
			i := imported(t, tc.format, tc.input, importer.Options{})
			got := map[string]string{}
			for key := range tc.want {
				name, resource, _ := strings.Cut(key, "/")
				got[key] = strings.Fields(entries(i, resource)[name])[0]
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || !strings.Contains(problemsOf(i), tc.problem) {
				t.Errorf("problems %q (-want +got):\n%s", problemsOf(i), diff)
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	t.Run("When prices are estimated, interfaces for pods should cost nothing", func(t *testing.T) {
		i := imported(t, "aws", string(read(t, "aws.json")), importer.Options{Estimate: true})
		if got := entries(i, "vpc.amazonaws.com/pod-eni")["m5.large"]; got != "9 on-demand[]0.1040 spot[]" {
			t.Errorf("got %q", got)
		}
	})
}

func TestAWSLabels(t *testing.T) {
	i := imported(t, "aws", string(read(t, "aws-accelerated.json")), importer.Options{})
	for name, want := range map[string]string{
		"p5.48xlarge": `capability-flex=false category=p cpu=192 cpu-manufacturer=amd cpu-sustained-clock-speed-mhz=3600 ebs-bandwidth=80000
			encryption-in-transit-supported=true family=p5 generation=5 gpu-count=8 gpu-manufacturer=nvidia gpu-memory=81920 gpu-name=h100
			hypervisor=nitro local-nvme=30400 memory=2097152 network-bandwidth=3200000 size=48xlarge`,
		"trn1.32xlarge": `accelerator-count=16 accelerator-manufacturer=aws accelerator-name=trainium capability-flex=false category=trn
			cpu=128 cpu-manufacturer=intel cpu-sustained-clock-speed-mhz=3500 ebs-bandwidth=80000 encryption-in-transit-supported=true family=trn1
			generation=1 hypervisor=nitro local-nvme=7600 memory=524288 network-bandwidth=800000 size=32xlarge`,
	} {
		t.Run("When the type is "+name+", it should have the labels of Karpenter's AWS provider", func(t *testing.T) {
			at := slices.IndexFunc(i.Types, func(entry v1alpha1.CatalogInstanceType) bool { return entry.Name == name })
			var got []string
			for _, key := range slices.Sorted(maps.Keys(i.Types[at].Labels)) {
				if short, ok := strings.CutPrefix(key, "karpenter.k8s.aws/instance-"); ok {
					got = append(got, fmt.Sprint(short, "=", i.Types[at].Labels[key]))
				}
			}
			if diff := cmp.Diff(strings.Fields(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLargeList(t *testing.T) {
	t.Run("When a list of sizes has all regions, it should read it as it comes", func(t *testing.T) {
		sku := func(region string) string {
			return `{"resourceType": "virtualMachines", "name": "Standard_D2s_v5", "locations": ["` + region + `"], "locationInfo": [{"location": "` + region + `", "zones": ["1"]}],
				"capabilities": [{"name": "vCPUs", "value": "2"}, {"name": "MemoryGB", "value": "8"}, {"name": "Padding", "value": "` + strings.Repeat("x", 1000) + `"}]},`
		}
		skus := &endless{begin: "[" + sku("eastus"), each: strings.Repeat(sku("westus"), 128), remaining: 256,
			end: strings.TrimSuffix(sku("northeurope"), ",") + "]"}
		size := len(skus.each) * skus.remaining
		format, err := importer.FormatOf("azure")
		if err != nil {
			t.Fatal(err)
		}
		i, err := format.Read(skus, importer.Options{Region: "eastus"})
		if err != nil || entries(i, "cpu")["Standard_D2s_v5"] != "2 on-demand[eastus-1]" {
			t.Fatalf("got %v, %v", i, err)
		}
		if size < 32<<20 || skus.live > 16<<20 {
			t.Errorf("%d bytes of memory for a list of %d", skus.live, size)
		}
	})
}
