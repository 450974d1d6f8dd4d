// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KwokClusterSpec is what a cluster requires of the cloud.
type KwokClusterSpec struct {
	// controlPlaneEndpoint is where the guest's API server is reached. Cluster API copies it to the Cluster when it is set;
	// leave it empty when the control plane provider sets it.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// region is the region that nodes are labelled with (topology.kubernetes.io/region).
	// +optional
	// +kubebuilder:default=local
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Region string `json:"region,omitempty"`

	// failureDomains are the zones that machines can be placed in. Cluster API copies them to the Cluster's status.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
}

// KwokClusterStatus is what the cloud reports about a cluster.
// +kubebuilder:validation:MinProperties=1
type KwokClusterStatus struct {
	// conditions are the cluster's conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization reports how far the first provisioning came.
	// +optional
	Initialization KwokClusterInitializationStatus `json:"initialization,omitempty,omitzero"`

	// failureDomains are the zones that machines can be placed in.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
}

// KwokClusterInitializationStatus reports how far the first provisioning of a cluster came.
// +kubebuilder:validation:MinProperties=1
type KwokClusterInitializationStatus struct {
	// provisioned is true when machines can be made.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KwokCluster is the InfraCluster of the world's infrastructure provider.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kwokclusters,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-kwok"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Provisioned",type="boolean",JSONPath=".status.initialization.provisioned"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",priority=1
type KwokCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +optional
	Spec KwokClusterSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokClusterStatus `json:"status,omitempty,omitzero"`
}

// KwokClusterList is a list of KwokCluster.
//
// +kubebuilder:object:root=true
type KwokClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokCluster `json:"items"`
}

// GetConditions returns the conditions, for Cluster API's helpers.
func (c *KwokCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions sets the conditions, for Cluster API's helpers.
func (c *KwokCluster) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }
