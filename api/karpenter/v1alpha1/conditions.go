// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/awslabs/operatorpkg/status"
)

// Conditions of a ClusterAPINodeClass. Ready is computed from the others and has the message of the first that isn't True.
const (
	// ConditionSourcesFound: the selectors match at least one readable template or MachineDeployment.
	ConditionSourcesFound = "SourcesFound"
	// ConditionReferencesResolved: the references of at least one of them exist and are readable.
	ConditionReferencesResolved = "ReferencesResolved"
	// ConditionTemplatesReady: the capacity of at least one of them is known, so the class has a usable template. While a condition
	// above isn't True, this one has its reason.
	ConditionTemplatesReady = "TemplatesReady"
	// ConditionBootstrapReady: the bootstrap template or Secret exists.
	ConditionBootstrapReady = "BootstrapReady"
	// ConditionVersionReady: the nodes' version is known and the API server supports it.
	ConditionVersionReady = "VersionReady"
	// ConditionAllocatableKnown: the reservations of the nodes' kubelets are known from their bootstrap templates, or nodes have
	// reported it. Ready doesn't depend on it.
	ConditionAllocatableKnown = "AllocatableKnown"
	// ConditionOfferingsAvailable: at least one offering of the class isn't in back-off. While it is False, nothing launches, and the message
	// has why recent launches failed and how many pods wait. It is True with the reason LaunchesFail while offerings are left to try, and no
	// launch has succeeded since those of five others failed. Ready doesn't depend on it.
	ConditionOfferingsAvailable = "OfferingsAvailable"
	// ConditionLaunchAllowed: AutoNode isn't being turned off, the Cluster isn't paused, and Karpenter runs.
	ConditionLaunchAllowed = "LaunchAllowed"
	// ConditionUpgradeAllowed: nodes may be replaced for the release payload. Its reason is the phase of an upgrade that proves itself,
	// without which it is absent; the message has why nodes wait.
	ConditionUpgradeAllowed = "UpgradeAllowed"
)

