// SPDX-License-Identifier: Apache-2.0

// Package aws tests AutoNode on AWS: in a world with AWS's APIs on loopback, where Cluster API Provider AWS makes the
// machines, or Karpenter's AWS provider makes instances itself.
package aws
