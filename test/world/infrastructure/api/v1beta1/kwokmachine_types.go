// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// MachineFinalizer keeps a KwokMachine until its machine has been stopped.
const MachineFinalizer = "infrastructure.cluster.x-k8s.io/kwokmachine"

// ProviderIDPrefix starts every provider ID; `<namespace>/<name>` of the KwokMachine follows.
const ProviderIDPrefix = "kwok://"

// Conditions of a KwokMachine; a KwokCluster has Ready and Paused.
const (
	// ConditionReady sums up the others; Cluster API shows it as the Machine's InfrastructureReady.
	ConditionReady = "Ready"
	// ConditionProvisioned reports whether the cloud has started the machine.
	ConditionProvisioned = "Provisioned"
	// ConditionJoined reports whether the machine's Node is in the guest and alive.
	ConditionJoined = "Joined"
	// ConditionServing is False when the guest refuses the kubelet a serving certificate. It is absent from what was never refused.
	ConditionServing = "ServingCertificate"
	// ConditionPaused is True while the Cluster or the object is paused. It is absent from what was never paused.
	ConditionPaused = "Paused"
	// ConditionInterrupted is True while the cloud is about to take the machine back. It is absent otherwise.
	ConditionInterrupted = "Interrupted"
	// ConditionFaultsUnderstood is False when a fault annotation can't be read. It is absent without such annotations.
	ConditionFaultsUnderstood = "FaultsUnderstood"
)

// Reasons of the conditions.
const (
	// ReasonWaitingForMachine: Cluster API has not yet made a Machine the owner. Check that a Machine names this object in
	// spec.infrastructureRef.
	ReasonWaitingForMachine = "WaitingForMachine"
	// ReasonWaitingForCluster: the Cluster doesn't exist, or its infrastructure isn't provisioned. Look at the KwokCluster.
	ReasonWaitingForCluster = "WaitingForClusterInfrastructure"
	// ReasonWaitingForBootstrapData: the Machine has no spec.bootstrap.dataSecretName yet. Look at its bootstrap config.
	ReasonWaitingForBootstrapData = "WaitingForBootstrapData"
	// ReasonProvisioning: the machine is starting; nothing to do but wait for spec.provisioningDelay.
	ReasonProvisioning = "Provisioning"
	// ReasonInsufficientCapacity: the fault no-capacity. The name is the one that EC2 uses.
	ReasonInsufficientCapacity = "InsufficientInstanceCapacity"
	// ReasonInvalidFailureDomain: the Machine's spec.failureDomain is none of the KwokCluster's.
	ReasonInvalidFailureDomain = "InvalidFailureDomain"
	// ReasonProviderIDPending: the fault late-provider-id.
	ReasonProviderIDPending = "ProviderIDPending"
	// ReasonInterrupted: the fault interrupted.
	ReasonInterrupted = "Interrupted"
	// ReasonInstanceTerminated: the fault terminated. The name is the one that AWS's provider uses.
	ReasonInstanceTerminated = "InstanceTerminated"
	// ReasonProvisioned: the machine runs.
	ReasonProvisioned = "Provisioned"

	// ReasonWaitingForInstance: no machine runs yet; see the condition Provisioned.
	ReasonWaitingForInstance = "WaitingForInstance"
	// ReasonBooting: the machine runs; its Node appears after spec.registrationDelay.
	ReasonBooting = "Booting"
	// ReasonInvalidBootstrapData: a node can't be made from the bootstrap data; the message names what is wrong with it.
	ReasonInvalidBootstrapData = "InvalidBootstrapData"
	// ReasonGuestUnreachable: the guest's API server can't be reached, or its kubeconfig Secret isn't there or isn't valid.
	ReasonGuestUnreachable = "GuestUnreachable"
	// ReasonWaitingForCertificate: the kubelet has asked the guest for its client certificate, and no controller has approved or signed that
	// yet. Look at the certificate request that the message names, and at what approves them: AutoNode's operator, else the guest's
	// controller manager.
	ReasonWaitingForCertificate = "WaitingForCertificate"
	// ReasonCertificateRefused: the kubelet's serving certificate was denied, and is requested again; the message reports why.
	ReasonCertificateRefused = "CertificateRefused"
	// ReasonRegistrationFailed: the guest's API server refused the Node, or the kubelet's client certificate was denied.
	ReasonRegistrationFailed = "RegistrationFailed"
	// ReasonNeverJoins: the fault never-joins. A cloud would not report it.
	ReasonNeverJoins = "NeverJoins"
	// ReasonDead: the fault dies. A cloud would not report it.
	ReasonDead = "Dead"
	// ReasonJoined: the Node is in the guest and its kubelet runs.
	ReasonJoined = "Joined"

	// ReasonWaitingForOwner: no Cluster owns the KwokCluster. Check that one names it in spec.infrastructureRef.
	ReasonWaitingForOwner = "WaitingForOwner"
	// ReasonReady: the object works and nothing is wrong with it.
	ReasonReady = "Ready"
	// ReasonPaused: the Cluster or the object is paused; nothing is done for it.
	ReasonPaused = "Paused"
	// ReasonNotPaused: the object was paused and isn't any more.
	ReasonNotPaused = "NotPaused"
	// ReasonDeleting: the machine is being stopped.
	ReasonDeleting = "Deleting"

	// ReasonMalformedFault: the value of a fault annotation can't be read, or no fault has that name.
	ReasonMalformedFault = "MalformedFault"
	// ReasonFaultsUnderstood: all fault annotations were understood.
	ReasonFaultsUnderstood = "FaultsUnderstood"
)

