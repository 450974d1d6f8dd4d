// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// awsType is one of describe-instance-types.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html
type awsType struct {
	InstanceType          string
	SupportedUsageClasses []string
	BareMetal             bool
	ProcessorInfo         struct{ SupportedArchitectures []string }
	VCpuInfo              struct{ DefaultVCpus int64 }
	MemoryInfo            struct{ SizeInMiB int64 }
	GpuInfo               struct {
		Gpus []struct {
			Manufacturer string
			Count        int64
		}
	}
	NeuronInfo struct {
		NeuronDevices []struct{ Count int64 }
	}
	NetworkInfo struct {
		MaximumNetworkInterfaces  int64
		Ipv4AddressesPerInterface int64
	}
}

// awsArchitectures are those of EC2 that Kubernetes runs on.
var awsArchitectures = map[string]string{"x86_64": "amd64", "arm64": "arm64"}

// awsUsage are the capacity types of EC2's usage classes. Capacity blocks are reservations, which a catalog names one by one.
var awsUsage = map[string]string{"on-demand": catalog.OnDemand, "spot": catalog.Spot}

func readAWS(raw []byte, options Options) (*Imported, error) {
	input := struct{ InstanceTypes []json.RawMessage }{}
	if err := decode(raw, &input); err != nil {
		return nil, fmt.Errorf("not the output of aws ec2 describe-instance-types: %w", described(raw, err))
	}
	if input.InstanceTypes == nil {
		return nil, errors.New("not the output of aws ec2 describe-instance-types: it has no InstanceTypes")
	}
	list, err := awsPrices(options)
	if err != nil {
		return nil, err
	}
	c := newCollector(options, list)
	for i, item := range input.InstanceTypes {
		where := fmt.Sprintf("InstanceTypes[%d]", i)
		info := awsType{}
		if err := decode(item, &info); err != nil {
			c.problem(named(where, item), "%s", err)
			continue
		}
		where += " " + shown(info.InstanceType)
		m := machine{name: info.InstanceType, capacity: capacityOf(info.VCpuInfo.DefaultVCpus, info.MemoryInfo.SizeInMiB), labels: awsLabels(info.InstanceType)}
		for _, name := range info.ProcessorInfo.SupportedArchitectures {
			if arch, ok := awsArchitectures[name]; ok && m.arch == "" {
				m.arch = arch
			}
		}
		if m.arch == "" {
			c.problem(where, "no architecture that Kubernetes runs on: %s", strings.Join(info.ProcessorInfo.SupportedArchitectures, ", "))
			continue
		}
		// The addresses of its network interfaces, as Amazon's network plugin hands them out, and two pods in the host's network.
		// https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/eni_max_pods.go
		if interfaces, addresses := info.NetworkInfo.MaximumNetworkInterfaces, info.NetworkInfo.Ipv4AddressesPerInterface; interfaces > 0 && addresses > 1 && interfaces < 1000 && addresses < 1000 {
			m.capacity["pods"] = scalar.Text(strconv.FormatInt(interfaces*(addresses-1)+2, 10))
		}
		devices := map[string]int64{}
		for _, gpu := range info.GpuInfo.Gpus {
			switch strings.ToUpper(gpu.Manufacturer) {
			case "NVIDIA":
				devices["nvidia.com/gpu"] += gpu.Count
			case "AMD":
				devices["amd.com/gpu"] += gpu.Count
			case "HABANA":
				devices["habana.ai/gaudi"] += gpu.Count
			default:
				devices[c.options.GPUResource] += gpu.Count
			}
		}
		for _, neuron := range info.NeuronInfo.NeuronDevices {
			devices["aws.amazon.com/neuron"] += neuron.Count
		}
		for name, count := range devices {
			if count > 0 {
				m.capacity[name] = scalar.Text(strconv.FormatInt(count, 10))
			}
		}
		for _, usage := range []string{"on-demand", "spot"} {
			if slices.Contains(info.SupportedUsageClasses, usage) {
				m.capacityTypes = append(m.capacityTypes, awsUsage[usage])
			}
		}
		c.add(where, m)
	}
	return c.result()
}

// awsLabels are the family and the size, which NodePools often require.
func awsLabels(name string) map[string]string {
	family, size, ok := strings.Cut(name, ".")
	if !ok {
		return nil
	}
	return map[string]string{v1alpha1.InstanceFamilyLabel: family, "karpenter.cluster.x-k8s.io/instance-size": size}
}

// awsProduct is one of a price list.
// https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/bulk-api-reading-price-list-files.html
type awsProduct struct {
	SKU        string
	Attributes struct {
		InstanceType, OperatingSystem, Tenancy, PreInstalledSw, Capacitystatus, RegionCode string
	}
}

