// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// InstanceTypeCatalog lists the instance types that one infrastructure template can make. It lives in the management cluster, in a
// control-plane namespace or in the namespace that the platform shares. The content of an instance type isn't validated on admission: a
// malformed one is unusable, and status has the reason. The others stay in use.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations={"argocd.argoproj.io/sync-options=Prune=false,Delete=false","kustomize.toolkit.fluxcd.io/prune=disabled"}
// +kubebuilder:resource:path=instancetypecatalogs,scope=Namespaced,categories=karpenter,shortName=itc
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.templateRef.name`
// +kubebuilder:printcolumn:name="Types",type=integer,JSONPath=`.status.instanceTypeCount`
// +kubebuilder:printcolumn:name="Unusable",type=integer,JSONPath=`.status.unusableCount`
// +kubebuilder:printcolumn:name="Offerings",type=integer,JSONPath=`.status.offeringCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="InstanceTypesUsable")].message`
type InstanceTypeCatalog struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec lists the instance types.
	// +required
	Spec InstanceTypeCatalogSpec `json:"spec"`
	// status reports which instance types are usable.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status InstanceTypeCatalogStatus `json:"status,omitempty"`
}

// InstanceTypeCatalogList is a list of InstanceTypeCatalogs.
//
// +kubebuilder:object:root=true
type InstanceTypeCatalogList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []InstanceTypeCatalog `json:"items"`
}

// InstanceTypeCatalogSpec lists the instance types.
type InstanceTypeCatalogSpec struct {
	// templateRef names the infrastructure template that machines are cloned from. It is in the control-plane namespace of each cluster
	// that uses the catalog, also if the catalog itself is in the shared namespace.
	// +required
	TemplateRef InfrastructureTemplateReference `json:"templateRef"`

	// patches are applied to the infrastructure machine of every instance type, before those of the instance type.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Patches []CatalogPatch `json:"patches,omitempty"`

	// instanceTypes that the template can make with the patches. An object in etcd is limited to 1.5 MB: split larger lists into several
	// catalogs, which a node class merges.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	InstanceTypes []CatalogInstanceType `json:"instanceTypes"`
}

// InfrastructureTemplateReference names an infrastructure template in a control-plane namespace.
type InfrastructureTemplateReference struct {
	// apiGroup of the template, such as infrastructure.cluster.x-k8s.io.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIGroup string `json:"apiGroup"`
	// kind of the template, such as VSphereMachineTemplate.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.endsWith('Template')",message="kind has to be that of a template, such as VSphereMachineTemplate: machines are cloned from it"
	Kind string `json:"kind"`
	// name of the template.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// CatalogInstanceType is one instance type.
type CatalogInstanceType struct {
	// name of the instance type, such as m5.large: the value of the label node.kubernetes.io/instance-type.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// architecture of its machines. Defaults to the node class's defaultArchitecture, otherwise to amd64.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem of its machines. Defaults to linux.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
	// capacity of its machines as quantities by resource: at least cpu and memory. Pods default to 110, ephemeral-storage to the template's
	// disk. A device, such as nvidia.com/gpu, is a resource too.
	// +required
	// +kubebuilder:validation:MaxProperties=32
	Capacity map[string]scalar.Quantity `json:"capacity"`
	// memoryOverhead is the percentage of the memory that nodes lack before one has reported, such as 5%. Defaults to the platform's
	// vmMemoryOverhead. A changed one replaces no node.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	MemoryOverhead string `json:"memoryOverhead,omitempty"`
	// overhead has the reservations of this instance type's kubelets. The provider writes it into bootstrap configs of kinds that it supports.
	// Each member that a node class's spec.kubelet sets replaces the one here.
	// +optional
	Overhead *CatalogOverhead `json:"overhead,omitempty"`
	// devices are those that DRA drivers publish for a node of this instance type. Karpenter launches nodes for pods that claim such devices
	// if its feature gate DynamicResourceAllocation is on.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Devices []CatalogDevices `json:"devices,omitempty"`
	// volumeAttachmentLimits are how many volumes of a CSI driver can be attached to one of its nodes, by the driver's name, such as
	// ebs.csi.aws.com. Karpenter takes a driver without a limit for unlimited until a node's CSINode reports a limit.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	VolumeAttachmentLimits map[string]int32 `json:"volumeAttachmentLimits,omitempty"`
	// labels of its nodes.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]CatalogValue `json:"labels,omitempty"`
	// offerings are where and how its machines can be bought. An instance type without an offering is known, and nothing launches.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Offerings []CatalogOffering `json:"offerings,omitempty"`
	// patches are applied to the infrastructure machine after those of the catalog.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Patches []CatalogPatch `json:"patches,omitempty"`
}

// CatalogOverhead has the reservations of an instance type's kubelets, as in a node class's spec.kubelet.
type CatalogOverhead struct {
	// kubeReserved is reserved for Kubernetes' daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`
	// systemReserved is reserved for the system's daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`
	// evictionHard are the hard eviction thresholds, such as memory.available, as quantities or percentages.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	EvictionHard map[string]EvictionThreshold `json:"evictionHard,omitempty"`
}

