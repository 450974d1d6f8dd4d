// SPDX-License-Identifier: Apache-2.0

package v1beta1

import "github.com/autonode-io/autonode/api/karpenter/v1alpha1"

// Ready summarizes the other conditions for tools that know no other one: kubectl wait, Flux, Argo CD. It has the reason and the message of
// the condition that decides it, and no event of its own. A HostedCluster is ready when AutoNode is off, or enabled, lacks no input, and
// its default node class is ready; nodes may still be outdated: NodesUpToDate. A ControlPlaneComponent is ready when it is Available and
// RolloutComplete.
const Ready = "Ready"

// Conditions of a HostedCluster. Events on it carry the same reasons.
const (
	// ValidConfiguration: the spec is valid beyond what admission can check.
	ValidConfiguration = "ValidConfiguration"
	// ReleaseResolved: the payload was pulled, is complete and fits the guest cluster.
	ReleaseResolved = "ReleaseResolved"
	// GuestReachable: the guest cluster's API server answers.
	GuestReachable = "GuestReachable"
	// AutoNodeEnabled: Karpenter of the cluster's release runs.
	AutoNodeEnabled = "AutoNodeEnabled"
	// NodesUpToDate: every node that AutoNode made runs the version that the payload and the control plane call for.
	NodesUpToDate = "NodesUpToDate"
	// NodeClassReady: the default node class in the guest is ready, which means that Karpenter can launch from the templates that
	// spec.autoNode selects. Its reason and message are those of the node class. Platforms without a default node class have no such
	// condition.
	NodeClassReady = "NodeClassReady"
	// OfferingsAvailable is False while Karpenter can launch nothing because every offering of a node class has failed lately, or while all
	// recent launches failed, and absent otherwise. The message has the reasons and the number of pods that wait.
	OfferingsAvailable = "OfferingsAvailable"
	// NodeIdentityEnforced is False while another approver than the operator approves first certificates of AutoNode's machines, such as
	// kube-controller-manager by the binding kubeadm:node-autoapprove-bootstrap: a machine may then get another node's identity. It is also
	// False while certificate requests of the Cluster's other machines wait for another approver, and absent otherwise.
	NodeIdentityEnforced = "NodeIdentityEnforced"
	// ImageOverridden: an image that OverrideImageAnnotation names runs instead of the payload's. Without the annotation
	// there is no such condition.
	ImageOverridden = "ImageOverridden"
	// FeatureGatesAccepted: Karpenter gets the feature gates that are set for it. Where there is nothing to report there is no such condition.
	// status.autoNode.featureGates lists the gates that are on.
	FeatureGatesAccepted = "FeatureGatesAccepted"
)

// Conditions of a ControlPlaneComponent.
const (
	// Available: at least one replica is ready.
	Available = "Available"
	// RolloutComplete: every replica runs the payload's image, and no older replica is left.
	RolloutComplete = "RolloutComplete"
)

// Reasons shared by several conditions.
const (
	// AsExpectedReason: nothing to do.
	AsExpectedReason = "AsExpected"
	// PausedReason: Karpenter is scaled to zero; nodes and pods keep running. Remove spec.pausedUntil, or the Cluster's pause, to resume.
	PausedReason = "Paused"
	// AsleepReason: Karpenter has neither nodes nor replicas until the time in the message. Wake the cluster with `autonode wake`.
	AsleepReason = v1alpha1.AsleepReason
)

