// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// set writes a value at a path of an object that passes through one list at most; the list gets two items.
func set(t *testing.T, object map[string]any, path string, value func(item int) any) {
	t.Helper()
	g := NewWithT(t)
	before, after, passes := strings.Cut(path, "[]")
	if !passes {
		g.Expect(unstructured.SetNestedField(object, value(0), strings.Split(path, ".")...)).To(Succeed())
		return
	}
	items, _, err := unstructured.NestedSlice(object, strings.Split(before, ".")...)
	g.Expect(err).NotTo(HaveOccurred())
	for len(items) < 2 {
		items = append(items, map[string]any{})
	}
	for i := range items {
		if after == "" {
			items[i] = value(i)
			continue
		}
		g.Expect(unstructured.SetNestedField(items[i].(map[string]any), value(i), strings.Split(strings.TrimPrefix(after, "."), ".")...)).To(Succeed())
	}
	g.Expect(unstructured.SetNestedSlice(object, items, strings.Split(before, ".")...)).To(Succeed())
}

// clusterUID is the UID of the Cluster whose Karpenter makes the objects.
const clusterUID = "8"

// referring is an object that uses all references of its kind.
func referring(t *testing.T, kind references.Kind, namespace string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	object.SetGroupVersionKind(kind.WithVersion("v1"))
	object.SetNamespace(namespace)
	object.SetName("general-abcde")
	if strings.HasSuffix(kind.Group, "infrastructure.cluster.x-k8s.io") {
		object.SetName(v1alpha1.InstanceName(clusterUID, "general-abcde"))
	}
	object.SetLabels(labelsOf("general-abcde", "blue"))
	for _, reference := range kind.Compared {
		set(t, object.Object, reference.Path, func(item int) any {
			if len(reference.Fields) == 0 {
				return fmt.Sprintf("value-%d", item)
			}
			fields := map[string]any{}
			for _, field := range reference.Fields {
				fields[field] = fmt.Sprintf("%s-%d", field, item)
			}
			for _, field := range reference.With {
				fields[field] = map[string]any{"any": "thing"}
			}
			return fields
		})
	}
	for _, path := range kind.Ignored {
		set(t, object.Object, path, func(int) any { return map[string]any{"any": "thing"} })
	}
	return object
}