// CatalogDevices are identical devices of a DRA driver.
type CatalogDevices struct {
	// driver is the name of the DRA driver, such as gpu.nvidia.com.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// count is the number of devices of a node.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	Count int32 `json:"count"`
	// attributes of each device as in the driver's ResourceSlices, for the selectors of DeviceClasses and ResourceClaims.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Attributes map[string]CatalogDeviceAttribute `json:"attributes,omitempty"`
	// capacity of each device as quantities by name, as in the driver's ResourceSlices.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Capacity map[string]scalar.Quantity `json:"capacity,omitempty"`
}

// CatalogDeviceAttribute is a union, as in a ResourceSlice: exactly one member is set.
type CatalogDeviceAttribute struct {
	// string is a text.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	String *string `json:"string,omitempty"`
	// version is a semantic version, such as 1.2.3.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Version *string `json:"version,omitempty"`
	// bool is true or false.
	// +optional
	Bool *bool `json:"bool,omitempty"`
	// int is a whole number.
	// +optional
	// +kubebuilder:validation:Minimum=-9007199254740991
	// +kubebuilder:validation:Maximum=9007199254740991
	Int *int64 `json:"int,omitempty"`
}

// CatalogValue is the value of a label or the name of a zone.
//
// +kubebuilder:validation:MaxLength=63
type CatalogValue string

// CatalogOffering is a price in some zones.
type CatalogOffering struct {
	// zones of the offering. Without any it is in every failure domain of the Cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Zones []CatalogValue `json:"zones,omitempty"`
	// capacityType is on-demand (the default), spot or reserved.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	CapacityType string `json:"capacityType,omitempty"`
	// price of one machine in US dollars an hour, as a decimal such as "0.096". An offering without a price is known, and nothing launches.
	// A changed price replaces no node.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Price string `json:"price,omitempty"`
	// reservation that a reserved offering uses up. No other offering has one.
	// +optional
	Reservation *CatalogReservation `json:"reservation,omitempty"`
}

// CatalogReservation is capacity that is reserved with the infrastructure.
type CatalogReservation struct {
	// id of the reservation, such as cr-0123456789abcdef0: the value of the label karpenter.cluster.x-k8s.io/reservation-id and of the
	// variable reservationID.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// count is the number of machines that a cluster may have in the reservation.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Count int32 `json:"count"`
}

// CatalogPatch is a JSONPatch. It is checked when the catalog is read instead of on admission.
type CatalogPatch struct {
	// op is add, replace or remove.
	// +required
	// +kubebuilder:validation:MaxLength=16
	Op string `json:"op"`
	// path is a JSON pointer that begins with /spec/.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// value to set: any JSON.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
	// valueFrom computes the value for each machine.
	// +optional
	ValueFrom *CatalogPatchValue `json:"valueFrom,omitempty"`
}

