// SPDX-License-Identifier: Apache-2.0

package instancetype

// DefaultZone is the zone of every offering if neither the Cluster nor the source has a failure domain. Karpenter
// doesn't consolidate a node without a zone, and expects an offering to have exactly one. Such machines have no
// failure domain.
const DefaultZone = "default"
