// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"github.com/awslabs/operatorpkg/status"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// ClusterAPINodeClass selects the Cluster API objects of the management cluster that Karpenter makes nodes from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clusterapinodeclasses,scope=Cluster,categories=karpenter,shortName={capinc,capincs}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Templates",type=integer,JSONPath=`.status.templateCount`
// +kubebuilder:printcolumn:name="Cheapest",type=string,JSONPath=`.status.cheapest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || size(self.metadata.name) <= 63",optionalOldSelf=true,message="metadata.name has to have at most 63 characters: NodeClaims carry it as a label"
type ClusterAPINodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects the templates and settings of nodes.
	// +optional
	Spec ClusterAPINodeClassSpec `json:"spec,omitempty"`
	// status reports the templates that were found.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
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

// ClusterAPINodeClassSpec selects the templates and settings of nodes.
type ClusterAPINodeClassSpec struct {
	TemplateSelectors `json:",inline"`

	// bootstrap declares how a machine joins the cluster. A MachineDeployment has its own; any other template
	// requires it.
	// +optional
	Bootstrap *Bootstrap `json:"bootstrap,omitempty"`

	// version is the Kubernetes version of the nodes, such as 1.36.3. It must not exceed the API server's, nor be
	// more than three minor versions behind it. By default nodes have the version of their MachineDeployment,
	// otherwise that of the platform's release payload.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^v?(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)([-+].+)?$')",message="version has to be a whole Kubernetes version, such as 1.36.3"
	Version string `json:"version,omitempty"`

	// kubelet sets fields of the nodes' kubelets, such as their reservations and their number of pods. The platform may bound them.
	// +optional
	Kubelet *KubeletConfiguration `json:"kubelet,omitempty"`

	// defaultArchitecture of machines whose source doesn't specify one. Defaults to amd64.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+$')",message="defaultArchitecture has to be a value of the label kubernetes.io/arch, such as arm64: lower-case letters and digits"
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`

	// bootstrapPatches write a node's taints, labels and kubelet settings into bootstrap configs of kinds that the provider
	// doesn't know. KubeadmConfig needs none. If the platform restricts patches, only those in spec.autoNode of the
	// HostedCluster are valid.
	// +optional
	// +listType=map
	// +listMapKey=apiGroup
	// +listMapKey=kind
	// +kubebuilder:validation:MaxItems=8
	BootstrapPatches []BootstrapPatches `json:"bootstrapPatches,omitempty"`

	// deadlines bound the launch and registration of a machine. Karpenter replaces a machine that exceeds them.
	// +optional
	Deadlines *Deadlines `json:"deadlines,omitempty"`

	// failureReasons define the meaning of the infrastructure provider's condition reasons, in addition to the known ones.
	// +optional
	// +listType=map
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=64
	FailureReasons []FailureReason `json:"failureReasons,omitempty"`

	// driftPolicy decides who replaces the nodes of a MachineDeployment when its templates or its version change. With
	// Replace (the default) Karpenter does, within the NodePool's disruption budgets. With DeferToClusterAPI nodes stay until
	// something else replaces them. Karpenter always replaces nodes of infrastructure templates.
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
}

// Deadlines bound the launch and registration of a machine.
type Deadlines struct {
	// launch counts from the creation of a Machine, and again from its bootstrap data, until it has a provider ID. Defaults to
	// 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="launch has to be a time between 1m and 24h, such as 40m"
	Launch *scalar.Duration `json:"launch,omitempty"`
	// registration counts from the provider ID until the machine's node registers. Defaults to 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="registration has to be a time between 1m and 24h, such as 40m"
	Registration *scalar.Duration `json:"registration,omitempty"`
}

// DefaultDeadline is the default of launch and of registration.
const DefaultDeadline = 15 * time.Minute

// LaunchOrDefault returns launch, or DefaultDeadline if it isn't set. The receiver may be nil.
func (d *Deadlines) LaunchOrDefault() time.Duration {
	if d == nil {
		return DefaultDeadline
	}
	return d.Launch.Or(DefaultDeadline)
}

// RegistrationOrDefault returns registration, or DefaultDeadline if it isn't set. The receiver may be nil.
func (d *Deadlines) RegistrationOrDefault() time.Duration {
	if d == nil {
		return DefaultDeadline
	}
	return d.Registration.Or(DefaultDeadline)
}

// FailureReason defines the meaning of a condition's reason.
type FailureReason struct {
	// reason of a condition of the Machine or of its infrastructure object, such as OutOfHosts.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$')",message="reason has to be a condition's reason, such as OutOfHosts: letters, digits, '_', ',' and ':', beginning with a letter"
	Reason string `json:"reason"`
	// means InsufficientCapacity or QuotaExceeded: the offering is in back-off; Failed: Karpenter replaces the machine; or
	// Ignored: a known reason has another meaning here.
	// +required
	Means FailureMeaning `json:"means"`
}

// FailureMeaning is the meaning of a reason.
//
// +kubebuilder:validation:Enum=InsufficientCapacity;QuotaExceeded;Failed;Ignored
type FailureMeaning string

// What a FailureReason can mean.
const (
	// FailureInsufficientCapacity: the infrastructure has no capacity for the machine now.
	FailureInsufficientCapacity FailureMeaning = "InsufficientCapacity"
	// FailureQuotaExceeded: the account's quota is exhausted.
	FailureQuotaExceeded FailureMeaning = "QuotaExceeded"
	// FailureTerminal: this machine has failed for good; another one may succeed.
	FailureTerminal FailureMeaning = "Failed"
	// FailureIgnored: not a failure.
	FailureIgnored FailureMeaning = "Ignored"
)

// DriftPolicy decides who replaces nodes.
//
// +kubebuilder:validation:Enum=Replace;DeferToClusterAPI
type DriftPolicy string

// Drift policies.
const (
	// DriftPolicyReplace: Karpenter replaces a node that has drifted. An empty policy is this one.
	DriftPolicyReplace DriftPolicy = "Replace"
	// DriftPolicyDefer: a changed template, bootstrap or version of a MachineDeployment isn't drift.
	DriftPolicyDefer DriftPolicy = "DeferToClusterAPI"
)

// TemplateSelectors select template sources in the control-plane namespace of the management cluster.
type TemplateSelectors struct {
	// scalableResourceSelector selects MachineDeployments by their labels, with their template, bootstrap, labels and taints.
	// The provider never changes their replicas. A node class without a selector selects those with the label
	// node.cluster.x-k8s.io/karpenter-member.
	// +optional
	ScalableResourceSelector *metav1.LabelSelector `json:"scalableResourceSelector,omitempty"`

	// infrastructureTemplateSelectors select infrastructure machine templates by kind and labels. Karpenter offers each.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	InfrastructureTemplateSelectors []InfrastructureTemplateSelector `json:"infrastructureTemplateSelectors,omitempty"`

	// catalogSelectors select InstanceTypeCatalogs by their labels. Karpenter offers each of their instance types. Of two catalogs with an
	// instance type of the same name, the cheaper offering of each zone and capacity type wins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	CatalogSelectors []CatalogSelector `json:"catalogSelectors,omitempty"`
}

// CatalogSelector selects InstanceTypeCatalogs.
type CatalogSelector struct {
	// scope is where the catalogs are: Cluster (the default) is the control-plane namespace, and Shared is the one namespace that the platform
	// shares with all clusters. Other namespaces are out of reach.
	// +optional
	Scope CatalogScope `json:"scope,omitempty"`
	// selector selects by labels. An empty one selects every catalog of the scope.
	// +optional
	Selector metav1.LabelSelector `json:"selector,omitempty"`
}

// CatalogScope is where catalogs are.
//
// +kubebuilder:validation:Enum=Cluster;Shared
type CatalogScope string

// Scopes of catalogs.
const (
	// CatalogScopeCluster: the control-plane namespace. An empty scope is this one.
	CatalogScopeCluster CatalogScope = "Cluster"
	// CatalogScopeShared: the namespace that the platform shares with all clusters, if it does.
	CatalogScopeShared CatalogScope = "Shared"
)

// InfrastructureTemplateSelector selects infrastructure machine templates of one kind.
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
	// selector selects by labels. An empty one selects every template of the kind in the namespace.
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
	// dataSecretName names a Secret in the control-plane namespace with bootstrap data, shared by all machines. Karpenter
	// needs permission to get it, which spec.autoNode of the HostedCluster grants for the one that it names. The data should
	// register nodes with the taint karpenter.sh/unregistered:NoExecute; otherwise the provider taints nodes when they appear.
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

// EvictionGracePeriod is a time, such as 90s or 1m30s.
//
// +kubebuilder:validation:MaxLength=32
type EvictionGracePeriod string

// Defaults of the kubelet's image garbage collection, in percent.
const (
	DefaultImageGCHighThresholdPercent = 85
	DefaultImageGCLowThresholdPercent  = 80
)

// KubeletConfiguration sets fields of the KubeletConfiguration of a node. The provider writes them into bootstrap configs of kinds that it
// supports, where each replaces that of the bootstrap template, and plans with those that change what a node can allocate.
//
// Other fields of the kubelet's configuration have to be in the platform's kubeletBounds.allowedFields. Karpenter checks their types by
// Kubernetes 1.36's, and writes them into a drop-in file. The kubelet checks their values.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="!has(self.evictionSoft) || self.evictionSoft.all(k, has(self.evictionSoftGracePeriod) && k in self.evictionSoftGracePeriod)",message="evictionSoft: each signal needs a grace period in evictionSoftGracePeriod, else no kubelet starts"
// +kubebuilder:validation:XValidation:rule="!has(self.evictionSoftGracePeriod) || self.evictionSoftGracePeriod.all(k, has(self.evictionSoft) && k in self.evictionSoft)",message="evictionSoftGracePeriod: each signal needs a threshold in evictionSoft"
// +kubebuilder:validation:XValidation:rule="(has(self.imageGCHighThresholdPercent) ? self.imageGCHighThresholdPercent : 85) > (has(self.imageGCLowThresholdPercent) ? self.imageGCLowThresholdPercent : 80) || (!has(self.imageGCHighThresholdPercent) && !has(self.imageGCLowThresholdPercent))",message="imageGCHighThresholdPercent (default 85) has to be greater than imageGCLowThresholdPercent (default 80), else no kubelet starts"
type KubeletConfiguration struct {
	// clusterDNS are the IP addresses of the cluster's DNS servers, which pods with dnsPolicy ClusterFirst ask. Defaults to the
	// bootstrap template's value.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="clusterDNS has to hold IP addresses, such as 10.96.0.10"
	ClusterDNS []string `json:"clusterDNS,omitempty"`
	// maxPods is the maximum number of pods of a node. Defaults to the template's own number, otherwise 110.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2500
	MaxPods *int32 `json:"maxPods,omitempty"`
	// podsPerCore is the maximum number of pods per core; a node runs at most maxPods. 0 is no limit per core. Defaults to the
	// bootstrap template's value.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2500
	PodsPerCore *int32 `json:"podsPerCore,omitempty"`
	// kubeReserved is reserved for Kubernetes' daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="kubeReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="kubeReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`
	// systemReserved is reserved for the system's daemons: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="systemReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="systemReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`
	// evictionHard are the hard eviction thresholds, such as memory.available and nodefs.available, as quantities or percentages. Signals
	// that it doesn't name have no threshold.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",message="evictionHard may hold memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^(100|[0-9]{1,2})(\\\\.[0-9]+)?%$') || (self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && quantity(self[k]).isGreaterThan(quantity('0'))))",message="evictionHard values have to be percentages such as 5% or positive quantities such as 100Mi; 0% turns a threshold off"
	EvictionHard map[string]EvictionThreshold `json:"evictionHard,omitempty"`
	// evictionSoft are the soft eviction thresholds: the kubelet evicts pods once one is met for its grace period. They don't reduce what a
	// node can allocate.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",message="evictionSoft may hold memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^(100|[0-9]{1,2})(\\\\.[0-9]+)?%$') || (self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && quantity(self[k]).isGreaterThan(quantity('0'))))",message="evictionSoft values have to be percentages such as 5% or positive quantities such as 100Mi; 0% turns a threshold off"
	EvictionSoft map[string]EvictionThreshold `json:"evictionSoft,omitempty"`
	// evictionSoftGracePeriod has for each signal of evictionSoft the time, such as 1m30s, for which its threshold is met before the kubelet
	// evicts pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",message="evictionSoftGracePeriod may hold memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self[k]) <= duration('24h'))",message="evictionSoftGracePeriod values have to be times of at most 24h, such as 90s"
	EvictionSoftGracePeriod map[string]EvictionGracePeriod `json:"evictionSoftGracePeriod,omitempty"`
	// evictionMaxPodGracePeriod is the longest grace period, in seconds, of a pod that a soft threshold evicts. -1 leaves the pod its own.
	// Defaults to the bootstrap template's value, otherwise 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=86400
	EvictionMaxPodGracePeriod *int32 `json:"evictionMaxPodGracePeriod,omitempty"`
	// imageGCHighThresholdPercent is the disk usage above which the kubelet removes unused images. If only one of both thresholds is set, the
	// other one has the kubelet's default, 85 and 80, independent of the bootstrap template.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`
	// imageGCLowThresholdPercent is the disk usage down to which the kubelet removes unused images.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ImageGCLowThresholdPercent *int32 `json:"imageGCLowThresholdPercent,omitempty"`
	// cpuCFSQuota decides whether the kubelet enforces CPU limits by CFS quotas. Defaults to the bootstrap template's value, otherwise true.
	// +optional
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`
	// podPidsLimit is the maximum number of processes of a pod. -1 is as many as the node has. Defaults to the bootstrap template's value,
	// otherwise -1.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=4194304
	// +kubebuilder:validation:XValidation:rule="self != 0",message="podPidsLimit has to be a positive number of processes, or -1 for no limit"
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`

	// Other are fields without a type here, those of kubeletBounds.allowedFields.
	Other map[string]apiextensionsv1.JSON `json:"-"`
}

