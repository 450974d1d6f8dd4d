// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"strconv"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
)

// hetznerType is one of hcloud server-type list, with its prices in euros.
// https://docs.hetzner.cloud/reference/cloud#server-types
type hetznerType struct {
	Name, Architecture string
	Cores              int64
	Memory             float64 // GiB
	Disk               int64   // GiB
	Deprecated         bool
	Prices             []struct {
		Location    string
		PriceHourly struct{ Net string } `json:"price_hourly"`
	}
}

func readHetzner(c *collector, file *source) error {
	inUse := c.prices.none // unless a price list replaces the prices of the machine types
	_, priced := c.options.Rates["EUR"]
	c.prices.none = inUse && !priced
	return list(file, "server_types", "the output of hcloud server-type list -o json", c.problem, func(where string, t *hetznerType) error {
		where += " " + shown(t.Name)
		m := machine{name: t.Name, arch: "amd64", capacity: capacityOf(t.Cores, int64(t.Memory*1024)),
			capacityTypes: []string{catalog.OnDemand}}
		if t.Deprecated {
			return nil
		}
		if t.Architecture == "arm" {
			m.arch = "arm64"
		}
		m.capacity["ephemeral-storage"] = scalar.Text(strconv.FormatInt(t.Disk, 10) + "Gi")
		for _, price := range t.Prices {
			m.zones = append(m.zones, price.Location)
			if inUse {
				c.prices.set(where, t.Name, catalog.OnDemand, price.PriceHourly.Net, "EUR", price.Location)
			}
		}
		c.add(where, m)
		return nil
	})
}