// Reasons of ValidConfiguration.
const (
	// ControlPlaneNamespaceForbiddenReason: spec.controlPlaneNamespace is neither the default nor the HostedCluster's own
	// namespace, or the default is a namespace of the management cluster itself, such as kube-system. Recreate the HostedCluster
	// without the field, or with another name.
	ControlPlaneNamespaceForbiddenReason = "ControlPlaneNamespaceForbidden"
	// ConsentMissingReason: neither the control-plane namespace nor its Cluster names the HostedCluster. The control plane's owner
	// annotates one of them with autonode.io/consents-to, or the HostedCluster's author corrects spec.infraID and
	// spec.controlPlaneNamespace.
	ConsentMissingReason = "ConsentMissing"
	// NamespaceAccessMissingReason: the operator may not write in a control-plane namespace that HostedClusters share. The namespace's
	// owner binds ClusterRole autonode-system-shared-namespace to the operator's ServiceAccount there.
	NamespaceAccessMissingReason = "NamespaceAccessMissing"
	// PlatformUnsupportedReason: the operator has no profile for the platform. Use another platform, or upgrade the operator.
	PlatformUnsupportedReason = "PlatformUnsupported"
	// ClusterNotFoundReason: the control-plane namespace has no Cluster API Cluster named spec.infraID. Create it, or correct
	// spec.infraID.
	ClusterNotFoundReason = "ClusterNotFound"
	// ClusterDeletingReason: the Cluster is being deleted, so nothing more is installed or launched. Delete the HostedCluster too, or remove
	// spec.autoNode.
	ClusterDeletingReason = "ClusterDeleting"
	// KindNotFoundReason: the management cluster doesn't serve a kind that spec.autoNode names. Install its infrastructure or
	// bootstrap provider, or correct the name.
	KindNotFoundReason = "KindNotFound"
	// InfrastructureMismatchReason: the platform in spec.autoNode doesn't work with the Cluster's infrastructure. Choose another
	// platform, or correct spec.infraID.
	InfrastructureMismatchReason = "InfrastructureMismatch"
	// InvalidSpecReason: the message names the field and its valid values.
	InvalidSpecReason = "InvalidSpec"
)

// Reasons of ReleaseResolved.
const (
	// DefaultReleaseReason, with status True: spec.release isn't set, so the operator's default release is in use.
	DefaultReleaseReason = "DefaultRelease"
	// ReleaseMissingReason: spec.release isn't set, and the operator has no default release. Set spec.release.image.
	ReleaseMissingReason = "ReleaseMissing"
	// PullSecretInvalidReason: the Secret in spec.pullSecret is missing or has no .dockerconfigjson. Correct it.
	PullSecretInvalidReason = "PullSecretInvalid"
	// ImageReferenceInvalidReason: spec.release.image isn't a valid image reference. Correct it.
	ImageReferenceInvalidReason = "ImageReferenceInvalid"
	// ImagePullUnauthorizedReason: the registry rejected the credentials. Add an entry for it to the pull secret.
	ImagePullUnauthorizedReason = "ImagePullUnauthorized"
	// ImageNotFoundReason: the registry has no such image. Correct spec.release.image, or push the image.
	ImageNotFoundReason = "ImageNotFound"
	// RegistryUnreachableReason: the registry doesn't answer. Check the network, or add a mirror to spec.imageContentSources.
	RegistryUnreachableReason = "RegistryUnreachable"
	// PayloadMalformedReason: the image isn't a valid release image. Ask its publisher.
	PayloadMalformedReason = "PayloadMalformed"
	// PayloadTooLargeReason: the image exceeds the operator's size limits. Ask its publisher.
	PayloadTooLargeReason = "PayloadTooLarge"
	// PayloadUnsignedReason: the payload has no signature by a key of the platform. Status False: sign it, or choose a signed payload.
	// Status True: the platform only warns.
	PayloadUnsignedReason = "PayloadUnsigned"
	// SignatureUnknownReason: the platform only warns, and the registry doesn't answer for the payload's signatures. Check the registry and
	// the pull secret. The operator retries.
	SignatureUnknownReason = "SignatureUnknown"
	// ComponentMissingReason: the payload has no Karpenter for this platform. Choose another payload.
	ComponentMissingReason = "ComponentMissing"
	// PlatformMissingReason: the image of the payload's Karpenter is for other platforms than the nodes of the management cluster. Choose a
	// payload for one of theirs, or add nodes.
	PlatformMissingReason = "PlatformMissing"
	// VersionSkewReason: the payload's node version is more than one minor version ahead of the guest's API server, or more than three
	// behind. Upgrade the control plane first, or choose another payload. The operator checks again.
	VersionSkewReason = "VersionSkewUnsupported"
	// StoredVersionMissingReason: the guest has stored objects in a version that the payload's CustomResourceDefinition lacks; they
	// could be neither read nor deleted. Choose a payload that defines the version.
	StoredVersionMissingReason = "StoredVersionMissing"
	// FitUnknownReason: the guest's API server doesn't answer, so the operator can't check whether the new payload fits. The previous payload
	// stays until the guest answers.
	FitUnknownReason = "FitUnknown"
	// DefinitionMissingReason: the payload has this platform's Karpenter without the CustomResourceDefinition of its node class.
	// Choose another payload.
	DefinitionMissingReason = "DefinitionMissing"
)

