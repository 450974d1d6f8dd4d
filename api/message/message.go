// SPDX-License-Identifier: Apache-2.0

// Package message bounds the words of others that conditions, events and logs repeat.
package message

import "strings"

// Cut truncates a text to a maximum of bytes, at a character boundary, and marks that with an ellipsis.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
