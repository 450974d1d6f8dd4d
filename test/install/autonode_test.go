// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/install"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/manifests"
)

const operatorImage = "registry.example/autonode-operator@sha256:0000000000000000000000000000000000000000000000000000000000000000"

func render(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := manifests.Render(manifests.Options{Image: operatorImage})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return objects
}

func TestRender(t *testing.T) {
	t.Run("When the program renders, it should give what kustomize builds of the folder, with the image", func(t *testing.T) {
		g := NewWithT(t)
		var want []*unstructured.Unstructured
		for _, resource := range build(t, installation).Resources() {
			raw, err := resource.MarshalJSON()
			g.Expect(err).NotTo(HaveOccurred())
			object := &unstructured.Unstructured{}
			g.Expect(object.UnmarshalJSON(raw)).To(Succeed())
			if object.GetKind() == "Deployment" {
				containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
				g.Expect(err).NotTo(HaveOccurred())
				containers[0].(map[string]any)["image"] = operatorImage
				g.Expect(unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")).To(Succeed())
			}
			want = append(want, object)
		}
		g.Expect(want).NotTo(BeEmpty())
		if diff := cmp.Diff(want, render(t)); diff != "" {
			t.Errorf("(-kustomize +program):\n%s", diff)
		}
	})
}

func TestPrunable(t *testing.T) {
	t.Run("When a kind is installed with any option, an installation should prune it, but for CRDs and the namespace", func(t *testing.T) {
		g := NewWithT(t)
		objects, err := manifests.Render(manifests.Options{Image: operatorImage, Settings: []byte("logLevel: debug\n"), Monitoring: true})
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			kept := object.GetKind() == "CustomResourceDefinition" || object.GetKind() == "Namespace"
			g.Expect(slices.Contains(install.Prunable, object.GroupVersionKind())).To(Equal(!kept), object.GetKind())
		}
	})
}

// management is an API server without controllers, and what the test plays of them.
type management struct {
	client.Client
	t *testing.T
}

func startManagement(t *testing.T) *management {
	t.Helper()
	g := NewWithT(t)
	g.Expect(autonodev1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	g.Expect(v1beta1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	g.Expect(apiextensionsv1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	environment := apiserver.New(envtest.CRDInstallOptions{})
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	c, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return &management{c, t}
}

// run calls f, and plays the controllers of Deployments and Namespaces until it returns.
func (m *management) run(f func(context.Context) error) error {
	m.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f(m.t.Context()) }()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			m.play()
		}
	}
}

func (m *management) play() {
	ctx := m.t.Context()
	deployment := &appsv1.Deployment{}
	if err := m.Get(ctx, client.ObjectKey{Namespace: manifests.Namespace, Name: manifests.Operator}, deployment); err == nil && deployment.Status.ObservedGeneration < deployment.Generation {
		deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, ReadyReplicas: 2}
		_ = m.Status().Update(ctx, deployment) // a conflict is for the next time
	}
	namespace := &corev1.Namespace{}
	if err := m.Get(ctx, client.ObjectKey{Name: manifests.Namespace}, namespace); err == nil && namespace.DeletionTimestamp != nil {
		namespace.Spec.Finalizers = nil
		_ = m.SubResource("finalize").Update(ctx, namespace)
	}
}

