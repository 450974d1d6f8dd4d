// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"cmp"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// Fix reports what to do about a reason of a wrong condition. The condition's message has the names; for a reason that this program
// doesn't know, it has the rest, too.
func Fix(reason string) string {
	return cmp.Or(fixes[reason],
		"fix the problem in the message; docs/platform/failures.md and docs/cluster-admins/node-class.md explain the reason "+reason)
}

// fixes are what to do, by reason.
var fixes = map[string]string{
	v1beta1.ControlPlaneNamespaceForbiddenReason: "recreate the HostedCluster without spec.controlPlaneNamespace, or with another name",
	v1beta1.ConsentMissingReason: "annotate the Cluster or its Namespace with " + v1beta1.ConsentAnnotation +
		", or correct spec.infraID and spec.controlPlaneNamespace",
	v1beta1.NamespaceAccessMissingReason: "bind ClusterRole " + v1beta1.SharedNamespaceRole +
		" to the operator's ServiceAccount in the namespace, as the message shows",
	v1beta1.PlatformUnsupportedReason: "choose another platform, or upgrade the operator",
	v1beta1.ClusterNotFoundReason:     "create the Cluster, or correct spec.infraID",
	v1beta1.ClusterDeletingReason:     "delete the HostedCluster too, or remove spec.autoNode",
	v1beta1.KindNotFoundReason: "install the infrastructure or bootstrap provider of the kind, or correct the kind in " +
		"spec.autoNode",
	v1beta1.InfrastructureMismatchReason: "choose another platform, or correct spec.infraID",
	v1beta1.InvalidSpecReason:            "correct the field named in the message",

	v1beta1.ReleaseMissingReason:        "set spec.release.image, or the operator's flag --karpenter-image",
	v1beta1.PullSecretInvalidReason:     "create the Secret in spec.pullSecret with the key .dockerconfigjson, or correct its name",
	v1beta1.ImageReferenceInvalidReason: "correct spec.release.image",
	v1beta1.ImagePullUnauthorizedReason: "add an entry for the registry to the Secret in spec.pullSecret",
	v1beta1.ImageNotFoundReason:         "correct spec.release.image, or push the image",
	v1beta1.RegistryUnreachableReason: "let the operator reach the registry, in a private network with --registry-networks, or add a mirror " +
		"to spec.imageContentSources",
	v1beta1.PayloadMalformedReason:     "build the payload with `autonode release new`, or ask its publisher",
	v1beta1.PayloadTooLargeReason:      "ask the payload's publisher for a smaller one",
	v1beta1.PayloadUnsignedReason:      "sign the payload, or choose a signed one",
	v1beta1.ComponentMissingReason:     "choose a payload with Karpenter for this platform",
	v1beta1.PlatformMissingReason:      "choose a payload whose Karpenter image runs on the platform of the management cluster's nodes",
	v1beta1.VersionSkewReason:          "upgrade the control plane first, or choose another payload",
	v1beta1.StoredVersionMissingReason: "choose a payload whose CustomResourceDefinition defines the stored version",
	v1beta1.FitUnknownReason:           "check the guest's API server; the previous payload stays until it answers",
	v1beta1.DefinitionMissingReason:    "choose a payload with the CustomResourceDefinition of the node class",

	v1beta1.GuestConnectingReason:    "check the control plane's pods if this persists",
	v1beta1.ControlPlaneAsleepReason: "scale the control plane up; the Machines of its Cluster stay meanwhile",
	v1beta1.GuestAddressForbiddenReason: "ask the platform team to add the address's network to the operator's --guest-networks, or correct " +
		"the kubeconfig Secret",
	v1beta1.GuestOverBudgetReason:        "ask the cluster admin what creates so many or such large objects",
	v1beta1.GuestObjectsUnreadableReason: "ask the cluster admin to correct or delete the objects",
	v1beta1.GuestUnreachableReason:       "check the control plane's pods and the kubeconfig Secret",

	v1beta1.RollingOutReason:          "wait for the rollout; check Karpenter's pods and their logs if it hangs",
	v1beta1.ReplicasUnavailableReason: "check Karpenter's pods and their logs in the control-plane namespace",
	v1beta1.DeploymentNotFoundReason:  "check the operator, which recreates the Deployment",

	v1beta1.AutoNodeWaitingReason: "provide the input named in the message",
	v1beta1.AutoNodeDrainStoppedReason: "remove what blocks the drain, raise spec.nodeDrain.timeout, or set spec.nodeDrain.onTimeout " +
		"to Force",
	v1beta1.AutoNodeDrainUnconfirmedReason: "confirm the deletion with the annotation named in the message, or recreate the " +
		"CustomResourceDefinition",
	v1beta1.AutoNodeDegradedReason:         "check Karpenter's pods and their logs in the control-plane namespace",
	v1beta1.AutoNodeEvaluationFailedReason: "fix the problem in the message; the operator retries",

	v1beta1.NodeImageOlderReason:         "provide a machine template whose image has the payload's Kubernetes version",
	v1beta1.UpgradeHaltedReason:          "move to another release, or resume as the message shows: docs/platform/upgrade-halts.md",
	v1beta1.NodeVersionUnsupportedReason: "let Karpenter replace the nodes: remove the blocker named in the message",
	v1beta1.ApprovedByAnotherReason:      "revoke the other approver's permission: docs/reference/node-identity.md",
	v1beta1.ApprovalPendingReason: "approve or correct the request named in the message, or set " +
		"spec.autoNode.certificateApproval.scope to Cluster: docs/reference/node-identity.md",
	v1beta1.OverrideInvalidReason: "correct or remove the annotation " + v1beta1.OverrideImageAnnotation,
	v1beta1.FeatureGateNotAllowedReason: "remove the feature gate from spec.autoNode, or ask the platform team to allow it in " +
		"--karpenter-settings",
	v1beta1.FeatureGateUnsupportedReason: "provide the guest's requirement named in the message, or remove the feature gate",
	v1beta1.NodeClassNotReadyReason:      "fix the problem in the node class's message",
	v1beta1.NodeClassPendingReason:       "check Karpenter's pods and their logs if this persists",

	v1alpha1.NoSelectorReason:          "select machine templates in spec.autoNode of the HostedCluster, or in the guest's node classes",
	v1alpha1.InvalidSelectorReason:     "correct the label selector",
	v1alpha1.NoTemplatesReason:         "label a MachineDeployment or a machine template, or correct the selector",
	v1alpha1.AllInvalidReason:          "correct the template named in the message",
	v1alpha1.ReferenceNotFoundReason:   "create the template that the MachineDeployment refers to, or correct the name",
	v1alpha1.SourceUnreadableReason:    "name the kind in spec.autoNode of the HostedCluster, or install its provider",
	v1alpha1.BootstrapMissingReason:    "set bootstrap in spec.autoNode or on the node class",
	v1alpha1.BootstrapNotFoundReason:   "create the bootstrap template or Secret, or correct its name",
	v1alpha1.BootstrapNotAllowedReason: "allow it in spec.autoNode of the HostedCluster, or remove it from the node class",
	v1alpha1.NodeImageMissingReason:    "correct the image in bootstrapPatches, or choose a payload that names it",
	v1alpha1.VersionUnknownReason:      "check the guest's API server, which hasn't reported its version",
	v1alpha1.VersionTooNewReason:       "lower spec.version of the node class, or upgrade the control plane first",
	v1alpha1.VersionTooOldReason:       "raise spec.version of the node class",
	v1alpha1.VersionMalformedReason:    "correct the version in the field named in the message",
	v1alpha1.NoCapacityReason:          "select more templates or zones, or wait: Karpenter retries",
	v1alpha1.NoQuotaReason:             "raise the account's quota: Karpenter retries",
	v1alpha1.LaunchesFailReason: "see the events of the guest's NodeClaims: `kubectl get events -A --field-selector " +
		"involvedObject.kind=NodeClaim`",
	v1alpha1.ClusterPausedReason:           "resume the Cluster in the management cluster",
	v1alpha1.ClusterNotReadyReason:         "fix the problem that the infrastructure provider reports in the message",
	v1alpha1.ClusterNotProvisionedReason:   "check the infrastructure provider, which hasn't provisioned the Cluster",
	v1alpha1.KubeletSettingsInvalidReason:  "correct or remove the field of spec.kubelet named in the message",
	v1alpha1.RegistrationUnknownReason:     "set bootstrapPatches, or add the taint karpenter.sh/unregistered to the bootstrap data",
	v1alpha1.EphemeralStorageUnknownReason: "set the annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk",
}
