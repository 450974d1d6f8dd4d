// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/payload"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

var names = []string{
	"clusterapinodeclasses.karpenter.cluster.x-k8s.io", "nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh", "nodepools.karpenter.sh",
	"noderecords.karpenter.cluster.x-k8s.io",
}

func TestDefinitions(t *testing.T) {
	g, ctx, s := NewWithT(t), t.Context(), clusters.NewScope(t, "crd")
	step := crd.New(crd.Config{Apply: apply.New()})
	settles := func(g Gomega) {
		g.Eventually(reconcile(ctx, step, s)).Should(Equal(scope.Result{}))
	}

	// Tests run in any order, and others leave definitions behind.
	g.Eventually(func(g Gomega) {
		for _, name := range names {
			definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
			g.Expect(client.IgnoreNotFound(clusters.Guest.Client.Delete(ctx, definition))).To(Succeed())
			scopetest.ExpectGone(ctx, g, clusters.Guest.Client, definition)
		}
	}).Should(Succeed())

	t.Run("When the guest has no definitions, it should apply them and wait until they are established", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(scopetest.Reconcile(t, step, s)).To(Equal(scope.Result{Wait: true, Message: "the guest is to establish " + strings.Join(names, ", ")}))
		settles(g)
		for _, name := range names {
			definition := get(ctx, g, name)
			g.Expect(established(definition)).To(BeTrue(), name)
			g.Expect(definition.Annotations).To(HaveKeyWithValue(crd.CreatedAnnotation, "true"), name)
		}
	})

	t.Run("When nothing has changed, it should write nothing", func(t *testing.T) {
		g := NewWithT(t)
		before := get(ctx, g, names[0]).ResourceVersion
		settles(g)
		g.Expect(get(ctx, g, names[0]).ResourceVersion).To(Equal(before))
	})

	t.Run("When a person edits a definition, it should put it back", func(t *testing.T) {
		g := NewWithT(t)
		definition := get(ctx, g, names[3])
		before := client.MergeFrom(definition.DeepCopy())
		definition.Spec.Versions[0].AdditionalPrinterColumns = nil
		definition.Labels = nil
		g.Expect(clusters.Guest.Client.Patch(ctx, definition, before)).To(Succeed())
		settles(g)
		definition = get(ctx, g, names[3])
		g.Expect(definition.Spec.Versions[0].AdditionalPrinterColumns).NotTo(BeEmpty())
		g.Expect(definition.Labels).To(HaveKeyWithValue(apply.LabelManagedBy, apply.FieldOwner))
	})

	t.Run("Deletion", func(t *testing.T) { testDeletion(t, step, s, settles) })

	t.Run("When the payload ships a definition, it should win over the embedded one and stay unchanged itself", func(t *testing.T) {
		g := NewWithT(t)
		embedded, err := crds.Embedded()
		g.Expect(err).NotTo(HaveOccurred())
		shipped := embedded[0]
		shipped.Spec.Versions[0].AdditionalPrinterColumns = append(shipped.Spec.Versions[0].AdditionalPrinterColumns,
			apiextensionsv1.CustomResourceColumnDefinition{Name: "Shipped", Type: "string", JSONPath: ".spec.weight"})
		before := shipped.DeepCopy()
		g.Eventually(reconcile(ctx, step, shipping(s, "sha256:1364", shipped))).Should(Equal(scope.Result{}))

		g.Expect(cmp.Diff(before, shipped)).To(BeEmpty())
		columns := get(ctx, g, shipped.Name).Spec.Versions[0].AdditionalPrinterColumns
		g.Expect(columns[len(columns)-1].Name).To(Equal("Shipped"))
	})

	t.Run("When the platform is AWS, it should apply the payload's node class, and not this project's", func(t *testing.T) {
		g := NewWithT(t)
		ours := get(ctx, g, names[0])
		g.Expect(clusters.Guest.Client.Delete(ctx, ours.DeepCopy())).To(Succeed())
		on := *s
		on.Profile, on.Karpenter = aws.New(), payload.Component{Name: "karpenter-aws", CRDs: []*apiextensionsv1.CustomResourceDefinition{scopetest.EC2NodeClasses()}}
		g.Eventually(reconcile(ctx, step, &on)).Should(Equal(scope.Result{}), "of the same payload, so that nothing else differs")
		g.Expect(established(get(ctx, g, "ec2nodeclasses.karpenter.k8s.aws"))).To(BeTrue())
		// The API server takes long, and longer if a client applies an object that is being deleted.
		g.Eventually(func(g Gomega) {
			left := &apiextensionsv1.CustomResourceDefinition{}
			err := clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(ours), left)
			if err == nil {
				g.Expect(left.UID).To(Equal(ours.UID), "the operator must not recreate it")
			}
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "it is still being deleted")
		}).Should(Succeed())
	})

	t.Run("When a definition was there before the operator, it should be kept up to date but not count as created", func(t *testing.T) {
		g := NewWithT(t)
		definition := scopetest.Definition("example.com", "Buffer", "buffers", "v1")
		shipped := definition.DeepCopy()
		g.Expect(clusters.Guest.Client.Create(ctx, definition)).To(Succeed())
		shipped.Spec.Names.ShortNames = []string{"buf"}
		g.Eventually(reconcile(ctx, step, shipping(s, "sha256:1365", shipped))).Should(Equal(scope.Result{}))
		live := get(ctx, g, definition.Name)
		g.Expect(live.Spec.Names.ShortNames).To(ConsistOf("buf"))
		g.Expect(live.Annotations).NotTo(HaveKey(crd.CreatedAnnotation))
	})

	t.Run("Downgrade", testDowngrade) // not a test of its own, which could come first: the guest has no definitions in the beginning
}