func TestInstallation(t *testing.T) {
	m := startManagement(t)
	var out bytes.Buffer
	// As the command's: an API server that is busy takes more than a minute over a CRD, because it backs off.
	installer := &install.Installer{Management: m, Out: &out, Timeout: 5 * time.Minute}
	crd := func(g Gomega) *apiextensionsv1.CustomResourceDefinition {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(m.Get(t.Context(), client.ObjectKey{Name: "hostedclusters.autonode.io"}, definition)).To(Succeed())
		return definition
	}
	t.Run("When nothing is installed, it should apply everything and wait for the CRDs and the operator", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(m.run(func(ctx context.Context) error { return installer.Apply(ctx, render(t)) })).To(Succeed())
		g.Expect(out.String()).To(And(
			ContainSubstring("CustomResourceDefinition hostedclusters.autonode.io is ready\n"),
			ContainSubstring("Deployment autonode-system/autonode-operator is ready\n"),
		))
		deployment := &appsv1.Deployment{}
		g.Expect(m.Get(t.Context(), client.ObjectKey{Namespace: manifests.Namespace, Name: manifests.Operator}, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(operatorImage))
	})
	t.Run("When it is installed, it should change nothing", func(t *testing.T) {
		g := NewWithT(t)
		before := crd(g).ResourceVersion
		g.Expect(m.run(func(ctx context.Context) error { return installer.Apply(ctx, render(t)) })).To(Succeed())
		g.Expect(crd(g).ResourceVersion).To(Equal(before))
	})
	t.Run("When it is installed with other options, what it doesn't install any more should go, and nothing else", func(t *testing.T) {
		m.pruned(t, installer)
	})
	t.Run("When another field manager has set a field, it should say so and change it only by force", func(t *testing.T) {
		g := NewWithT(t)
		other := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(3)}}}
		other.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
		other.SetNamespace(manifests.Namespace)
		other.SetName(manifests.Operator)
		g.Expect(m.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(other), client.FieldOwner("helm"), client.ForceOwnership)).To(Succeed())
		err := m.run(func(ctx context.Context) error { return installer.Apply(ctx, render(t)) })
		g.Expect(err).To(MatchError(install.ErrConflict))
		g.Expect(err).To(MatchError(ContainSubstring("--force-conflicts")))
		forced := *installer
		forced.Force = true
		g.Expect(m.run(func(ctx context.Context) error { return forced.Apply(ctx, render(t)) })).To(Succeed())
	})
	t.Run("When the operator doesn't get ready, it should say how far it is", func(t *testing.T) {
		g := NewWithT(t)
		impatient := *installer
		impatient.Timeout, impatient.Force = time.Second, true
		objects := render(t)
		for _, object := range objects {
			if object.GetKind() == "Deployment" {
				g.Expect(unstructured.SetNestedField(object.Object, int64(5), "spec", "replicas")).To(Succeed())
			}
		}
		g.Expect(impatient.Apply(t.Context(), objects)).To(MatchError(ContainSubstring("isn't ready after 1s: 2 of 5 replicas are updated, 2 available; see `kubectl -n autonode-system describe deployment autonode-operator`")))
	})
	t.Run("When it is removed, the CRDs and their guard should stay, and nothing that another version installed", func(t *testing.T) {
		g := NewWithT(t)
		role := &unstructured.Unstructured{}
		role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
		role.SetName("autonode-former")
		forced := *installer
		forced.Force = true
		g.Expect(m.run(func(ctx context.Context) error { return forced.Apply(ctx, append(render(t), role)) })).To(Succeed())
		g.Expect(m.run(func(ctx context.Context) error { return installer.Remove(ctx, render(t), false) })).To(Succeed())
		crd(g)
		g.Expect(apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKey{Name: role.GetName()}, &rbacv1.ClusterRole{}))).To(BeTrue())
		g.Expect(m.Get(t.Context(), client.ObjectKey{Name: manifests.Guard}, guardKind("ValidatingAdmissionPolicy"))).To(Succeed())
		g.Expect(m.Get(t.Context(), client.ObjectKey{Name: manifests.Namespace}, &corev1.Namespace{})).NotTo(Succeed())
	})
	t.Run("When a CRD can't go, because an object of its kind is held, it should say what the API server reports about it", func(t *testing.T) {
		g := NewWithT(t)
		held := &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "held", Finalizers: []string{"example.com/held"}}}
		g.Expect(m.Create(t.Context(), held)).To(Succeed())
		// Also when the test fails here: nothing else removes the finalizer, and the CRD would stay for all that follows.
		defer func() {
			g.Expect(m.Patch(t.Context(), held, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		}()
		impatient := *installer
		impatient.Timeout = time.Second
		others := func(object *unstructured.Unstructured) bool { return object.GetName() != "capacityleases.autonode.io" }
		definition := slices.DeleteFunc(render(t), others)
		g.Expect(m.run(func(ctx context.Context) error { return impatient.Remove(ctx, definition, true) })).To(MatchError(And(
			ContainSubstring("CustomResourceDefinition capacityleases.autonode.io is still there after 1s: InstanceDeletion"),
			ContainSubstring("kubectl get customresourcedefinition capacityleases.autonode.io -o yaml"),
		)))
	})
	t.Run("When the CRDs are to go as well, it should confirm their deletion and remove the guard last", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(m.run(func(ctx context.Context) error { return installer.Remove(ctx, render(t), true) })).To(Succeed())
		list := &apiextensionsv1.CustomResourceDefinitionList{}
		g.Expect(m.List(t.Context(), list)).To(Succeed())
		g.Expect(list.Items).To(BeEmpty())
		g.Expect(m.Get(t.Context(), client.ObjectKey{Name: manifests.Guard}, guardKind("ValidatingAdmissionPolicy"))).NotTo(Succeed())
	})
	t.Run("When nothing is left, removing should be done", func(t *testing.T) {
		NewWithT(t).Expect(m.run(func(ctx context.Context) error { return installer.Remove(ctx, render(t), true) })).To(Succeed())
	})
}

