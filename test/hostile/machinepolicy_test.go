// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// policyNamespace is the control-plane namespace of the compromised Karpenter.
const policyNamespace = "machine-policy"

type machineAttack struct {
	object client.Object
	want   string
}

const (
	ofClusterAPI, ofOperator, named = "Secret of Cluster API's", "Secret of the operator's", "neither the HostedCluster nor a MachineDeployment of the Cluster names"
	keys, claimed                   = "no machine of a control plane", "only what it has made for a NodeClaim"
	created                         = "may refer only to an infrastructure machine and a bootstrap config that Karpenter may create"
	annotations                     = "neither a template nor a MachineDeployment of the Cluster has the annotations"
	owner, instance, prefix         = "no owner but their Cluster, and an infrastructure machine the Machine of its own name", "the provider reports which instance", "is called after its Cluster"
	cluster                         = "may write only what is its own Cluster's"
)

func machineNamed(name, secret string, changes ...func(*metav1.ObjectMeta)) client.Object {
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: policyNamespace, Name: name, Labels: labelsOf(name, "blue")}, Spec: clusterv1.MachineSpec{ClusterName: "blue"},
	}
	if secret != "" {
		m.Spec.Bootstrap.DataSecretName = ptr.To(secret)
	}
	for _, change := range changes {
		change(&m.ObjectMeta)
	}
	return m
}

func other(apiVersion, kind, name string, labels map[string]string) client.Object {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace(policyNamespace)
	object.SetName(name)
	object.SetLabels(labels)
	return object
}

// made is a Machine as Karpenter makes it for a NodeClaim.
func made(nodeClaim, secret string, changes ...func(*metav1.ObjectMeta)) client.Object {
	return machineNamed(v1alpha1.InstanceName("uid", nodeClaim), secret, append([]func(*metav1.ObjectMeta){claimedBy(nodeClaim)}, changes...)...)
}

func ofCluster(name string) client.Object {
	m := made("general-abcde", "").(*clusterv1.Machine)
	m.Spec.ClusterName = name
	return m
}

func kubeadmConfig(name string) client.Object {
	return other("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", name, labelsOf(name, "blue"))
}

func infrastructure(name string, labels map[string]string) client.Object {
	return other("infrastructure.cluster.x-k8s.io/v1beta1", "KwokMachine", name, labels)
}

func claimedBy(nodeClaim string) func(*metav1.ObjectMeta) {
	return func(meta *metav1.ObjectMeta) { meta.Labels = labelsOf(nodeClaim, "blue") }
}

func finalized(finalizer string) func(*metav1.ObjectMeta) {
	return func(meta *metav1.ObjectMeta) { meta.Finalizers = append(meta.Finalizers, finalizer) }
}

func annotated(key, value string) func(*metav1.ObjectMeta) {
	return func(meta *metav1.ObjectMeta) { metav1.SetMetaDataAnnotation(meta, key, value) }
}

func labelled(key, value string) func(*metav1.ObjectMeta) {
	return func(meta *metav1.ObjectMeta) { meta.Labels[key] = value }
}

var ownedByControlPlane = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: "blue-control-plane-1", UID: "1"}}

func ownedBy(kind, name string) func(*metav1.ObjectMeta) {
	return func(meta *metav1.ObjectMeta) {
		meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: name, UID: "1"}}
	}
}

// ownedInstance is a NodeClaim's infrastructure machine with a Machine as owner.
func ownedInstance(nodeClaim, machine string) client.Object {
	return with(infrastructure(v1alpha1.InstanceName("uid", nodeClaim), labelsOf(nodeClaim, "blue")), func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine, UID: "1", Controller: ptr.To(true)}})
	})
}

func ownedConfig(name string) client.Object {
	return with(other("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", name, labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: "1"}})
	})
}

func with(object client.Object, change func(*unstructured.Unstructured)) client.Object {
	change(object.(*unstructured.Unstructured))
	return object
}

