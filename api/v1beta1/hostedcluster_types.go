// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
)

// HostedCluster is a cluster whose control plane runs as pods in the management cluster. Field names follow HyperShift's
// where one exists.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations={"argocd.argoproj.io/sync-options=Prune=false,Delete=false","kustomize.toolkit.fluxcd.io/prune=disabled"}
// +kubebuilder:metadata:labels={"clusterctl.cluster.x-k8s.io=","clusterctl.cluster.x-k8s.io/move-hierarchy="}
// +kubebuilder:resource:path=hostedclusters,scope=Namespaced,shortName={anhc,anhcs},categories={autonode,cluster-api}
// +kubebuilder:printcolumn:name="AutoNode",type=string,JSONPath=`.status.autoNode.state`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version.history[?(@.state=="Completed")].version`
// +kubebuilder:printcolumn:name="Desired",type=string,JSONPath=`.status.version.desired.version`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.autoNode.nodeCount`
// +kubebuilder:printcolumn:name="Outdated",type=integer,JSONPath=`.status.autoNode.outdatedNodeCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.autoNode.message`
// +kubebuilder:printcolumn:name="Operator",type=string,JSONPath=`.status.operator`,priority=1
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || size(self.metadata.name) <= 63",optionalOldSelf=true,message="metadata.name has to have at most 63 characters: what the operator makes for the HostedCluster carries it as a label"
type HostedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state, written by the platform team.
	// +required
	Spec HostedClusterSpec `json:"spec"`
	// status is the state observed by the operator.
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

// HostedClusterSpec is the desired state of a hosted cluster.
//
// +kubebuilder:validation:XValidation:rule="has(self.infraID) == has(oldSelf.infraID)",message="infraID can't be added or removed: machines carry it"
// +kubebuilder:validation:XValidation:rule="has(self.controlPlaneNamespace) == has(oldSelf.controlPlaneNamespace)",message="controlPlaneNamespace can't be added or removed: the control plane runs there"
// +kubebuilder:validation:XValidation:rule="!has(self.controlPlaneNamespaceMode) || self.controlPlaneNamespaceMode != 'Shared' || has(self.controlPlaneNamespace)",message="controlPlaneNamespaceMode Shared needs controlPlaneNamespace, the namespace of the HostedCluster"
type HostedClusterSpec struct {
	// release is the payload. It pins Karpenter's image and the Kubernetes version of nodes. Without it the operator's default
	// release applies: the Karpenter that the operator was released with, and nodes have the version of the cluster's API server.
	// +optional
	Release Release `json:"release,omitzero"`

	// infraID names the Cluster API Cluster in the control-plane namespace. Defaults to metadata.name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="infraID has to be the name of a Cluster: lower-case letters, digits, dashes and dots"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="infraID is immutable: machines carry it"
	InfraID string `json:"infraID,omitempty"`

	// controlPlaneNamespace is the namespace of the control plane and of its Cluster API Cluster. Defaults to
	// <metadata.namespace>-<metadata.name>, with dashes for dots; if that has more than 63 characters, to its first 54 and a hash.
	// The only other valid value is metadata.namespace, so that no tenant can name another tenant's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="controlPlaneNamespace has to be the name of a Namespace: lower-case letters, digits and dashes"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="controlPlaneNamespace is immutable: the control plane runs there"
	ControlPlaneNamespace string `json:"controlPlaneNamespace,omitempty"`

	// controlPlaneNamespaceMode decides whether other HostedClusters may have the same control-plane namespace. With Shared,
	// the names of the operator's objects there end in the Cluster's, and the namespace's owner binds the ClusterRole
	// autonode-system-shared-namespace to the operator. All HostedClusters of a shared namespace must have the mode Shared.
	// +optional
	// +kubebuilder:default=Dedicated
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="controlPlaneNamespaceMode is immutable: the names of what runs in the control-plane namespace depend on it"
	ControlPlaneNamespaceMode ControlPlaneNamespaceMode `json:"controlPlaneNamespaceMode,omitempty"`

	// pullSecret names a Secret of type kubernetes.io/dockerconfigjson in the HostedCluster's namespace. It pulls the
	// payload and the payload's images.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.name) && size(self.name) >= 1 && size(self.name) <= 253",message="pullSecret.name has to be the name of a Secret; leave pullSecret out where none is needed"
	PullSecret *corev1.LocalObjectReference `json:"pullSecret,omitempty"`

	// imageContentSources lists mirrors. The operator tries them in order before the source itself.
	// +optional
	// +listType=map
	// +listMapKey=source
	// +kubebuilder:validation:MaxItems=64
	ImageContentSources []ImageContentSource `json:"imageContentSources,omitempty"`

	// pausedUntil pauses AutoNode for this cluster: "true" until you remove it, "false", or a time in RFC 3339 at which it
	// resumes. A pause scales Karpenter to zero, so that no node is launched, removed or replaced; nodes and their pods keep
	// running. The operator reports the pause in the status of the guest's node classes, and writes nothing else. A drain gets
	// its full timeout again after the pause. Cluster API's annotation cluster.x-k8s.io/paused on the HostedCluster or the
	// Cluster, and the Cluster's spec.paused, do the same.
	// +optional
	// +kubebuilder:validation:MaxLength=35
	// +kubebuilder:validation:XValidation:rule="self.matches('^(true|false|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2}))$')",message="pausedUntil has to be true, false, or a time in RFC 3339, such as 2026-12-01T06:00:00Z"
	PausedUntil *string `json:"pausedUntil,omitempty"`

	// autoNode runs Karpenter for the cluster. Removing it drains and removes the nodes that AutoNode made, then
	// Karpenter. NodePools and CRDs stay in the guest cluster.
	// +optional
	AutoNode *AutoNode `json:"autoNode,omitempty"`

	// nodeDrain sets how long nodes may drain when autoNode is removed or the HostedCluster deleted, and the policy at the
	// deadline. It is beside autoNode because it has to outlive it.
	// +optional
	NodeDrain *NodeDrain `json:"nodeDrain,omitempty"`
}

