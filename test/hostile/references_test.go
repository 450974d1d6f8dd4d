// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/cli/catalog/importer"
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

// full is an object that has all fields that may vary, and others.
func full(t *testing.T, kind references.Kind, namespace string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"fixed": map[string]any{"name": "a", "list": []any{"x", int64(1), map[string]any{"on": true, "share": 0.5}, map[string]any{}, []any{}}},
	}}}
	object.SetGroupVersionKind(kind.WithVersion("v1"))
	object.SetNamespace(namespace)
	object.SetName("general-abcde")
	if strings.HasSuffix(kind.Group, "infrastructure.cluster.x-k8s.io") {
		object.SetName(v1alpha1.InstanceName(clusterUID, "general-abcde"))
	}
	object.SetLabels(labelsOf("general-abcde", "blue"))
	for _, path := range kind.Varies {
		set(t, object.Object, path, func(item int) any { return map[string]any{"any": fmt.Sprintf("thing-%d", item)} })
	}
	return object
}

// withSpec is an object of a kind with a spec in YAML.
func withSpec(t *testing.T, kind schema.GroupKind, namespace, spec string) *unstructured.Unstructured {
	t.Helper()
	object := full(t, references.Kind{GroupKind: kind}, namespace)
	var content map[string]any
	NewWithT(t).Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	object.Object["spec"] = content
	return versioned(object)
}

var (
	unknownKind = schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "BoxMachine"}
	optedIn     = schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "CrateMachine"}
	kubeadm     = schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig"}
	kubevirt    = infrastructureKind("KubevirtMachine")
)

func infrastructureKind(kind string) schema.GroupKind {
	return schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: kind}
}

// differs is in the policy's message.
const differs = "equals no template in namespace references"

