// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterAPINodeClass says which Cluster API objects of the management cluster nodes are made from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clusterapinodeclasses,scope=Cluster,categories=karpenter,shortName={capinc,capincs}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Shapes",type=integer,JSONPath=`.status.shapeCount`
// +kubebuilder:printcolumn:name="Cheapest",type=string,JSONPath=`.status.cheapest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ClusterAPINodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what nodes are made from.
	// +optional
	Spec ClusterAPINodeClassSpec `json:"spec,omitempty"`
	// status is what was found.
	// +optional
	Status ClusterAPINodeClassStatus `json:"status,omitempty"`
}

// ClusterAPINodeClassList is a list of ClusterAPINodeClasses.
//
// +kubebuilder:object:root=true
type ClusterAPINodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterAPINodeClass `json:"items"`
}

// ClusterAPINodeClassSpec is what nodes are made from.
type ClusterAPINodeClassSpec struct {
	ShapeSelectors `json:",inline"`

	// bootstrap says how a machine joins the cluster. A MachineDeployment brings its own; for any other shape source
	// it is required.
	// +optional
	Bootstrap *Bootstrap `json:"bootstrap,omitempty"`

	// version is the Kubernetes version of the nodes, such as 1.36.3. It can't exceed the API server's, and can be three
	// minor versions behind it at most. Without it nodes have the version of the MachineDeployment that their shape comes
	// from, or else follow the platform's release payload.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^v?(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)([-+].+)?$')",message="version has to be a whole Kubernetes version, such as 1.36.3"
	Version string `json:"version,omitempty"`

	// kubelet is what the nodes' kubelets reserve and how many pods they run.
	// +optional
	Kubelet *KubeletConfiguration `json:"kubelet,omitempty"`

	// defaultArchitecture is that of machines whose source doesn't tell theirs. Without it that is amd64.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+$')",message="defaultArchitecture has to be a value of the label kubernetes.io/arch, such as arm64: lower-case letters and digits"
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`

	// bootstrapPatches write what a node has to register with (taints, labels, kubelet settings) into bootstrap configs of
	// kinds that the provider doesn't know. KubeadmConfig needs none. Where the platform decides what a machine boots with, they have
	// to be those that spec.autoNode of the HostedCluster has.
	// +optional
	// +listType=map
	// +listMapKey=apiGroup
	// +listMapKey=kind
	// +kubebuilder:validation:MaxItems=8
	BootstrapPatches []BootstrapPatches `json:"bootstrapPatches,omitempty"`

	// deadlines are how long a machine may take. One that takes longer is given up, and its pods get another.
	// +optional
	Deadlines *Deadlines `json:"deadlines,omitempty"`

	// failureReasons say what the infrastructure provider's condition reasons mean, beside those that are known.
	// +optional
	// +listType=map
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=64
	FailureReasons []FailureReason `json:"failureReasons,omitempty"`

	// driftPolicy says who replaces the nodes of a shape that a MachineDeployment brings when its templates or its version
	// change: Replace (the default) means Karpenter, within the NodePool's disruption budgets; DeferToClusterAPI means that
	// nodes stay until somebody else replaces them. Shapes of infrastructure templates are always Karpenter's.
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
}

// BootstrapPatches are for bootstrap configs of one kind.
type BootstrapPatches struct {
	// apiGroup of the bootstrap config, such as bootstrap.cluster.x-k8s.io.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIGroup string `json:"apiGroup"`
	// kind of the bootstrap config, such as RKE2Config.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('Template')",message="kind has to be that of the bootstrap config, such as RKE2Config, and not of its template"
	Kind string `json:"kind"`
	// patches are applied in their order.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Patches []JSONPatch `json:"patches"`
}

// JSONPatch changes one field of an object that a machine is made of, as the JSON patches of a ClusterClass do (RFC 6902).
//
// +kubebuilder:validation:XValidation:rule="self.op != 'remove' || !has(self.valueFrom)",message="a remove has no value"
type JSONPatch struct {
	// op is add, replace or remove. An add creates missing parents. A replace or a remove needs an existing field.
	// +required
	Op JSONPatchOperation `json:"op"`
	// path is a JSON pointer (RFC 6901) such as /spec/agentConfig/nodeTaints. A last part of "-" appends to a list.
	// +required
	// +kubebuilder:validation:MinLength=7
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/spec/')",message="path must begin with /spec/"
	Path string `json:"path"`
	// value to set: any JSON. An add or a replace has either value or valueFrom.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
	// valueFrom computes the value for each machine.
	// +optional
	ValueFrom *JSONPatchValue `json:"valueFrom,omitempty"`
}

// JSONPatchOperation is what a JSON patch does.
//
// +kubebuilder:validation:Enum=add;replace;remove
type JSONPatchOperation string

// Operations of a JSON patch.
const (
	// JSONPatchAdd sets a field, or inserts into a list.
	JSONPatchAdd JSONPatchOperation = "add"
	// JSONPatchReplace sets a field that exists.
	JSONPatchReplace JSONPatchOperation = "replace"
	// JSONPatchRemove removes a field that exists.
	JSONPatchRemove JSONPatchOperation = "remove"
)

// JSONPatchValue is a union: exactly one member is set. A patch whose variable is empty, or whose template renders nothing, is skipped.
//
// +kubebuilder:validation:XValidation:rule="has(self.variable) != has(self.template)",message="exactly one of variable and template must be set"
type JSONPatchValue struct {
	// variable names the variable to set, with its type. Lists: taints (objects as in a Node), taintList (key=value:effect), labelList
	// (key=value). Object: labels. Strings: taintFlag and labelFlag (those lists, joined by commas), kubeReservedFlag,
	// systemReservedFlag and evictionHardFlag (in the format of the kubelet's flags), version (without a leading v), instanceType, zone,
	// capacityType, failureDomain, nodeClaim. Number: maxPods. image.<infrastructure> is the image that the release payload names for the
	// machine's architecture, and image.<infrastructure>.<region or format> one of several, such as image.aws.us-east-1.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^(taint(s|List|Flag)|label(s|List|Flag)|(kubeReserved|systemReserved|evictionHard)Flag|maxPods|version|instanceType|zone|capacityType|failureDomain|nodeClaim|image([.][a-zA-Z0-9_-]+)+)$')",message="unknown variable: the variables are taints, taintList, taintFlag, labels, labelList, labelFlag, kubeReservedFlag, systemReservedFlag, evictionHardFlag, maxPods, version, instanceType, zone, capacityType, failureDomain, nodeClaim and image.<infrastructure>[.<region or format>]"
	Variable string `json:"variable,omitempty"`
	// template is a Go template (text/template) that renders the value as YAML or JSON, such as 'max-pods={{ .maxPods }}'. It can refer to
	// the variables by name, and to images by {{ image "aws" "us-east-1" }}.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Template string `json:"template,omitempty"`
}

// Deadlines are how long a machine may take.
type Deadlines struct {
	// launch is from when a Machine is created, and once more from when its bootstrap data is there, until the infrastructure
	// provider has a machine for it, that is a provider ID. Without it 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="launch has to be a time between 1m and 24h, such as 40m"
	Launch *metav1.Duration `json:"launch,omitempty"`
	// registration is from then until the machine's node registers. Without it 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="registration has to be a time between 1m and 24h, such as 40m"
	Registration *metav1.Duration `json:"registration,omitempty"`
}

// DefaultDeadline is that of a node class that has none of its own, for the launch and for the registration each.
const DefaultDeadline = 15 * time.Minute

// LaunchOrDefault is how long a launch may take.
func (d *Deadlines) LaunchOrDefault() time.Duration {
	if d == nil || d.Launch == nil {
		return DefaultDeadline
	}
	return d.Launch.Duration
}

// RegistrationOrDefault is how long a registration may take.
func (d *Deadlines) RegistrationOrDefault() time.Duration {
	if d == nil || d.Registration == nil {
		return DefaultDeadline
	}
	return d.Registration.Duration
}

// FailureReason says what a condition's reason means.
type FailureReason struct {
	// reason of a condition of the Machine or of its infrastructure object, such as OutOfHosts.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$')",message="reason has to be a condition's reason, such as OutOfHosts: letters, digits, '_', ',' and ':', beginning with a letter"
	Reason string `json:"reason"`
	// means InsufficientCapacity or QuotaExceeded, after which the offering isn't tried again for a while; Failed, after which
	// the machine is replaced; or Ignored, where a known reason doesn't mean here what it usually does.
	// +required
	Means FailureMeaning `json:"means"`
}

// FailureMeaning is what becomes of a machine with a reason.
//
// +kubebuilder:validation:Enum=InsufficientCapacity;QuotaExceeded;Failed;Ignored
type FailureMeaning string

// What a FailureReason can mean.
const (
	// FailureInsufficientCapacity: the infrastructure has no such machine now.
	FailureInsufficientCapacity FailureMeaning = "InsufficientCapacity"
	// FailureQuotaExceeded: the account may not have another such machine.
	FailureQuotaExceeded FailureMeaning = "QuotaExceeded"
	// FailureTerminal: this machine will never come; another one may.
	FailureTerminal FailureMeaning = "Failed"
	// FailureIgnored: it is no failure.
	FailureIgnored FailureMeaning = "Ignored"
)

// DriftPolicy says who replaces nodes.
//
// +kubebuilder:validation:Enum=Replace;DeferToClusterAPI
type DriftPolicy string

// Drift policies.
const (
	// DriftPolicyReplace: Karpenter replaces a node that has drifted. An empty policy is this one.
	DriftPolicyReplace DriftPolicy = "Replace"
	// DriftPolicyDefer: a changed template, bootstrap or version of a MachineDeployment is no drift.
	DriftPolicyDefer DriftPolicy = "DeferToClusterAPI"
)

// ShapeSelectors choose shape sources in the control-plane namespace of the management cluster.
type ShapeSelectors struct {
	// scalableResourceSelector chooses MachineDeployments by their labels. They are only read: their template,
	// bootstrap, labels and taints are a shape; their replicas are left alone. A node class without any selector chooses
	// those with the label node.cluster.x-k8s.io/karpenter-member, as the upstream experiment does.
	// +optional
	ScalableResourceSelector *metav1.LabelSelector `json:"scalableResourceSelector,omitempty"`

	// infrastructureTemplateSelectors choose infrastructure machine templates by kind and labels. Each template is a shape.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	InfrastructureTemplateSelectors []InfrastructureTemplateSelector `json:"infrastructureTemplateSelectors,omitempty"`
}

// InfrastructureTemplateSelector chooses infrastructure machine templates of one kind.
type InfrastructureTemplateSelector struct {
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
	// selector chooses by labels. An empty one chooses every template of the kind in the namespace.
	// +optional
	Selector metav1.LabelSelector `json:"selector,omitempty"`
}

// Bootstrap is a union: exactly one member is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.configTemplateRef) != has(self.dataSecretName)",message="exactly one of configTemplateRef and dataSecretName has to be set"
type Bootstrap struct {
	// configTemplateRef names a bootstrap template in the control-plane namespace, such as a KubeadmConfigTemplate. Each
	// machine gets a clone of it.
	// +optional
	ConfigTemplateRef *BootstrapTemplateReference `json:"configTemplateRef,omitempty"`
	// dataSecretName names a Secret in the control-plane namespace that holds ready bootstrap data, shared by all
	// machines. Karpenter has to be allowed to get it: spec.autoNode of the HostedCluster allows the one that it names. It
	// should register nodes with the taint karpenter.sh/unregistered:NoExecute; where it doesn't, nodes are tainted as they
	// appear.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DataSecretName string `json:"dataSecretName,omitempty"`
}

// BootstrapTemplateReference names a bootstrap template.
type BootstrapTemplateReference struct {
	// apiGroup of the template, such as bootstrap.cluster.x-k8s.io.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIGroup string `json:"apiGroup"`
	// kind of the template, such as KubeadmConfigTemplate.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.endsWith('Template')",message="kind has to be that of a template, such as KubeadmConfigTemplate: each machine gets a clone of it"
	Kind string `json:"kind"`
	// name of the template.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ReservedQuantity is a quantity, such as 100m or 256Mi.
//
// +kubebuilder:validation:MaxLength=32
type ReservedQuantity string

// EvictionThreshold is a quantity, such as 100Mi, or a percentage, such as 5%.
//
// +kubebuilder:validation:MaxLength=32
type EvictionThreshold string

// KubeletConfiguration is what a node's kubelet reserves and how many pods it runs. It lessens what Karpenter expects of a
// node, and is written into the bootstrap configuration of the kinds that the provider knows.
type KubeletConfiguration struct {
	// maxPods is the most pods that a node runs. Without it a shape's own number holds, and 110 without one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2500
	MaxPods *int32 `json:"maxPods,omitempty"`
	// kubeReserved is kept for Kubernetes' own daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="kubeReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="kubeReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`
	// systemReserved is kept for the system's daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="systemReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="systemReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`
	// evictionHard is kept free by evicting pods: memory.available and nodefs.available, as quantities or percentages.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",message="evictionHard may hold memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^(100|[0-9]{1,2})(\\\\.[0-9]+)?%$') || (isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0'))))",message="evictionHard values have to be quantities such as 100Mi or percentages such as 5%"
	EvictionHard map[string]EvictionThreshold `json:"evictionHard,omitempty"`
}

