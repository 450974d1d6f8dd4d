// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// HostedCluster is a cluster whose control plane runs as pods in the management cluster. AutoNode reads what it needs
// of it and owns spec.autoNode; the field names follow HyperShift's where one exists.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=hostedclusters,scope=Namespaced,shortName={anhc,anhcs},categories={autonode,cluster-api}
// +kubebuilder:printcolumn:name="AutoNode",type=string,JSONPath=`.status.autoNode.state`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version.history[?(@.state=="Completed")].version`
// +kubebuilder:printcolumn:name="Desired",type=string,JSONPath=`.status.version.desired.version`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.autoNode.nodeCount`
// +kubebuilder:printcolumn:name="Outdated",type=integer,JSONPath=`.status.autoNode.outdatedNodeCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.autoNode.message`
// +kubebuilder:printcolumn:name="Operator",type=string,JSONPath=`.status.operator`,priority=1
type HostedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the platform team wants.
	// +required
	Spec HostedClusterSpec `json:"spec"`
	// status is what the operator has seen and done.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status HostedClusterStatus `json:"status,omitempty"`
}

// HostedClusterList is a list of HostedClusters.
//
// +kubebuilder:object:root=true
type HostedClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HostedCluster `json:"items"`
}

// HostedClusterSpec is what the platform team wants of a hosted cluster.
//
// +kubebuilder:validation:XValidation:rule="has(self.infraID) == has(oldSelf.infraID)",message="infraID can't be added or removed: machines carry it"
// +kubebuilder:validation:XValidation:rule="has(self.controlPlaneNamespace) == has(oldSelf.controlPlaneNamespace)",message="controlPlaneNamespace can't be added or removed: the control plane runs there"
type HostedClusterSpec struct {
	// release is the payload: it decides which Karpenter and which node version run.
	// +required
	Release Release `json:"release"`

	// infraID names the Cluster API Cluster in the control-plane namespace. Defaults to metadata.name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="infraID is immutable: machines carry it"
	InfraID string `json:"infraID,omitempty"`

	// controlPlaneNamespace is the namespace of the control plane and of its Cluster API Cluster. Defaults to
	// <metadata.namespace>-<metadata.name>; the only other value allowed is metadata.namespace, so that no tenant can
	// point at another's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="controlPlaneNamespace is immutable: the control plane runs there"
	ControlPlaneNamespace string `json:"controlPlaneNamespace,omitempty"`

	// pullSecret names a Secret of type kubernetes.io/dockerconfigjson in the HostedCluster's namespace. It pulls the
	// payload and the images that the payload names.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) >= 1 && size(self.name) <= 253",message="pullSecret.name has to be the name of a Secret; leave pullSecret out where none is needed"
	PullSecret *corev1.LocalObjectReference `json:"pullSecret,omitempty"`

	// imageContentSources lists mirrors, tried in order before the source itself.
	// +optional
	// +listType=map
	// +listMapKey=source
	// +kubebuilder:validation:MaxItems=64
	ImageContentSources []ImageContentSource `json:"imageContentSources,omitempty"`

	// pausedUntil pauses AutoNode for this cluster: "true" until it is removed, "false", or a time in RFC 3339 at
	// which it resumes by itself. Karpenter is scaled to zero meanwhile, so that no node comes, goes or is replaced; nodes
	// and their pods go on running. Nothing else is written, and a drain's time begins anew after the pause. Cluster API's
	// annotation cluster.x-k8s.io/paused on the HostedCluster or the Cluster, and the Cluster's spec.paused, do the same.
	// +optional
	// +kubebuilder:validation:MaxLength=35
	// +kubebuilder:validation:XValidation:rule="self.matches('^(true|false|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2}))$')",message="pausedUntil has to be true, false, or a time in RFC 3339, such as 2026-12-01T06:00:00Z"
	PausedUntil *string `json:"pausedUntil,omitempty"`

	// autoNode gives the cluster nodes that come and go by themselves. Removing it drains and removes the nodes that
	// AutoNode made, then Karpenter; NodePools and CRDs stay in the guest cluster.
	// +optional
	AutoNode *AutoNode `json:"autoNode,omitempty"`

	// nodeDrain says how long nodes may drain when autoNode is removed or the HostedCluster deleted, and what happens then.
	// It stands beside autoNode because it has to outlive it.
	// +optional
	NodeDrain *NodeDrain `json:"nodeDrain,omitempty"`
}