func onVSphere(name string, change func(*metav1.ObjectMeta)) client.Object {
	m := machineNamed(name, "", change).(*clusterv1.Machine)
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "VSphereMachine", Name: v1alpha1.InstanceName("uid", "general-abcde"),
	}
	return m
}

// parts is a Machine that refers to objects of these names, and with changes to others.
func parts(infrastructure, config string, changes ...func(infrastructure, config *clusterv1.ContractVersionedObjectReference)) client.Object {
	m := made("general-abcde", "").(*clusterv1.Machine)
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KwokMachine", Name: infrastructure}
	m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig", Name: config}
	for _, change := range changes {
		change(&m.Spec.InfrastructureRef, &m.Spec.Bootstrap.ConfigRef)
	}
	return m
}

// bootstrappedBy is a Machine with a bootstrap config of its own name, but of another kind.
func bootstrappedBy(group, kind string) client.Object {
	name := v1alpha1.InstanceName("uid", "general-abcde")
	return parts(name, name, func(_, config *clusterv1.ContractVersionedObjectReference) {
		config.APIGroup, config.Kind = group, kind
	})
}

var long = strings.Repeat("general-", 7) + "1" // what is called after it is shortened

func ofControlPlane(meta *metav1.ObjectMeta) { meta.Labels[clusterv1.MachineControlPlaneLabel] = "" }

func unlabelled(meta *metav1.ObjectMeta) {
	meta.Labels = map[string]string{clusterv1.ClusterNameLabel: "blue"}
}