// Architecture is the CPU architecture of a machine.
// +kubebuilder:validation:Enum=amd64;arm64;s390x;ppc64le
type Architecture string

// The architectures of the world's templates.
const (
	ArchitectureAmd64 Architecture = "amd64"
	ArchitectureArm64 Architecture = "arm64"
)

// CapacityType is how a machine is paid for.
// +kubebuilder:validation:Enum=on-demand;spot
type CapacityType string

// The capacity types of the cloud. Its spot market can run dry by itself.
const (
	CapacityTypeOnDemand CapacityType = "on-demand"
	CapacityTypeSpot     CapacityType = "spot"
)

// KwokMachineSpec describes one machine.
type KwokMachineSpec struct {
	// providerID is the ID that the Node of this machine has. The provider sets it: `kwok://<namespace>/<name>`.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// instanceType is the value of the Node's label node.kubernetes.io/instance-type. Default: that label's value on the
	// KwokMachine, else the name of the template that the machine was cloned from.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InstanceType string `json:"instanceType,omitempty"`

	// capacityType is how the machine is paid for.
	// +optional
	// +kubebuilder:default=on-demand
	CapacityType CapacityType `json:"capacityType,omitempty"`

	// capacity is what the machine has. pods may be given here; otherwise the kubelet's max-pods counts.
	// +required
	// +kubebuilder:validation:XValidation:rule="'cpu' in self && 'memory' in self",message="must name cpu and memory"
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// architecture is the CPU architecture.
	// +optional
	// +kubebuilder:default=amd64
	Architecture Architecture `json:"architecture,omitempty"`

	// operatingSystem is the operating system.
	// +optional
	// +kubebuilder:default=linux
	// +kubebuilder:validation:Enum=linux;windows
	OperatingSystem string `json:"operatingSystem,omitempty"`

	// provisioningDelay is the time from when everything needed is there until the cloud has started the machine.
	// Default: what the provider was started with.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="may not be negative"
	ProvisioningDelay *metav1.Duration `json:"provisioningDelay,omitempty"`

	// registrationDelay is the time from the start of the machine until its Node appears in the guest.
	// Default: what the provider was started with.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="may not be negative"
	RegistrationDelay *metav1.Duration `json:"registrationDelay,omitempty"`

	// imageVersion is the version of the kubelet in the machine's image, such as v1.36.3, whatever its Machine requests. Without one
	// the image has every version, and the kubelet is the one that the Machine requests.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ImageVersion string `json:"imageVersion,omitempty"`

	// nodeLabels are labels that the cloud puts on the Node beside those of its bootstrap data.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// KwokMachineStatus is what the cloud reports about a machine.
// +kubebuilder:validation:MinProperties=1
type KwokMachineStatus struct {
	// conditions are the machine's conditions: Ready, Provisioned, Joined and FaultsUnderstood.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization reports how far the first provisioning came.
	// +optional
	Initialization KwokMachineInitializationStatus `json:"initialization,omitempty,omitzero"`

	// addresses are the machine's addresses.
	// +optional
	Addresses clusterv1.MachineAddresses `json:"addresses,omitempty"`

	// failureDomain is the zone that the machine was placed in.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// nodeName is the name of the machine's Node; empty before it has joined.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// requestTime is when everything needed was there and the cloud was asked for the machine.
	// +optional
	RequestTime metav1.MicroTime `json:"requestTime,omitempty,omitzero"`

	// startTime is when the cloud started the machine.
	// +optional
	StartTime metav1.MicroTime `json:"startTime,omitempty,omitzero"`

	// joinTime is when the machine's Node appeared.
	// +optional
	JoinTime metav1.MicroTime `json:"joinTime,omitempty,omitzero"`
}

// KwokMachineInitializationStatus reports how far the first provisioning of a machine came.
// +kubebuilder:validation:MinProperties=1
type KwokMachineInitializationStatus struct {
	// provisioned is true when the machine runs and its provider ID is known.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KwokMachine is the InfraMachine of the world's infrastructure provider: a machine that is a kwok Node in its guest.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kwokmachines,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-kwok"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=".metadata.ownerReferences[?(@.kind=='Machine')].name",priority=1
// +kubebuilder:printcolumn:name="Node",type="string",JSONPath=".status.nodeName"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".spec.capacity.cpu"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".spec.capacity.memory"
// +kubebuilder:printcolumn:name="Arch",type="string",JSONPath=".spec.architecture",priority=1
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".status.failureDomain"
// +kubebuilder:printcolumn:name="Provider ID",type="string",JSONPath=".spec.providerID",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",priority=1
type KwokMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// +required
	Spec KwokMachineSpec `json:"spec,omitempty,omitzero"`
	// +optional
	Status KwokMachineStatus `json:"status,omitempty,omitzero"`
}

// KwokMachineList is a list of KwokMachine.
//
// +kubebuilder:object:root=true
type KwokMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KwokMachine `json:"items"`
}

// GetConditions returns the conditions, for Cluster API's helpers.
func (m *KwokMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions sets the conditions, for Cluster API's helpers.
func (m *KwokMachine) SetConditions(conditions []metav1.Condition) { m.Status.Conditions = conditions }