// ClusterAPINodeClassStatus reports the templates that were found.
type ClusterAPINodeClassStatus struct {
	// observedGeneration is the generation of the object that the condition Ready is about; -1 until Karpenter has reported any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions contains signals for health and readiness.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []status.Condition `json:"conditions,omitempty"`
	// version of new nodes, without a leading v, unless their template has its own.
	// +optional
	Version string `json:"version,omitempty"`
	// nodeUpgrade is the progress of the upgrade to the release payload, while the platform has it prove itself.
	// +optional
	NodeUpgrade *NodeUpgradeStatus `json:"nodeUpgrade,omitempty"`
	// templateCount is the number of usable templates.
	// +optional
	TemplateCount *int32 `json:"templateCount,omitempty"`
	// cheapest is the cheapest instance type and its price, such as "c2-small $0.021".
	// +optional
	Cheapest string `json:"cheapest,omitempty"`
	// templates are the machine templates that this class selects, with Karpenter's offerings of each, cheapest first, at most one
	// hundred.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Templates []TemplateStatus `json:"templates,omitempty"`
}

// TemplateStatus is one machine template, with Karpenter's offerings of it.
type TemplateStatus struct {
	// instanceType that the template is offered as.
	InstanceType string `json:"instanceType"`
	// source is the MachineDeployment or the infrastructure template, as <kind>/<name>.
	Source string `json:"source"`
	// architecture of the machine, such as amd64.
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// cpu capacity.
	// +optional
	CPU scalar.Quantity `json:"cpu,omitempty"`
	// memory capacity.
	// +optional
	Memory scalar.Quantity `json:"memory,omitempty"`
	// pods is the maximum number of pods of a node: the node class's spec.kubelet.maxPods and podsPerCore, otherwise the template's.
	// +optional
	Pods int64 `json:"pods,omitempty"`
	// gpu capacity by resource name.
	// +optional
	GPU map[string]scalar.Quantity `json:"gpu,omitempty"`
	// version of new nodes of this template, if its image or its MachineDeployment has another one than the node class.
	// +optional
	Version string `json:"version,omitempty"`
	// price of an on-demand machine in US dollars per hour, as a decimal.
	// +optional
	Price string `json:"price,omitempty"`
	// spotPrice of a spot machine in US dollars per hour, as a decimal; empty without a spot offering.
	// +optional
	SpotPrice string `json:"spotPrice,omitempty"`
	// zones of the template's offerings.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Zones []string `json:"zones,omitempty"`
	// unavailable reports why nothing launches from the template now: Paused (its source or the Cluster is paused), Full (its source is at its
	// max size), ImageNewer (its image is newer than nodes may get yet), NoBootstrap, BackOff (all its offerings are in back-off), Quota (one
	// of the infrastructure is exhausted: see the condition OfferingsAvailable), NoPrice or NoZone (of a catalog). Empty if it can launch.
	// +optional
	Unavailable string `json:"unavailable,omitempty"`
	// image is Older if the template's image has an older Kubernetes than nodes get, and no other template replaces it: its nodes stay at that
	// version. Empty otherwise.
	// +optional
	Image string `json:"image,omitempty"`
	// profile is Missing if AutoNode has no profile of the template's kind: it reads status.capacity and annotations only, takes the machines
	// for on-demand ones unless an annotation declares otherwise, and recognizes only common words in their conditions. Empty if it has one.
	// +optional
	Profile string `json:"profile,omitempty"`
}

