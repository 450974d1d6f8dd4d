// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
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
			Manufacturer           string
			Count, LogicalGpuCount int64
		}
	}
	NeuronInfo struct {
		NeuronDevices []struct{ Count int64 }
	}
	NetworkInfo struct {
		MaximumNetworkInterfaces  int64
		Ipv4AddressesPerInterface int64
		DefaultNetworkCardIndex   int64
		NetworkCards              []struct{ NetworkCardIndex, MaximumNetworkInterfaces int64 }
	}
}

// interfaces is the number of network interfaces that Amazon's network plugin hands out addresses of: those of the default network card.
func (t *awsType) interfaces() int64 {
	for _, card := range t.NetworkInfo.NetworkCards {
		if card.NetworkCardIndex == t.NetworkInfo.DefaultNetworkCardIndex && card.MaximumNetworkInterfaces > 0 {
			return card.MaximumNetworkInterfaces
		}
	}
	return t.NetworkInfo.MaximumNetworkInterfaces
}

// awsArchitectures are those of EC2 that Kubernetes runs on.
var awsArchitectures = map[string]string{"x86_64": "amd64", "arm64": "arm64"}

func readAWS(c *collector, raw []byte) error {
	input := struct{ InstanceTypes []json.RawMessage }{}
	if err := decode(raw, &input); err != nil {
		return fmt.Errorf("not the output of aws ec2 describe-instance-types: %w", described(raw, err))
	}
	if input.InstanceTypes == nil {
		return errors.New("not the output of aws ec2 describe-instance-types: it has no InstanceTypes")
	}
	each(c, input.InstanceTypes, "InstanceTypes", func(where string, info *awsType) {
		where += " " + shown(info.InstanceType)
		m := machine{name: info.InstanceType, capacity: capacityOf(info.VCpuInfo.DefaultVCpus, info.MemoryInfo.SizeInMiB),
			labels: awsLabels(info.InstanceType)}
		for _, name := range info.ProcessorInfo.SupportedArchitectures {
			if arch, ok := awsArchitectures[name]; ok && m.arch == "" {
				m.arch = arch
			}
		}
		if m.arch == "" {
			c.problem(where, "no architecture that Kubernetes runs on: %s", strings.Join(info.ProcessorInfo.SupportedArchitectures, ", "))
			return
		}
		// The addresses of its network interfaces, as Amazon's network plugin hands them out, and two pods in the host's network.
		// https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/eni_max_pods.go
		if interfaces, addresses := info.interfaces(), info.NetworkInfo.Ipv4AddressesPerInterface; interfaces > 0 && addresses > 1 &&
			interfaces < 1000 && addresses < 1000 {
			m.capacity["pods"] = count(interfaces*(addresses-1) + 2)
		}
		devices := map[string]int64{}
		for _, gpu := range info.GpuInfo.Gpus {
			if gpu.Count == 0 {
				gpu.Count = gpu.LogicalGpuCount // a part of a GPU, which the machine sees as one
			}
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
		for name, number := range devices {
			if number > 0 {
				m.capacity[name] = count(number)
			}
		}
		// EC2's usage classes have the names of capacity types. Capacity blocks are reservations, which a catalog names one by one.
		for _, usage := range []string{catalog.OnDemand, catalog.Spot} {
			if slices.Contains(info.SupportedUsageClasses, usage) {
				m.capacityTypes = append(m.capacityTypes, usage)
			}
		}
		c.add(where, m)
	})
	return nil
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
		InstanceType, OperatingSystem, Tenancy, PreInstalledSw, Capacitystatus, RegionCode, MarketOption string
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

// awsReader reads a price list.
type awsReader struct {
	*stream
	prices *prices
	region string
	// products that count, and terms that came before their products.
	products map[string]awsProduct
	terms    map[string]awsTerms
	found    bool
}

// readAWS reads a price list file, or the output of aws pricing get-products, page by page.
func (p *prices) readAWS(file *priceFile, region string) error {
	r := &awsReader{stream: newStream(file.reader), prices: p, region: region, products: map[string]awsProduct{}, terms: map[string]awsTerms{}}
	err := r.documents(func(token json.Token) error {
		switch token {
		case json.Delim('{'):
			return r.fields(r.field)
		case json.Delim('['):
			r.found = true
			return r.items(r.item)
		}
		return errors.New("neither an object nor a list")
	})
	if err != nil {
		return fmt.Errorf("neither a price list file nor the output of aws pricing get-products: %w", err)
	}
	if !r.found {
		return errors.New("neither a price list file nor the output of aws pricing get-products: it has neither products nor PriceList")
	}
	for _, sku := range sortedKeys(r.products) {
		if terms, ok := r.terms[sku]; ok {
			p.addAWS("prices, product "+shown(sku), r.products[sku], terms)
		}
	}
	return nil
}

// field reads one of a list's fields.
func (r *awsReader) field(key string) error {
	switch key {
	case "products":
		r.found = true
		return r.object(func(sku string) error {
			raw, err := r.raw()
			if err != nil {
				return err
			}
			product := awsProduct{}
			if err := decode(raw, &product); err != nil {
				r.problem("product "+shown(sku), err)
			} else if product.counts(r.region) {
				r.products[sku] = product
			}
			return nil
		})
	case "terms":
		return r.object(func(kind string) error {
			if kind != "OnDemand" {
				return r.skip()
			}
			return r.object(func(sku string) error {
				raw, err := r.raw()
				if err != nil {
					return err
				}
				if _, counts := r.products[sku]; !counts && len(r.products) > 0 {
					return nil
				}
				terms := awsTerms{}
				if err := decode(raw, &terms.OnDemand); err != nil {
					r.problem("product "+shown(sku), err)
					return nil
				}
				r.terms[sku] = terms
				return nil
			})
		})
	case "PriceList":
		r.found = true
		return r.list(r.item)
	}
	return r.skip()
}

// item reads one of PriceList, or a page with a PriceList.
func (r *awsReader) item(i int) error {
	raw, err := r.raw()
	if err != nil {
		return err
	}
	where := fmt.Sprintf("PriceList[%d]", i)
	text := ""
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text) // each is JSON in a string
	}
	page := struct {
		PriceList []json.RawMessage
		Product   awsProduct
		Terms     awsTerms
	}{}
	if err := decode(raw, &page); err != nil {
		r.problem(where, err)
		return nil
	}
	for j, item := range page.PriceList {
		inner := &awsReader{stream: newStream(strings.NewReader(string(item))), prices: r.prices, region: r.region}
		if err := inner.item(j); err != nil {
			return err
		}
	}
	if page.Product.counts(r.region) {
		r.prices.addAWS("prices, "+where, page.Product, page.Terms)
	}
	return nil
}