// Conditions of a ClusterAPINodeClass. Ready is computed from the others, and says what the first of them says that isn't True.
const (
	// ConditionSourcesFound: the selectors choose at least one template or MachineDeployment that can be read.
	ConditionSourcesFound = "SourcesFound"
	// ConditionReferencesResolved: what at least one of them refers to exists and can be read.
	ConditionReferencesResolved = "ReferencesResolved"
	// ConditionShapesReady: the capacity of at least one of them is known, so that there is a usable shape. While a condition
	// above isn't True, it says the same.
	ConditionShapesReady = "ShapesReady"
	// ConditionBootstrapReady: what machines join by exists.
	ConditionBootstrapReady = "BootstrapReady"
	// ConditionVersionReady: the nodes' version is known and the API server can serve it.
	ConditionVersionReady = "VersionReady"
	// ConditionLaunchAllowed: AutoNode isn't being turned off, and the Cluster isn't paused.
	ConditionLaunchAllowed = "LaunchAllowed"
)

// Reasons of ClusterAPINodeClass conditions.
const (
	// NoSelectorReason: the node class has no selector, and no MachineDeployment the label for that case; set
	// scalableResourceSelector or infrastructureTemplateSelectors.
	NoSelectorReason = "NoSelector"
	// InvalidSelectorReason: a label selector can't be parsed; the message says why.
	InvalidSelectorReason = "InvalidSelector"
	// NoShapesReason: nothing matches the selectors; label a template, or correct the selector.
	NoShapesReason = "NoShapes"
	// AllInvalidReason: everything that matches is malformed; the message names the first and what is wrong with it.
	AllInvalidReason = "AllInvalid"
	// SomeInvalidReason: some of what matches is malformed and left out; the others are in use.
	SomeInvalidReason = "SomeInvalid"
	// ReferenceNotFoundReason: a MachineDeployment refers to a template that doesn't exist; create it, or correct the name.
	ReferenceNotFoundReason = "ReferenceNotFound"
	// PricesUnreadableReason: the file that Karpenter reads prices from (ConfigMap karpenter-prices beside it) can't be understood;
	// the message says where. The prices read before stay in use.
	PricesUnreadableReason = "PricesUnreadable"
	// SourceUnreadableReason: a kind isn't served by the management cluster, or may not be read; name it in
	// spec.autoNode of the HostedCluster, or install its provider.
	SourceUnreadableReason = "SourceUnreadable"
	// BootstrapMissingReason: set bootstrap on the node class: a template shape has none of its own.
	BootstrapMissingReason = "BootstrapMissing"
	// BootstrapNotFoundReason: the bootstrap template or Secret doesn't exist; create it, or correct the name.
	BootstrapNotFoundReason = "BootstrapNotFound"
	// NodeImageMissingReason: bootstrapPatches name an image that the release payload doesn't have for a machine's architecture; correct the
	// image's infrastructure, region or format, or choose a payload that names it.
	NodeImageMissingReason = "NodeImageMissing"
	// BootstrapNotAllowedReason: the platform doesn't allow this node class to decide what a machine boots with; have the Secret or the
	// patches named in spec.autoNode of the HostedCluster.
	BootstrapNotAllowedReason = "BootstrapNotAllowed"
	// RegistrationUnknownReason: nodes of some shapes may register without the taint karpenter.sh/unregistered, so that pods land on
	// them before Karpenter has set their taints; set bootstrapPatches, or put the taint into the bootstrap data.
	RegistrationUnknownReason = "RegistrationUnknown"
	// VersionUnknownReason: the API server hasn't told its version yet.
	VersionUnknownReason = "VersionUnknown"
	// VersionTooNewReason: spec.version exceeds the API server's, or what the platform's release payload gives to nodes; lower it, or upgrade
	// the control plane first.
	VersionTooNewReason = "VersionTooNew"
	// VersionTooOldReason: spec.version is more than three minor versions behind the API server's; raise it.
	VersionTooOldReason = "VersionTooOld"
	// VersionMalformedReason: what was asked for isn't a version, such as 1.36.3; the message says where it stands.
	VersionMalformedReason = "VersionMalformed"
	// VersionHeldBackReason: the payload's version exceeds the API server's; nodes follow when that has been upgraded.
	VersionHeldBackReason = "HeldBack"
	// DrainingReason: AutoNode is being turned off for this cluster.
	DrainingReason = "Draining"
	// ClusterPausedReason: the Cluster is paused in the management cluster; nothing is launched until it resumes.
	ClusterPausedReason = "ClusterPaused"
	// ClusterDeletingReason: the Cluster is being deleted in the management cluster; nothing is launched any more.
	ClusterDeletingReason = "ClusterDeleting"
	// ClusterNotProvisionedReason: the infrastructure provider hasn't provisioned the Cluster yet, so its zones aren't known.
	ClusterNotProvisionedReason = "ClusterNotProvisioned"
)

