// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Names are those of one hosted cluster's objects in its control-plane namespace. Every program takes them from here.
//
// +kubebuilder:object:generate=false
type Names struct {
	// Cluster is the Cluster API Cluster where HostedClusters share the namespace, and empty in a dedicated one.
	Cluster string

	// Karpenter names the ControlPlaneComponent, Deployment, ServiceAccount, Role, RoleBinding, PodDisruptionBudget, NetworkPolicy,
	// PodMonitor and CapacityLease.
	Karpenter string
	// GuestAccess and PullSecret are Secrets.
	GuestAccess, PullSecret string
	// NodeImages and Abandoned are ConfigMaps.
	NodeImages, Abandoned string
	// LeaderElection is Karpenter's Lease.
	LeaderElection string
}

// DedicatedNamespace is the name of the control-plane namespace that a HostedCluster shares with no other: <namespace>-<name>, with dashes
// for dots as HyperShift has it. A name of more than 63 characters, which no Namespace can have, is cut and ends in a hash of both names.
func DedicatedNamespace(namespace, name string) string {
	return v1alpha1.Shorten(namespace+"-"+strings.ReplaceAll(name, ".", "-"), namespace+"/"+name)
}

// Shared reports whether HostedClusters share the namespace.
func (n Names) Shared() bool { return n.Cluster != "" }

// DedicatedNames are the names in a control-plane namespace of one HostedCluster.
func DedicatedNames() Names {
	return Names{
		Karpenter:      KarpenterComponent,
		GuestAccess:    GuestAccessSecret,
		PullSecret:     "karpenter-pull-secret",
		NodeImages:     "karpenter-node-images",
		Abandoned:      AbandonedConfigMap,
		LeaderElection: "karpenter-leader-election",
	}
}

// SharedNames are the names for a Cluster in a control-plane namespace that HostedClusters share: the dedicated ones, with the Cluster's
// name appended. Whatever the Clusters are called, no two objects of a kind get the same name.
func SharedNames(cluster string) Names {
	n, suffix := DedicatedNames(), "-"+cluster
	n.Cluster = cluster
	for _, name := range []*string{&n.Karpenter, &n.GuestAccess, &n.PullSecret, &n.NodeImages, &n.Abandoned, &n.LeaderElection} {
		*name += suffix
	}
	return n
}

// Names returns the names of the HostedCluster's objects in its control-plane namespace.
func (h *HostedCluster) Names() Names {
	if h.SharesNamespace() {
		return SharedNames(h.ClusterName())
	}
	return DedicatedNames()
}

// SharesNamespace reports whether the spec lets other HostedClusters have the same control-plane namespace.
func (h *HostedCluster) SharesNamespace() bool {
	return h.Spec.ControlPlaneNamespaceMode == ControlPlaneNamespaceShared
}

// NamesOf returns the names that go with a ControlPlaneComponent; false if the operator calls none so. Metadata is enough.
func NamesOf(component metav1.Object) (Names, bool) {
	names, labels := DedicatedNames(), component.GetLabels()
	if labels[ControlPlaneNamespaceModeLabel] == string(ControlPlaneNamespaceShared) {
		names = SharedNames(labels[ClusterNameLabel])
	}
	return names, component.GetName() == names.Karpenter
}

// IsGuestAccess reports whether a Secret is Karpenter's access to a guest, by its name and its label with the Cluster's.
func IsGuestAccess(secret metav1.Object) bool {
	return secret.GetName() == GuestAccessSecret || secret.GetName() == SharedNames(secret.GetLabels()[ClusterNameLabel]).GuestAccess
}