// machineAttacks are what a compromised Karpenter creates, and what the policy's message reports about it.
func machineAttacks() map[string]machineAttack {
	return map[string]machineAttack{
		"a Machine that names the kubeconfig":                           {machineNamed("general-abcde", "blue-kubeconfig"), ofClusterAPI},
		"a Machine that names a user's kubeconfig":                      {machineNamed("general-abcde", "blue-user-kubeconfig"), ofClusterAPI},
		"a Machine that names another Cluster's CA":                     {machineNamed("general-abcde", "green-ca"), ofClusterAPI},
		"a Machine that names Karpenter's access":                       {machineNamed("general-abcde", "karpenter-guest-access"), ofOperator},
		"a Machine that names the bootstrap data of a control plane":    {machineNamed("general-abcde", "blue-control-plane-x7k2p"), named},
		"a Machine that is called like the CA":                          {machineNamed("blue-ca", ""), ofClusterAPI},
		"a Machine that is called like the pull secret":                 {machineNamed("karpenter-pull-secret", ""), ofOperator},
		"a Machine of the control plane, which boots with its keys":     {machineNamed("general-abcde", "", ofControlPlane), keys},
		"a Machine without a NodeClaim":                                 {machineNamed("general-abcde", "", unlabelled), claimed},
		"an infrastructure machine without a NodeClaim":                 {infrastructure("general-abcde", map[string]string{clusterv1.ClusterNameLabel: "blue"}), claimed},
		"a bootstrap config that is called like the CA":                 {kubeadmConfig("blue-ca"), ofClusterAPI},
		"a bootstrap config that is called like etcd's key":             {kubeadmConfig("blue-apiserver-etcd-client"), ofClusterAPI},
		"a Machine with the NodeClaim's labels of another one's object": {machineNamed("general-abcde", "", claimedBy("other")), claimed},
		"a Machine that a MachineSet would adopt":                       {machineNamed("general-abcde", "", labelled(clusterv1.MachineSetNameLabel, "workers")), keys},
		"a Machine of a MachineSet":                                     {machineNamed("general-abcde", "", ownedBy("MachineSet", "workers")), owner},
		"a bootstrap config of the control plane's Machine, which would get its bootstrap data": {
			with(kubeadmConfig("general-abcde"), func(o *unstructured.Unstructured) { o.SetOwnerReferences(ownedByControlPlane) }), owner},
		"an infrastructure machine of the control plane's Machine, which would boot with its bootstrap data": {
			with(infrastructure("general-abcde", labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) { o.SetOwnerReferences(ownedByControlPlane) }), owner},
		"an infrastructure machine called like the control plane's Machine, and owned by it": {
			with(infrastructure("blue-control-plane-1", labelsOf("blue-control-plane-1", "blue")), func(o *unstructured.Unstructured) { o.SetOwnerReferences(ownedByControlPlane) }), owner},
		"an infrastructure machine of a Machine of another name":           {ownedInstance("general-abcde", "general-abcde"), owner},
		"an infrastructure machine of another NodeClaim's Machine":         {ownedInstance("general-abcde", v1alpha1.InstanceName("uid", "general-vwxyz")), owner},
		"a bootstrap config of the Machine of its own name, with the hash": {ownedConfig(v1alpha1.InstanceName("uid", "general-abcde")), owner},
		"a Machine of the Machine of its own name, with the hash": {
			machineNamed(v1alpha1.InstanceName("uid", "general-abcde"), "", claimedBy("general-abcde"), ownedBy("Machine", v1alpha1.InstanceName("uid", "general-abcde"))), owner},
		"an infrastructure machine that is another owner's instance": {
			with(infrastructure("general-abcde", labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) {
				o.Object["spec"] = map[string]any{"providerID": "aws:///eu-1a/i-victim"}
			}), instance},
		"an infrastructure machine that is another owner's host": {
			with(infrastructure("general-abcde", labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) {
				o.SetAnnotations(map[string]string{"metal3.io/BareMetalHost": "clusters-green/host-1"})
			}), instance},
		"an infrastructure machine with another machine's host by an annotation of Hetzner's": {
			with(infrastructure(v1alpha1.InstanceName("uid", "general-abcde"), labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) {
				o.SetAnnotations(map[string]string{"infrastructure.cluster.x-k8s.io/HetznerBareMetalHost": "clusters-green/control-plane-host"})
			}), annotations},
		"a Machine with a hook, which outlives its deletion": {machineNamed("general-abcde", "", annotated(clusterv1.PreTerminateDeleteHookAnnotationPrefix+"/stay", "me")), annotations},
		"a Machine that is paused":                           {machineNamed("general-abcde", "", annotated(clusterv1.PausedAnnotation, "")), annotations},
		"a Machine with a finalizer of its own":              {made("general-abcde", "", finalized("example.com/stay")), "neither set nor change finalizers"},
		"an infrastructure machine with a finalizer": {
			with(infrastructure(v1alpha1.InstanceName("uid", "general-abcde"), labelsOf("general-abcde", "blue")), func(o *unstructured.Unstructured) {
				o.SetFinalizers([]string{clusterv1.MachineFinalizer})
			}), "neither set nor change finalizers"},
		"a Machine with one annotation more than a MachineDeployment has": {
			machineNamed("general-abcde", "", annotated("example.com/owner", "team a"), annotated("example.com/note", "ä"), annotated(clusterv1.PausedAnnotation, "")), annotations},
		"a Machine with an annotation that looks like two": {machineNamed("general-abcde", "", annotated("example.com/note", "ä17:example.com/owner6:team a")), annotations},
		"an infrastructure machine called like an instance of another Cluster's": {
			infrastructure(v1alpha1.InstanceName("another", "general-abcde"), labelsOf("general-abcde", "blue")), prefix},
		"an infrastructure machine called like another owner's instance": {infrastructure("victims-vm", labelsOf("victims-vm", "blue")), prefix},
		"a Machine on vSphere called like an instance of another Cluster's": {
			onVSphere(v1alpha1.InstanceName("another", "general-abcde"), claimedBy("general-abcde")), prefix},
		"a bootstrap config that is called like K3s' token":                             {kubeadmConfig("blue-token"), ofClusterAPI},
		"a Machine with the infrastructure machine of the control plane's":              {parts("blue-control-plane-1", "general-abcde"), claimed},
		"a Machine with the bootstrap config of the control plane's":                    {parts("general-abcde", "blue-control-plane-1"), claimed},
		"a Machine with another Cluster's bootstrap config of a NodeClaim of this name": {parts(v1alpha1.InstanceName("uid", "general-abcde"), "general-abcde"), prefix},
		"a Machine with another Cluster's infrastructure machine": {
			parts(v1alpha1.InstanceName("another", "general-abcde"), v1alpha1.InstanceName("uid", "general-abcde")), prefix},
		"a Machine with a bootstrap template":            {bootstrappedBy("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate"), created},
		"a Machine with a machine template as bootstrap": {bootstrappedBy("infrastructure.cluster.x-k8s.io", "KwokMachineTemplate"), created},
		"a Machine with a control plane as bootstrap":    {bootstrappedBy("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"), created},
		"a Machine with another Cluster as bootstrap":    {bootstrappedBy("cluster.x-k8s.io", "Cluster"), created},
		"a Machine with a template as infrastructure machine": {
			parts(v1alpha1.InstanceName("uid", "general-abcde"), v1alpha1.InstanceName("uid", "general-abcde"), func(infrastructure, _ *clusterv1.ContractVersionedObjectReference) {
				infrastructure.Kind = "KwokMachineTemplate"
			}), created},
		"a Machine of another Cluster, which has no Karpenter": {
			made("general-abcde", "", func(meta *metav1.ObjectMeta) { meta.Labels[clusterv1.ClusterNameLabel] = "green" }), cluster},
		"a Machine of another Cluster with its own label": {ofCluster("green"), cluster},
		"a bootstrap config of another Cluster": {
			with(kubeadmConfig(v1alpha1.InstanceName("uid", "general-abcde")), func(o *unstructured.Unstructured) { o.SetLabels(labelsOf("general-abcde", "green")) }), cluster},
		"an infrastructure machine of no Cluster": {infrastructure(v1alpha1.InstanceName("uid", "general-abcde"), labelsOf("general-abcde", "")), cluster},
		"a Machine of a MachinePool":              {made("general-abcde", "", labelled(clusterv1.MachinePoolNameLabel, "pool")), keys},
		"a Machine without the hash":              {machineNamed("general-abcde", ""), prefix},
		"a bootstrap config without the hash":     {kubeadmConfig("general-abcde"), prefix},
	}
}