// ClusterAPINodeClassStatus is what was found.
type ClusterAPINodeClassStatus struct {
	// conditions contains signals for health and readiness.
	// +optional
	Conditions []status.Condition `json:"conditions,omitempty"`
	// version that new nodes get, without a leading v, unless their shape has one of its own.
	// +optional
	Version string `json:"version,omitempty"`
	// shapeCount is the number of usable shapes.
	// +optional
	ShapeCount *int32 `json:"shapeCount,omitempty"`
	// cheapest is the cheapest instance type and its price, such as "c2-small $0.021".
	// +optional
	Cheapest string `json:"cheapest,omitempty"`
	// shapes are the machine forms that nodes of this class can have, cheapest first, one hundred at most.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Shapes []ShapeStatus `json:"shapes,omitempty"`
}

// ShapeStatus is one machine form.
type ShapeStatus struct {
	// instanceType that the shape is offered as.
	InstanceType string `json:"instanceType"`
	// source is the object that the shape comes from, as <kind>/<name>.
	Source string `json:"source"`
	// architecture of the machine, such as amd64.
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// cpu capacity.
	// +optional
	CPU resource.Quantity `json:"cpu,omitempty"`
	// memory capacity.
	// +optional
	Memory resource.Quantity `json:"memory,omitempty"`
	// pods that a node can have, by the node class's spec.kubelet.maxPods or else by the shape.
	// +optional
	Pods int64 `json:"pods,omitempty"`
	// gpu capacity by resource name.
	// +optional
	GPU corev1.ResourceList `json:"gpu,omitempty"`
	// version that new nodes of this shape get, where its MachineDeployment decides.
	// +optional
	Version string `json:"version,omitempty"`
	// price of an on-demand machine in US dollars an hour, as a decimal.
	// +optional
	Price string `json:"price,omitempty"`
	// spotPrice of a spot machine in US dollars an hour, as a decimal; empty without a spot offering.
	// +optional
	SpotPrice string `json:"spotPrice,omitempty"`
	// zones that the shape is offered in.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Zones []string `json:"zones,omitempty"`
	// unavailable says why no machine of the shape can be had now: Paused (its source or the Cluster is), Full (there are as many as its
	// source may have), NoBootstrap, or Resting (all its offerings failed lately, and are tried again after a while). Empty: one can.
	// +optional
	Unavailable string `json:"unavailable,omitempty"`
}