// pruned installs with settings and with others. What people made, copies of ours too, isn't touched.
func (m *management) pruned(t *testing.T, installer *install.Installer) {
	t.Helper()
	g := NewWithT(t)
	settings := func(logLevel string) (objects []*unstructured.Unstructured, name string) {
		objects, err := manifests.Render(manifests.Options{Image: operatorImage, Settings: []byte("logLevel: " + logLevel + "\n")})
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			if object.GetKind() == "ConfigMap" {
				name = object.GetName()
			}
		}
		return objects, name
	}
	names := func() []string {
		list := &corev1.ConfigMapList{}
		g.Expect(m.List(t.Context(), list, client.InNamespace(manifests.Namespace))).To(Succeed())
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names
	}
	apply := func(objects []*unstructured.Unstructured) {
		g.Expect(m.run(func(ctx context.Context) error { return installer.Apply(ctx, objects) })).To(Succeed())
	}
	before, first := settings("debug")
	// What a version before had: an object of a name that isn't used any more, beside those of this one.
	role := &unstructured.Unstructured{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
	role.SetName("autonode-former")
	apply(append(before, role))
	made := &corev1.ConfigMap{}
	g.Expect(m.Get(t.Context(), client.ObjectKey{Namespace: manifests.Namespace, Name: first}, made)).To(Succeed())
	mine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.Namespace, Name: "copy", Labels: made.Labels}, Data: made.Data}
	g.Expect(m.Create(t.Context(), mine)).To(Succeed())

	impatient := *installer
	impatient.Timeout = time.Second
	after, second := settings("info")
	g.Expect(first).NotTo(Equal(second))
	g.Expect(impatient.Apply(t.Context(), after)).To(MatchError(ContainSubstring("isn't ready")))
	g.Expect(names()).To(ConsistOf(first, second, "copy"), "pods of the old Deployment mount the first until the others run")

	apply(after)
	g.Expect(names()).To(ConsistOf(second, "copy"))
	g.Expect(apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKey{Name: "autonode-former"}, &rbacv1.ClusterRole{}))).To(BeTrue())

	apply(render(t))
	g.Expect(names()).To(ConsistOf("copy"))
	g.Expect(m.Get(t.Context(), client.ObjectKey{Name: manifests.Guard}, guardKind("ValidatingAdmissionPolicy"))).To(Succeed())
	fewer := slices.DeleteFunc(render(t), func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "CustomResourceDefinition" || object.GetName() == manifests.Guard
	})
	apply(fewer)
	g.Expect(m.Get(t.Context(), client.ObjectKey{Name: manifests.Guard}, guardKind("ValidatingAdmissionPolicy"))).To(Succeed(), "the guard stays")
	g.Expect(m.Get(t.Context(), client.ObjectKey{Name: "hostedclusters.autonode.io"}, &apiextensionsv1.CustomResourceDefinition{})).To(Succeed(), "the CRDs stay")
}

func guardKind(kind string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind(kind))
	object.APIVersion = "admissionregistration.k8s.io/v1"
	return object
}