// TestMachinePolicy has a compromised Karpenter create, change and delete Machines. Cluster API reads or overwrites the Secrets that they
// name, and gives the machine of a control plane its keys.
func TestMachinePolicy(t *testing.T) {
	const namespaceName, otherNamespace = policyNamespace, "machine-policy-elsewhere"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachine", "kwokmachines", "v1beta1"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	enforce(t, "machines", namespaceName, otherNamespace)
	bindKarpenter(t, namespaceName, references.DataSecret("deployed"), references.InstancePrefix(v1alpha1.InstancePrefix("uid")), references.ClusterName("blue"),
		references.Annotations(map[string]string{"example.com/owner": "team a", "example.com/note": "ä", v1alpha1.PriceAnnotation: "0.1"}))
	bindForeign(t, otherNamespace)
	karpenter := karpenterOf(t, namespaceName)

	g.Eventually(func() error {
		return karpenter.Create(ctx, machineNamed("blue-ca", ""), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(ofClusterAPI)), "the policy is in force a moment after it was made")

	for name, attack := range machineAttacks() {
		t.Run("When Karpenter creates "+name+", it should be refused, and no admin", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, attack.object.DeepCopyObject().(client.Object), client.DryRunAll)).To(MatchError(ContainSubstring(attack.want)))
			g.Expect(management.Create(ctx, attack.object, client.DryRunAll)).To(Succeed())
		})
	}
	t.Run("When Karpenter changes what a Machine refers to, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		m := made("general-vwxyz", "workers").(*clusterv1.Machine)
		g.Expect(karpenter.Create(ctx, m)).To(Succeed())
		for _, change := range []func(*clusterv1.MachineSpec){
			func(spec *clusterv1.MachineSpec) { spec.Bootstrap.DataSecretName = ptr.To("blue-kubeconfig") },
			func(spec *clusterv1.MachineSpec) {
				spec.InfrastructureRef.Name = v1alpha1.InstanceName("uid", "general-vwxyz")
			},
			func(spec *clusterv1.MachineSpec) {
				spec.Bootstrap.ConfigRef.Name = v1alpha1.InstanceName("uid", "general-vwxyz")
			},
		} {
			changed := m.DeepCopy()
			change(&changed.Spec)
			g.Expect(karpenter.Patch(ctx, changed, client.MergeFrom(m), client.DryRunAll)).To(MatchError(ContainSubstring("nothing of a Machine's spec")))
		}
	})
	t.Run("When Karpenter changes or deletes what it hasn't made, it should be refused, and no admin", func(t *testing.T) {
		g := NewWithT(t)
		theirs := map[string]string{clusterv1.ClusterNameLabel: "blue", clusterv1.MachineControlPlaneLabel: ""}
		for _, object := range []client.Object{
			machineNamed("blue-control-plane-1", "blue-control-plane-x7k2p", func(meta *metav1.ObjectMeta) { meta.Labels = theirs }),
			infrastructure("blue-control-plane-1", theirs),
			other("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", "blue-control-plane-1", theirs),
		} {
			g.Expect(management.Create(ctx, object)).To(Succeed())
			before := object.DeepCopyObject().(client.Object)
			object.SetLabels(labelsOf(object.GetName(), "blue"))
			g.Expect(karpenter.Patch(ctx, object.DeepCopyObject().(client.Object), client.MergeFrom(before))).To(MatchError(ContainSubstring(claimed)), "it mustn't take it")
			g.Expect(karpenter.Delete(ctx, before)).To(MatchError(ContainSubstring(claimed)))
			all := &unstructured.Unstructured{}
			all.SetGroupVersionKind(before.GetObjectKind().GroupVersionKind())
			if m, ok := before.(*clusterv1.Machine); ok {
				all.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
				// The bootstrap provider has written it; whatever else an admin changes of that Machine is let through.
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, "example.com/a", "b")
				g.Expect(management.Update(ctx, m)).To(Succeed())
			}
			g.Expect(karpenter.DeleteAllOf(ctx, all, client.InNamespace(namespaceName), client.HasLabels{clusterv1.MachineControlPlaneLabel})).
				To(MatchError(ContainSubstring(claimed)))
			g.Expect(management.Delete(ctx, before)).To(Succeed())
		}
	})
	t.Run("When Karpenter creates, changes and deletes what it makes for a NodeClaim, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		for _, object := range []client.Object{
			made("general-1", ""), made("general-10", "", finalized(clusterv1.MachineFinalizer)), made("general-2", "karpenter-bootstrap-abcdef"), made("general-3", "workers"), made("general-4", "deployed"), made(long, ""),
			parts(v1alpha1.InstanceName("uid", "general-abcde"), v1alpha1.InstanceName("uid", "general-abcde")),
			with(infrastructure(v1alpha1.InstanceName("uid", "general-7"), labelsOf("general-7", "blue")), func(o *unstructured.Unstructured) {
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "1"}})
			}),
			other("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", v1alpha1.InstanceName("uid", "general-1"), labelsOf("general-1", "blue")),
			infrastructure(v1alpha1.InstanceName("uid", "general-1"), labelsOf("general-1", "blue")),
			ownedInstance("general-8", v1alpha1.InstanceName("uid", "general-8")), ownedInstance(long, v1alpha1.InstanceName("uid", long)),
		} {
			g.Expect(karpenter.Create(ctx, object)).To(Succeed())
			before := object.DeepCopyObject().(client.Object)
			if _, ok := object.(*clusterv1.Machine); ok {
				object.SetAnnotations(map[string]string{
					v1alpha1.InstanceGoneAnnotation: "gone", clusterv1.ExcludeNodeDrainingAnnotation: "", clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: "", clusterv1.RemediateMachineAnnotation: "",
				})
			} else {
				object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "1"}})
			}
			g.Expect(karpenter.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
			g.Expect(karpenter.Delete(ctx, object)).To(Succeed())
		}
	})
	t.Run("When a bootstrap provider has named a Secret, Karpenter should still be able to change the Machine", func(t *testing.T) {
		g := NewWithT(t)
		m := made("general-5", "").(*clusterv1.Machine)
		g.Expect(karpenter.Create(ctx, m)).To(Succeed())
		m.Spec.Bootstrap.DataSecretName = ptr.To("general-5")
		g.Expect(management.Update(ctx, m)).To(Succeed())
		before := m.DeepCopy()
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.InstanceGoneAnnotation, "gone")
		g.Expect(karpenter.Patch(ctx, m, client.MergeFrom(before))).To(Succeed())
	})
	t.Run("When Karpenter gives a Machine to another Cluster, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		m := made("general-12", "")
		g.Expect(karpenter.Create(ctx, m)).To(Succeed())
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "green"}}}`))
		g.Expect(karpenter.Patch(ctx, m, patch)).To(MatchError(ContainSubstring(cluster)))
	})
	t.Run("When Karpenter changes the finalizers of a Machine, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		m := made("general-11", "", finalized(clusterv1.MachineFinalizer))
		g.Expect(karpenter.Create(ctx, m)).To(Succeed())
		for _, data := range []string{`["example.com/stay", "machine.cluster.x-k8s.io"]`, `null`} {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": `+data+`}}`))
			g.Expect(karpenter.Patch(ctx, m.DeepCopyObject().(client.Object), patch)).To(MatchError(ContainSubstring("neither set nor change finalizers")), data)
		}
	})
	t.Run("When a Machine has annotations, Karpenter should be able to change its own, and none that others have written", func(t *testing.T) {
		g := NewWithT(t)
		m := made("general-9", "", annotated("example.com/owner", "team a"), annotated("example.com/note", "ä"), annotated(v1alpha1.PriceAnnotation, "0.2"))
		g.Expect(karpenter.Create(ctx, m)).To(Succeed())
		g.Expect(management.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}`)))).To(Succeed())
		patch := func(data string) error {
			return karpenter.Patch(ctx, m.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": `+data+`}}`)))
		}
		g.Expect(patch(`{"karpenter.cluster.x-k8s.io/price": null, "karpenter.cluster.x-k8s.io/reboot": "1"}`)).To(Succeed())
		for _, data := range []string{`{"cluster.x-k8s.io/paused": null}`, `{"example.com/owner": "team b"}`, `{"pre-drain.delete.hook.machine.cluster.x-k8s.io/stay": ""}`, `{"example.com/owner": null, "example.com/other": "team a"}`} {
			g.Expect(patch(data)).To(MatchError(ContainSubstring(annotations)), data)
		}
	})
	t.Run("When a Karpenter that isn't this project's writes Machines in its namespace, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		foreign, m := karpenterOf(t, otherNamespace), machineNamed("blue-ca", "blue-kubeconfig", unlabelled)
		m.SetNamespace(otherNamespace)
		g.Expect(foreign.Create(ctx, m)).To(Succeed())
		before := m.DeepCopyObject().(client.Object)
		m.SetAnnotations(map[string]string{clusterv1.DeleteMachineAnnotation: "true"})
		g.Expect(foreign.Patch(ctx, m, client.MergeFrom(before))).To(Succeed())
		g.Expect(foreign.Delete(ctx, m)).To(Succeed())
	})
}

