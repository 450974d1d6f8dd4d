// SPDX-License-Identifier: Apache-2.0

// Package wire bounds the responses of another's API server, before they are decoded: three bytes of JSON can become a kilobyte
// in memory, and a quantity of a dozen bytes can take half an hour to parse.
//
// A Type has, by reflection, the fields that a Go type reads of JSON or protobuf. It measures the cost of a text, finds
// values that can't be decoded or take too long, and drops the fields that the caller doesn't read.
package wire