// NodeDrain bounds the drain of all nodes.
type NodeDrain struct {
	// timeout is how long nodes may drain within their PodDisruptionBudgets, from 1m to 168h. Without it, what the operator's
	// flag --drain-timeout says, 30m unless set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="timeout has to be between 1m and 168h, such as 30m or 1h30m"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// onTimeout says what happens to nodes that aren't drained by then.
	// +optional
	// +kubebuilder:default=Force
	OnTimeout DrainTimeoutPolicy `json:"onTimeout,omitempty"`
}

// TimeoutOr returns how long nodes may drain: timeout where it is set, else the fallback. A nil NodeDrain is one without anything set.
func (d *NodeDrain) TimeoutOr(fallback time.Duration) time.Duration {
	if d == nil || d.Timeout == nil || d.Timeout.Duration <= 0 {
		return fallback
	}
	return d.Timeout.Duration
}

// Stops says that nothing is ever forced. A nil NodeDrain forces.
func (d *NodeDrain) Stops() bool { return d != nil && d.OnTimeout == DrainTimeoutStop }

// DrainTimeoutPolicy says what happens to nodes that aren't drained in time.
//
// +kubebuilder:validation:Enum=Force;Stop
type DrainTimeoutPolicy string

const (
	// DrainTimeoutForce terminates the pods that are left, against their PodDisruptionBudgets. What still isn't gone a few minutes
	// later is given up: its Machines are deleted through the management cluster, and a ConfigMap lists them.
	DrainTimeoutForce DrainTimeoutPolicy = "Force"
	// DrainTimeoutStop terminates no pod by force and gives nothing up: the drain goes on within the budgets, and AutoNodeEnabled
	// says that a person has to act. A deleted HostedCluster stays until then.
	DrainTimeoutStop DrainTimeoutPolicy = "Stop"
)

// Release is a payload.
type Release struct {
	// image is the release image. A tag is resolved to a digest once for each change of this field; the digest is
	// recorded in status.version.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][^\\\\s]*$')",message="image has to be an image reference such as registry.example/release:1.36.3 or registry.example/release@sha256:…"
	Image string `json:"image"`
}

// ImageContentSource names mirrors of a repository.
type ImageContentSource struct {
	// source is a repository, or a prefix of one, as the payload names it, such as registry.example/release.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Source string `json:"source"`
	// mirrors hold the same content. They are tried in this order.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Mirrors []string `json:"mirrors"`
}

// AutoNode configures the provisioner of nodes.
type AutoNode struct {
	// provisionerConfig chooses the provisioner.
	// +required
	ProvisionerConfig ProvisionerConfig `json:"provisionerConfig"`

	// nodeUpgrade says when nodes get the version of a new payload. Karpenter itself follows the payload at once. Without it
	// nodes do, too, as the disruption budgets of their NodePools allow, which hold in any case.
	// +optional
	NodeUpgrade *NodeUpgrade `json:"nodeUpgrade,omitempty"`
}

// NodeUpgrade is a union: the member that policy names is set.
//
// +kubebuilder:validation:XValidation:rule="self.policy == 'MaintenanceWindow' ? has(self.maintenanceWindow) : !has(self.maintenanceWindow)",message="maintenanceWindow is required when policy is MaintenanceWindow, and forbidden otherwise"
type NodeUpgrade struct {
	// policy chooses what the upgrade of nodes waits for. Until then new nodes get the version that nodes have.
	// +optional
	// +kubebuilder:default=Immediate
	Policy NodeUpgradePolicy `json:"policy,omitempty"`
	// maintenanceWindow is when nodes may be upgraded.
	// +optional
	MaintenanceWindow *MaintenanceWindow `json:"maintenanceWindow,omitempty"`
}

// NodeUpgradePolicy is what the upgrade of nodes waits for.
//
// +kubebuilder:validation:Enum=Immediate;MaintenanceWindow;Manual
type NodeUpgradePolicy string

