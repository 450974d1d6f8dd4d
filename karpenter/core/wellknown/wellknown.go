// SPDX-License-Identifier: Apache-2.0

// Package wellknown extends the package-wide sets of Karpenter core. Importing it is enough.
//
// Upstream gap: a provider can add a well-known label or an ephemeral taint only by writing to a package variable of core
// (docs/internals/upstream/provider-registration.md).
package wellknown

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Labels of every instance type and node of this provider, so that a NodePool can select sizes with Gt and Lt.
const (
	// InstanceCPULabel is the number of cores, rounded down.
	InstanceCPULabel = v1alpha1.Group + "/instance-cpu"
	// InstanceMemoryLabel is the memory in MiB, rounded down.
	InstanceMemoryLabel = v1alpha1.Group + "/instance-memory"
)

// Karpenter core reads its sets without a lock, so only init extends them, before any controller runs.
func init() {
	karpv1.WellKnownLabels.Insert(InstanceCPULabel, InstanceMemoryLabel, v1alpha1.ReservationIDLabel)
	karpcloudprovider.ReservationIDLabel = v1alpha1.ReservationIDLabel
	karpcloudprovider.ReservedCapacityLabels.Insert(v1alpha1.ReservationIDLabel)
	// Cluster API sets this taint on a node until it has synced the labels. Without this entry, Karpenter treats the
	// node as unschedulable and launches another one.
	karpscheduling.KnownEphemeralTaints = append(karpscheduling.KnownEphemeralTaints, clusterv1.NodeUninitializedTaint)
}