func testDeletion(t *testing.T, step *crd.Definitions, s *scope.Scope, settles func(Gomega)) {
	ctx := t.Context()
	t.Run("When a person deletes a definition, it should come back", func(t *testing.T) {
		g := NewWithT(t)
		before := get(ctx, g, names[2])
		g.Expect(clusters.Guest.Client.Delete(ctx, before.DeepCopy())).To(Succeed())
		g.Eventually(func(g Gomega) {
			settles(g)
			g.Expect(get(ctx, g, names[2]).UID).NotTo(Equal(before.UID))
		}).Should(Succeed())
	})

	t.Run("When a definition is being deleted, it should change nothing and wait until it can be made again", func(t *testing.T) {
		g := NewWithT(t)
		definition := get(ctx, g, names[2])
		before := client.MergeFrom(definition.DeepCopy())
		definition.Finalizers = append(definition.Finalizers, "example.com/hold")
		definition.Spec.Versions[0].AdditionalPrinterColumns = nil
		g.Expect(clusters.Guest.Client.Patch(ctx, definition, before)).To(Succeed())
		g.Expect(clusters.Guest.Client.Delete(ctx, definition.DeepCopy())).To(Succeed())
		for range 5 {
			g.Expect(scopetest.Reconcile(t, step, s)).To(Equal(scope.Result{Wait: true, Message: "the guest is to establish " + names[2]}))
			g.Expect(get(ctx, g, names[2]).Spec.Versions[0].AdditionalPrinterColumns).To(BeEmpty())
		}
		g.Eventually(func() error {
			definition := get(ctx, g, names[2])
			before := client.MergeFromWithOptions(definition.DeepCopy(), client.MergeFromWithOptimisticLock{})
			definition.Finalizers = slices.DeleteFunc(definition.Finalizers, func(name string) bool { return name == "example.com/hold" })
			return clusters.Guest.Client.Patch(ctx, definition, before)
		}).Should(Succeed())
		settles(g)
		g.Expect(get(ctx, g, names[2]).Spec.Versions[0].AdditionalPrinterColumns).NotTo(BeEmpty())
	})
}

