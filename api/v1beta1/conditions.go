// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Ready summarizes the other conditions for tools that know no other one: kubectl wait, Flux, Argo CD. It has the reason and the message of
// the condition that decides it, and no event of its own. A HostedCluster is ready when AutoNode is off, or enabled and lacks no input;
// nodes may still be outdated: NodesUpToDate. A ControlPlaneComponent is ready when it is Available and RolloutComplete.
const Ready = "Ready"

// Conditions of a HostedCluster. Events on it carry the same reasons.
const (
	// ValidConfiguration: the spec makes sense as a whole, beyond what admission can check.
	ValidConfiguration = "ValidConfiguration"
	// ReleaseResolved: the payload was pulled, holds what AutoNode needs and fits the guest cluster.
	ReleaseResolved = "ReleaseResolved"
	// GuestReachable: the guest cluster's API server answers.
	GuestReachable = "GuestReachable"
	// AutoNodeEnabled: Karpenter runs for this cluster as the payload says.
	AutoNodeEnabled = "AutoNodeEnabled"
	// NodesUpToDate: every node that AutoNode made runs the version that the payload and the control plane call for.
	NodesUpToDate = "NodesUpToDate"
	// ImageOverridden: an image that OverrideImageAnnotation names runs instead of the payload's. Without the annotation
	// there is no such condition.
	ImageOverridden = "ImageOverridden"
)

// Conditions of a ControlPlaneComponent.
const (
	// Available: at least one replica serves.
	Available = "Available"
	// RolloutComplete: every replica runs what the payload calls for, and none of another kind is left.
	RolloutComplete = "RolloutComplete"
)

// Reasons shared by several conditions.
const (
	// AsExpectedReason: nothing to do.
	AsExpectedReason = "AsExpected"
	// PausedReason: Karpenter is scaled to zero, and nodes and pods go on running; remove spec.pausedUntil, or the Cluster's pause,
	// to go on.
	PausedReason = "Paused"
)

// Reasons of ValidConfiguration.
const (
	// ControlPlaneNamespaceForbiddenReason: spec.controlPlaneNamespace names neither the default nor the HostedCluster's
	// own namespace, or the default is one of the management cluster's own, such as kube-system; recreate the HostedCluster
	// without it, or with another name.
	ControlPlaneNamespaceForbiddenReason = "ControlPlaneNamespaceForbidden"
	// ConsentMissingReason: neither the control-plane namespace nor its Cluster names the HostedCluster; whoever owns the control
	// plane annotates one of them with autonode.io/consents-to, or the HostedCluster's author corrects spec.infraID and
	// spec.controlPlaneNamespace.
	ConsentMissingReason = "ConsentMissing"
	// PlatformUnsupportedReason: this operator has no profile for the platform; use another platform, or upgrade the operator.
	PlatformUnsupportedReason = "PlatformUnsupported"
	// ClusterNotFoundReason: no Cluster API Cluster of the name spec.infraID is in the control-plane namespace; create
	// it, or correct spec.infraID.
	ClusterNotFoundReason = "ClusterNotFound"
	// ClusterDeletingReason: the Cluster is being deleted, so that nothing is installed or launched any more; delete the HostedCluster too,
	// or remove spec.autoNode.
	ClusterDeletingReason = "ClusterDeleting"
	// KindNotFoundReason: a kind that spec.autoNode names isn't served by the management cluster; install its
	// infrastructure or bootstrap provider, or correct the name.
	KindNotFoundReason = "KindNotFound"
	// InfrastructureMismatchReason: the platform that spec.autoNode chooses can't work with the infrastructure of the Cluster;
	// choose another platform, or correct spec.infraID.
	InfrastructureMismatchReason = "InfrastructureMismatch"
	// InvalidSpecReason: the message names the field and what it may be.
	InvalidSpecReason = "InvalidSpec"
)

