// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KwokMachineTemplateSpec holds the template.
type KwokMachineTemplateSpec struct {
	// template is what machines are cloned from.
	// +required
	Template KwokMachineTemplateResource `json:"template,omitempty,omitzero"`
}

// KwokMachineTemplateResource is what machines are cloned from.
type KwokMachineTemplateResource struct {
	// metadata is given to the machines.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is given to the machines.
	// +required
	Spec KwokMachineSpec `json:"spec,omitempty,omitzero"`
}

// KwokMachineTemplateStatus reports what a machine of this template offers, for scaling from zero.
// +kubebuilder:validation:MinProperties=1
type KwokMachineTemplateStatus struct {
	// capacity is what a machine of this template has.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// nodeInfo describes the node that a machine of this template becomes.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`
}

// NodeInfo describes a node before it exists.
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// architecture is the CPU architecture of the node.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`

	// operatingSystem is the operating system of the node.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// KwokMachineTemplate is the InfraMachineTemplate of the world's infrastructure provider.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kwokmachinetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-kwok"
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".status.capacity.cpu"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".status.capacity.memory"
// +kubebuilder:printcolumn:name="Arch",type="string",JSONPath=".status.nodeInfo.architecture"
// +kubebuilder:printcolumn:name="OS",type="string",JSONPath=".status.nodeInfo.operatingSystem",priority=1
// +kubebuilder:printcolumn:name="Price",type="string",JSONPath=".metadata.annotations['karpenter\\.cluster\\.x-k8s\\.io/price']"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KwokMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +required
	Spec KwokMachineTemplateSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// KwokMachineTemplateList is a list of KwokMachineTemplate.
//
// +kubebuilder:object:root=true
type KwokMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokMachineTemplate `json:"items"`
}
