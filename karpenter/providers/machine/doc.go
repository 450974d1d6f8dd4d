// SPDX-License-Identifier: Apache-2.0

// Package machine turns a NodeClaim into one Cluster API Machine with its infrastructure and bootstrap objects, finds it
// again, and deletes it.
//
// Everything that is made for a NodeClaim has the NodeClaim's name and carries its UID as a label, so that each step can be
// repeated after a crash, and nothing that belongs to another cluster or to a person is ever mistaken for ours.
package machine