// NodeDrain bounds the drain of all nodes.
type NodeDrain struct {
	// timeout is how long nodes may drain within their PodDisruptionBudgets, from 1m to 168h. Defaults to the operator's
	// flag --drain-timeout, 30m unless set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="timeout has to be between 1m and 168h, such as 30m or 1h30m"
	Timeout *scalar.Duration `json:"timeout,omitempty"`
	// onTimeout decides about nodes that haven't drained by the deadline.
	// +optional
	// +kubebuilder:default=Force
	OnTimeout DrainTimeoutPolicy `json:"onTimeout,omitempty"`
}

// TimeoutOr returns timeout, or the fallback if it isn't set. The receiver may be nil.
func (d *NodeDrain) TimeoutOr(fallback time.Duration) time.Duration {
	if d == nil {
		return fallback
	}
	return d.Timeout.Or(fallback)
}

// Stops reports whether onTimeout is Stop. The receiver may be nil.
func (d *NodeDrain) Stops() bool { return d != nil && d.OnTimeout == DrainTimeoutStop }

// DedicatedNamespace is the namespace of a control plane that its HostedCluster shares with no other.
func (h *HostedCluster) DedicatedNamespace() string { return DedicatedNamespace(h.Namespace, h.Name) }

// ControlPlaneNamespace is the namespace of the control plane by the spec, DedicatedNamespace by default. The operator validates whether
// the HostedCluster may use it.
func (h *HostedCluster) ControlPlaneNamespace() string {
	return cmp.Or(h.Spec.ControlPlaneNamespace, h.DedicatedNamespace())
}

// ClusterName is the name of the Cluster API Cluster.
func (h *HostedCluster) ClusterName() string { return cmp.Or(h.Spec.InfraID, h.Name) }