func (r *awsReader) problem(where string, err error) {
	r.prices.problems = append(r.prices.problems, fmt.Errorf("prices, %s: %w", where, err))
}

// counts reports whether a product is a shared Linux machine without software, which the others add to, that isn't in a reservation. A
// Capacity Block is paid for at once.
func (p *awsProduct) counts(region string) bool {
	a := &p.Attributes
	return a.InstanceType != "" && a.OperatingSystem == "Linux" && a.Tenancy == "Shared" && a.PreInstalledSw == "NA" &&
		a.Capacitystatus == "Used" &&
		(a.MarketOption == "" || a.MarketOption == "OnDemand") && (region == "" || a.RegionCode == region)
}

// addAWS takes the price of a product that counts.
func (p *prices) addAWS(where string, product awsProduct, terms awsTerms) {
	for _, term := range sortedKeys(terms.OnDemand) {
		for _, dimension := range sortedKeys(terms.OnDemand[term].PriceDimensions) {
			d := terms.OnDemand[term].PriceDimensions[dimension]
			if usd := d.PricePerUnit["USD"]; d.Unit == "Hrs" && usd != "" {
				p.setBilled(where, product.Attributes.InstanceType, catalog.OnDemand, "", usd)
			}
		}
	}
}

// awsSpotPrice is one of describe-spot-price-history.
type awsSpotPrice struct{ AvailabilityZone, InstanceType, ProductDescription, SpotPrice, Timestamp string }

// readAWSSpot reads the output of aws ec2 describe-spot-price-history, of which the newest prices count.
func (p *prices) readAWSSpot(file *priceFile, _ string) error {
	s := newStream(file.reader)
	newest := map[[2]string]awsSpotPrice{}
	err := s.pages("SpotPriceHistory", func(i int) error {
		raw, err := s.raw()
		if err != nil {
			return err
		}
		price := awsSpotPrice{}
		if err := decode(raw, &price); err != nil {
			p.problems = append(p.problems, fmt.Errorf("spot prices, SpotPriceHistory[%d]: %w", i, err))
			return nil
		}
		if price.ProductDescription != "" && !strings.HasPrefix(price.ProductDescription, "Linux/UNIX") {
			return nil
		}
		// Times of one format are ordered as texts.
		at := [2]string{price.InstanceType, price.AvailabilityZone}
		if before, seen := newest[at]; !seen || before.Timestamp < price.Timestamp {
			newest[at] = price
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("not the output of aws ec2 describe-spot-price-history: %w", err)
	}
	for at, price := range newest {
		p.setBilled("spot prices", at[0], catalog.Spot, at[1], price.SpotPrice)
	}
	return nil
}