// Reasons of ReleaseResolved.
const (
	// PullSecretInvalidReason: spec.pullSecret is missing or holds no .dockerconfigjson; correct the Secret.
	PullSecretInvalidReason = "PullSecretInvalid"
	// ImageReferenceInvalidReason: spec.release.image can't be parsed as an image reference; correct it.
	ImageReferenceInvalidReason = "ImageReferenceInvalid"
	// ImagePullUnauthorizedReason: the registry refused the credentials; add an entry for it to the pull secret.
	ImagePullUnauthorizedReason = "ImagePullUnauthorized"
	// ImageNotFoundReason: the registry has no such image; correct spec.release.image or push the image.
	ImageNotFoundReason = "ImageNotFound"
	// RegistryUnreachableReason: the registry doesn't answer; check the network, or add a mirror to spec.imageContentSources.
	RegistryUnreachableReason = "RegistryUnreachable"
	// PayloadMalformedReason: the image isn't a release image, or a broken one; ask whoever published it.
	PayloadMalformedReason = "PayloadMalformed"
	// PayloadTooLargeReason: the image exceeds what the operator reads; ask whoever published it.
	PayloadTooLargeReason = "PayloadTooLarge"
	// ComponentMissingReason: the payload names no Karpenter for this platform; choose a payload that does.
	ComponentMissingReason = "ComponentMissing"
	// VersionSkewReason: the payload's node version is more than one minor version ahead of the guest's API server, or more than three
	// behind; upgrade the control plane first, or choose another payload. It is looked at again by itself.
	VersionSkewReason = "VersionSkewUnsupported"
	// StoredVersionMissingReason: the guest has stored objects in a version of a CustomResourceDefinition that the payload doesn't define,
	// and could neither be read nor deleted any more; choose a payload that defines it.
	StoredVersionMissingReason = "StoredVersionMissing"
	// FitUnknownReason: another payload is wanted while the guest's API server doesn't answer, so that nobody knows whether the payload
	// fits; the one before it stays until the guest is back.
	FitUnknownReason = "FitUnknown"
	// DefinitionMissingReason: the payload ships this platform's Karpenter without the CustomResourceDefinition of its node class;
	// choose a payload that has it.
	DefinitionMissingReason = "DefinitionMissing"
)

// Reasons of GuestReachable.
const (
	// GuestConnectingReason: the connection is being made; if it stays, look at the control plane's pods.
	GuestConnectingReason = "Connecting"
	// GuestOverBudgetReason: the guest sends or changes more than one guest may. With status True the operator serves it at a lower rate, with
	// status False not at all for five minutes; ask its admin what creates so many objects, or large ones.
	GuestOverBudgetReason = "OverBudget"
	// GuestUnreachableReason: the API server stopped answering; look at the control plane's pods and the kubeconfig Secret.
	GuestUnreachableReason = "Unreachable"
)

// Reasons of a ControlPlaneComponent's conditions.
const (
	// RollingOutReason: replicas are being replaced; the message counts them. If it stays, look at the component's pods.
	RollingOutReason = "RollingOut"
	// ReplicasUnavailableReason: no replica is ready; look at the component's pods and their logs.
	ReplicasUnavailableReason = "ReplicasUnavailable"
	// DeploymentNotFoundReason: the Deployment is gone; the operator makes it again.
	DeploymentNotFoundReason = "DeploymentNotFound"
)

// Reasons of AutoNodeEnabled.
const (
	// AutoNodeProgressingReason: Karpenter is being installed, or started again; the message says what is waited for.
	AutoNodeProgressingReason = "AutoNodeProgressing"
	// AutoNodeUpgradingReason: another payload's Karpenter is being rolled out; the message says what is waited for. Nodes that follow
	// are NodesUpToDate's.
	AutoNodeUpgradingReason = "AutoNodeUpgrading"
	// AutoNodeWaitingReason: an input is missing, which the message names; nothing that runs was changed.
	AutoNodeWaitingReason = "AutoNodeWaiting"
	// AutoNodeNotConfiguredReason: set spec.autoNode to turn AutoNode on.
	AutoNodeNotConfiguredReason = "AutoNodeNotConfigured"
	// AutoNodeDrainingReason: AutoNode was turned off and its nodes are being drained; the message says what holds them.
	AutoNodeDrainingReason = "AutoNodeDraining"
	// AutoNodeDrainStoppedReason: the nodes weren't drained in time and spec.nodeDrain.onTimeout is Stop, so that nothing is forced.
	// Remove what holds the drain, which the message names, raise spec.nodeDrain.timeout, or set onTimeout to Force.
	AutoNodeDrainStoppedReason = "AutoNodeDrainStopped"
	// AutoNodeDegradedReason: Karpenter was rolled out and isn't available now; look at its pods in the control-plane namespace.
	AutoNodeDegradedReason = "AutoNodeDegraded"
	// AutoNodeEvaluationFailedReason: the state couldn't be read, more than once in a row; the message holds the error, and it is tried
	// again.
	AutoNodeEvaluationFailedReason = "AutoNodeEvaluationFailed"
)

