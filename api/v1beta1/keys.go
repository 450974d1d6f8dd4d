// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Keys of labels and annotations, by who writes them, and names.

// The platform team writes these.
const (
	// ConsentAnnotation is on the Namespace of a control plane, or on its Cluster: the HostedCluster that may use it, as
	// <namespace>/<name>.
	ConsentAnnotation = Group + "/consents-to"
	// BootstrapDataLabel is "true" on a Secret of a control-plane namespace that Karpenter may read and pass to machines as bootstrap data.
	BootstrapDataLabel = Group + "/bootstrap-data"
	// ResolveReleaseAnnotation on a HostedCluster makes the operator resolve the tag in spec.release.image again, once for each
	// new value, such as the time. status.version.desired.resolveRequest has the last value that the operator followed.
	ResolveReleaseAnnotation = Group + "/resolve-release"
	// OverrideImageAnnotation on a HostedCluster runs another image than the payload's, for support cases:
	// "karpenter-clusterapi=registry.example/karpenter@sha256:…", the payload's component and an image by digest.
	// Everything else stays the payload's. The condition ImageOverridden reports whether the operator follows it.
	OverrideImageAnnotation = Group + "/override-image"
	// ApproveNodeVersionAnnotation on a HostedCluster approves one Kubernetes version for its nodes, such as "1.37.1", where
	// spec.autoNode.nodeUpgrade.policy is Manual. The next version needs another value.
	ApproveNodeVersionAnnotation = Group + "/approve-node-version"
	// ResumeNodeUpgradeAnnotation on a HostedCluster is the version or the digest of a payload that failed nodes don't halt.
	ResumeNodeUpgradeAnnotation = Group + "/resume-node-upgrade"
	// SleepUntilAnnotation has a HostedCluster asleep until a time in RFC 3339, WakeUntilAnnotation, which comes first, awake.
	SleepUntilAnnotation = Group + "/sleep-until"
	WakeUntilAnnotation  = Group + "/wake-until"
	// ConfirmDeletionAnnotation is "true" on a CustomResourceDefinition of this group that may be deleted, with the nodes of all
	// HostedClusters.
	ConfirmDeletionAnnotation = Group + "/confirm-deletion"
)

// The operator writes these.
const (
	// ManagedByLabel has the value ManagedByOperator on every object that the operator created, in either cluster.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByOperator is the value of ManagedByLabel, and the operator's field owner.
	ManagedByOperator = "autonode-operator"
	// HostedClusterFinalizer holds a HostedCluster until its nodes are drained and Karpenter is removed.
	HostedClusterFinalizer = Group + "/hostedcluster"
	// HostedClusterLabel is on objects that the operator creates in the management cluster: the HostedCluster's name.
	HostedClusterLabel = Group + "/hosted-cluster"
	// HostedClusterNamespaceLabel is on objects that the operator creates in the management cluster: the HostedCluster's namespace.
	HostedClusterNamespaceLabel = Group + "/hosted-cluster-namespace"
	// PlatformLabel is on a ControlPlaneComponent: Karpenter's cloud provider there, as named in spec.autoNode. It
	// determines how AutoNode is turned off once spec.autoNode is removed.
	PlatformLabel = Group + "/platform"
	// ControlPlaneNamespaceModeLabel is on a ControlPlaneComponent in a control-plane namespace that HostedClusters share, with the value
	// ControlPlaneNamespaceShared. Policies in the management cluster select it.
	ControlPlaneNamespaceModeLabel = Group + "/control-plane-namespace-mode"
	// LookRequestedAtAnnotation is on an infrastructure cluster: when the operator changed it last so that its provider looks at its
	// session, in RFC 3339.
	LookRequestedAtAnnotation = Group + "/look-requested-at"
	// TokenExpiresAtAnnotation is on the Secret with Karpenter's guest token: when it expires by the management cluster's clock, in RFC 3339.
	TokenExpiresAtAnnotation = Group + "/token-expires-at"
	// TokenServiceAccountUIDAnnotation is on the same Secret: the guest ServiceAccount of the token. Recreating the
	// ServiceAccount invalidates the token.
	TokenServiceAccountUIDAnnotation = Group + "/token-service-account-uid"
)

// Cluster API writes this.
const (
	// ClusterNameLabel is Cluster API's label of a Cluster's objects.
	ClusterNameLabel = "cluster.x-k8s.io/cluster-name"
)

const (
	// KarpenterComponent names the ControlPlaneComponent, the Deployment and the ServiceAccount of Karpenter in a dedicated control-plane
	// namespace; see Names.
	KarpenterComponent = "karpenter"
	// GuestAccessSecret names the Secret that holds Karpenter's kubeconfig and token for the guest cluster, in a dedicated control-plane
	// namespace; see Names.
	GuestAccessSecret = "karpenter-guest-access"
	// AbandonedConfigMap names the ConfigMap that records what the operator gave up when a HostedCluster was drained, in a dedicated
	// control-plane namespace; see Names.
	AbandonedConfigMap = "autonode-abandoned"
	// SharedNamespaceRole names the ClusterRole that the owner of a shared control-plane namespace binds to the operator there.
	SharedNamespaceRole = "autonode-system-shared-namespace"
)