// ControlPlaneNamespaceMode decides whether HostedClusters share a control-plane namespace.
//
// +kubebuilder:validation:Enum=Dedicated;Shared
type ControlPlaneNamespaceMode string

const (
	// ControlPlaneNamespaceDedicated: the control-plane namespace is for one HostedCluster.
	ControlPlaneNamespaceDedicated ControlPlaneNamespaceMode = "Dedicated"
	// ControlPlaneNamespaceShared: several HostedClusters have the control-plane namespace, which is the namespace that they are in.
	ControlPlaneNamespaceShared ControlPlaneNamespaceMode = "Shared"
)

// DrainTimeoutPolicy decides about nodes that haven't drained in time.
//
// +kubebuilder:validation:Enum=Force;Stop
type DrainTimeoutPolicy string

const (
	// DrainTimeoutForce terminates the remaining pods against their PodDisruptionBudgets. A few minutes later the operator deletes
	// the remaining Machines through the management cluster, and records them in a ConfigMap.
	DrainTimeoutForce DrainTimeoutPolicy = "Force"
	// DrainTimeoutStop terminates no pod by force and gives no machine up. The drain continues within the budgets, and
	// AutoNodeEnabled reports that action is needed. A deleted HostedCluster stays until then.
	DrainTimeoutStop DrainTimeoutPolicy = "Stop"
)

// Release is a payload.
type Release struct {
	// image is the release image. The operator resolves a tag once for each change of this field, and records the digest in
	// status.version.
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
	// mirrors hold the same content. The operator tries them in this order.
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

	// nodeUpgrade decides when nodes get the version of a new payload. Karpenter itself follows the payload at once, and by default
	// nodes do too. The disruption budgets of NodePools apply in any case.
	// +optional
	NodeUpgrade *NodeUpgrade `json:"nodeUpgrade,omitempty"`

	// sleep removes Karpenter's nodes by schedule, such as at night.
	// +optional
	Sleep *Sleep `json:"sleep,omitempty"`

	// certificateApproval decides which kubelets' certificate requests the operator approves. It has an effect where AutoNode runs on Cluster
	// API.
	// +optional
	CertificateApproval *CertificateApproval `json:"certificateApproval,omitempty"`
}

// CertificateApproval decides which kubelets' certificate requests the operator approves.
type CertificateApproval struct {
	// scope is Cluster for all worker Machines of the Cluster, or Karpenter for Karpenter's only: another approver has to approve the others,
	// such as a MachineDeployment's. Karpenter's Machines have the stricter rules in any case.
	// +optional
	// +kubebuilder:default=Cluster
	Scope CertificateApprovalScope `json:"scope,omitempty"`

	// additionalNodeCIDRs hold addresses that nodes have beside those of their Machines, such as egress IPs or a CNI's secondary addresses. A
	// serving certificate may be for any of them that no other Machine of the Cluster reports.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="has to be a CIDR block, such as 10.0.8.0/22"
	AdditionalNodeCIDRs []string `json:"additionalNodeCIDRs,omitempty"`
}

// CertificateApprovalScope selects Machines.
//
// +kubebuilder:validation:Enum=Cluster;Karpenter
type CertificateApprovalScope string

// Scopes of certificate approval: all worker Machines of the Cluster, which is the default, or Karpenter's Machines.
const (
	CertificateApprovalScopeCluster   CertificateApprovalScope = "Cluster"
	CertificateApprovalScopeKarpenter CertificateApprovalScope = "Karpenter"
)

// Provisioner is a program that launches nodes.
//
// +kubebuilder:validation:Enum=Karpenter
type Provisioner string

// ProvisionerKarpenter is Karpenter, the only provisioner.
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