// Reasons of NodesUpToDate.
const (
	// NodesOutdatedReason: nodes run an older version and are being replaced as the NodePools' disruption budgets allow.
	NodesOutdatedReason = "NodesOutdated"
	// NodeUpgradeHeldReason: nodes wait for the maintenance window or the approval that spec.autoNode.nodeUpgrade asks for; the message
	// says when it opens, or how to approve.
	NodeUpgradeHeldReason = "NodeUpgradeHeld"
	// NodeVersionUnsupportedReason: nodes run a version that is too old for the control plane, which supports three minor versions back.
	// Let them be replaced: the message says what holds them.
	NodeVersionUnsupportedReason = "NodeVersionUnsupported"
	// ControlPlaneOlderReason: the payload's node version is newer than the guest's API server; nodes follow once that is upgraded.
	ControlPlaneOlderReason = "ControlPlaneOlder"
)

// Reasons of ImageOverridden.
const (
	// OverriddenReason: somebody asked for another image than the payload's; remove OverrideImageAnnotation when the case is closed.
	OverriddenReason = "Overridden"
	// OverrideInvalidReason: OverrideImageAnnotation can't be followed, and the payload's image runs; the message says what it may be.
	OverrideInvalidReason = "OverrideInvalid"
)

// Reasons of the events that record an irreversible step.
const (
	// AbandonedReason: the guest was unreachable until the drain's deadline, or Karpenter didn't finish even by force; the ConfigMap
	// that the event names lists what was left.
	AbandonedReason = "Abandoned"
	// DrainForcedReason: the drain's deadline passed and pods are terminated against their PodDisruptionBudgets.
	DrainForcedReason = "DrainForced"
)

// Reasons of the decisions on kubelets' certificate requests: of the condition Approved or Denied of the request in the guest. Those of
// Denied are events on the HostedCluster, too. They are about nodes that AutoNode made.
const (
	// NodeIdentityConfirmedReason: the request matches a NodeClaim and its Machine.
	NodeIdentityConfirmedReason = "NodeIdentityConfirmed"
	// RequestMalformedReason: the request can't be read as a whole, or asks for more than a kubelet does; find out who made it.
	RequestMalformedReason = "RequestMalformed"
	// RequestExpiredReason: the request waited too long, because the operator didn't run or couldn't reach the guest; the kubelet asks again.
	RequestExpiredReason = "RequestExpired"
	// RequesterMismatchReason: somebody else asked than the machine that the certificate is for; find out who the user in the message is.
	RequesterMismatchReason = "RequesterMismatch"
	// SubjectMismatchReason: a node asked for another name, or for other groups, than its own; treat that node as compromised.
	SubjectMismatchReason = "SubjectMismatch"
	// AddressMismatchReason: a node asked for addresses that aren't its Machine's; where they are its own, the infrastructure provider
	// doesn't report them in the Machine's status.addresses, else treat the node as compromised.
	AddressMismatchReason = "AddressMismatch"
	// UsageMismatchReason: the key usages aren't a kubelet's; find out who made the request.
	UsageMismatchReason = "UsageMismatch"
	// MachineMissingReason: the NodeClaim that the request names has no Machine, or is being deleted.
	MachineMissingReason = "MachineMissing"
	// NodeClaimMissingReason: the Machine that the request names has no NodeClaim any more; it is about to be removed.
	NodeClaimMissingReason = "NodeClaimMissing"
	// AlreadyJoinedReason: somebody asked for a first certificate of a node that has joined. A machine that has lost its certificate has
	// to be replaced: delete its NodeClaim. If there is none, somebody knows a bootstrap token who shouldn't.
	AlreadyJoinedReason = "AlreadyJoined"
	// AlreadyRequestedReason: another request for the machine's first certificate was approved before; see AlreadyJoinedReason.
	AlreadyRequestedReason = "AlreadyRequested"
	// RequestSupersededReason: the node has asked again before this request was decided, as a kubelet that was restarted does, and only
	// the later request counts; there is nothing to do.
	RequestSupersededReason = "RequestSuperseded"
)

