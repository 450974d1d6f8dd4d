// SPDX-License-Identifier: Apache-2.0

// Package scalar declares field types for quantities, times and durations. Decoding them never fails. An API server admits text that Go's
// decoders reject, such as a lower-case time or a number beyond 32 bits, and one such object fails the typed list of all. These types keep
// the text, and the controller that uses a field reports the problem. All programs parse the quantities of users with
// ParseQuantity: its cost doesn't grow with the exponent.
package scalar