// Reasons of GuestReachable.
const (
	// GuestConnectingReason: the operator is connecting. If this persists, check the control plane's pods.
	GuestConnectingReason = "Connecting"
	// ControlPlaneAsleepReason, with status Unknown: the Cluster's control plane is to have no replicas. Machines stay. Scale it up.
	ControlPlaneAsleepReason = "ControlPlaneAsleep"
	// GuestAddressForbiddenReason: the platform doesn't let the operator connect to the API server's address; see the operator's
	// --guest-networks.
	GuestAddressForbiddenReason = "AddressForbidden"
	// GuestOverBudgetReason: the guest sends or changes more than one guest may. With status True the operator serves it at a lower rate, with
	// status False not at all for five minutes; ask its admin for the source of so many objects, or large ones.
	GuestOverBudgetReason = "OverBudget"
	// GuestObjectsUnreadableReason: the guest's API server has objects that can't be decoded completely, such as a NodePool with a quantity
	// that takes minutes to parse. The operator uses the rest of each. The message names one; ask its admin to correct or delete them.
	GuestObjectsUnreadableReason = "ObjectsUnreadable"
	// GuestUnreachableReason: the API server stopped answering; check the control plane's pods and the kubeconfig Secret.
	GuestUnreachableReason = "Unreachable"
)

// Reasons of a ControlPlaneComponent's conditions.
const (
	// RollingOutReason: replicas are being replaced; the message counts them. If this persists, check the component's pods.
	RollingOutReason = "RollingOut"
	// ReplicasUnavailableReason: no replica is ready. Check the component's pods and their logs.
	ReplicasUnavailableReason = "ReplicasUnavailable"
	// DeploymentNotFoundReason: the Deployment is gone; the operator recreates it.
	DeploymentNotFoundReason = "DeploymentNotFound"
)

// Reasons of AutoNodeEnabled.
const (
	// AutoNodeProgressingReason: Karpenter is being installed or restarted; the message names the obstacle.
	AutoNodeProgressingReason = "AutoNodeProgressing"
	// AutoNodeUpgradingReason: the Karpenter of a new payload is being rolled out; the message names the obstacle.
	// NodesUpToDate reports the nodes that follow.
	AutoNodeUpgradingReason = "AutoNodeUpgrading"
	// AutoNodeWaitingReason: an input is missing, which the message names. Running workloads don't change.
	AutoNodeWaitingReason = "AutoNodeWaiting"
	// AutoNodeNotConfiguredReason: set spec.autoNode to turn AutoNode on.
	AutoNodeNotConfiguredReason = "AutoNodeNotConfigured"
	// AutoNodeDrainingReason: AutoNode was turned off and its nodes are draining; the message names the obstacles.
	AutoNodeDrainingReason = "AutoNodeDraining"
	// FallingAsleepReason: nodes are being removed because the cluster is to sleep; the message names the obstacles.
	FallingAsleepReason = "FallingAsleep"
	// AutoNodeDrainStoppedReason: the nodes didn't drain in time and spec.nodeDrain.onTimeout is Stop, so nothing is forced. Remove
	// what blocks the drain, which the message names, raise spec.nodeDrain.timeout, or set onTimeout to Force.
	AutoNodeDrainStoppedReason = "AutoNodeDrainStopped"
	// AutoNodeDrainUnconfirmedReason: the CustomResourceDefinition of HostedClusters is being deleted, and this HostedCluster with it. Its
	// nodes keep running until the platform confirms the deletion, by the annotation that the message names.
	AutoNodeDrainUnconfirmedReason = "AutoNodeDrainUnconfirmed"
	// AutoNodeDegradedReason: Karpenter was rolled out and is unavailable now. Check its pods in the control-plane namespace.
	AutoNodeDegradedReason = "AutoNodeDegraded"
	// AutoNodeEvaluationFailedReason: reconciliation failed more than once in a row. The message has the error, and the operator retries.
	AutoNodeEvaluationFailedReason = "AutoNodeEvaluationFailed"
)