// Platform selects Karpenter's cloud provider.
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
	// platform selects the cloud provider. It can't change while AutoNode is on: one platform can't adopt the
	// other's nodes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="platform is immutable while autoNode is set: remove autoNode first, which drains its nodes"
	Platform Platform `json:"platform"`
	// clusterAPI sets the fields of the guest cluster's default ClusterAPINodeClass.
	// +optional
	ClusterAPI *ClusterAPI `json:"clusterAPI,omitempty"`
	// aws configures Karpenter's AWS provider.
	// +optional
	AWS *AWS `json:"aws,omitempty"`
	// featureGates turns features of this cluster's Karpenter on or off, such as CapacityBuffer. The platform decides which gates a
	// HostedCluster may set: the condition FeatureGatesAccepted names those that have no effect, and status.autoNode.featureGates has those
	// that are on.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(gate, size(gate) <= 63)",message="the name of a feature gate has at most 63 characters"
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
}

// ClusterAPI sets the fields of the guest cluster's default ClusterAPINodeClass. Karpenter's Role in the control-plane
// namespace covers the kinds named here.
//
// +kubebuilder:validation:XValidation:rule="has(self.scalableResourceSelector) || has(self.infrastructureTemplateSelectors)",message="one of scalableResourceSelector and infrastructureTemplateSelectors is required: without one there is nothing to launch"
type ClusterAPI struct {
	v1alpha1.TemplateSelectors `json:",inline"`

	// bootstrap declares how a machine joins the cluster. A MachineDeployment has its own.
	// +optional
	Bootstrap *v1alpha1.Bootstrap `json:"bootstrap,omitempty"`

	// kubelet sets fields of the nodes' kubelets, such as their reservations and their number of pods.
	// +optional
	Kubelet *v1alpha1.KubeletConfiguration `json:"kubelet,omitempty"`

	// kubeletBounds bound spec.kubelet of the guest's node classes, including kubelet above. By default every field may have any
	// valid value.
	// +optional
	KubeletBounds *v1alpha1.KubeletBounds `json:"kubeletBounds,omitempty"`

	// bootstrapPatches are the patches of the default node class, and the only ones that other node classes may use. Patches
	// decide what a machine boots with, and so what it can read.
	// +optional
	// +listType=map
	// +listMapKey=apiGroup
	// +listMapKey=kind
	// +kubebuilder:validation:MaxItems=8
	BootstrapPatches []v1alpha1.BootstrapPatches `json:"bootstrapPatches,omitempty"`
}

// AWS configures Karpenter's AWS provider. The guest cluster's admin writes the EC2NodeClasses.
type AWS struct {
	// roleARN is the IAM role that Karpenter assumes by web identity. It must trust the guest's service account issuer, with the
	// subject system:serviceaccount:kube-system:karpenter and the audience sts.amazonaws.com.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$')",message="roleARN has to be the ARN of an IAM role, such as arn:aws:iam::123456789012:role/karpenter"
	RoleARN string `json:"roleARN"`

	// region of Karpenter's instances. Defaults to spec.region of the Cluster's AWSCluster. It can't change while AutoNode is on:
	// Karpenter doesn't find its instances from another region.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="region is immutable while autoNode is set: remove autoNode first, which drains its nodes, and wait until they are gone"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2,8}(-[a-z]+)+-[0-9]+$')",message="region has to be the name of an AWS region, such as eu-central-1"
	Region string `json:"region,omitempty"`

	// interruptionQueue is the name of the SQS queue where AWS announces spot interruptions, maintenance and similar events.
	// Karpenter then drains the node first; without a queue it doesn't.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+$')",message="interruptionQueue has to be the name of an SQS queue, not its URL or ARN"
	InterruptionQueue string `json:"interruptionQueue,omitempty"`
}

