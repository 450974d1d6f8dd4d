// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/autonode-io/autonode/api/scalar"
)

var decimal = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)

// ParseQuantity reads a quantity that isn't negative, or reports its problem.
func ParseQuantity(value string) (q resource.Quantity, problem string) {
	return quantityOf(scalar.Text(value))
}

func quantityOf(value scalar.Quantity) (q resource.Quantity, problem string) {
	q, err := value.Parse()
	switch {
	case err != nil:
		return q, err.Error()
	case q.Sign() < 0:
		return resource.Quantity{}, "is not a quantity"
	case q.AsApproximateFloat64() > 1e18:
		return resource.Quantity{}, "is more than any machine has"
	}
	return q, ""
}

// ParsePercentage reads a percentage below 100, such as 7.5%, as a fraction. A number without its sign is refused: it could
// be meant as either.
func ParsePercentage(value string) (fraction float64, err error) {
	number, ok := strings.CutSuffix(value, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !decimal.MatchString(number) || percent >= 100 {
		return 0, errors.New("is not a percentage below 100%, such as 7.5%")
	}
	return percent / 100, nil
}

// Components of the estimate, in US dollars an hour. The figures are near the list prices of large clouds for
// general-purpose machines. Only their proportions matter: a bigger machine has to cost more.
const (
	CPUPrice    = 0.034  // a core
	MemoryPrice = 0.0045 // a GiB
	GPUPrice    = 0.6    // a device, see IsDevice
	// MinimumPrice is for a machine without known components. Karpenter doesn't consolidate a machine whose price is
	// 0.
	MinimumPrice = 0.001
)

// IsDevice reports whether a resource is an extended one, such as nvidia.com/gpu. The network interfaces of Amazon's are none.
func IsDevice(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), "vpc.amazonaws.com/")
}

// EstimatePrice is a price in US dollars an hour for a machine of which none is known.
func EstimatePrice(capacity corev1.ResourceList) float64 {
	price := capacity.Cpu().AsApproximateFloat64()*CPUPrice + capacity.Memory().AsApproximateFloat64()/(1<<30)*MemoryPrice
	for name, quantity := range capacity {
		if IsDevice(name) {
			price += quantity.AsApproximateFloat64() * GPUPrice
		}
	}
	return max(price, MinimumPrice)
}

// LabelValueProblem returns why a text can't be the value of a node's label, such as an instance type or a zone; empty if it can.
func LabelValueProblem(value string) string {
	switch msgs := validation.IsValidLabelValue(value); {
	case value == "":
		return "is empty"
	case len(msgs) > 0:
		return "is not the value of a label: " + msgs[0]
	}
	return ""
}

// ParsePrice reads a price in US dollars an hour.
func ParsePrice(value string) (float64, error) {
	price, err := strconv.ParseFloat(value, 64)
	if err != nil || !decimal.MatchString(value) {
		return 0, errors.New("is not a price in US dollars an hour, such as 0.096")
	}
	return price, nil
}