// Reasons of ClusterAPINodeClass conditions.
const (
	// NoSelectorReason: the node class has no selector, and no MachineDeployment has the default label. Set
	// scalableResourceSelector or infrastructureTemplateSelectors.
	NoSelectorReason = "NoSelector"
	// InvalidSelectorReason: a label selector is invalid; the message has the reason.
	InvalidSelectorReason = "InvalidSelector"
	// NoTemplatesReason: no object matches the selectors. Label a template, or correct the selector.
	NoTemplatesReason = "NoTemplates"
	// AllInvalidReason: all matching objects are malformed; the message names the first and its error.
	AllInvalidReason = "AllInvalid"
	// SomeInvalidReason: some matching objects are malformed and excluded; the others are in use.
	SomeInvalidReason = "SomeInvalid"
	// ReferenceNotFoundReason: a MachineDeployment refers to a template that doesn't exist. Create it, or correct the name.
	ReferenceNotFoundReason = "ReferenceNotFound"
	// PricesUnreadableReason: the price file (ConfigMap karpenter-prices beside Karpenter) is malformed; the message names the place. The
	// previous prices stay in use.
	PricesUnreadableReason = "PricesUnreadable"
	// ProfileInvalidReason: a field of the profile file (ConfigMap karpenter-profiles beside Karpenter), or one that a profile
	// reads of a template, can't be understood; the message names each. Everything else stays in use.
	ProfileInvalidReason = "ProfileInvalid"
	// ImageOlderReason: the image of a template has an older Kubernetes than nodes get, and so have its nodes; none is replaced for that.
	// The message names the template and the version that its successor's image needs.
	ImageOlderReason = "ImageOlder"
	// SourceUnreadableReason: the management cluster doesn't serve a kind, or Karpenter may not read it. Name it in spec.autoNode of the
	// HostedCluster, or install its provider.
	SourceUnreadableReason = "SourceUnreadable"
	// BootstrapMissingReason: a template has no bootstrap of its own. Set bootstrap on the node class.
	BootstrapMissingReason = "BootstrapMissing"
	// BootstrapNotFoundReason: the bootstrap template or Secret doesn't exist, or the object is no template. Create it, or correct the name.
	BootstrapNotFoundReason = "BootstrapNotFound"
	// NodeImageMissingReason: bootstrapPatches name an image that the release payload doesn't have for a machine's architecture; correct the
	// image's infrastructure, region or format, or choose a payload that names it.
	NodeImageMissingReason = "NodeImageMissing"
	// BootstrapNotAllowedReason: the platform doesn't allow this node class's Secret, bootstrap patches or kubelet settings. Have them added
	// to spec.autoNode of the HostedCluster, or keep kubelet settings within the bounds that the message names.
	BootstrapNotAllowedReason = "BootstrapNotAllowed"
	// RegistrationUnknownReason: nodes of some templates may register without the taint karpenter.sh/unregistered, so pods may land on them
	// before Karpenter has set their taints. Set bootstrapPatches, or put the taint into the bootstrap data.
	RegistrationUnknownReason = "RegistrationUnknown"
	// KubeletSettingsInvalidReason: a field of spec.kubelet has another type than the kubelet's, or the kubelets of the nodes' version don't
	// have it. The message names the field; correct or remove it.
	KubeletSettingsInvalidReason = "KubeletSettingsInvalid"
	// KubeletSettingsUnwrittenReason: Karpenter writes some fields of spec.kubelet for no kubelet of some templates, because it doesn't know
	// their bootstrap kind and no patch writes them. The message names the fields. Set bootstrapPatches.
	KubeletSettingsUnwrittenReason = "KubeletSettingsUnwritten"
	// KubeletSettingsUnknownReason: the provider can't read the reservations of some templates' kubelets, so their first nodes may allocate
	// less than planned. The message names each place. Set kubelet on the node class, or use fields that can be read.
	KubeletSettingsUnknownReason = "KubeletSettingsUnknown"
	// EphemeralStorageUnknownReason: some templates declare no ephemeral storage, so pods that request it get no node of them. Set the
	// annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk.
	EphemeralStorageUnknownReason = "EphemeralStorageUnknown"
	// PodsMayNotFitReason: kubelets of some templates reject pods that fit what their node can allocate, or run static pods, which Karpenter
	// doesn't plan with. The message names each place, and its replacement.
	PodsMayNotFitReason = "PodsMayNotFit"
	// VersionUnknownReason: the API server hasn't reported its version yet.
	VersionUnknownReason = "VersionUnknown"
	// VersionTooNewReason: spec.version exceeds the API server's, or the release payload's version of nodes. Lower it, or upgrade the control
	// plane first.
	VersionTooNewReason = "VersionTooNew"
	// VersionTooOldReason: spec.version is more than three minor versions behind the API server's. Raise it.
	VersionTooOldReason = "VersionTooOld"
	// VersionMalformedReason: a field doesn't have a version such as 1.36.3; the message names the field.
	VersionMalformedReason = "VersionMalformed"
	// VersionHeldBackReason: the payload's version exceeds the API server's; nodes follow once that is upgraded.
	VersionHeldBackReason = "HeldBack"
	// NoCapacityReason: the infrastructure had no capacity for any offering. Select more templates or zones, or wait: Karpenter retries.
	NoCapacityReason = "NoCapacity"
	// NoQuotaReason: the account's quota doesn't allow any offering. Raise it: Karpenter retries.
	NoQuotaReason = "NoQuota"
	// QuotaExhaustedReason: a quota of the infrastructure closes some offerings; others are available. The message has the quota, and when it
	// is tried again. Raise it, if machines of those types are needed.
	QuotaExhaustedReason = "QuotaExhausted"
	// LaunchesFailReason: every offering's recent launches failed, and not for capacity or quota alone; or, if offerings are left to try, all
	// recent launches failed. The message names the reasons; events on NodeClaims have the details.
	LaunchesFailReason = "LaunchesFail"
	// DrainingReason: AutoNode is being turned off for this cluster.
	DrainingReason = "Draining"
	// AsleepReason: the cluster is asleep, or falls asleep: its nodes go, and none are launched until it wakes. The message has the time.
	AsleepReason = "Asleep"
	// ClusterPausedReason: the Cluster is paused in the management cluster; nothing is launched until it resumes.
	ClusterPausedReason = "ClusterPaused"
	// ClusterDeletingReason: the Cluster is being deleted in the management cluster; nothing more is launched.
	ClusterDeletingReason = "ClusterDeleting"
	// ClusterNotReadyReason: the infrastructure of the Cluster was ready and isn't now; the message has the infrastructure provider's
	// sentence, such as a failed login. No Machine is launched while another one waits for its provider ID. Correct the cause that the message
	// names.
	ClusterNotReadyReason = "ClusterNotReady"
	// ClusterNotProvisionedReason: the infrastructure provider hasn't provisioned the Cluster yet, so its zones are unknown.
	ClusterNotProvisionedReason = "ClusterNotProvisioned"
	// PausedReason: AutoNode is paused for this cluster, so Karpenter doesn't run. The operator sets it, and Karpenter replaces it when it
	// runs again. Ask the platform team to end the pause.
	PausedReason = "Paused"
	// KarpenterUnavailableReason: Karpenter has had no available replica for two minutes. The operator sets it, and Karpenter replaces it when
	// it runs again. Ask the platform team to check Karpenter's pods.
	KarpenterUnavailableReason = "KarpenterUnavailable"
)

// Held returns why the operator lets Karpenter launch nothing of the node class; empty if it does.
func (in *ClusterAPINodeClass) Held() (reason, message string) {
	until, asleep := in.Annotations[AsleepUntilAnnotation]
	switch {
	case in.Annotations[DrainingAnnotation] != "true":
		return "", ""
	case asleep:
		return AsleepReason, "the cluster is asleep until " + until + "; pods are pending, and no nodes are launched before it wakes"
	default:
		return DrainingReason, "AutoNode is being turned off for this cluster; its nodes drain, and no new ones are launched"
	}
}

// IsStopped reports whether the operator has set a condition with this reason, because Karpenter doesn't run.
func IsStopped(reason string) bool {
	return reason == PausedReason || reason == KarpenterUnavailableReason
}

// ReadyConditions are those that Ready is computed from, the first cause first.
func ReadyConditions() []string {
	return []string{
		ConditionLaunchAllowed,
		ConditionVersionReady,
		ConditionSourcesFound,
		ConditionReferencesResolved,
		ConditionTemplatesReady,
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