// HostedClusterStatus is the state observed by the operator.
type HostedClusterStatus struct {
	// observedGeneration is the generation of the spec that the condition Ready is about; -1 until the operator has seen any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, ValidConfiguration, ReleaseResolved, GuestReachable, AutoNodeEnabled, NodeClassReady, NodesUpToDate, ImageOverridden
	// where the annotation autonode.io/override-image is set, and FeatureGatesAccepted, OfferingsAvailable and NodeIdentityEnforced where
	// there is something to report.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// autoNode reports the state and counts of nodes. It is absent while AutoNode is off.
	// +optional
	AutoNode *AutoNodeStatus `json:"autoNode,omitempty"`

	// version is the desired payload and the previous ones.
	// +optional
	Version *VersionStatus `json:"version,omitempty"`

	// operator is the Lease of the operator that holds the HostedCluster, as namespace/name. Other operators write nothing for it
	// until this one releases it, which it does when its selector no longer matches, or until its Lease has expired.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	Operator string `json:"operator,omitempty"`
}

// AutoNodeState summarizes the conditions in one word, for lists of clusters.
type AutoNodeState string

const (
	// AutoNodeStateEnabled: Karpenter of the release runs.
	AutoNodeStateEnabled AutoNodeState = "Enabled"
	// AutoNodeStateProgressing: Karpenter is being installed or restarted, for instance after a pause.
	AutoNodeStateProgressing AutoNodeState = "Progressing"
	// AutoNodeStateUpgrading: a new payload rolls out Karpenter, then the nodes.
	AutoNodeStateUpgrading AutoNodeState = "Upgrading"
	// AutoNodeStateWaiting: an input is missing. Running workloads don't change.
	AutoNodeStateWaiting AutoNodeState = "Waiting"
	// AutoNodeStateDegraded: Karpenter was rolled out and is unavailable now.
	AutoNodeStateDegraded AutoNodeState = "Degraded"
	// AutoNodeStatePaused: spec.pausedUntil or Cluster API's pause scales Karpenter to zero; nothing changes.
	AutoNodeStatePaused AutoNodeState = "Paused"
	// AutoNodeStateDraining: AutoNode was turned off and its nodes are being removed.
	AutoNodeStateDraining AutoNodeState = "Draining"
	// AutoNodeStateFallingAsleep: nodes are being removed because the cluster is to sleep.
	AutoNodeStateFallingAsleep AutoNodeState = "FallingAsleep"
	// AutoNodeStateAsleep: no node is left, and Karpenter has no replica until the cluster wakes.
	AutoNodeStateAsleep AutoNodeState = "Asleep"
)

// AutoNodeStatus reports the state of AutoNode and its nodes in a hosted cluster.
type AutoNodeStatus struct {
	// state summarizes the conditions in one word.
	// +optional
	State AutoNodeState `json:"state,omitempty"`
	// message names the cause that the operator waits for, and the remedy. It is empty if there is nothing to report.
	// +optional
	Message string `json:"message,omitempty"`
	// drainStartedTime is when the current drain began; its deadline counts from it. A pause clears it: nodes get the full
	// timeout again afterwards.
	// +optional
	DrainStartedTime *scalar.Time `json:"drainStartedTime,omitempty"`
	// drainRequestedTime is when the guest first answered during the current drain. The deadline counts from then, so that an
	// unreachable guest takes no time from its nodes. A request that the guest rejects doesn't move it.
	// +optional
	DrainRequestedTime *scalar.Time `json:"drainRequestedTime,omitempty"`
	// drainForcedTime is when the operator began to terminate pods after the current drain's deadline. A few minutes later it
	// deletes the remaining Machines through the management cluster.
	// +optional
	DrainForcedTime *scalar.Time `json:"drainForcedTime,omitempty"`
	// featureGates are the feature gates of Karpenter that are on, as of the last complete rollout.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	FeatureGates []string `json:"featureGates,omitempty"`
	// nodeCount is the number of nodes that Karpenter made and that have joined.
	// +optional
	NodeCount *int32 `json:"nodeCount,omitempty"`
	// nodeClaimCount is the number of NodeClaims, joined or not.
	// +optional
	NodeClaimCount *int32 `json:"nodeClaimCount,omitempty"`
	// vcpus is the sum of the CPU capacity of Karpenter's nodes, in virtual CPUs, rounded up.
	// +optional
	VCPUs *int32 `json:"vcpus,omitempty"`
	// driftedNodeCount is the number of nodes that Karpenter is going to replace for drift.
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
	// sleep is present while the cluster falls asleep or is asleep.
	// +optional
	Sleep *SleepStatus `json:"sleep,omitempty"`
}

