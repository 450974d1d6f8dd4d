// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
)

// awsType is one of describe-instance-types.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html
type awsType struct {
	InstanceType, Hypervisor string
	SupportedUsageClasses    []string
	ProcessorInfo            struct {
		Manufacturer             string
		SupportedArchitectures   []string
		SustainedClockSpeedInGhz float64
	}
	VCpuInfo            struct{ DefaultVCpus int64 }
	MemoryInfo          struct{ SizeInMiB int64 }
	InstanceStorageInfo struct {
		NvmeSupport   string
		TotalSizeInGB int64
	}
	EbsInfo struct {
		EbsOptimizedSupport string
		EbsOptimizedInfo    struct{ MaximumBandwidthInMbps int64 }
	}
	GpuInfo                  struct{ Gpus []awsDevice }
	InferenceAcceleratorInfo struct{ Accelerators []awsDevice }
	NeuronInfo               struct{ NeuronDevices []awsDevice }
	NetworkInfo              struct {
		MaximumNetworkInterfaces     int64
		Ipv4AddressesPerInterface    int64
		DefaultNetworkCardIndex      int64
		NetworkCards                 []struct{ NetworkCardIndex, MaximumNetworkInterfaces int64 }
		EfaInfo                      struct{ MaximumEfaInterfaces int64 }
		EncryptionInTransitSupported bool
	}
}

// awsDevice is a GPU or an accelerator of a type.
type awsDevice struct {
	Name, Manufacturer     string
	Count, LogicalGpuCount int64
	MemoryInfo             struct{ SizeInMiB int64 }
	CoreInfo               struct{ Count int64 }
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

//go:embed aws.csv
var awsTable []byte

// awsNetwork is the part of a type's network that no API of EC2 reports.
type awsNetwork struct{ branches, mbps int64 }

// awsNetworks are those of Karpenter's AWS provider, by type.
var awsNetworks = sync.OnceValue(func() map[string]awsNetwork {
	networks := map[string]awsNetwork{}
	columns := []string{"instanceType", "podENI", "networkBandwidth"}
	_ = eachRow(&source{reader: bufio.NewReader(bytes.NewReader(awsTable))}, columns, nil, nil, func(_ int, row map[string]string) {
		n := awsNetwork{}
		n.branches, _ = strconv.ParseInt(row["podENI"], 10, 64)
		n.mbps, _ = strconv.ParseInt(row["networkBandwidth"], 10, 64)
		networks[row["instanceType"]] = n
	}, func(error) {})
	return networks
})

func readAWS(c *collector, file *source) error {
	return list(c, file, "InstanceTypes", "the output of aws ec2 describe-instance-types", func(where string, info *awsType) error {
		where += " " + shown(info.InstanceType)
		m := machine{name: info.InstanceType, capacity: capacityOf(info.VCpuInfo.DefaultVCpus, info.MemoryInfo.SizeInMiB),
			labels: info.labels(), zones: c.zones[info.InstanceType]}
		for _, name := range info.ProcessorInfo.SupportedArchitectures {
			if arch, ok := awsArchitectures[name]; ok && m.arch == "" {
				m.arch = arch
			}
		}
		if m.arch == "" {
			c.problem(where, "no architecture that Kubernetes runs on: %s", strings.Join(info.ProcessorInfo.SupportedArchitectures, ", "))
			return nil
		}
		if m.arch == "arm64" { // of whose memory the kernel of a Graviton reserves 64 MiB
			m.capacity["memory"] = scalar.Text(mebibytesOf(info.MemoryInfo.SizeInMiB - 64))
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
			devices["aws.amazon.com/neuroncore"] += neuron.Count * neuron.CoreInfo.Count
		}
		devices["vpc.amazonaws.com/efa"] = info.NetworkInfo.EfaInfo.MaximumEfaInterfaces
		devices["vpc.amazonaws.com/pod-eni"] = awsNetworks()[info.InstanceType].branches
		m.setDevices(devices)
		// EC2's usage classes have the names of capacity types. Capacity blocks are reservations, which a catalog names one by one.
		for _, usage := range []string{catalog.OnDemand, catalog.Spot} {
			if slices.Contains(info.SupportedUsageClasses, usage) && (c.zones == nil || len(m.zones) > 0) {
				m.capacityTypes = append(m.capacityTypes, usage)
			}
		}
		c.add(where, m)
		return nil
	})
}

// awsGeneration has the category and the generation of a type, such as m and 5 of m5.large.
var awsGeneration = regexp.MustCompile(`^([a-z]+)(?:-[0-9]+tb)?([0-9]+).*\.`)

// labels are the family and the size, which NodePools often require, and those of Karpenter's AWS provider, with the same values.
// https://karpenter.sh/docs/concepts/scheduling/#well-known-labels
func (t *awsType) labels() map[string]string {
	labels := map[string]string{}
	set := func(key string, value any) {
		if text := strings.ToLower(strings.ReplaceAll(fmt.Sprint(value), " ", "-")); text != "" && text != "0" {
			labels["karpenter.k8s.aws/instance-"+key] = text
		}
	}
	if family, size, ok := strings.Cut(t.InstanceType, "."); ok {
		labels[v1alpha1.InstanceFamilyLabel], labels["karpenter.cluster.x-k8s.io/instance-size"] = family, size
		set("family", family)
		set("size", size)
		set("capability-flex", strings.Contains(family, "-flex"))
	}
	if parts := awsGeneration.FindStringSubmatch(t.InstanceType); parts != nil {
		set("category", parts[1])
		set("generation", parts[2])
	}
	set("cpu", t.VCpuInfo.DefaultVCpus)
	set("cpu-manufacturer", t.ProcessorInfo.Manufacturer)
	set("cpu-sustained-clock-speed-mhz", math.Round(t.ProcessorInfo.SustainedClockSpeedInGhz*1000))
	set("memory", t.MemoryInfo.SizeInMiB)
	set("hypervisor", t.Hypervisor)
	set("encryption-in-transit-supported", t.NetworkInfo.EncryptionInTransitSupported)
	set("network-bandwidth", awsNetworks()[t.InstanceType].mbps)
	if t.EbsInfo.EbsOptimizedSupport == "default" {
		set("ebs-bandwidth", t.EbsInfo.EbsOptimizedInfo.MaximumBandwidthInMbps)
	}
	if t.InstanceStorageInfo.NvmeSupport != "unsupported" {
		set("local-nvme", t.InstanceStorageInfo.TotalSizeInGB)
	}
	if gpus := t.GpuInfo.Gpus; len(gpus) == 1 {
		set("gpu-name", gpus[0].Name)
		set("gpu-manufacturer", gpus[0].Manufacturer)
		set("gpu-count", gpus[0].Count)
		set("gpu-memory", gpus[0].MemoryInfo.SizeInMiB)
	}
	accelerators := t.InferenceAcceleratorInfo.Accelerators
	if devices := t.NeuronInfo.NeuronDevices; len(devices) > 0 {
		accelerators = slices.Clone(devices)
		accelerators[0].Manufacturer = "aws" // which these don't repeat
	}
	if len(accelerators) == 1 {
		set("accelerator-name", accelerators[0].Name)
		set("accelerator-manufacturer", accelerators[0].Manufacturer)
		set("accelerator-count", accelerators[0].Count)
	}
	return labels
}

// readAWSZones reads the output of aws ec2 describe-instance-type-offerings --location-type availability-zone.
func readAWSZones(c *collector, file *source) error {
	type offering struct{ InstanceType, LocationType, Location string }
	const command = "the output of aws ec2 describe-instance-type-offerings --location-type availability-zone"
	return list(c, file, "InstanceTypeOfferings", command, func(_ string, o *offering) error {
		if o.LocationType != "availability-zone" {
			return fmt.Errorf("it has offerings by %q", shown(o.LocationType))
		}
		if region := c.options.Region; region != "" && awsRegion.FindString(o.Location) != region ||
			len(c.options.Zones) > 0 && !slices.Contains(c.options.Zones, o.Location) {
			return nil
		}
		c.zones[o.InstanceType] = append(c.zones[o.InstanceType], o.Location)
		return nil
	})
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
	// products that count, and terms that came before their products.
	products map[string]awsProduct
	terms    map[string]awsTerms
	found    bool
}

// readAWS reads a price list file, or the output of aws pricing get-products, page by page.
func (p *prices) readAWS(file *source) error {
	r := &awsReader{stream: newStream(file.reader), prices: p, products: map[string]awsProduct{}, terms: map[string]awsTerms{}}
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
			} else if product.counts(r.prices) {
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
		return r.list(key, r.item)
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
		inner := &awsReader{stream: newStream(strings.NewReader(string(item))), prices: r.prices}
		if err := inner.item(j); err != nil {
			return err
		}
	}
	if page.Product.counts(r.prices) {
		r.prices.addAWS("prices, "+where, page.Product, page.Terms)
	}
	return nil
}