// CatalogPatchValue is a union: exactly one member is set.
type CatalogPatchValue struct {
	// variable names the variable to set, with its type, as in JSONPatchValue.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Variable string `json:"variable,omitempty"`
	// template is a Go template that renders the value, as in JSONPatchValue.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Template string `json:"template,omitempty"`
}

// JSONPatch returns the patch as the patch engine reads it.
func (in *CatalogPatch) JSONPatch() JSONPatch {
	patch := JSONPatch{Op: JSONPatchOperation(in.Op), Path: in.Path, Value: in.Value}
	if in.ValueFrom != nil {
		patch.ValueFrom = &JSONPatchValue{Variable: in.ValueFrom.Variable, Template: in.ValueFrom.Template}
	}
	return patch
}

// InstanceTypeCatalogStatus reports which instance types are usable. The operator writes it. Whether the template exists and the patches
// apply to it is reported by the node classes of each cluster that uses the catalog.
type InstanceTypeCatalogStatus struct {
	// observedGeneration is the generation that status describes; -1 until the operator has reported any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions contains signals for health and readiness.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []status.Condition `json:"conditions,omitempty"`
	// instanceTypeCount is the number of usable instance types.
	// +optional
	InstanceTypeCount *int32 `json:"instanceTypeCount,omitempty"`
	// unusableCount is the number of unusable instance types.
	// +optional
	UnusableCount *int32 `json:"unusableCount,omitempty"`
	// offeringCount is the number of offerings of usable instance types, one for each zone that they name.
	// +optional
	OfferingCount *int32 `json:"offeringCount,omitempty"`
	// unusable are the unusable instance types and offerings, at most one hundred.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Unusable []UnusableInstanceType `json:"unusable,omitempty"`
}

// UnusableInstanceType is an entry that isn't used.
type UnusableInstanceType struct {
	// index of the instance type in spec.instanceTypes, from 0.
	Index int32 `json:"index"`
	// name of the instance type, shortened to 63 characters.
	// +optional
	Name string `json:"name,omitempty"`
	// offeringsOnly: only the offerings that message names are unusable.
	// +optional
	OfferingsOnly bool `json:"offeringsOnly,omitempty"`
	// message describes the problem and its remedy.
	Message string `json:"message"`
}

// MaxUnusable is the number of entries in an InstanceTypeCatalog's status.unusable.
const MaxUnusable = 100

// Conditions of an InstanceTypeCatalog. Ready is computed from them.
const (
	// ConditionCatalogValid: the template reference and the patches of the catalog itself are valid.
	ConditionCatalogValid = "CatalogValid"
	// ConditionInstanceTypesUsable: at least one instance type is usable.
	ConditionInstanceTypesUsable = "InstanceTypesUsable"
)

// Reasons of InstanceTypeCatalog conditions.
const (
	// CatalogInvalidReason: the catalog's own patches can't be used, so no instance type can. The message names the patch.
	CatalogInvalidReason = "CatalogInvalid"
	// CatalogEmptyReason: the catalog has no instance types.
	CatalogEmptyReason = "Empty"
	// SomeUnusableReason: some instance types or offerings are malformed or offered as something that no patch writes; status.unusable names
	// them. The others are in use.
	SomeUnusableReason = "SomeUnusable"
	// AllUnusableReason: no instance type is usable; status.unusable has the reasons.
	AllUnusableReason = "AllUnusable"
)

// StatusConditions computes Ready from the other conditions.
func (in *InstanceTypeCatalog) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ConditionCatalogValid, ConditionInstanceTypesUsable).For(in, opts...)
}

// GetConditions returns status.conditions.
func (in *InstanceTypeCatalog) GetConditions() []status.Condition { return in.Status.Conditions }

// SetConditions replaces status.conditions.
func (in *InstanceTypeCatalog) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *InstanceTypeCatalogStatus) UnmarshalJSON(data []byte) error {
	type plain InstanceTypeCatalogStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