// TestAdoptedMachines has a compromised Karpenter claim Machines that it hasn't made by the mark of `autonode adopt`, and delete adopted ones.
func TestAdoptedMachines(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	const namespaceName = "adopted-machines"
	enforce(t, "machines", namespaceName, namespaceName+"-elsewhere")
	bindKarpenter(t, namespaceName, references.InstancePrefix(v1alpha1.InstancePrefix("uid")), references.ClusterName("blue"))
	karpenter := karpenterOf(t, namespaceName)
	worker := func(name, cluster string) *clusterv1.Machine {
		m := machineNamed(name, "", func(meta *metav1.ObjectMeta) {
			meta.Namespace, meta.Labels = namespaceName, map[string]string{clusterv1.ClusterNameLabel: cluster}
		}).(*clusterv1.Machine)
		m.Spec.ClusterName = cluster
		m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KwokMachine", Name: "of-" + name}
		g.Expect(management.Create(ctx, m)).To(Succeed())
		return m
	}
	patch := func(c client.Client, m *clusterv1.Machine, data string) error {
		return c.Patch(ctx, m.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata": `+data+`}`)))
	}
	mark := func(name, uid string) string {
		return `{"annotations": {"autonode.io/adopted": "1"}, "labels": {"karpenter.cluster.x-k8s.io/nodeclaim": "` + name + `", "karpenter.cluster.x-k8s.io/nodeclaim-uid": "` + uid + `"}}`
	}
	theirs := worker("workers-1", "blue")
	g.Eventually(func() error { return karpenter.Delete(ctx, theirs.DeepCopy(), client.DryRunAll) }).Should(MatchError(ContainSubstring(claimed)))

	t.Run("When Karpenter marks a Machine itself, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(patch(karpenter, theirs, mark("workers-1", "1"))).To(MatchError(ContainSubstring(claimed)))
		labels := `{"labels": {"karpenter.cluster.x-k8s.io/nodeclaim": "general-1", "karpenter.cluster.x-k8s.io/nodeclaim-uid": "1"}}`
		labelled := worker("workers-2", "blue")
		g.Expect(patch(management, labelled, labels)).To(Succeed())
		g.Expect(patch(karpenter, labelled, mark("general-1", "1"))).To(MatchError(ContainSubstring(claimed)), "the mark was absent before")
		g.Expect(karpenter.Delete(ctx, labelled)).To(MatchError(ContainSubstring(claimed)))
		forged := made("general-1", "", annotated(v1alpha1.AdoptedAnnotation, "uid"))
		forged.SetNamespace(namespaceName)
		g.Expect(karpenter.Create(ctx, forged)).To(MatchError(ContainSubstring("neither a template nor a MachineDeployment")))
	})
	t.Run("When a user changes the mark or its UID, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		adopted := worker("workers-3", "blue")
		g.Expect(patch(management, adopted, mark("workers-3", "2"))).To(MatchError(ContainSubstring("nodeclaim-uid")), "it names another NodeClaim")
		g.Expect(patch(management, adopted, mark("workers-3", "1"))).To(Succeed())
		for _, data := range []string{`{"annotations": {"autonode.io/adopted": "2"}}`, `{"annotations": {"autonode.io/adopted": null}}`,
			`{"labels": {"karpenter.cluster.x-k8s.io/nodeclaim-uid": "2"}}`, `{"annotations": null, "labels": null}`,
			`{"annotations": {"autonode.io/adopted": "2"}, "labels": {"karpenter.cluster.x-k8s.io/nodeclaim-uid": "2"}}`} {
			g.Expect(patch(management, adopted, data)).To(MatchError(ContainSubstring("neither can change")), data)
			g.Expect(patch(karpenter, adopted, data)).NotTo(Succeed(), data)
		}
	})
	t.Run("When a Machine of another Cluster is marked, Karpenter should be refused", func(t *testing.T) {
		g := NewWithT(t)
		green := worker("workers-4", "green")
		g.Expect(patch(management, green, mark("workers-4", "1"))).To(Succeed())
		g.Expect(karpenter.Delete(ctx, green)).To(MatchError(ContainSubstring(cluster)))
	})
	t.Run("When a Machine is adopted, Karpenter should be able to annotate and delete it, whatever its parts are called", func(t *testing.T) {
		g := NewWithT(t)
		adopted := worker("workers-5", "blue")
		g.Expect(patch(management, adopted, mark("workers-5", "1"))).To(Succeed())
		g.Expect(patch(karpenter, adopted, `{"annotations": {"machine.cluster.x-k8s.io/exclude-node-draining": ""}}`)).To(Succeed())
		g.Expect(karpenter.Delete(ctx, adopted)).To(Succeed())
	})
}