func (r *awsReader) problem(where string, err error) {
	r.prices.problems = append(r.prices.problems, fmt.Errorf("prices, %s: %w", where, err))
}

// counts reports whether a product is a shared Linux machine without software, which the others add to, that isn't in a reservation. A
// Capacity Block is paid for at once.
func (p *awsProduct) counts(prices *prices) bool {
	a := &p.Attributes
	return a.InstanceType != "" && a.OperatingSystem == "Linux" && a.Tenancy == "Shared" && a.PreInstalledSw == "NA" &&
		a.Capacitystatus == "Used" &&
		(a.MarketOption == "" || a.MarketOption == "OnDemand") && prices.counts(a.RegionCode)
}

// addAWS takes the price of a product that counts.
func (p *prices) addAWS(where string, product awsProduct, terms awsTerms) {
	for _, term := range sortedKeys(terms.OnDemand) {
		for _, dimension := range sortedKeys(terms.OnDemand[term].PriceDimensions) {
			d := terms.OnDemand[term].PriceDimensions[dimension]
			if d.Unit != "Hrs" {
				continue
			}
			currencies := sortedKeys(d.PricePerUnit)
			if _, dollars := d.PricePerUnit["USD"]; dollars {
				currencies = []string{"USD"}
			}
			for _, currency := range currencies {
				p.set(where, product.Attributes.InstanceType, catalog.OnDemand, d.PricePerUnit[currency], currency)
			}
		}
	}
}

// awsRegion matches the region of a zone, such as us-west-2 of us-west-2a and us-west-2-lax-1a.
var awsRegion = regexp.MustCompile(`^[a-z]+(-[a-z]+)+-[0-9]+`)

// awsSpotPrice is one of describe-spot-price-history.
type awsSpotPrice struct{ AvailabilityZone, InstanceType, ProductDescription, SpotPrice, Timestamp string }

// readAWSSpot reads the output of aws ec2 describe-spot-price-history, of which the newest prices count.
func (p *prices) readAWSSpot(file *source) error {
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
		if price.ProductDescription != "" && !strings.HasPrefix(price.ProductDescription, "Linux/UNIX") ||
			!p.counts(awsRegion.FindString(price.AvailabilityZone)) {
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
		p.set("spot prices", at[0], catalog.Spot, price.SpotPrice, "", at[1])
	}
	return nil
}
