// SPDX-License-Identifier: Apache-2.0

// Package message truncates the texts of others in conditions, events and logs, and makes visible the characters that a terminal would
// obey.
package message

import "strings"

const ellipsis = "…"

// Cut truncates a text to at most limit bytes, at a character boundary, and marks that with an ellipsis. limit is at
// least that of the ellipsis, three.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(ellipsis)], "") + ellipsis
}
