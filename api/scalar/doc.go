// SPDX-License-Identifier: Apache-2.0

// Package scalar has field types whose decoding never fails: quantities, times and durations as somebody else wrote them. An API server
// admits text that Go's decoders refuse, such as a lower-case time or a number beyond 32 bits, and one object that isn't decoded fails the
// typed list of all. These types keep such text, and whoever uses a field says what is wrong with it. ParseQuantity is the one parser of
// quantities that aren't the program's own: its cost doesn't depend on their exponent.
package scalar
