// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/nodeclass"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestDesired(t *testing.T) {
	full := scopetest.AutoNode()
	full.ProvisionerConfig.Karpenter.ClusterAPI.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	full.ProvisionerConfig.Karpenter.ClusterAPI.Kubelet = &v1alpha1.KubeletConfiguration{
		MaxPods:      ptr.To(int32(50)),
		KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "100m"},
		EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "5%"},
	}
	for name, autoNode := range map[string]*v1beta1.AutoNode{"minimal": scopetest.AutoNode(), "full": full} {
		t.Run("When the configuration is "+name+", it should render what the golden file holds", func(t *testing.T) {
			g := NewWithT(t)
			class := nodeclass.Desired(&v1beta1.HostedCluster{Spec: v1beta1.HostedClusterSpec{AutoNode: autoNode}})
			rendered, err := yaml.Marshal(map[string]any{"metadata": map[string]any{"name": class.Name}, "spec": class.Spec})
			g.Expect(err).NotTo(HaveOccurred())
			golden, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cmp.Diff(string(golden), string(rendered))).To(BeEmpty())
		})
	}

	t.Run("When the platform has no node class of ours, it should render none", func(t *testing.T) {
		g := NewWithT(t)
		aws := &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{Name: v1beta1.ProvisionerKarpenter, Karpenter: &v1beta1.Karpenter{
			Platform: v1beta1.PlatformAWS, AWS: &v1beta1.AWS{RoleARN: "arn:aws:iam::123456789012:role/karpenter"},
		}}}
		g.Expect(nodeclass.Desired(&v1beta1.HostedCluster{Spec: v1beta1.HostedClusterSpec{AutoNode: aws}})).To(BeNil())
		g.Expect(nodeclass.Desired(&v1beta1.HostedCluster{})).To(BeNil())
	})
}

func TestNodeClass(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	g.Expect(clusters.InstallDefinitions()).To(Succeed())
	s, err := clusters.NewScope(ctx, "nodeclass")
	g.Expect(err).NotTo(HaveOccurred())
	step := nodeclass.New(nodeclass.Config{Apply: apply.New()})
	reconcile := func(g Gomega) {
		result, err := step.Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result).To(Equal(scope.Result{}))
	}

	t.Run("When the guest has no default node class, it should make it, and admission should take it", func(t *testing.T) {
		g := NewWithT(t)
		reconcile(g)
		class := get(ctx, g, v1alpha1.DefaultNodeClass)
		g.Expect(class.Spec.InfrastructureTemplateSelectors).To(HaveLen(1))
		g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
	})

	t.Run("When somebody edits what the HostedCluster says, it should put it back, and leave what it doesn't say", func(t *testing.T) {
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

	t.Run("When somebody deletes it, it should come back", func(t *testing.T) {
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

func get(ctx context.Context, g Gomega, name string) *v1alpha1.ClusterAPINodeClass {
	class := &v1alpha1.ClusterAPINodeClass{}
	g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: name}, class)).To(Succeed())
	return class
}