// Values of a shape's unavailable.
const (
	// ShapePaused: the shape's source or the Cluster is paused; nothing is launched until it resumes.
	ShapePaused = "Paused"
	// ShapeFull: as many machines as the source may have, by its annotation for the maximum, are there or being made.
	ShapeFull = "Full"
	// ShapeNoBootstrap: neither the source nor the node class says how its machines join.
	ShapeNoBootstrap = "NoBootstrap"
	// ShapeResting: every offering of the shape failed lately. The next try is minutes away, and at most an hour.
	ShapeResting = "Resting"
)

// ReadyConditions are those that Ready is computed from, the first cause first.
func ReadyConditions() []string {
	return []string{
		ConditionLaunchAllowed,
		ConditionVersionReady,
		ConditionSourcesFound,
		ConditionReferencesResolved,
		ConditionShapesReady,
		ConditionBootstrapReady,
	}
}

// StatusConditions computes Ready from the other conditions.
func (in *ClusterAPINodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions(ReadyConditions()...).For(in, opts...)
}

// GetConditions returns status.conditions.
func (in *ClusterAPINodeClass) GetConditions() []status.Condition {
	return in.Status.Conditions
}

// SetConditions replaces status.conditions.
func (in *ClusterAPINodeClass) SetConditions(conditions []status.Condition) {
	in.Status.Conditions = conditions
}