const (
	// NodeUpgradeImmediate: nothing; nodes follow the payload and the control plane at once.
	NodeUpgradeImmediate NodeUpgradePolicy = "Immediate"
	// NodeUpgradeMaintenanceWindow: the next maintenance window. From then on new nodes get the new version, and running nodes are
	// replaced as long as a window is open; what is left when it closes waits for the next.
	NodeUpgradeMaintenanceWindow NodeUpgradePolicy = "MaintenanceWindow"
	// NodeUpgradeManual: the annotation autonode.io/approve-node-version on the HostedCluster, with the version that is approved.
	NodeUpgradeManual NodeUpgradePolicy = "Manual"
)

// MaintenanceWindow opens again and again.
type MaintenanceWindow struct {
	// schedule is when it opens, as cron has it: minute, hour, day of month, month and day of week, such as "0 2 * * 6"; or
	// @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually. An hour that clocks skip in spring doesn't come.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$')",message="schedule has to be five fields as cron has them (minute, hour, day, month, weekday), such as 0 2 * * 6, or one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually"
	Schedule string `json:"schedule"`
	// duration is how long it stays open, from 15m to 168h. Replacements begin up to its end but for the last five minutes; a drain
	// that has begun ends in its own time.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('15m') && duration(self) <= duration('168h')",message="duration has to be between 15m and 168h, such as 4h or 1h30m"
	Duration metav1.Duration `json:"duration"`
	// timeZone is the one that schedule is meant in, by its name in the IANA database, such as Europe/Zurich. Without it UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// Provisioner is a program that makes nodes.
//
// +kubebuilder:validation:Enum=Karpenter
type Provisioner string

// ProvisionerKarpenter is Karpenter, the only provisioner there is.
const ProvisionerKarpenter Provisioner = "Karpenter"

// ProvisionerConfig is a union: exactly the member that name chooses is set.
//
// +kubebuilder:validation:XValidation:rule="self.name != 'Karpenter' || has(self.karpenter)",message="karpenter is required when name is Karpenter"
type ProvisionerConfig struct {
	// name chooses the provisioner.
	// +required
	Name Provisioner `json:"name"`
	// karpenter configures Karpenter.
	// +optional
	Karpenter *Karpenter `json:"karpenter,omitempty"`
}

// Platform is what Karpenter's cloud provider drives.
//
// +kubebuilder:validation:Enum=ClusterAPI;AWS
type Platform string

const (
	// PlatformClusterAPI drives any infrastructure through Cluster API.
	PlatformClusterAPI Platform = "ClusterAPI"
	// PlatformAWS drives EC2 directly with Karpenter's AWS provider.
	PlatformAWS Platform = "AWS"
)

// Karpenter is a union: exactly the member that platform chooses is set.
//
// +kubebuilder:validation:XValidation:rule="self.platform == 'ClusterAPI' ? has(self.clusterAPI) : !has(self.clusterAPI)",message="clusterAPI is required when platform is ClusterAPI, and forbidden otherwise"
// +kubebuilder:validation:XValidation:rule="self.platform == 'AWS' ? has(self.aws) : !has(self.aws)",message="aws is required when platform is AWS, and forbidden otherwise"
type Karpenter struct {
	// platform chooses the cloud provider. It can't change while AutoNode is on: nodes of one can't be adopted by
	// the other.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="platform is immutable while autoNode is set: remove autoNode first, which drains its nodes"
	Platform Platform `json:"platform"`
	// clusterAPI is what the default ClusterAPINodeClass of the guest cluster holds.
	// +optional
	ClusterAPI *ClusterAPI `json:"clusterAPI,omitempty"`
	// aws configures Karpenter's AWS provider.
	// +optional
	AWS *AWS `json:"aws,omitempty"`
}

// ClusterAPI is what the default ClusterAPINodeClass of the guest cluster holds, and what Karpenter may touch in the
// control-plane namespace: its Role there is made from the kinds named here.
//
// +kubebuilder:validation:XValidation:rule="has(self.scalableResourceSelector) || has(self.infrastructureTemplateSelectors)",message="one of scalableResourceSelector and infrastructureTemplateSelectors is required: without one there is nothing to launch"
type ClusterAPI struct {
	v1alpha1.ShapeSelectors `json:",inline"`

	// bootstrap says how a machine joins the cluster. A MachineDeployment brings its own.
	// +optional
	Bootstrap *v1alpha1.Bootstrap `json:"bootstrap,omitempty"`

	// kubelet is what the nodes' kubelets reserve and how many pods they run.
	// +optional
	Kubelet *v1alpha1.KubeletConfiguration `json:"kubelet,omitempty"`

	// bootstrapPatches are those that node classes may have, and that the default node class has. Nobody in the guest can
	// have others: they decide what a machine boots with, and a machine can read what its bootstrap data may.
	// +optional
	// +listType=map
	// +listMapKey=apiGroup
	// +listMapKey=kind
	// +kubebuilder:validation:MaxItems=8
	BootstrapPatches []v1alpha1.BootstrapPatches `json:"bootstrapPatches,omitempty"`
}

// AWS configures Karpenter's AWS provider. The guest cluster's admin writes the EC2NodeClasses.
type AWS struct {
	// roleARN is the IAM role that Karpenter assumes by web identity: it has to trust the guest's service account issuer, and there
	// system:serviceaccount:kube-system:karpenter for the audience sts.amazonaws.com.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$')",message="roleARN has to be the ARN of an IAM role, such as arn:aws:iam::123456789012:role/karpenter"
	RoleARN string `json:"roleARN"`

	// region is where Karpenter makes instances. Defaults to spec.region of the Cluster's AWSCluster. It can't change while AutoNode is on:
	// from one region, Karpenter doesn't find its instances in another.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="region is immutable while autoNode is set: remove autoNode first, which drains its nodes, and wait until they are gone"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2,8}(-[a-z]+)+-[0-9]+$')",message="region has to be the name of an AWS region, such as eu-central-1"
	Region string `json:"region,omitempty"`

	// interruptionQueue is the name of the SQS queue that AWS announces spot interruptions, maintenance and the like in. Karpenter
	// drains such a node before AWS takes it away; without a queue it doesn't hear of it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+$')",message="interruptionQueue has to be the name of an SQS queue, not its URL or ARN"
	InterruptionQueue string `json:"interruptionQueue,omitempty"`
}

// HostedClusterStatus is what the operator has seen and done.
type HostedClusterStatus struct {
	// observedGeneration is the generation of the spec that the condition Ready is about; -1 until the operator has seen any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, ValidConfiguration, ReleaseResolved, GuestReachable, AutoNodeEnabled, NodesUpToDate, and ImageOverridden where the
	// annotation autonode.io/override-image is set.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// autoNode counts what AutoNode runs. It is absent while AutoNode is off.
	// +optional
	AutoNode *AutoNodeStatus `json:"autoNode,omitempty"`

	// version is the payload that is wanted, and those that were.
	// +optional
	Version *VersionStatus `json:"version,omitempty"`

	// operator is the Lease of the operator that holds the HostedCluster, as namespace/name. No other one writes anything for it until
	// this one has let go, which it does when its selector doesn't match the HostedCluster any more, or until its Lease has expired.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Operator string `json:"operator,omitempty"`
}

// AutoNodeState sums the conditions up in one word, for a person who looks at a list of clusters.
type AutoNodeState string

const (
	// AutoNodeStateEnabled: Karpenter runs as the payload says, and nodes come and go.
	AutoNodeStateEnabled AutoNodeState = "Enabled"
	// AutoNodeStateProgressing: Karpenter is being installed, or started again, for instance after a pause.
	AutoNodeStateProgressing AutoNodeState = "Progressing"
	// AutoNodeStateUpgrading: a new payload rolls Karpenter, then the nodes.
	AutoNodeStateUpgrading AutoNodeState = "Upgrading"
	// AutoNodeStateWaiting: an input is missing. What runs goes on as it is.
	AutoNodeStateWaiting AutoNodeState = "Waiting"
	// AutoNodeStateDegraded: Karpenter was rolled out and isn't available now.
	AutoNodeStateDegraded AutoNodeState = "Degraded"
	// AutoNodeStatePaused: spec.pausedUntil or Cluster API's pause holds everything as it is, with Karpenter scaled to zero.
	AutoNodeStatePaused AutoNodeState = "Paused"
	// AutoNodeStateDraining: AutoNode was turned off and its nodes are being removed.
	AutoNodeStateDraining AutoNodeState = "Draining"
)

// AutoNodeStatus counts what AutoNode runs in a hosted cluster.
type AutoNodeStatus struct {
	// state sums the conditions up in one word.
	// +optional
	State AutoNodeState `json:"state,omitempty"`
	// message says what is waited for, and what to do about it. It is empty when there is nothing to say.
	// +optional
	Message string `json:"message,omitempty"`
	// drainStartedTime is when the drain that is under way began, for its deadline. A pause ends it: nodes have their whole
	// time again afterwards.
	// +optional
	DrainStartedTime *metav1.Time `json:"drainStartedTime,omitempty"`
	// drainRequestedTime is when the guest first answered during the drain that is under way. The deadline counts from then, so that a guest
	// that was away takes no time from its nodes, and whatever the guest refuses changes nothing about it.
	// +optional
	DrainRequestedTime *metav1.Time `json:"drainRequestedTime,omitempty"`
	// drainForcedTime is when the deadline of the drain that is under way had passed and the operator began to have pods terminated. What is
	// left a while later is deleted through the management cluster.
	// +optional
	DrainForcedTime *metav1.Time `json:"drainForcedTime,omitempty"`
	// nodeCount is the number of nodes that Karpenter made and that have joined.
	// +optional
	NodeCount *int32 `json:"nodeCount,omitempty"`
	// nodeClaimCount is the number of NodeClaims, joined or not.
	// +optional
	NodeClaimCount *int32 `json:"nodeClaimCount,omitempty"`
	// vcpus is the sum of the CPU capacity of Karpenter's nodes, in virtual CPUs, rounded up.
	// +optional
	VCPUs *int32 `json:"vcpus,omitempty"`
	// driftedNodeCount is the number of nodes that Karpenter is going to replace, because what they were made from
	// changed.
	// +optional
	DriftedNodeCount *int32 `json:"driftedNodeCount,omitempty"`
	// outdatedNodeCount is the number of nodes that run another version than the payload's.
	// +optional
	OutdatedNodeCount *int32 `json:"outdatedNodeCount,omitempty"`
	// nodeVersions counts nodes by their kubelet's version, newest first.
	// +optional
	// +listType=map
	// +listMapKey=version
	NodeVersions []NodeVersion `json:"nodeVersions,omitempty"`
}

// NodeVersion counts the nodes of one version.
type NodeVersion struct {
	// version of the kubelet, without a leading v, such as 1.36.3.
	Version string `json:"version"`
	// count of nodes.
	Count int32 `json:"count"`
}

// VersionStatus is the payload that is wanted, and those that were.
type VersionStatus struct {
	// desired is the payload that spec.release resolved to.
	// +optional
	Desired *DesiredVersion `json:"desired,omitempty"`
	// nodeVersion is the Kubernetes version that nodes get now, as far as the control plane allows it: the desired payload's, or a
	// former one's while spec.autoNode.nodeUpgrade holds it.
	// +optional
	NodeVersion string `json:"nodeVersion,omitempty"`
	// history holds the newest entry first, sixteen at most.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	History []UpdateHistory `json:"history,omitempty"`
}

// DesiredVersion is a payload that was resolved.
type DesiredVersion struct {
	// version is the payload's own name for itself, such as 1.36.3.
	Version string `json:"version"`
	// nodeVersion is the Kubernetes version that the payload gives to nodes, without a leading v.
	// +optional
	NodeVersion string `json:"nodeVersion,omitempty"`
	// image is the release image by digest.
	Image string `json:"image"`
	// requested is the spec.release.image that was resolved to image: a tag is looked up again only when it changes, or when the
	// annotation autonode.io/resolve-release does.
	// +optional
	Requested string `json:"requested,omitempty"`
	// resolveRequest is the value of the annotation autonode.io/resolve-release that was followed last, or the digest of a long one.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ResolveRequest string `json:"resolveRequest,omitempty"`
}

// UpdateState says how far an update got.
//
// +kubebuilder:validation:Enum=Partial;Completed
type UpdateState string

const (
	// UpdatePartial: Karpenter or some nodes are still to be rolled, or another payload came before they were.
	UpdatePartial UpdateState = "Partial"
	// UpdateCompleted: Karpenter runs the payload's image, and every node its version.
	UpdateCompleted UpdateState = "Completed"
)

// UpdateHistory is one payload that ran or runs.
type UpdateHistory struct {
	// state says how far the update got.
	State UpdateState `json:"state"`
	// version is the payload's own name for itself.
	Version string `json:"version"`
	// image is the release image by digest.
	Image string `json:"image"`
	// startedTime is when the payload was resolved.
	StartedTime metav1.Time `json:"startedTime"`
	// completionTime is when state became Completed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}
