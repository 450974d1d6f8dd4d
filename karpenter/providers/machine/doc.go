// SPDX-License-Identifier: Apache-2.0

// Package machine creates, finds and deletes the Cluster API Machine of a NodeClaim with its infrastructure machine and
// bootstrap config.
//
// Every object has the NodeClaim's name and its UID as a label. So each step can be repeated after a crash, and the
// provider never takes an object of another cluster or of a person for its own.
package machine
