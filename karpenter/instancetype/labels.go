// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Labels that every instance type and every node of ours has, so that a NodePool can ask for sizes with Gt and Lt.
const (
	// InstanceCPULabel is the number of cores, rounded down.
	InstanceCPULabel = v1alpha1.Group + "/instance-cpu"
	// InstanceMemoryLabel is the memory in MiB, rounded down.
	InstanceMemoryLabel = v1alpha1.Group + "/instance-memory"
)

// DefaultZone is the zone of every offering where neither the Cluster nor the source has a failure domain. Karpenter doesn't
// consolidate a node without a zone, and takes an offering's zone to be a single value. Such machines have no failure
// domain.
const DefaultZone = "default"

// Karpenter's package-wide sets are extended here and nowhere else. It has no other way to do so, and reads them without a
// lock, so it has to be before anything runs.
func init() {
	karpv1.WellKnownLabels.Insert(InstanceCPULabel, InstanceMemoryLabel)
	// Cluster API puts this taint on a node until it has set its labels. Without this, Karpenter holds the node for
	// unsuitable, and launches another.
	scheduling.KnownEphemeralTaints = append(scheduling.KnownEphemeralTaints, clusterv1.NodeUninitializedTaint)
}