// TestReferences has a compromised Karpenter create objects that refer to Secrets. An infrastructure or bootstrap provider gives a machine what is in
// them, with the provider's own rights.
func TestReferences(t *testing.T) {
	const namespaceName = "references"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	kinds, err := references.Embedded()
	g.Expect(err).NotTo(HaveOccurred())
	unknown := schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "BoxMachine"}
	optedIn := schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "CrateMachine"}
	var definitions []*apiextensionsv1.CustomResourceDefinition
	define := func(kind schema.GroupKind) {
		definitions = append(definitions, scopetest.Definition(kind.Group, kind.Kind, strings.ToLower(kind.Kind)+"s", "v1"))
	}
	define(unknown)
	define(optedIn)
	templates := []string{references.Name(optedIn), references.InstancePrefix(v1alpha1.InstancePrefix(clusterUID))}
	for _, kind := range kinds {
		if kind.Kind != "KubeadmConfig" { // another test defines it
			define(kind.GroupKind)
		}
		text, err := kind.Text(referring(t, kind, namespaceName).Object)
		g.Expect(err).NotTo(HaveOccurred())
		templates = append(templates, text)
	}
	definitions = append(definitions, scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"))
	err = apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: definitions})
	g.Expect(err).NotTo(HaveOccurred())
	enforce(t, "references", namespaceName)
	bindKarpenter(t, namespaceName, templates...)
	karpenter := karpenterOf(t, namespaceName)
	const foreign, hidden = "no template in namespace references has the references to Secrets", "has a field that may refer to a Secret and that AutoNode does not know"
	of := func(kind schema.GroupKind, spec string) *unstructured.Unstructured {
		object := referring(t, references.Kind{GroupKind: kind}, namespaceName)
		var content map[string]any
		g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
		object.Object["spec"] = content
		return versioned(object)
	}
	kubeadm := schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}
	kubevirt := schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "KubevirtMachine"}
	g.Eventually(func() error {
		return karpenter.Create(ctx, of(kubeadm, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(foreign)), "the policy is in force a moment after it was made")

	t.Run("When Karpenter changes what it created, it should be admitted for the owner references, and for nothing else", func(t *testing.T) {
		made := versioned(referring(t, kinds[kubevirt], namespaceName))
		NewWithT(t).Expect(karpenter.Create(ctx, made)).To(Succeed())
		testOwnersOnly(t, karpenter, made)
		NewWithT(t).Expect(management.Delete(ctx, made)).To(Succeed())
	})
	for name, kind := range kinds {
		t.Run("When a "+name.Kind+" refers to what a template refers to, and to nothing else, it should be admitted", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, versioned(referring(t, kind, namespaceName)), client.DryRunAll)).To(Succeed())
			for _, reference := range kind.Compared {
				for _, field := range append([]string{""}, reference.Fields...) {
					if field == "" && len(reference.Fields) > 0 {
						field = "secretElsewhere" // which the kind doesn't have yet
					}
					object, path := referring(t, kind, namespaceName), strings.TrimSuffix(reference.Path+"."+field, ".")
					set(t, object.Object, path, func(int) any { return "blue-ca" })
					g.Expect(karpenter.Create(ctx, versioned(object), client.DryRunAll)).To(MatchError(Or(ContainSubstring(foreign), ContainSubstring(hidden))), path)
					g.Expect(management.Create(ctx, versioned(object), client.DryRunAll)).To(Succeed(), path)
				}
			}
		})
	}
	for name, attack := range map[string]struct {
		object *unstructured.Unstructured
		want   string
	}{
		"the CA's key as a file":                        {of(kubeadm, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`), foreign},
		"a password":                                    {of(kubeadm, `users: [{name: a, passwdFrom: {secret: {name: blue-kubeconfig, key: value}}}]`), foreign},
		"a template's Secret and one more":              {of(kubeadm, `files: [{contentFrom: {secret: {name: name-0, key: key-0}}}, {contentFrom: {secret: {name: name-1, key: key-1}}}, {contentFrom: {secret: {name: blue-sa, key: tls.key}}}]`), foreign},
		"a virtual machine with the kubeconfig":         {of(kubevirt, `virtualMachineTemplate: {spec: {template: {spec: {volumes: [{name: a, secret: {secretName: blue-kubeconfig}}]}}}}`), foreign},
		"a virtual machine with etcd's volume":          {of(kubevirt, `virtualMachineTemplate: {spec: {template: {spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: data-etcd-0}}]}}}}`), foreign},
		"a virtual machine with a ServiceAccount":       {of(kubevirt, `virtualMachineTemplate: {spec: {template: {spec: {volumes: [{name: a, serviceAccount: {serviceAccountName: etcd}}]}}}}`), foreign},
		"a field that kubeadm's kind doesn't have yet":  {of(kubeadm, `diskSetup: {luks: [{passphrase: {secretKeyRef: {name: blue-ca, key: tls.key}}}]}`), hidden},
		"a field of an unknown kind":                    {of(unknown, `boot: {data: [{from: {secretName: blue-ca}}]}`), hidden},
		"a field that is named in capitals":             {of(unknown, `userDataSECRET: blue-ca`), hidden},
		"a list of lists":                               {of(unknown, `a: [[[{secret: blue-ca}]]]`), hidden},
		"a field deeper than the policy looks":          {of(unknown, strings.Repeat("a: {", 25)+"secret: blue-ca"+strings.Repeat("}", 25)), hidden},
		"a field in a deep list":                        {of(unknown, "a: "+strings.Repeat("[", 25)+"{secret: blue-ca}"+strings.Repeat("]", 25)), hidden},
		"a reference of a kind in another kind's field": {of(unknown, `files: [{contentFrom: {secret: {name: name-0, key: key-0}}}]`), hidden},
	} {
		t.Run("When Karpenter creates "+name+", it should be refused, and no admin", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, attack.object.DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring(attack.want)))
			g.Expect(management.Create(ctx, attack.object, client.DryRunAll)).To(Succeed())
		})
	}
	t.Run("When an honest Karpenter makes a machine of templates with references, all its objects should be admitted and deleted", func(t *testing.T) {
		for _, policy := range policies {
			enforce(t, policy, namespaceName)
		}
		templateOf := func(kind schema.GroupKind) *unstructured.Unstructured {
			made := versioned(referring(t, kinds[kind], namespaceName))
			made.SetKind(kind.Kind + "Template")
			made.SetLabels(nil)
			made.Object["spec"] = map[string]any{"template": map[string]any{"spec": made.Object["spec"]}}
			return made
		}
		for _, name := range []string{"general-x2v9k", strings.Repeat("general", 10) + "-x2v9k"} {
			g := NewWithT(t)
			objects, err := machine.Build(machine.Plan{
				NodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "7"}},
				Cluster:   &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: "blue", UID: clusterUID}},
				Template:  template.Template{Infrastructure: templateOf(kubevirt), Bootstrap: template.Bootstrap{ConfigTemplate: templateOf(kubeadm)}}, Version: "1.36.3",
			})
			g.Expect(err).NotTo(HaveOccurred())
			for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine} {
				g.Expect(karpenter.Create(ctx, object)).To(Succeed())
				g.Expect(karpenter.Delete(ctx, object)).To(Succeed())
			}
		}
	})
	t.Run("When the platform allows all references of a kind, it should be admitted", func(t *testing.T) {
		NewWithT(t).Expect(karpenter.Create(ctx, of(optedIn, `boot: {secretName: join}`), client.DryRunAll)).To(Succeed())
	})
	t.Run("When an object has no reference, it should be admitted, however large it is", func(t *testing.T) {
		g := NewWithT(t)
		var files []any
		for i := range 300 {
			files = append(files, map[string]any{"path": fmt.Sprintf("/etc/%d", i), "owner": "root", "permissions": "0640", "content": strings.Repeat("x", 500)})
		}
		large := of(kubeadm, `joinConfiguration: {nodeRegistration: {taints: [{key: a, effect: NoSchedule}]}}`)
		g.Expect(unstructured.SetNestedSlice(large.Object, files, "spec", "files")).To(Succeed())
		for _, object := range []*unstructured.Unstructured{large, of(unknown, `flavor: m1`), of(kubevirt, deepest)} {
			g.Expect(karpenter.Create(ctx, object, client.DryRunAll)).To(Succeed())
		}
	})
	t.Run("When an object was admitted once, Karpenter should be able to change its owners, and no reference", func(t *testing.T) {
		g := NewWithT(t)
		object := of(kubeadm, `files: [{path: /a, contentFrom: {secret: {name: former, key: k}}}]`)
		g.Expect(management.Create(ctx, object)).To(Succeed())
		before := object.DeepCopy()
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "1"}})
		g.Expect(karpenter.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
		before = object.DeepCopy()
		object.Object["spec"] = of(kubeadm, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`).Object["spec"]
		g.Expect(karpenter.Patch(ctx, object, client.MergeFrom(before))).To(MatchError(ContainSubstring("but its owner references")))
	})
	t.Run("When a Role no longer allows references, they should be refused", func(t *testing.T) {
		g := NewWithT(t)
		role := &rbacv1.Role{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespaceName, Name: "karpenter"}, role)).To(Succeed())
		before := role.DeepCopy()
		role.Rules[len(role.Rules)-1].ResourceNames = []string{references.InstancePrefix(v1alpha1.InstancePrefix(clusterUID))}
		g.Expect(management.Patch(ctx, role, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func() error {
			return karpenter.Create(ctx, versioned(referring(t, kinds[kubevirt], namespaceName)), client.DryRunAll)
		}).Should(MatchError(ContainSubstring(foreign)))
	})
}

