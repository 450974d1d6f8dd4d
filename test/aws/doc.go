// SPDX-License-Identifier: Apache-2.0

// Package aws tells stories about AutoNode on AWS: in a world with the EC2 API on loopback, where Cluster API Provider AWS makes
// the machines.
package aws
