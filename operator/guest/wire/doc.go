// SPDX-License-Identifier: Apache-2.0

// Package wire bounds what another's API server sends, before it is decoded: three bytes of JSON can become a kilobyte
// in memory, and a quantity of a dozen bytes can take half an hour to parse.
//
// A Type has, by reflection, what a Go type reads of JSON or protobuf. It measures what a text would cost, finds
// values that can't be decoded or take too long, and drops the fields that the caller doesn't read.
package wire