func testOwnersOnly(t *testing.T, karpenter client.Client, made *unstructured.Unstructured) {
	g := NewWithT(t)
	patch := func(data string) error {
		return karpenter.Patch(t.Context(), made.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(data)), client.DryRunAll)
	}
	g.Expect(patch(`{"metadata": {"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "blue", "uid": "1"}]}}`)).To(Succeed())
	for _, data := range []string{
		`{"spec": {"other": "thing"}}`, `{"metadata": {"labels": {"other": "thing"}}}`, `{"metadata": {"annotations": {"other": "thing"}}}`,
		`{"metadata": {"finalizers": ["other.example/thing"]}}`,
	} {
		g.Expect(patch(data)).To(MatchError(ContainSubstring("but its owner references")), data)
	}
}

// deepest is as deep as a KubevirtMachine can be.
const deepest = `
virtualMachineTemplate:
  spec:
    template:
      spec:
        domain: {devices: {disks: [{name: root, disk: {bus: virtio}}]}}
        volumes: [{name: root, containerDisk: {image: registry.example/node}}]
        affinity:
          podAffinity:
            preferredDuringSchedulingIgnoredDuringExecution:
              - weight: 1
                podAffinityTerm: {topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}`

// versioned gives an object the version in which its kind is defined here.
func versioned(object *unstructured.Unstructured) *unstructured.Unstructured {
	version := "v1"
	if object.GetKind() == "KubeadmConfig" {
		version = "v1beta2"
	}
	object.SetGroupVersionKind(object.GroupVersionKind().GroupKind().WithVersion(version))
	return object
}

