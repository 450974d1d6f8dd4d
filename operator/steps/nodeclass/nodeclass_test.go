// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestNodeClass(t *testing.T) {
	NewWithT(t).Expect(clusters.InstallDefinitions()).To(Succeed())
	ctx, s := t.Context(), clusters.NewScope(t, "nodeclass")
	step := nodeclass.New(nodeclass.Config{Apply: apply.New()})
	reconcile := func(g Gomega) { g.Expect(scopetest.Reconcile(t, step, s)).To(Equal(scope.Result{})) }

	t.Run("When the guest has no default node class, it should make it, and admission should take it", func(t *testing.T) {
		g := NewWithT(t)
		reconcile(g)
		class := get(ctx, g, v1alpha1.DefaultNodeClass)
		g.Expect(class.Spec.InfrastructureTemplateSelectors).To(HaveLen(1))
		g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
	})

	t.Run("When a person edits what the HostedCluster declares, it should put it back, and leave what it doesn't say", func(t *testing.T) {
		g := NewWithT(t)
		class := get(ctx, g, v1alpha1.DefaultNodeClass)
		class.Spec.Version = "1.36.2"
		class.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(20))}
		class.Spec.Bootstrap.ConfigTemplateRef.Name = "another"
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, "example.com/note", "mine")
		g.Expect(clusters.Guest.Client.Update(ctx, class)).To(Succeed())
		reconcile(g)
		class = get(ctx, g, v1alpha1.DefaultNodeClass)
		g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
		g.Expect(class.Spec.Version).To(Equal("1.36.2"))
		g.Expect(class.Spec.Kubelet.MaxPods).To(HaveValue(BeEquivalentTo(20)))
		g.Expect(class.Annotations).To(HaveKeyWithValue("example.com/note", "mine"))
	})

	t.Run("When the HostedCluster stops saying something, it should be removed", func(t *testing.T) {
		g := NewWithT(t)
		config := s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI
		config.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.ScalableResourceSelector).NotTo(BeNil())
		config.ScalableResourceSelector = nil
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.ScalableResourceSelector).To(BeNil())
	})

	t.Run("When a person deletes it, it should come back", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(clusters.Guest.Client.Delete(ctx, get(ctx, g, v1alpha1.DefaultNodeClass))).To(Succeed())
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.Version).To(BeEmpty())
	})

	t.Run("When AutoNode is turned on again while it drained, every node class should be free to launch", func(t *testing.T) {
		g := NewWithT(t)
		mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{
			Name: "mine", Annotations: map[string]string{v1alpha1.DrainingAnnotation: "true", "example.com/note": "mine"},
		}}
		g.Expect(clusters.Guest.Client.Create(ctx, mine)).To(Succeed())
		reconcile(g)
		class := get(ctx, g, "mine")
		g.Expect(class.Annotations).To(Equal(map[string]string{"example.com/note": "mine"}))
		g.Expect(class.Labels).To(BeEmpty(), "an admin's node class isn't ours")
	})
}

func TestRollout(t *testing.T) {
	g := NewWithT(t)
	g.Expect(clusters.InstallDefinitions()).To(Succeed())
	ctx, s := t.Context(), clusters.NewScope(t, "nodeclass")
	step := nodeclass.New(nodeclass.Config{Apply: apply.New()})
	theirs := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	g.Expect(clusters.Guest.Client.Create(ctx, theirs)).To(Succeed())
	for _, test := range []struct{ name, rollout, want string }{
		{"When no rollout of Karpenter was complete yet, node classes should say nothing of one", "", ""},
		{"When one is complete, they should name it", "first", "first"},
		{"When the next is under way, they should name the one before", "", "first"},
		{"When that is complete, they should name it", "second", "second"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			s.Rollout = test.rollout
			scopetest.Reconcile(t, step, s)
			for _, name := range []string{v1alpha1.DefaultNodeClass, "theirs"} {
				g.Expect(get(ctx, g, name).Annotations[v1alpha1.RolloutAnnotation]).To(Equal(test.want), name)
			}
			version := get(ctx, g, "theirs").ResourceVersion
			scopetest.Reconcile(t, step, s)
			g.Expect(get(ctx, g, "theirs").ResourceVersion).To(Equal(version))
		})
	}
}

func get(ctx context.Context, g Gomega, name string) *v1alpha1.ClusterAPINodeClass {
	return scopetest.Get(ctx, g, clusters.Guest.Client, "", name, &v1alpha1.ClusterAPINodeClass{})
}