type awsTerms struct {
	OnDemand map[string]struct {
		PriceDimensions map[string]struct {
			Unit         string
			PricePerUnit map[string]string
		}
	}
}

func awsPrices(options Options) (*prices, error) {
	list := newPrices(options)
	switch {
	case len(options.Prices) == 0:
	case !looksLikeJSON(options.Prices):
		if err := list.readTable(options.Prices); err != nil {
			return nil, fmt.Errorf("prices: %w", err)
		}
	default:
		if err := list.readAWS(options.Prices, options.Region); err != nil {
			return nil, fmt.Errorf("prices: %w", err)
		}
	}
	if len(options.SpotPrices) > 0 {
		if err := list.readAWSSpot(options.SpotPrices); err != nil {
			return nil, fmt.Errorf("spot prices: %w", err)
		}
	}
	return list, nil
}

// readAWS reads a price list file, or the output of aws pricing get-products.
func (p *prices) readAWS(raw []byte, region string) error {
	input := struct {
		Products map[string]awsProduct
		Terms    struct {
			OnDemand map[string]json.RawMessage
		}
		PriceList []json.RawMessage
	}{}
	if err := decode(raw, &input); err != nil {
		return fmt.Errorf("neither a price list file nor the output of aws pricing get-products: %w", described(raw, err))
	}
	if input.Products == nil && input.PriceList == nil {
		return errors.New("neither a price list file nor the output of aws pricing get-products: it has neither products nor PriceList")
	}
	for _, sku := range sortedKeys(input.Products) {
		terms := awsTerms{}
		if term, ok := input.Terms.OnDemand[sku]; ok {
			if err := decode(term, &terms.OnDemand); err != nil {
				p.problems = append(p.problems, fmt.Errorf("prices, product %s: %w", shown(sku), err))
				continue
			}
		}
		p.addAWS("prices, product "+shown(sku), input.Products[sku], terms, region)
	}
	for i, item := range input.PriceList {
		where := fmt.Sprintf("prices, PriceList[%d]", i)
		text := ""
		if json.Unmarshal(item, &text) == nil {
			item = json.RawMessage(text) // each is JSON in a string
		}
		product := struct {
			Product awsProduct
			Terms   awsTerms
		}{}
		if err := decode(item, &product); err != nil {
			p.problems = append(p.problems, fmt.Errorf("%s: %w", where, err))
			continue
		}
		p.addAWS(where, product.Product, product.Terms, region)
	}
	return nil
}

// addAWS takes the price of a shared Linux machine without software, which the others add to.
func (p *prices) addAWS(where string, product awsProduct, terms awsTerms, region string) {
	a := product.Attributes
	if a.InstanceType == "" || a.OperatingSystem != "Linux" || a.Tenancy != "Shared" || a.PreInstalledSw != "NA" || a.Capacitystatus != "Used" || region != "" && a.RegionCode != region {
		return
	}
	for _, term := range sortedKeys(terms.OnDemand) {
		for _, dimension := range sortedKeys(terms.OnDemand[term].PriceDimensions) {
			d := terms.OnDemand[term].PriceDimensions[dimension]
			if usd := d.PricePerUnit["USD"]; d.Unit == "Hrs" && usd != "" {
				p.set(where, a.InstanceType, catalog.OnDemand, "", usd)
			}
		}
	}
}

// readAWSSpot reads the output of aws ec2 describe-spot-price-history, newest first.
func (p *prices) readAWSSpot(raw []byte) error {
	if !looksLikeJSON(raw) {
		return p.readTable(raw)
	}
	input := struct {
		SpotPriceHistory []struct{ AvailabilityZone, InstanceType, ProductDescription, SpotPrice, Timestamp string }
	}{}
	if err := decode(raw, &input); err != nil {
		return fmt.Errorf("not the output of aws ec2 describe-spot-price-history: %w", described(raw, err))
	}
	newest := map[[2]string]string{}
	for i, item := range input.SpotPriceHistory {
		if item.ProductDescription != "" && !strings.HasPrefix(item.ProductDescription, "Linux/UNIX") {
			continue
		}
		// Times of one format are ordered as texts.
		at := [2]string{item.InstanceType, item.AvailabilityZone}
		if before, seen := newest[at]; seen && before >= item.Timestamp {
			continue
		}
		newest[at] = item.Timestamp
		p.set(fmt.Sprintf("spot prices, SpotPriceHistory[%d]", i), item.InstanceType, catalog.Spot, item.AvailabilityZone, item.SpotPrice)
	}
	return nil
}
