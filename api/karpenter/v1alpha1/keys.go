// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

// Keys of labels and annotations, by who writes them.

// The platform team writes these on a template source: an infrastructure machine template or a MachineDeployment.
const (
	// PriceAnnotation is the price of one on-demand machine of this template, in US dollars per hour, as a decimal.
	PriceAnnotation = Group + "/price"
	// SpotPriceAnnotation is the price of one spot machine of this template. It needs a patch that writes the capacity type into the machine,
	// or CapacityTypeAnnotation.
	SpotPriceAnnotation = Group + "/spot-price"
	// CapacityTypeAnnotation declares how the machines that the template itself makes are paid for: on-demand (the default) or spot.
	CapacityTypeAnnotation = Group + "/capacity-type"
	// MemoryOverheadAnnotation is the percentage of the declared memory that the source's nodes lack, such as 5%, before one has reported.
	// Without it the platform's applies to memory that a template's status declares, and none to memory that an annotation declares.
	MemoryOverheadAnnotation = Group + "/memory-overhead"
	// InstanceTypeAnnotation names the instance type. Without it the source's own name is the instance type's.
	InstanceTypeAnnotation = Group + "/instance-type"
	// KubernetesVersionAnnotation is the Kubernetes version of the kubelet in the image that the source's machines boot, such as 1.36.3. They
	// get it as their Machine's version. Nothing launches from a template that is ahead of the nodes' version, and nodes move to one that
	// has the nodes' version as they do for a new payload. A MachineDeployment with a version of its own doesn't need it.
	KubernetesVersionAnnotation = Group + "/kubernetes-version"
	// InfrastructurePatchesAnnotation is a list of JSONPatches, in YAML or JSON, that are applied to each infrastructure machine cloned from
	// the source's template. A MachineDeployment's replace those of its template.
	InfrastructurePatchesAnnotation = Group + "/infrastructure-patches"
	// MemberLabel is on the MachineDeployments that a node class without a selector selects, with an empty value. It comes from
	// karpenter-provider-cluster-api.
	MemberLabel = "node.cluster.x-k8s.io/karpenter-member"
)

// The platform team writes this on a KubeadmConfigTemplate.
const (
	// BootstrapDataAnnotation is on a KubeadmConfigTemplate and decides who renders its machines' bootstrap data:
	// BootstrapDataFromKarpenter or BootstrapDataFromProvider. By default Karpenter does if it can.
	BootstrapDataAnnotation = Group + "/bootstrap-data"
	// BootstrapDataFromKarpenter makes Karpenter render bootstrap data, with the library of Cluster API's kubeadm bootstrap provider, where it
	// needs to read nothing else for it: one Secret for each machine, and no KubeadmConfig.
	BootstrapDataFromKarpenter = "Karpenter"
	// BootstrapDataFromProvider leaves it to the bootstrap provider, with a KubeadmConfig for each machine.
	BootstrapDataFromProvider = "Provider"
)

// The operator writes these on node classes.
const (
	// DrainingAnnotation has the value "true" on a node class while AutoNode is being turned off: the operator sets it, Karpenter
	// launches no more nodes of that class, and its nodes drain.
	DrainingAnnotation = Group + "/draining"
	// AsleepUntilAnnotation is beside it where the cluster sleeps: when it wakes, in RFC 3339, or "someone wakes it".
	AsleepUntilAnnotation = Group + "/asleep-until"
	// RolloutAnnotation is the ID of Karpenter's last complete rollout; the operator sets it on every node class. A Karpenter of another
	// rollout replaces no node of the class for drift, so of two Karpenters that run during a rollout only the older one does.
	RolloutAnnotation = Group + "/rollout"
)

