// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// ClusterKey returns the Cluster of a HostedCluster; false if the spec names a namespace of another HostedCluster.
func ClusterKey(hostedCluster *v1beta1.HostedCluster) (client.ObjectKey, bool) {
	key := client.ObjectKey{Namespace: hostedCluster.ControlPlaneNamespace(), Name: hostedCluster.ClusterName()}
	return key, key.Namespace == hostedCluster.DedicatedNamespace() || key.Namespace == hostedCluster.Namespace
}

func indexByCluster(object client.Object) []string {
	hostedCluster, ok := object.(*v1beta1.HostedCluster)
	if !ok {
		return nil
	}
	key, ok := ClusterKey(hostedCluster)
	if !ok {
		return nil
	}
	return []string{key.String()}
}