// NodeVersion counts the nodes of one version.
type NodeVersion struct {
	// version of the kubelet, without a leading v, such as 1.36.3.
	Version string `json:"version"`
	// count of nodes.
	Count int32 `json:"count"`
}

// VersionStatus is the desired payload and the previous ones.
type VersionStatus struct {
	// desired is the payload that spec.release resolved to, or the operator's default release.
	// +optional
	Desired *DesiredVersion `json:"desired,omitempty"`
	// nodeVersion is the Kubernetes version of new nodes, as far as the control plane allows it: the desired payload's, or a
	// previous one's while spec.autoNode.nodeUpgrade holds it.
	// +optional
	NodeVersion string `json:"nodeVersion,omitempty"`
	// nodeUpgrade is the progress of the upgrade to the desired payload, while spec.autoNode.nodeUpgrade has it prove itself.
	// +optional
	NodeUpgrade *v1alpha1.NodeUpgradeStatus `json:"nodeUpgrade,omitempty"`
	// history holds the newest entry first, sixteen at most.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	History []UpdateHistory `json:"history,omitempty"`
}

// ReleaseSource is where a release comes from.
//
// +kubebuilder:validation:Enum=Payload;Default
type ReleaseSource string

const (
	// ReleaseSourcePayload: spec.release names it.
	ReleaseSourcePayload ReleaseSource = "Payload"
	// ReleaseSourceDefault: spec.release isn't set, and the operator's default release applies.
	ReleaseSourceDefault ReleaseSource = "Default"
)

// DesiredVersion is a resolved payload, or the operator's default release.
type DesiredVersion struct {
	// version is the payload's version, such as 1.36.3.
	Version string `json:"version"`
	// nodeVersion is the payload's Kubernetes version of nodes, without a leading v.
	// +optional
	NodeVersion string `json:"nodeVersion,omitempty"`
	// image is the release image by digest; of the default release, Karpenter's image.
	Image string `json:"image"`
	// source is where the release comes from: Payload is the image in spec.release, and Default is the operator's default release.
	// +optional
	Source ReleaseSource `json:"source,omitempty"`
	// requested is the spec.release.image that was resolved to image. The operator resolves a tag again only when it, or the
	// annotation autonode.io/resolve-release, changes.
	// +optional
	Requested string `json:"requested,omitempty"`
	// resolveRequest is the last value of the annotation autonode.io/resolve-release that the operator followed, or the digest
	// of a long value.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ResolveRequest string `json:"resolveRequest,omitempty"`
}

// UpdateState is the progress of an update.
//
// +kubebuilder:validation:Enum=Partial;Completed
type UpdateState string

const (
	// UpdatePartial: the rollout of Karpenter or of some nodes isn't complete, or another payload replaced it before.
	UpdatePartial UpdateState = "Partial"
	// UpdateCompleted: Karpenter runs the payload's image, and every node its version.
	UpdateCompleted UpdateState = "Completed"
)

// UpdateHistory is a current or previous payload.
type UpdateHistory struct {
	// state is the progress of the update.
	State UpdateState `json:"state"`
	// version is the payload's version.
	Version string `json:"version"`
	// image is the release image by digest; of the default release, Karpenter's image.
	Image string `json:"image"`
	// nodeVersion is the Kubernetes version of nodes that a completed payload had.
	// +optional
	NodeVersion string `json:"nodeVersion,omitempty"`
	// startedTime is when the payload was resolved.
	StartedTime scalar.Time `json:"startedTime"`
	// completionTime is when state became Completed.
	// +optional
	CompletionTime *scalar.Time `json:"completionTime,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *HostedClusterStatus) UnmarshalJSON(data []byte) error {
	type plain HostedClusterStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