// TestReferences has a compromised Karpenter create objects that refer to Secrets and to what else isn't its own. An infrastructure or bootstrap
// provider gives a machine what is in them, with the provider's own rights.
func TestReferences(t *testing.T) {
	const namespaceName = "references"
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	kinds, err := references.Embedded()
	g.Expect(err).NotTo(HaveOccurred())
	var definitions []*apiextensionsv1.CustomResourceDefinition
	define := func(kind schema.GroupKind, version string) {
		definitions = append(definitions, scopetest.Definition(kind.Group, kind.Kind, strings.ToLower(kind.Kind)+"s", version))
	}
	define(unknownKind, "v1")
	define(optedIn, "v1")
	allowed := []string{references.Name(optedIn), references.InstancePrefix(v1alpha1.InstancePrefix(clusterUID)), references.ClusterName("blue")}
	allow := func(kind references.Kind, object *unstructured.Unstructured) {
		text, err := kind.Text(object.Object["spec"])
		g.Expect(err).NotTo(HaveOccurred())
		allowed = append(allowed, text)
	}
	for _, kind := range kinds {
		define(kind.GroupKind, versioned(full(t, kind, namespaceName)).GroupVersionKind().Version)
		allow(kind, full(t, kind, namespaceName))
	}
	for kind, spec := range platformTemplates {
		allow(kinds[kind], withSpec(t, kind, namespaceName, spec))
	}
	for _, spec := range []string{`{}`, deepest} {
		allow(kinds[kubevirt], withSpec(t, kubevirt, namespaceName, spec))
	}
	allow(kinds[kubeadm], withSpec(t, kubeadm, namespaceName, `{}`))
	g.Expect(apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: definitions})).To(Succeed())
	enforce(t, "references", namespaceName)
	bindKarpenter(t, namespaceName, allowed...)
	bindGroup(t, namespaceName, "vmware.infrastructure.cluster.x-k8s.io")
	karpenter := karpenterOf(t, namespaceName)
	g.Eventually(func() error {
		return karpenter.Create(ctx, withSpec(t, kubeadm, namespaceName, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(differs)), "the policy is in force a moment after it was made")

	t.Run("When Karpenter changes what it created, it should be admitted for the owner references, and for nothing else", func(t *testing.T) {
		made := versioned(full(t, kinds[kubevirt], namespaceName))
		NewWithT(t).Expect(karpenter.Create(ctx, made)).To(Succeed())
		testOwnersOnly(t, karpenter, made)
		NewWithT(t).Expect(management.Delete(ctx, made)).To(Succeed())
	})
	for name, kind := range kinds {
		t.Run("When a "+references.Name(name)+" equals a template but for fields that may differ, and only then, it should be admitted", func(t *testing.T) {
			testEqual(t, karpenter, kind, namespaceName)
		})
	}
	for name, object := range hostileObjects(t, namespaceName) {
		t.Run("When Karpenter creates "+name+", it should be refused, and no admin", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(karpenter.Create(ctx, object.DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring(differs)))
			g.Expect(management.Create(ctx, object, client.DryRunAll)).To(Succeed())
		})
	}
	t.Run("When the platform allows any object of a kind, it should be admitted", func(t *testing.T) {
		NewWithT(t).Expect(karpenter.Create(ctx, withSpec(t, optedIn, namespaceName, `boot: {secretName: join}`), client.DryRunAll)).To(Succeed())
	})
	t.Run("When an object equals a template, it should be admitted, however large it is", func(t *testing.T) {
		g := NewWithT(t)
		var files []any
		for i := range 300 {
			files = append(files, map[string]any{"path": fmt.Sprintf("/etc/%d", i), "owner": "root", "permissions": "0640", "content": strings.Repeat("x", 500)})
		}
		large := withSpec(t, kubeadm, namespaceName, `joinConfiguration: {nodeRegistration: {taints: [{key: a, effect: NoSchedule}]}}`)
		g.Expect(unstructured.SetNestedSlice(large.Object, files, "spec", "files")).To(Succeed())
		for _, object := range []*unstructured.Unstructured{large, withSpec(t, kubevirt, namespaceName, deepest), withSpec(t, kubevirt, namespaceName, `{}`)} {
			g.Expect(karpenter.Create(ctx, object, client.DryRunAll)).To(Succeed())
		}
	})
	t.Run("When an object was admitted once, Karpenter should be able to change its owners, and no reference", func(t *testing.T) {
		g := NewWithT(t)
		object := withSpec(t, kubeadm, namespaceName, `files: [{path: /a, contentFrom: {secret: {name: former, key: k}}}]`)
		g.Expect(management.Create(ctx, object)).To(Succeed())
		before := object.DeepCopy()
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "1"}})
		g.Expect(karpenter.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
		before = object.DeepCopy()
		object.Object["spec"] = withSpec(t, kubeadm, namespaceName, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`).Object["spec"]
		g.Expect(karpenter.Patch(ctx, object, client.MergeFrom(before))).To(MatchError(ContainSubstring("but its owner references")))
		g.Expect(management.Delete(ctx, object)).To(Succeed())
	})
	t.Run("When an honest Karpenter makes machines of templates, all its objects should be admitted and deleted", func(t *testing.T) {
		for _, policy := range policies {
			enforce(t, policy, namespaceName)
		}
		testHonest(t, karpenter, kinds, namespaceName)
	})
	t.Run("When a Role no longer allows a template, its machines should be refused", func(t *testing.T) {
		g := NewWithT(t)
		role := &rbacv1.Role{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespaceName, Name: "karpenter"}, role)).To(Succeed())
		before := role.DeepCopy()
		role.Rules[len(role.Rules)-1].ResourceNames = []string{references.InstancePrefix(v1alpha1.InstancePrefix(clusterUID)), references.ClusterName("blue")}
		g.Expect(management.Patch(ctx, role, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func() error {
			return karpenter.Create(ctx, versioned(full(t, kinds[kubevirt], namespaceName)), client.DryRunAll)
		}).Should(MatchError(ContainSubstring(differs)))
	})
}

// testEqual changes each field of an object that equals a template.
func testEqual(t *testing.T, karpenter client.Client, kind references.Kind, namespace string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	create := func(change func(object map[string]any)) error {
		object := versioned(full(t, kind, namespace))
		change(object.Object)
		return karpenter.Create(ctx, object, client.DryRunAll)
	}
	g.Expect(create(func(map[string]any) {})).To(Succeed())
	g.Expect(create(func(object map[string]any) { // nothing that may differ
		object["spec"] = map[string]any{"fixed": object["spec"].(map[string]any)["fixed"]}
	})).To(Succeed())
	for _, path := range kind.Varies {
		g.Expect(create(func(object map[string]any) { set(t, object, path, func(int) any { return "other" }) })).To(Succeed(), path)
		before, after, _ := strings.Cut(path, "[]")
		within := before[:strings.LastIndex(before, ".")] + ".beside"
		if after != "" {
			within = before + "[]" + after[:strings.LastIndex(after, ".")] + ".beside"
		}
		g.Expect(create(func(object map[string]any) { set(t, object, within, func(int) any { return "other" }) })).To(MatchError(ContainSubstring(differs)), within)
	}
	fixed := func(value any, fields ...string) func(map[string]any) {
		return func(object map[string]any) {
			g.Expect(unstructured.SetNestedField(object, value, append([]string{"spec", "fixed"}, fields...)...)).To(Succeed())
		}
	}
	for name, change := range map[string]func(map[string]any){
		"another value": fixed("b", "name"), "one of another type": fixed(int64(1), "name"), "one more": fixed("b", "more"), "a value that looks like two": fixed("a;4:more=1:b", "name"),
		"no value":             func(object map[string]any) { unstructured.RemoveNestedField(object, "spec", "fixed", "name") },
		"a shorter list":       fixed([]any{"x", int64(1), map[string]any{"on": true, "share": 0.5}, map[string]any{}}, "list"),
		"a list in a list":     fixed([]any{[]any{"x", int64(1), map[string]any{"on": true, "share": 0.5}, map[string]any{}, []any{}}}, "list"),
		"a list another order": fixed([]any{int64(1), "x", map[string]any{"on": true, "share": 0.5}, map[string]any{}, []any{}}, "list"),
	} {
		g.Expect(create(change)).To(MatchError(ContainSubstring(differs)), name)
	}
}

// testHonest has Karpenter's own code make a machine of each infrastructure kind, with the patches of imported catalogs.
func testHonest(t *testing.T, karpenter client.Client, kinds references.Kinds, namespace string) {
	t.Helper()
	templateOf := func(kind references.Kind) *unstructured.Unstructured {
		made := versioned(full(t, kind, namespace))
		made.SetKind(kind.GroupKind.Kind + "Template")
		made.SetLabels(nil)
		made.Object["spec"] = map[string]any{"template": map[string]any{"spec": made.Object["spec"]}}
		return made
	}
	made := 0
	for name, kind := range kinds {
		if !strings.HasSuffix(name.Group, "infrastructure.cluster.x-k8s.io") {
			continue
		}
		g := NewWithT(t)
		var patches patch.List
		for _, format := range importer.Formats {
			if format.Template.APIGroup == name.Group && format.Template.Kind == name.Kind+"Template" {
				var list []v1alpha1.JSONPatch
				for i := range format.Patches {
					list = append(list, format.Patches[i].JSONPatch())
				}
				var err error
				patches, err = patch.Parse(list)
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		for _, nodeClaim := range []string{"general", strings.Repeat("general", 10)} {
			made++
			nodeClaim = fmt.Sprintf("%s-%d", nodeClaim, made)
			objects, err := machine.Build(machine.Plan{
				NodeClaim:  &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: nodeClaim, UID: "7"}},
				Cluster:    &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "blue", UID: clusterUID}},
				NodeLabels: map[string]string{corev1.LabelInstanceTypeStable: "large", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot, v1alpha1.ReservationIDLabel: "cr-1"},
				Template: template.Template{
					Infrastructure: templateOf(kind), Patches: patches, Bootstrap: template.Bootstrap{ConfigTemplate: templateOf(kinds[kubeadm])},
				},
				Version: "1.36.3",
			})
			g.Expect(err).NotTo(HaveOccurred(), name.String())
			for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine} {
				g.Expect(karpenter.Create(t.Context(), object)).To(Succeed(), name.String())
				g.Expect(karpenter.Delete(t.Context(), object)).To(Succeed(), name.String())
			}
		}
	}
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
	switch object.GetKind() {
	case "KubeadmConfig":
		version = "v1beta2"
	case "KwokMachine":
		version = "v1beta1"
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
	const foreign = "equals no template"
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
	t.Run("When Cluster API has labelled and owned another Cluster's template for a Machine, no machine should refer to what it refers to", func(t *testing.T) {
		g := NewWithT(t)
		taken := template("taken", "blue", "green-cloud")
		taken.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: "m", UID: "1"}})
		g.Expect(management.Create(ctx, taken)).To(Succeed())
		g.Expect(management.Create(ctx, template("later", "blue", "cloud-d"))).To(Succeed())
		g.Eventually(boots("cloud-d")).Should(Succeed())
		g.Expect(boots("green-cloud")()).To(MatchError(ContainSubstring(foreign)))
	})
	t.Run("When the platform gives a template to another Cluster, its machines should be refused", func(t *testing.T) {
		g, given := NewWithT(t), template("later", "blue", "cloud-d")
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "green"}}}`))
		g.Expect(management.Patch(ctx, given, patch)).To(Succeed())
		g.Eventually(boots("cloud-d")).Should(MatchError(ContainSubstring(foreign)))
	})
	t.Run("When a machine of the control plane was made from a template, no machine should be made from it, and one from another", func(t *testing.T) {
		g := NewWithT(t)
		kwok := func(kind, name string) *unstructured.Unstructured {
			object := template(name, "blue", "")
			object.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
			object.SetKind(kind)
			object.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{"role": name}}}
			return object
		}
		launch := func(name string) error {
			object := kwok("KwokMachine", name)
			object.SetLabels(labelsOf("general-abcde", "blue"))
			object.Object["spec"] = map[string]any{"role": name}
			return karpenter.Create(ctx, object, client.DryRunAll)
		}
		controlPlane := map[string]string{v1beta1.ClusterNameLabel: "blue", clusterv1.MachineControlPlaneLabel: ""}
		ref := clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KwokMachine", Name: "blue-control-plane-1"}
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: ref.Name, Labels: controlPlane}}
		m.Spec = clusterv1.MachineSpec{ClusterName: "blue", InfrastructureRef: ref, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("x")}}
		cloned := kwok("KwokMachine", ref.Name)
		cloned.SetLabels(controlPlane)
		cloned.SetAnnotations(map[string]string{clusterv1.TemplateClonedFromNameAnnotation: "control-plane"})
		for _, object := range []client.Object{m, cloned, kwok("KwokMachineTemplate", "control-plane"), kwok("KwokMachineTemplate", "worker")} {
			g.Expect(management.Create(ctx, object)).To(Succeed())
		}
		g.Eventually(func() error { return launch("worker") }).Should(Succeed())
		g.Eventually(func() error { return launch("control-plane") }).Should(MatchError(ContainSubstring(foreign)))
	})
	t.Run("When a template gives its machines annotations, the Role should name them, with a MachineDeployment's", func(t *testing.T) {
		g := NewWithT(t)
		annotated := template("annotated", "blue", "cloud-e")
		g.Expect(unstructured.SetNestedStringMap(annotated.Object, map[string]string{"example.com/a": "template", "example.com/b": "template"}, "spec", "template", "metadata", "annotations")).To(Succeed())
		g.Expect(management.Create(ctx, annotated)).To(Succeed())
		deployment := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"clusterName": "blue", "template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"example.com/b": "deployment"}},
			"spec":     map[string]any{"clusterName": "blue", "bootstrap": map[string]any{"configRef": map[string]any{"apiGroup": kubeadm.Group, "kind": kubeadm.Kind + "Template", "name": "annotated"}}},
		}}}}
		deployment.SetAPIVersion(clusterv1.GroupVersion.String())
		deployment.SetKind("MachineDeployment")
		deployment.SetNamespace(namespaceName)
		deployment.SetName("workers")
		g.Expect(management.Create(ctx, deployment)).To(Succeed())
		g.Eventually(func(g Gomega) {
			role := &rbacv1.Role{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespaceName, Name: "karpenter"}, role)).To(Succeed())
			g.Expect(role.Rules).To(ContainElement(HaveField("ResourceNames", ContainElements(
				references.Annotations(map[string]string{"example.com/b": "deployment"}),
				references.Annotations(map[string]string{"example.com/a": "template", "example.com/b": "template"}),
				references.Annotations(map[string]string{"example.com/a": "template", "example.com/b": "deployment"}),
			))))
		}).Should(Succeed())
		g.Expect(management.Delete(ctx, deployment)).To(Succeed())
		g.Expect(management.Delete(ctx, annotated)).To(Succeed())
	})
	t.Run("When the last template with a reference is gone, the Role should allow none, and not all", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{"workers", "more", "later"} {
			g.Expect(management.Delete(ctx, template(name, "blue", ""))).To(Succeed())
		}
		for _, secret := range []string{"cloud-b", "cloud-c", "blue-ca"} {
			g.Eventually(boots(secret)).Should(MatchError(ContainSubstring(foreign)))
		}
	})
}