// Reasons of NodesUpToDate.
const (
	// NodesOutdatedReason: nodes run an older version; Karpenter replaces them within the NodePools' disruption budgets.
	NodesOutdatedReason = "NodesOutdated"
	// NodesAheadReason: nodes run a newer version than the payload's, because their machine image has it, and none is replaced for that. Name
	// a payload with that version, or provide a machine template whose image has the payload's.
	NodesAheadReason = "NodesAhead"
	// NodeUpgradeHeldReason: nodes wait for the maintenance window or the approval that spec.autoNode.nodeUpgrade requires. The message
	// names the time when it opens, or the command that approves.
	NodeUpgradeHeldReason = "NodeUpgradeHeld"
	// UpgradeHaltedReason: nodes of the payload failed, or pods on them; the message names them. New nodes get the last completed payload's
	// version. Move to another payload, or, after failed nodes, resume with the annotation autonode.io/resume-node-upgrade.
	UpgradeHaltedReason = "UpgradeHalted"
	// UpgradeProvingReason: the payload's first nodes have to be healthy before others follow; the message says for how long.
	UpgradeProvingReason = "UpgradeProving"
	// WaitsForRingReason: HostedClusters that spec.autoNode.nodeUpgrade.after selects haven't completed the payload, or not for long enough.
	// The message names them. Help them, or correct the selector.
	WaitsForRingReason = "WaitsForRing"
	// NodeImageOlderReason: nodes boot from an image with an older Kubernetes than the payload's, so that replacing them would change nothing.
	// The message names their machine template: provide one whose image has the payload's version.
	NodeImageOlderReason = "NodeImageOlder"
	// NodeVersionUnsupportedReason: nodes are too old for the control plane, which supports three minor versions back. Let Karpenter
	// replace them: the message names the obstacles.
	NodeVersionUnsupportedReason = "NodeVersionUnsupported"
	// ControlPlaneOlderReason: the payload's node version is newer than the guest's API server. Nodes follow once that is upgraded.
	ControlPlaneOlderReason = "ControlPlaneOlder"
)

// Reasons of NodeClassReady. Those of the node class come beside, and are those of OfferingsAvailable.
const (
	// NodeClassPendingReason: Karpenter hasn't reported on the default node class yet. If this persists, check Karpenter's pods.
	NodeClassPendingReason = "NodeClassPending"
	// NodeClassNotReadyReason: the node class has a reason that this operator doesn't know. The message is the node class's.
	NodeClassNotReadyReason = "NodeClassNotReady"
)

// Reasons of NodeIdentityEnforced.
const (
	// ApprovedByAnotherReason: another approver has approved a machine's first certificate within the last hour. The message names the request
	// and the approver's reason, which is AutoApproved for kube-controller-manager. Take away its permission: docs/reference/node-identity.md.
	ApprovedByAnotherReason = "ApprovedByAnother"
	// ApprovalPendingReason: certificate requests of the Cluster's other machines have waited for another approver for a minute. The message
	// names one, and why the operator doesn't approve it.
	ApprovalPendingReason = "ApprovalPending"
)

// Reasons of ImageOverridden.
const (
	// OverriddenReason: Karpenter runs another image than the payload's. Remove OverrideImageAnnotation when the support case is closed.
	OverriddenReason = "Overridden"
	// OverrideInvalidReason: OverrideImageAnnotation is invalid, and the release's image runs. The message describes the valid form.
	OverrideInvalidReason = "OverrideInvalid"
)

