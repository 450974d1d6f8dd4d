// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Annotations that a platform team sets on a shape source: an infrastructure machine template or a MachineDeployment.
const (
	// PriceAnnotation is the price of one on-demand machine of this shape, in US dollars an hour, as a decimal.
	PriceAnnotation = Group + "/price"
	// SpotPriceAnnotation is the price of one spot machine of this shape. It needs a patch that writes the capacity type into the machine, or
	// CapacityTypeAnnotation.
	SpotPriceAnnotation = Group + "/spot-price"
	// CapacityTypeAnnotation says how the machines that the template itself makes are paid for: on-demand (the default) or spot.
	CapacityTypeAnnotation = Group + "/capacity-type"
	// InstanceTypeAnnotation names the instance type. Without it the source's own name is the instance type's.
	InstanceTypeAnnotation = Group + "/instance-type"
	// InfrastructurePatchesAnnotation is a list of JSONPatches, in YAML or JSON, that are applied to each infrastructure machine cloned from
	// the source's template. A MachineDeployment's replace those of its template.
	InfrastructurePatchesAnnotation = Group + "/infrastructure-patches"
)

// MemberLabel is on the MachineDeployments that a node class without any selector chooses. It comes from the upstream
// experiment, and its value is empty.
const MemberLabel = "node.cluster.x-k8s.io/karpenter-member"

// Labels of the objects that the provider makes in the management cluster.
const (
	// NodeClaimLabel is the name of the NodeClaim that a Machine and its children belong to.
	NodeClaimLabel = Group + "/nodeclaim"
	// NodeClaimUIDLabel is the UID of that NodeClaim. It is what ownership is decided by.
	NodeClaimUIDLabel = Group + "/nodeclaim-uid"
	// LeaderPodLabel is on Karpenter's leader-election Lease: the pod that is active.
	LeaderPodLabel = Group + "/leader-pod"
)

// Annotations of NodeClaims, Machines and ClusterAPINodeClasses that the provider writes.
const (
	// NodeClassHashAnnotation is the hash of the node class's fields that make a node drift when they change.
	NodeClassHashAnnotation = Group + "/nodeclass-hash"
	// NodeClassHashVersionAnnotation is the version of the rule that NodeClassHashAnnotation was made by. Hashes of
	// different versions are never compared, so that an upgrade of the provider doesn't drift a fleet.
	NodeClassHashVersionAnnotation = Group + "/nodeclass-hash-version"
	// ShapeHashAnnotation is the hash of the infrastructure template's content that a machine was cloned from. Like the other two, it
	// begins with the version of the rule that it was made by and a colon, but for the first rule's, which is the digest alone.
	ShapeHashAnnotation = Group + "/shape-hash"
	// ShapeRevisionAnnotation is the infrastructure template that has that content, as <UID>/<generation>. The same revision is the
	// same content, although an API server may write it in another way after an upgrade of Cluster API or of a provider.
	ShapeRevisionAnnotation = Group + "/shape-revision"
	// BootstrapHashAnnotation is the hash of the bootstrap template's content that a machine was cloned from.
	BootstrapHashAnnotation = Group + "/bootstrap-hash"
	// BootstrapRevisionAnnotation is the bootstrap template that has that content, as <UID>/<generation>.
	BootstrapRevisionAnnotation = Group + "/bootstrap-revision"
	// NodeImagesHashAnnotation is the hash of the release payload's node images that a machine's patches named; without any there
	// is no such annotation.
	NodeImagesHashAnnotation = Group + "/node-images-hash"
	// NodeVersionAnnotation is on a machine's bootstrap config: the Kubernetes version that it was made for, as the Machine has it.
	NodeVersionAnnotation = Group + "/node-version"
	// ShapeSourceAnnotation names the shape source that a machine was made from, as <kind>.<group>/<name>.
	ShapeSourceAnnotation = Group + "/shape-source"
	// BootstrapTokenIDAnnotation is on a Machine: the public part of the one bootstrap token that it may join the guest cluster with. It is
	// written when the Machine is made and never changed. Without it any bootstrap token will do that isn't of BootstrapTokenGroup.
	BootstrapTokenIDAnnotation = Group + "/bootstrap-token-id"
	// BootstrapDataAnnotation is on a KubeadmConfigTemplate: who renders the bootstrap data of machines that join with it,
	// BootstrapDataFromKarpenter or BootstrapDataFromProvider. Without it Karpenter does where it can.
	BootstrapDataAnnotation = Group + "/bootstrap-data"
	// MachineAnnotation is on a NodeClaim: the Machine that it became, as <namespace>/<name>.
	MachineAnnotation = Group + "/machine"
)

const (
	// BootstrapDataFromKarpenter makes Karpenter render bootstrap data, with the library of Cluster API's kubeadm bootstrap provider, where it
	// needs to read nothing else for it: one Secret for each machine, and no KubeadmConfig.
	BootstrapDataFromKarpenter = "Karpenter"
	// BootstrapDataFromProvider leaves it to the bootstrap provider, with a KubeadmConfig for each machine.
	BootstrapDataFromProvider = "Provider"
	// BootstrapSecretPrefix begins the name of each Secret that Karpenter creates in the control-plane namespace. The rest is its token's ID.
	BootstrapSecretPrefix = "karpenter-bootstrap-"
)

const (
	// BootstrapTokenGroup is a group that the provider's bootstrap tokens authenticate as. The guest's admission policy lets Karpenter make no
	// others, and the operator accepts such a token from the Machine alone that names it in BootstrapTokenIDAnnotation.
	BootstrapTokenGroup = "system:bootstrappers:karpenter"
	// BootstrapTokenGroups are all groups of such a token, as its Secret has them: the first one is what kubeadm grants joining machines their
	// rights by.
	BootstrapTokenGroups = "system:bootstrappers:kubeadm:default-node-token," + BootstrapTokenGroup
)

// KeptForMinimumAnnotation is on a node that stays for the minimum size of a shape source, which it names as ShapeSourceAnnotation does. It
// says that the provider has set Karpenter's annotation karpenter.sh/do-not-disrupt, and not a person.
const KeptForMinimumAnnotation = Group + "/kept-for-minimum"

const (
	// DrainingAnnotation is set by the operator on a node class, with the value "true", while AutoNode is being turned
	// off: no node of that class is launched any more, and those there are drain.
	DrainingAnnotation = Group + "/draining"
	// RolloutAnnotation is set by the operator on every node class: which rollout of Karpenter was the last one to be complete. A Karpenter
	// of another rollout replaces no node of the class because of drift, so that of two versions of Karpenter that run side by side for a
	// while only the older one does, by what it knows.
	RolloutAnnotation = Group + "/rollout"
	// NodeClassFinalizer holds a node class while NodeClaims use it.
	NodeClassFinalizer = Group + "/termination"
	// DefaultNodeClass is the name of the node class that the operator keeps in every guest cluster.
	DefaultNodeClass = "default"
	// Kind is the kind of the node class.
	Kind = "ClusterAPINodeClass"
)