// Karpenter writes these in the management cluster, on Machines, their infrastructure machines and bootstrap objects.
const (
	// NodeClaimLabel is the name of the NodeClaim of a Machine and of its infrastructure and bootstrap objects.
	NodeClaimLabel = Group + "/nodeclaim"
	// NodeClaimNameAnnotation is that name if it is too long for a label.
	NodeClaimNameAnnotation = Group + "/nodeclaim-name"
	// NodeClaimUIDLabel is the UID of that NodeClaim. It decides ownership.
	NodeClaimUIDLabel = Group + "/nodeclaim-uid"
	// ReplacesAnnotation is on the Machine of a replacement that could be launched only once its node was terminated: the name of that node's
	// NodeClaim.
	ReplacesAnnotation = Group + "/replaces"
	// InstanceGoneAnnotation is on a Machine whose instance the infrastructure has terminated although its node had joined: what the
	// infrastructure reported. Karpenter then drains nothing.
	InstanceGoneAnnotation = Group + "/instance-gone"
	// RebootAnnotation is on a Machine that Karpenter has asked to be rebooted in place, until its node has rejoined: Karpenter's ID of the
	// reboot.
	RebootAnnotation = Group + "/reboot"
	// TemplateSourceAnnotation names a machine's template source, as <kind>.<group>/<name>, or an InstanceTypeCatalog's as
	// <kind>.<group>/<name>/<instance type>, where the name of a shared one begins with <namespace>:.
	TemplateSourceAnnotation = Group + "/template-source"
	// OfferingZoneAnnotation is on a Machine that was launched without a zone: the zone that its offering has nevertheless. Other
	// Machines have the label topology.kubernetes.io/zone.
	OfferingZoneAnnotation = Group + "/offering-zone"
	// MachineSizeAnnotation is on a Machine: its size in a CapacityAccount, as
	// vcpus=4000,memory=17179869184,gpus=0,price=0.058,onDemand=0.192 in thousandths of a vCPU, bytes, GPUs and US dollars an hour. The
	// last one is the price of the same machine on demand, on a spot or reserved machine.
	MachineSizeAnnotation = Group + "/machine-size"
	// BootstrapTokenIDAnnotation is on a Machine: the public part of the one bootstrap token that it may join the guest cluster with. The
	// provider writes it when it creates the Machine, and never later. Without it any bootstrap token outside BootstrapTokenGroup is valid.
	BootstrapTokenIDAnnotation = Group + "/bootstrap-token-id"
	// NodeVersionAnnotation is on a machine's bootstrap config: the Machine's Kubernetes version.
	NodeVersionAnnotation = Group + "/node-version"
)

// AdoptedAnnotation is written by `autonode adopt`: on a NodeClaim the MachineDeployment whose Machine it adopts, and on that Machine, its
// infrastructure machine and its bootstrap config the UID of the NodeClaim, so that any name of theirs is the NodeClaim's.
const AdoptedAnnotation = "autonode.io/adopted"

// Karpenter writes these on Machines and NodeClaims, to find drift by.
const (
	// NodeClassHashAnnotation is the hash of the node class's fields that cause drift.
	NodeClassHashAnnotation = Group + "/nodeclass-hash"
	// NodeClassHashVersionAnnotation is the version of the rule of NodeClassHashAnnotation. The provider never compares hashes of
	// different versions, so an upgrade of the provider doesn't drift a fleet.
	NodeClassHashVersionAnnotation = Group + "/nodeclass-hash-version"
	// TemplateHashAnnotation is the hash of the content of a machine's infrastructure template. Like BootstrapHashAnnotation and
	// NodeImagesHashAnnotation it begins with the version of its rule and a colon; the first rule's is the digest alone.
	TemplateHashAnnotation = Group + "/template-hash"
	// TemplateRevisionAnnotation is the revision of that template, as <UID>/<generation>. The same revision has the same content,
	// although an API server may serialize it differently after an upgrade of Cluster API or of a provider.
	TemplateRevisionAnnotation = Group + "/template-revision"
	// TemplateKubernetesVersionAnnotation is the KubernetesVersionAnnotation of that template; without one there is no such annotation.
	TemplateKubernetesVersionAnnotation = Group + "/template-kubernetes-version"
	// TemplateOwnedHashAnnotation is TemplateHashAnnotation without the fields that only admission webhooks have set. A template whose
	// webhook has learned a new default hasn't changed.
	TemplateOwnedHashAnnotation = Group + "/template-owned-hash"
	// BootstrapOwnedHashAnnotation is the same of a machine's bootstrap template.
	BootstrapOwnedHashAnnotation = Group + "/bootstrap-owned-hash"
	// BootstrapHashAnnotation is the hash of the content of a machine's bootstrap template.
	BootstrapHashAnnotation = Group + "/bootstrap-hash"
	// BootstrapRevisionAnnotation is the revision of that template, as <UID>/<generation>.
	BootstrapRevisionAnnotation = Group + "/bootstrap-revision"
	// NodeImagesHashAnnotation is the hash of the release payload's node images that a machine's patches named; without any there
	// is no such annotation.
	NodeImagesHashAnnotation = Group + "/node-images-hash"
	// ReleaseAnnotation is a machine's release payload by digest, unless its version is pinned, while upgrades have to prove themselves.
	ReleaseAnnotation = Group + "/release"
)