// Labels, annotations and names.
const (
	// HostedClusterFinalizer holds a HostedCluster until its nodes are drained and Karpenter is removed.
	HostedClusterFinalizer = Group + "/hostedcluster"
	// HostedClusterLabel is on what the operator makes in the management cluster: the HostedCluster's name.
	HostedClusterLabel = Group + "/hosted-cluster"
	// HostedClusterNamespaceLabel is on what the operator makes in the management cluster: the HostedCluster's namespace.
	HostedClusterNamespaceLabel = Group + "/hosted-cluster-namespace"
	// PlatformLabel is on a ControlPlaneComponent: which of Karpenter's cloud providers runs there, as spec.autoNode calls it.
	// It decides how AutoNode is turned off, when the spec says nothing any more.
	PlatformLabel = Group + "/platform"
	// ConsentAnnotation is on the Namespace of a control plane, or on its Cluster: the HostedCluster that may use it, as
	// <namespace>/<name>.
	ConsentAnnotation = Group + "/consents-to"
	// ConsentRecordAnnotation is on a ControlPlaneComponent: ConsentNamed or ConsentAssumed.
	ConsentRecordAnnotation = Group + "/consent"
	// ConsentNamed says that the Namespace or the Cluster named the HostedCluster; should it cease to, consent is withdrawn.
	ConsentNamed = "Named"
	// ConsentAssumed says that Karpenter ran there before consent was asked for.
	ConsentAssumed = "Assumed"
	// BootstrapDataLabel is "true" on a Secret of a control-plane namespace that machines may be given as bootstrap data, and Karpenter read.
	BootstrapDataLabel = Group + "/bootstrap-data"
	// ManagedByLabel has the value ManagedByOperator on every object that the operator made, in either cluster.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByOperator is the value of ManagedByLabel, and the operator's field owner.
	ManagedByOperator = "autonode-operator"
	// ResolveReleaseAnnotation on a HostedCluster asks for the tag in spec.release.image to be looked up again, once for each
	// value that it gets. Any value does, such as the time; the one that was followed last is in status.version.desired.resolveRequest.
	ResolveReleaseAnnotation = Group + "/resolve-release"
	// OverrideImageAnnotation on a HostedCluster runs another image than the payload's, for support cases:
	// "karpenter-clusterapi=registry.example/karpenter@sha256:…", the component as the payload calls it and an image by digest.
	// Everything else stays the payload's. The condition ImageOverridden says whether it is followed.
	OverrideImageAnnotation = Group + "/override-image"
	// ApproveNodeVersionAnnotation on a HostedCluster approves one Kubernetes version for its nodes, such as "1.37.1", where
	// spec.autoNode.nodeUpgrade.policy is Manual. It approves no other: the next version needs another value.
	ApproveNodeVersionAnnotation = Group + "/approve-node-version"
	// TokenExpiresAtAnnotation is on the Secret with Karpenter's guest token: when it expires by the management cluster's clock, in RFC 3339.
	TokenExpiresAtAnnotation = Group + "/token-expires-at"
	// TokenServiceAccountUIDAnnotation is on the same Secret: the guest ServiceAccount that the token belongs to. A
	// token of a ServiceAccount that was recreated is void.
	TokenServiceAccountUIDAnnotation = Group + "/token-service-account-uid"
	// KarpenterComponent names the ControlPlaneComponent, the Deployment and the ServiceAccount of Karpenter.
	KarpenterComponent = "karpenter"
	// GuestAccessSecret names the Secret that holds Karpenter's kubeconfig and token for the guest cluster.
	GuestAccessSecret = "karpenter-guest-access"
	// AbandonedConfigMap names the ConfigMap that records what a deleted HostedCluster had to leave behind.
	AbandonedConfigMap = "autonode-abandoned"
)
