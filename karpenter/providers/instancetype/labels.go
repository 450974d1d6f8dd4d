// SPDX-License-Identifier: Apache-2.0

package instancetype

// DefaultZone is the zone of every offering where neither the Cluster nor the source has a failure domain. Karpenter doesn't
// consolidate a node without a zone, and takes an offering's zone to be a single value. Such machines have no failure
// domain.
const DefaultZone = "default"
