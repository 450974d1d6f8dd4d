// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// ControlPlaneComponent reports a workload of the operator in a control-plane namespace. It owns all objects of the
// component there, so deleting it removes the whole component.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations={"argocd.argoproj.io/sync-options=Prune=false,Delete=false","kustomize.toolkit.fluxcd.io/prune=disabled"}
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

	// spec has no fields: the HostedCluster and its payload determine the component.
	// +optional
	Spec ControlPlaneComponentSpec `json:"spec,omitempty"`
	// status reports the component's rollout.
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

// ControlPlaneComponentStatus reports a component's rollout.
type ControlPlaneComponentStatus struct {
	// observedGeneration is the generation of the object that the condition Ready is about; -1 until the operator has reported any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, Available, RolloutComplete.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// rollout is the ID of the last complete rollout, which its pods have in the variable ROLLOUT_ID. Another size isn't another rollout.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Rollout string `json:"rollout,omitempty"`

	// version is the payload's version of the last complete rollout.
	// +optional
	Version string `json:"version,omitempty"`

	// releaseImage is the payload of that version, by digest. It distinguishes builds of the same version.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ReleaseImage string `json:"releaseImage,omitempty"`

	// imageOverride is the image that runs instead of the payload's, from the HostedCluster's annotation
	// autonode.io/override-image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ImageOverride string `json:"imageOverride,omitempty"`

	// featureGates are the feature gates of Karpenter that were on in the last complete rollout.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	FeatureGates []string `json:"featureGates,omitempty"`

	// resources are the component's objects in the control-plane namespace.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Resources []ComponentResource `json:"resources,omitempty"`
}

// ComponentResource is an object of a component.
type ComponentResource struct {
	// group of the object's API, empty for the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// kind of the object.
	Kind string `json:"kind"`
	// name of the object.
	Name string `json:"name"`
}

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *ControlPlaneComponentStatus) UnmarshalJSON(data []byte) error {
	type plain ControlPlaneComponentStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
