// SPDX-License-Identifier: Apache-2.0

package scalar

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// MaxQuantity is the length of the longest quantity that is parsed.
const MaxQuantity = 32

// bounded is the syntax of quantities, with a bounded exponent. CEL rules on quantities match the same before they call isQuantity.
var bounded = regexp.MustCompile(`^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

var errNotQuantity = errors.New("is not a quantity")

// ParseQuantity is resource.ParseQuantity for text of others. That takes half an hour and gigabytes for 1e-999999999, a quantity as good as
// any to an API server. The error is the end of a sentence that begins with the text.
func ParseQuantity(text string) (resource.Quantity, error) {
	if len(text) > MaxQuantity || !bounded.MatchString(text) {
		return resource.Quantity{}, errNotQuantity
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}, errNotQuantity
	}
	return quantity, nil
}

// Quantity is a whole number, or a quantity as text such as 500m or 16Gi.
type Quantity intstr.IntOrString // for controller-gen's schema; a number that IntVal can't hold is in StrVal

// Text returns the quantity with the text.
func Text(text string) Quantity { return Quantity{Type: intstr.String, StrVal: text} }

// Number returns the quantity with the number.
func Number(number int64) Quantity {
	if narrow := int32(number); int64(narrow) == number {
		return Quantity{Type: intstr.Int, IntVal: narrow}
	}
	return Quantity{Type: intstr.Int, StrVal: strconv.FormatInt(number, 10)}
}

// QuantityOf returns a quantity in its canonical form.
func QuantityOf(quantity resource.Quantity) Quantity { return Text(quantity.String()) }

// String returns the number or the text.
func (q Quantity) String() string {
	if q.Type == intstr.Int && q.StrVal == "" {
		return strconv.FormatInt(int64(q.IntVal), 10)
	}
	return q.StrVal
}

// Parse is ParseQuantity of the number or the text. The API server admits no number with a fraction or an exponent, so none is a quantity.
func (q Quantity) Parse() (resource.Quantity, error) {
	text := q.String()
	if q.Type == intstr.Int && strings.ContainsAny(text, ".eE") {
		return resource.Quantity{}, errors.New("is not a whole number; quote it")
	}
	return ParseQuantity(text)
}

// Amount is Parse; zero for a malformed quantity.
func (q Quantity) Amount() resource.Quantity {
	amount, _ := q.Parse()
	return amount
}

// MarshalJSON implements json.Marshaler. A number stays one.
func (q Quantity) MarshalJSON() ([]byte, error) {
	text := q.String()
	if q.Type == intstr.Int && json.Valid([]byte(text)) {
		return []byte(text), nil
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements json.Unmarshaler. It keeps any other value as text.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	text := ""
	switch {
	case len(data) == 0 || string(data) == "null":
	case data[0] == '"' && json.Unmarshal(data, &text) == nil:
		*q = Text(text)
	case data[0] != '-' && (data[0] < '0' || data[0] > '9'):
		*q = Text(string(data))
	default:
		if number, err := strconv.ParseInt(string(data), 10, 32); err == nil {
			*q = Number(number)
		} else {
			*q = Quantity{Type: intstr.Int, StrVal: string(data)}
		}
	}
	return nil
}
