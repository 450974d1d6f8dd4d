// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// MaxElements bounds lists in JSON: a release's tags, a Node's images. Decoded, an element as short as "{}" takes up to three hundred
	// times as much memory.
	MaxElements = 4096
	// maxValues bounds the values in one JSON document.
	maxValues = 64 << 10
	// maxDepth bounds the nesting of values: some types decode their content once for each level.
	maxDepth = 64
	// maxRequirements and maxSelector, in bytes, bound a selector: each requirement and value is compared with the labels of each object.
	maxRequirements, maxSelector = 50, 4 << 10
)

// Selector parses a selector that a tenant or a guest's admin writes.
func Selector(by *metav1.LabelSelector) (labels.Selector, error) {
	if by != nil && (len(by.MatchLabels)+len(by.MatchExpressions) > maxRequirements || by.Size() > maxSelector) {
		return nil, fmt.Errorf("a selector has more than %d requirements or %d KiB", maxRequirements, maxSelector>>10)
	}
	return metav1.LabelSelectorAsSelector(by)
}

// Count returns an error for JSON whose decoding takes much more memory than its text. It counts invalid JSON, too: a decoder keeps the
// values before the error, and ignores content after the first value. levels is the deepest nesting.
func Count(content []byte) (levels int, err error) {
	var elements []int // of each list that is open; an object has none
	values, quoted := 0, false
	for i := 0; i < len(content); i++ {
		c := content[i]
		if quoted || c == '"' {
			switch c {
			case '\\':
				i++ // the escaped character; there are no backslashes outside of strings
			case '"':
				quoted = !quoted
			}
			continue
		}
		switch c {
		case '[':
			elements = append(elements, 1)
		case '{':
			elements = append(elements, math.MinInt)
		case ']', '}':
			elements = elements[:max(len(elements)-1, 0)]
			continue
		case ',':
			if last := len(elements) - 1; last >= 0 {
				if elements[last]++; elements[last] > MaxElements {
					return 0, fmt.Errorf("more than %d elements in one list", MaxElements)
				}
			}
		default:
			continue
		}
		if values++; values > maxValues {
			return 0, fmt.Errorf("more than %d values", maxValues)
		}
		if levels = max(levels, len(elements)); levels > maxDepth {
			return 0, fmt.Errorf("more than %d levels", maxDepth)
		}
	}
	return levels, nil
}
