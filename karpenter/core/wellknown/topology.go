// SPDX-License-Identifier: Apache-2.0

package wellknown

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// CSI drivers limit a volume to the nodes with their own topology key, by the node affinity of the PersistentVolume or the
// allowedTopologies of the StorageClass. A driver's node plugin sets that label on each node, so Karpenter core, which finds
// future nodes by topology.kubernetes.io only, finds no node for such a pod unless it reads the key as that label.
//
// Each key is in the documentation of its driver. Its values have to be those of the node's zone or region label.
var (
	zoneKeys = []string{
		"topology.cinder.csi.openstack.org/zone",
		"topology.csi.vmware.com/k8s-zone",
		"topology.disk.csi.azure.com/zone",
		"topology.ebs.csi.aws.com/zone",
		"topology.gke.io/zone",
		"topology.manila.csi.openstack.org/zone",
	}
	regionKeys = []string{
		"topology.csi.vmware.com/k8s-region",
	}
)

func init() {
	normalize(zoneKeys, regionKeys)
}

// TopologyKeys are topology keys of CSI drivers.
type TopologyKeys struct {
	// Zone and Region have the values of topology.kubernetes.io/zone and of topology.kubernetes.io/region.
	Zone, Region []string
}

// ParseTopologyKeys reads two lists of keys, separated by commas. The error names each key that can't be one.
func ParseTopologyKeys(zone, region string) (TopologyKeys, error) {
	keys := TopologyKeys{Zone: split(zone), Region: split(region)}
	if problems := v1alpha1.TopologyKeyProblems(keys.Zone, keys.Region); len(problems) > 0 {
		return TopologyKeys{}, errors.New(strings.Join(problems, "; "))
	}
	return keys, nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// Normalize has Karpenter core read the keys as the labels of zones and regions. Core reads its map without a lock: call it
// before any controller runs.
func Normalize(keys TopologyKeys) { normalize(keys.Zone, keys.Region) }

func normalize(zone, region []string) {
	for _, key := range zone {
		karpv1.NormalizedLabels[key] = corev1.LabelTopologyZone
	}
	for _, key := range region {
		karpv1.NormalizedLabels[key] = corev1.LabelTopologyRegion
	}
}
