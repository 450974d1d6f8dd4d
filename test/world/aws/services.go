// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// PutParameter makes a parameter of SSM's Parameter Store, or changes it.
func (a *Account) PutParameter(name, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parameters[name] = value
}

func (a *Account) serveSSM(w http.ResponseWriter, _ *http.Request, action string, body []byte) {
	if action != "GetParameter" {
		failJSON(w, a.unknownAction("ssm", action))
		return
	}
	var request struct{ Name string }
	if problem := readJSON(body, &request); problem != nil {
		failJSON(w, problem)
		return
	}
	a.mu.Lock()
	value, ok := a.parameters[request.Name]
	a.mu.Unlock()
	if !ok {
		failJSON(w, &Error{http.StatusBadRequest, "ParameterNotFound", fmt.Sprintf("Parameter %s not found.", request.Name)})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"Parameter": map[string]any{
		"Name": request.Name, "Type": "String", "Value": value, "Version": 1, "DataType": "text",
		"ARN": fmt.Sprintf("arn:aws:ssm:%s:%s:parameter/%s", a.cfg.Region, a.cfg.Account, request.Name),
	}})
}

// metalPrice is of the only type that is offered as bare metal: Karpenter's provider takes no prices where there is none.
const (
	metalType  = "m5.metal"
	metalPrice = 5.52
)

// servePricing answers with the price list of what the request's filters select: of Linux on shared or dedicated tenancy in one region.
// https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
func (a *Account) servePricing(w http.ResponseWriter, _ *http.Request, action string, body []byte) {
	if action != "GetProducts" {
		failJSON(w, a.unknownAction("pricing", action))
		return
	}
	var request struct {
		ServiceCode string
		Filters     []struct{ Type, Field, Value string }
		NextToken   string
		MaxResults  int
	}
	if problem := readJSON(body, &request); problem != nil {
		failJSON(w, problem)
		return
	}
	filters := map[string]string{}
	for _, filter := range request.Filters {
		if filter.Type != "TERM_MATCH" {
			failJSON(w, &Error{http.StatusBadRequest, "InvalidParameterException", "the stand-in supports filters of type TERM_MATCH only"})
			return
		}
		filters[filter.Field] = filter.Value
	}
	prices := map[string]float64{}
	switch {
	case request.ServiceCode != "AmazonEC2" || filters["regionCode"] != a.cfg.Region:
	case filters["productFamily"] == "Compute Instance (bare metal)":
		prices[metalType] = metalPrice
	case a.cfg.Prices != nil:
		prices = a.cfg.Prices()
	}
	types := slices.Sorted(maps.Keys(prices))
	begin, _ := strconv.Atoi(request.NextToken)
	begin = min(max(begin, 0), len(types))
	end := len(types)
	if request.MaxResults > 0 {
		end = min(end, begin+request.MaxResults)
	}
	answer := map[string]any{"FormatVersion": "aws_v1"}
	list := []string{}
	for _, name := range types[begin:end] {
		list = append(list, a.product(name, prices[name], filters))
	}
	answer["PriceList"] = list
	if end < len(types) {
		answer["NextToken"] = strconv.Itoa(end)
	}
	writeJSON(w, http.StatusOK, answer)
}

// product is an entry of a price list, which is JSON within JSON.
func (a *Account) product(name string, price float64, filters map[string]string) string {
	data, err := json.Marshal(map[string]any{
		"serviceCode": "AmazonEC2",
		"product": map[string]any{
			"productFamily": filters["productFamily"], "sku": "SKU" + name,
			"attributes": map[string]string{"instanceType": name, "regionCode": a.cfg.Region, "operatingSystem": "Linux", "tenancy": filters["tenancy"]},
		},
		"terms": map[string]any{"OnDemand": map[string]any{"SKU" + name + ".JRTCKXETXF": map[string]any{
			"priceDimensions": map[string]any{"SKU" + name + ".JRTCKXETXF.6YS6EN2CT7": map[string]any{
				"unit": "Hrs", "pricePerUnit": map[string]string{"USD": strconv.FormatFloat(price, 'f', 10, 64)},
			}},
		}}},
	})
	if err != nil { // texts and numbers only: it can't happen
		return "{}"
	}
	return string(data)
}
