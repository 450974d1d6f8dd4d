// SPDX-License-Identifier: Apache-2.0

// Package message truncates the texts of others in conditions, events and logs, and makes visible the characters that a terminal would
// obey.
package message

import (
	"fmt"
	"strings"
)

const ellipsis = "…"

// Cut truncates a text to at most limit bytes, at a character boundary, and marks that with an ellipsis. limit is at
// least that of the ellipsis, three.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(ellipsis)], "") + ellipsis
}

// List joins the first texts and counts the others, such as "a, b and 3 more", or "a; b; and 3 more" by another separator.
func List(texts []string, limit int, separator string) string {
	list := strings.Join(texts[:min(len(texts), limit)], separator)
	if more := len(texts) - limit; more > 0 {
		list += fmt.Sprintf("%sand %d more", strings.TrimPrefix(separator, ","), more)
	}
	return list
}