// testDowngrade has a payload's definition that has v1beta1 and v1, in a guest that has stored v1.
func testDowngrade(t *testing.T) {
	g, ctx, s := NewWithT(t), t.Context(), clusters.NewScope(t, "downgrade")
	step := crd.New(crd.Config{Apply: apply.New()})
	with := func(digest string, versions ...apiextensionsv1.CustomResourceDefinitionVersion) *scope.Scope {
		definition := scopetest.Definition("example.com", "Thing", "things", "v1")
		definition.Spec.Versions = versions
		return shipping(s, digest, definition)
	}
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		version := scopetest.Definition("example.com", "Thing", "things", name).Spec.Versions[0]
		version.Storage = storage
		return version
	}
	storage := func(g Gomega) (name string) {
		for _, version := range get(ctx, g, "things.example.com").Spec.Versions {
			if version.Storage {
				name = version.Name
			}
		}
		return name
	}
	older := with("sha256:1", version("v1beta1", true))
	between := with("sha256:2", version("v1beta1", true), version("v1", false))
	newer := with("sha256:3", version("v1beta1", false), version("v1", true))
	for _, payload := range []*scope.Scope{older, newer} {
		g.Eventually(reconcile(ctx, step, payload)).Should(Equal(scope.Result{}))
	}
	g.Expect(storage(g)).To(Equal("v1"))

	t.Run("When an older payload has the stored version, it should be taken, and what is stored stay the storage version", func(t *testing.T) {
		g := NewWithT(t)
		stored, err := crd.StoredBeyond(ctx, between, between.Karpenter.CRDs)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(stored).To(BeEmpty())
		g.Eventually(reconcile(ctx, step, between)).Should(Equal(scope.Result{}))
		g.Expect(storage(g)).To(Equal("v1"))
		g.Expect(between.Karpenter.CRDs[0].Spec.Versions[0].Storage).To(BeTrue(), "the payload is shared")
	})

	t.Run("When an older payload doesn't know what is stored, it should say so and change nothing", func(t *testing.T) {
		g := NewWithT(t)
		stored, err := crd.StoredBeyond(ctx, older, older.Karpenter.CRDs)
		g.Expect(err).NotTo(HaveOccurred())
		const message = "CustomResourceDefinition things.example.com in the guest stores v1, which the release doesn't define; choose one that does"
		g.Expect(stored).To(ConsistOf(message))
		before := get(ctx, g, "things.example.com").ResourceVersion
		g.Expect(scopetest.Reconcile(t, step, older)).To(Equal(scope.Result{Wait: true, Message: message}))
		g.Expect(get(ctx, g, "things.example.com").ResourceVersion).To(Equal(before))
	})

	t.Run("When what was stored has been migrated, an older payload should be taken whole", func(t *testing.T) {
		g := NewWithT(t)
		definition := get(ctx, g, "things.example.com")
		before := client.MergeFrom(definition.DeepCopy())
		definition.Spec.Versions[0].Storage, definition.Spec.Versions[1].Storage = true, false
		g.Expect(clusters.Guest.Client.Patch(ctx, definition, before)).To(Succeed())
		before = client.MergeFrom(definition.DeepCopy())
		definition.Status.StoredVersions = []string{"v1beta1"}
		g.Expect(clusters.Guest.Client.Status().Patch(ctx, definition, before)).To(Succeed())
		g.Eventually(reconcile(ctx, step, older)).Should(Equal(scope.Result{}))
		g.Expect(get(ctx, g, "things.example.com").Spec.Versions).To(HaveLen(1))
	})
}

// shipping is a scope whose payload, of another digest, ships these definitions.
func shipping(s *scope.Scope, digest string, definitions ...*apiextensionsv1.CustomResourceDefinition) *scope.Scope {
	other, release := *s, *s.Release
	release.Digest = digest
	other.Release, other.Karpenter.CRDs = &release, definitions
	return &other
}

func reconcile(ctx context.Context, step scope.Step, s *scope.Scope) func(Gomega) scope.Result {
	return func(g Gomega) scope.Result {
		result, err := step.Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		return result
	}
}

func get(ctx context.Context, g Gomega, name string) *apiextensionsv1.CustomResourceDefinition {
	return scopetest.Get(ctx, g, clusters.Guest.Client, "", name, &apiextensionsv1.CustomResourceDefinition{})
}

func established(definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range definition.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
