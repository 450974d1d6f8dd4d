// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// home is where a hosted cluster's lease and Machines are: its control-plane namespace, and its Cluster there if it shares the namespace.
type home struct{ namespace, cluster string }

// homeOf returns the home of a component, by its labels; false if the operator calls none so.
func homeOf(component *v1beta1.ControlPlaneComponent) (home, bool) {
	names, ok := v1beta1.NamesOf(component)
	return home{component.Namespace, names.Cluster}, ok
}

func recordedHome(grant *autonodev1alpha1.CapacityGrant) home {
	return home{grant.ControlPlaneNamespace, grant.Cluster}
}

// leaseKey names the CapacityLease, which is called like the component.
func (p home) leaseKey() client.ObjectKey {
	names := v1beta1.DedicatedNames()
	if p.cluster != "" {
		names = v1beta1.SharedNames(p.cluster)
	}
	return client.ObjectKey{Namespace: p.namespace, Name: names.Karpenter}
}

// machines select the Machines.
func (p home) machines() []client.ListOption {
	options := []client.ListOption{client.InNamespace(p.namespace)}
	if p.cluster != "" {
		options = append(options, client.MatchingLabels{clusterv1.ClusterNameLabel: p.cluster})
	}
	return options
}
