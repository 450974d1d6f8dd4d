// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ControlPlaneComponent reports something that the operator runs in a control-plane namespace. It owns everything that
// belongs to the component there, so that deleting it removes the component whole.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=controlplanecomponents,scope=Namespaced,shortName={ancpc,ancpcs},categories={autonode}
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Rolled Out",type=string,JSONPath=`.status.conditions[?(@.type=="RolloutComplete")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Override",type=string,priority=1,JSONPath=`.status.imageOverride`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="RolloutComplete")].message`
type ControlPlaneComponent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec has no fields: the operator decides all from the HostedCluster and its payload.
	// +optional
	Spec ControlPlaneComponentSpec `json:"spec,omitempty"`
	// status is how far the component is.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status ControlPlaneComponentStatus `json:"status,omitempty"`
}

// ControlPlaneComponentList is a list of ControlPlaneComponents.
//
// +kubebuilder:object:root=true
type ControlPlaneComponentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ControlPlaneComponent `json:"items"`
}

// ControlPlaneComponentSpec has no fields.
type ControlPlaneComponentSpec struct{}

// ControlPlaneComponentStatus is how far a component is.
type ControlPlaneComponentStatus struct {
	// observedGeneration is the generation of the object that the condition Ready is about; -1 until the operator has reported any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, Available, RolloutComplete.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// version is the payload's version that runs, whole: it is written only when the rollout is complete.
	// +optional
	Version string `json:"version,omitempty"`

	// releaseImage is the payload by digest that version is of. It tells builds of the same version apart.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ReleaseImage string `json:"releaseImage,omitempty"`

	// imageOverride is the image that the component has instead of the payload's, because the HostedCluster's annotation
	// autonode.io/override-image says so.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ImageOverride string `json:"imageOverride,omitempty"`

	// resources are the objects that make the component up in the control-plane namespace.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Resources []ComponentResource `json:"resources,omitempty"`
}

// ComponentResource is an object that belongs to a component.
type ComponentResource struct {
	// group of the object's API, empty for the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// kind of the object.
	Kind string `json:"kind"`
	// name of the object.
	Name string `json:"name"`
}
