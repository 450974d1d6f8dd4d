// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// ConditionAvailable reports whether the guest's API server answers. Cluster API shows it as the Cluster's
// ControlPlaneAvailable.
const ConditionAvailable = "Available"

// HostedControlPlaneSpec is what is asked of a hosted control plane.
type HostedControlPlaneSpec struct {
	// version is the Kubernetes version that the control plane is to run, with its v, for example v1.36.2.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// controlPlaneEndpoint is where the guest's API server is reached. Cluster API copies it to the Cluster.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// HostedControlPlaneStatus is what the hosting platform reports.
// +kubebuilder:validation:MinProperties=1
type HostedControlPlaneStatus struct {
	// conditions are the control plane's conditions: Available.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization reports how far the first start came.
	// +optional
	Initialization HostedControlPlaneInitializationStatus `json:"initialization,omitempty,omitzero"`

	// version is the Kubernetes version that the control plane runs, with its v.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// versions are the Kubernetes versions that the control plane runs, oldest first.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Versions []clusterv1.StatusVersion `json:"versions,omitempty"`

	// externalManagedControlPlane is true: no Node of the guest runs the control plane.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`
}

// HostedControlPlaneInitializationStatus reports how far the first start of a control plane came.
// +kubebuilder:validation:MinProperties=1
type HostedControlPlaneInitializationStatus struct {
	// controlPlaneInitialized is true when the control plane has answered requests.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// HostedControlPlane is a control plane that the hosting platform runs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=hostedcontrolplanes,shortName=hcp,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=control-plane-hosted"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"
// +kubebuilder:printcolumn:name="Available",type="string",JSONPath=".status.conditions[?(@.type=='Available')].status"
// +kubebuilder:printcolumn:name="Desired",type="string",JSONPath=".spec.version"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.version"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Available')].message",priority=1
type HostedControlPlane struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +required
	Spec HostedControlPlaneSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status HostedControlPlaneStatus `json:"status,omitempty,omitzero"`
}

// HostedControlPlaneList is a list of HostedControlPlane.
//
// +kubebuilder:object:root=true
type HostedControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HostedControlPlane `json:"items"`
}

// GetConditions returns the conditions, for Cluster API's helpers.
func (c *HostedControlPlane) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions sets the conditions, for Cluster API's helpers.
func (c *HostedControlPlane) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}
