// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"encoding/json/jsontext"
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

//go:embed aws.csv
var awsTable []byte

// awsNetwork is the part of a type's network that no API of EC2 reports.
type awsNetwork struct{ branches, mbps int64 }

// awsNetworks are those of Karpenter's AWS provider, by type.
var awsNetworks = sync.OnceValue(func() map[string]awsNetwork {
	networks := map[string]awsNetwork{}
	columns := []string{"instanceType", "podENI", "networkBandwidth"}
	_ = eachRow(&source{reader: bufio.NewReader(bytes.NewReader(awsTable))}, columns, nil, nil, func(_ string, row map[string]string) {
		n := awsNetwork{}
		n.branches, _ = strconv.ParseInt(row["podENI"], 10, 64)
		n.mbps, _ = strconv.ParseInt(row["networkBandwidth"], 10, 64)
		networks[row["instanceType"]] = n
	}, func(string, string, ...any) {})
	return networks
})

func readAWS(c *collector, file *source) error {
	const command = "the output of aws ec2 describe-instance-types"
	return list(file, "InstanceTypes", command, c.problem, func(where string, info *awsType) error {
		where += " " + shown(info.InstanceType)
		m := machine{name: info.InstanceType, capacity: capacityOf(info.VCpuInfo.DefaultVCpus, info.MemoryInfo.SizeInMiB),
			labels: info.labels(), zones: c.zones[info.InstanceType]}
		for _, name := range info.ProcessorInfo.SupportedArchitectures {
			m.arch = cmp.Or(m.arch, architectures[name])
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
func (t *awsType) labels() map[string]v1alpha1.CatalogValue {
	labels := map[string]v1alpha1.CatalogValue{}
	set := func(key string, value any) {
		if text := strings.ToLower(strings.ReplaceAll(fmt.Sprint(value), " ", "-")); text != "" && text != "0" {
			labels["karpenter.k8s.aws/instance-"+key] = v1alpha1.CatalogValue(text)
		}
	}
	if family, size, ok := strings.Cut(t.InstanceType, "."); ok {
		labels[v1alpha1.InstanceFamilyLabel] = v1alpha1.CatalogValue(family)
		labels["karpenter.cluster.x-k8s.io/instance-size"] = v1alpha1.CatalogValue(size)
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
	return list(file, "InstanceTypeOfferings", command, c.problem, func(_ string, o *offering) error {
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

// awsTerms are those of a product, on demand.
type awsTerms map[string]struct {
	PriceDimensions map[string]struct {
		Unit         string
		PricePerUnit map[string]string
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
	err := r.documents(func(kind jsontext.Kind) error {
		switch kind {
		case jsontext.KindBeginObject:
			return r.fields(r.field)
		case jsontext.KindBeginArray:
			return r.list("")
		}
		return errors.New("neither an object nor a list")
	})
	if err == nil && !r.found {
		err = errors.New("it has neither products nor PriceList")
	}
	if err != nil {
		return fmt.Errorf("neither a price list file nor the output of aws pricing get-products: %w", err)
	}
	for _, sku := range sortedKeys(r.products) {
		p.addAWS("product "+shown(sku), r.products[sku], r.terms[sku])
	}
	return nil
}

// field reads one of a list's fields.
func (r *awsReader) field(key string) error {
	switch key {
	case "products":
		r.found = true
		return r.fields(func(sku string) error {
			return next(r.stream, "product "+shown(sku), r.prices.problem, func(_ string, product *awsProduct) error {
				if product.counts(r.prices) {
					r.products[sku] = *product
				}
				return nil
			})
		})
	case "terms":
		return r.fields(func(kind string) error {
			if kind != "OnDemand" {
				return r.SkipValue()
			}
			return r.fields(func(sku string) error {
				if _, counts := r.products[sku]; !counts && len(r.products) > 0 {
					return r.SkipValue()
				}
				return next(r.stream, "product "+shown(sku), r.prices.problem, func(_ string, terms *awsTerms) error {
					r.terms[sku] = *terms
					return nil
				})
			})
		})
	case "PriceList":
		return r.list(key)
	}
	return r.SkipValue()
}

// list reads a list of products, or of pages with a PriceList.
func (r *awsReader) list(field string) error {
	r.found = true
	return r.items(field, func(i int) error {
		raw, err := r.ReadValue()
		if err == nil {
			r.prices.readAWSProduct(i, raw)
		}
		return err
	})
}

// readAWSProduct reads one of PriceList, or a page with a PriceList.
func (p *prices) readAWSProduct(i int, raw json.RawMessage) {
	where, text := fmt.Sprintf("PriceList[%d]", i), ""
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text) // each is JSON in a string
	}
	page := struct {
		PriceList []json.RawMessage
		Product   awsProduct
		Terms     struct{ OnDemand awsTerms }
	}{}
	if err := decode(raw, &page); err != nil {
		p.problem(where, "%s", err)
		return
	}
	for j, item := range page.PriceList {
		p.readAWSProduct(j, item)
	}
	if page.Product.counts(p) {
		p.addAWS(where, page.Product, page.Terms.OnDemand)
	}
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
	for _, term := range sortedKeys(terms) {
		for _, dimension := range sortedKeys(terms[term].PriceDimensions) {
			d := terms[term].PriceDimensions[dimension]
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
	newest := map[[2]string]*awsSpotPrice{}
	const command = "the output of aws ec2 describe-spot-price-history"
	err := list(file, "SpotPriceHistory", command, p.problem, func(_ string, price *awsSpotPrice) error {
		if price.ProductDescription != "" && !strings.HasPrefix(price.ProductDescription, "Linux/UNIX") ||
			!p.counts(awsRegion.FindString(price.AvailabilityZone)) {
			return nil
		}
		// Times of one format are ordered as texts.
		at := [2]string{price.InstanceType, price.AvailabilityZone}
		if before := newest[at]; before == nil || before.Timestamp < price.Timestamp {
			newest[at] = price
		}
		return nil
	})
	for at, price := range newest {
		p.set(shown(at[0]+" "+at[1]), at[0], catalog.Spot, price.SpotPrice, "", at[1])
	}
	return err
}