// Reasons of FeatureGatesAccepted.
const (
	// FeatureGateNotAllowedReason: spec.autoNode sets a feature gate that the platform doesn't leave to HostedClusters, or that doesn't exist.
	// It has no effect. Remove it, or ask the platform team to allow it: the message names it and the gates that are allowed.
	FeatureGateNotAllowedReason = "FeatureGateNotAllowed"
	// FeatureGateUnsupportedReason: a feature gate is off because the guest lacks a requirement of it. The message names the requirement.
	FeatureGateUnsupportedReason = "FeatureGateUnsupported"
	// DefinitionNotOwnedReason: a feature gate is on, and the CustomResourceDefinition that it needs belongs to its creator, such as the
	// Cluster Autoscaler. Nothing to do; the message names the owner.
	DefinitionNotOwnedReason = "DefinitionNotOwned"
)

// Reasons of the events that record an irreversible step.
const (
	// AbandonedReason: the guest was unreachable until the drain's deadline, or Karpenter didn't finish even by force. The event names
	// the ConfigMap that lists the leftovers.
	AbandonedReason = "Abandoned"
	// DrainForcedReason: the drain's deadline has passed; Karpenter terminates pods against their PodDisruptionBudgets.
	DrainForcedReason = "DrainForced"
)

// ClusterAPIBehindReason is of an event on a HostedCluster: Cluster API hasn't begun with Machines of a burst. If it runs, raise its rate
// limits; the event names the page that describes how.
const ClusterAPIBehindReason = "ClusterAPIBehind"

// UndecodableReason is of an event on an object that the API server admitted and Go can't decode, and on its HostedCluster. What can't be
// decoded counts as absent, and nothing irreversible is done by it. Correct the value that the event names, or delete the object.
const UndecodableReason = "Undecodable"

// Reasons for approving or denying kubelets' certificate requests: of the request's condition Approved or Denied in the guest. Those of
// Denied are also events on the HostedCluster. They concern nodes that AutoNode made.
const (
	// NodeIdentityConfirmedReason: the request matches a NodeClaim and its Machine.
	NodeIdentityConfirmedReason = "NodeIdentityConfirmed"
	// RequestMalformedReason: the request can't be parsed, or requests more than a kubelet does. Find its requester.
	RequestMalformedReason = "RequestMalformed"
	// RequestExpiredReason: the request waited too long, because the operator didn't run or couldn't reach the guest. The kubelet retries.
	RequestExpiredReason = "RequestExpired"
	// RequesterMismatchReason: the requester isn't the machine that the certificate is for. Find the user in the message.
	RequesterMismatchReason = "RequesterMismatch"
	// SubjectMismatchReason: a node requested a name or groups other than its own. Treat that node as compromised.
	SubjectMismatchReason = "SubjectMismatch"
	// NodeNameMismatchReason: a machine asked, with the bootstrap token that Karpenter made for it, to be a node of another name than
	// its own, and never joins. Correct its host name or the kubelet's hostname-override, or let the infrastructure report the name.
	NodeNameMismatchReason = "NodeNameMismatch"
	// AddressMismatchReason: a node requested addresses that aren't its Machine's. If they are its own, the infrastructure provider fails
	// to report them in the Machine's status.addresses. Otherwise treat the node as compromised.
	AddressMismatchReason = "AddressMismatch"
	// UsageMismatchReason: the key usages aren't a kubelet's. Find the requester.
	UsageMismatchReason = "UsageMismatch"
	// MachineMissingReason: the NodeClaim that the request names has no Machine, or is being deleted.
	MachineMissingReason = "MachineMissing"
	// NodeClaimMissingReason: the Machine that the request names no longer has a NodeClaim and is about to be removed.
	NodeClaimMissingReason = "NodeClaimMissing"
	// AlreadyJoinedReason: the request is for a first certificate of a node that has joined. A machine that lost its certificate must be
	// replaced: delete its NodeClaim. If no machine lost one, a bootstrap token has leaked.
	AlreadyJoinedReason = "AlreadyJoined"
	// AlreadyRequestedReason: an earlier request for the machine's first certificate was approved; see AlreadyJoinedReason.
	AlreadyRequestedReason = "AlreadyRequested"
	// RequestSupersededReason: the node made a newer request before this one was decided, as a restarted kubelet does. Only the newest
	// request counts; there is nothing to do.
	RequestSupersededReason = "RequestSuperseded"
)