// TestTemplatesReferences follows the references of templates into the Role that the operator gives to Karpenter, and from there into admission.
func TestTemplatesReferences(t *testing.T) {
	const label, namespaceName = "references", "references-blue"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	serve(t, label)
	enforce(t, "references", namespaceName)
	image := servePayload(t)
	controlPlane(t, client.ObjectKey{Namespace: namespaceName, Name: "blue"}, "references/blue", guestKubeconfig(t))
	template := func(name, cluster, secret string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("bootstrap.cluster.x-k8s.io/v1beta2")
		object.SetKind("KubeadmConfigTemplate")
		object.SetNamespace(namespaceName)
		object.SetName(name)
		object.SetLabels(map[string]string{v1beta1.ClusterNameLabel: cluster})
		files := []any{map[string]any{"path": "/etc/cloud.conf", "contentFrom": map[string]any{"secret": map[string]any{"name": secret, "key": "conf"}}}}
		g.Expect(unstructured.SetNestedSlice(object.Object, files, "spec", "template", "spec", "files")).To(Succeed())
		return object
	}
	workers := template("workers", "blue", "cloud-a")
	g.Expect(management.Create(ctx, workers)).To(Succeed())
	g.Expect(management.Create(ctx, template("others", "green", "green-cloud"))).To(Succeed())
	hosted(t, "references", "blue", label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })

	karpenter := karpenterOf(t, namespaceName)
	boots := func(secret string) func() error {
		return func() error {
			config := template("general-abcde", "blue", secret)
			config.SetKind("KubeadmConfig")
			config.SetLabels(labelsOf("general-abcde", "blue"))
			config.Object["spec"], _, _ = unstructured.NestedMap(config.Object, "spec", "template", "spec")
			return karpenter.Create(ctx, config, client.DryRunAll)
		}
	}
	const foreign = "has the references to Secrets"
	t.Run("When a template of the Cluster refers to a Secret, its machines may, and no machines to another Cluster's or to the CA", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(boots("cloud-a")).Should(Succeed())
		g.Eventually(boots("green-cloud")).Should(MatchError(ContainSubstring(foreign)))
		g.Expect(boots("blue-ca")()).To(MatchError(ContainSubstring(foreign)))
	})
	t.Run("When the platform changes the template, machines may refer to the new Secret, and not to the old one", func(t *testing.T) {
		g := NewWithT(t)
		before := workers.DeepCopy()
		workers.Object["spec"] = template("workers", "blue", "cloud-b").Object["spec"]
		g.Expect(management.Patch(ctx, workers, client.MergeFrom(before))).To(Succeed())
		g.Eventually(boots("cloud-b")).Should(Succeed())
		g.Expect(boots("cloud-a")()).To(MatchError(ContainSubstring(foreign)))
	})
	t.Run("When one more template comes, its machines may refer to what it refers to", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(boots("cloud-c")()).To(MatchError(ContainSubstring(foreign)))
		g.Expect(management.Create(ctx, template("more", "blue", "cloud-c"))).To(Succeed())
		g.Eventually(boots("cloud-c")).Should(Succeed())
	})
	t.Run("When the last template with a reference is gone, the Role should allow none, and not all", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{"workers", "more"} {
			g.Expect(management.Delete(ctx, template(name, "blue", ""))).To(Succeed())
		}
		for _, secret := range []string{"cloud-b", "cloud-c", "blue-ca"} {
			g.Eventually(boots(secret)).Should(MatchError(ContainSubstring(foreign)))
		}
	})
}