// ImageOlder is the value of a template's image if that holds its nodes back. Select a template whose image has the node class's version.
const ImageOlder = "Older"

// ProfileMissing is the value of a template's profile if its kind has none. Write one into the ConfigMap karpenter-profiles.
const ProfileMissing = "Missing"

// Values of a template's unavailable.
const (
	// TemplatePaused: the template's source or the Cluster is paused; nothing launches until it resumes.
	TemplatePaused = "Paused"
	// TemplateFull: the source has as many machines as its max-size annotation allows, including those that are launching.
	TemplateFull = "Full"
	// TemplateImageNewer: the source declares that its image has a newer Kubernetes than nodes get now. It launches once the release, its
	// upgrade window and the API server allow that version.
	TemplateImageNewer = "ImageNewer"
	// TemplateNoBootstrap: neither the source nor the node class has a bootstrap.
	TemplateNoBootstrap = "NoBootstrap"
	// TemplateBackOff: every offering of the template is in back-off. The next retry is minutes away, at most an hour. Or its
	// reservations are used up, or the hosted cluster's CapacityLease leaves no room for it.
	TemplateBackOff = "BackOff"
	// TemplateQuota: a quota of the infrastructure that counts the template's machines is exhausted, and its other offerings are in back-off.
	// The condition OfferingsAvailable names the quota, and when it is tried again.
	TemplateQuota = "Quota"
	// TemplateNoPrice: no offering of the catalog's instance type has a price, or all are offered as something that no patch writes.
	TemplateNoPrice = "NoPrice"
	// TemplateNoZone: no zone of the catalog's instance type is a failure domain of the Cluster, and no patch writes the variable zone.
	TemplateNoZone = "NoZone"
)

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *ClusterAPINodeClassStatus) UnmarshalJSON(data []byte) error {
	type plain ClusterAPINodeClassStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