// Karpenter writes these on its leader-election Lease.
const (
	// LeaderPodLabel is on Karpenter's leader-election Lease: the active pod.
	LeaderPodLabel = Group + "/leader-pod"
	// LeasedAnnotation is on Karpenter's leader-election Lease with the value "true" while the cluster's CapacityLease is of an account. A
	// Karpenter that starts and finds no CapacityLease then launches nothing until the operator has created it again.
	LeasedAnnotation = Group + "/leased"
)

// Karpenter writes these in the guest.
const (
	// MachineAnnotation is on a NodeClaim: its Machine, as <namespace>/<name>.
	MachineAnnotation = Group + "/machine"
	// ReservationIDLabel is on a reserved node and its Machine: the ID of the reservation that it uses up.
	ReservationIDLabel = Group + "/reservation-id"
	// InstanceFamilyLabel is on the nodes of instance types whose template or catalog entry has it: the family within which the
	// infrastructure counts quotas.
	InstanceFamilyLabel = Group + "/instance-family"
	// NodePriceLabel is a node's list price in US dollars an hour, for eks-node-viewer and similar tools.
	NodePriceLabel = "eks-node-viewer/instance-price"
	// NodeClassFinalizer holds a node class while NodeClaims use it.
	NodeClassFinalizer = Group + "/termination"
	// TerminateFirstCondition is a condition of a NodePool whose nodes Karpenter replaces so, until none of them has to be replaced. The
	// message names the full pools and quotas.
	TerminateFirstCondition = "TerminateFirst"
)

const (
	// BootstrapTokenGroup is a group of the provider's bootstrap tokens. The guest's admission policy rejects other tokens of Karpenter's,
	// and the operator accepts such a token only for the Machine that names it in BootstrapTokenIDAnnotation.
	BootstrapTokenGroup = "system:bootstrappers:karpenter"
	// BootstrapTokenGroups are all groups of such a token, in its Secret's syntax. kubeadm grants joining machines their permissions by the
	// first one.
	BootstrapTokenGroups = "system:bootstrappers:kubeadm:default-node-token," + BootstrapTokenGroup
	// BootstrapSecretPrefix begins the name of each Secret that Karpenter creates in the control-plane namespace. The rest is its token's ID.
	BootstrapSecretPrefix = "karpenter-bootstrap-"
	// DefaultNodeClass is the name of the node class that the operator keeps in every guest cluster.
	DefaultNodeClass = "default"
	// Kind is the kind of the node class.
	Kind = "ClusterAPINodeClass"
)

// CatalogOf returns the name of the InstanceTypeCatalog that a value of TemplateSourceAnnotation names; empty for another source.
func CatalogOf(source string) string {
	rest, ok := strings.CutPrefix(source, "InstanceTypeCatalog."+Group+"/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	if _, shared, ok := strings.Cut(name, ":"); ok {
		return shared
	}
	return name
}
