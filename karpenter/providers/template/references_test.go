// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// withoutConfigs fails to read one kind, which isn't installed.
type withoutConfigs struct{ environment.Objects }

func (o withoutConfigs) Get(ctx context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	if kind.Kind == "AbsentConfigTemplate" {
		return nil, &informer.UnreadableError{GroupKind: kind, Namespace: "clusters-blue", Err: errors.New("no matches for kind")}
	}
	return o.Objects.Get(ctx, kind, name)
}

func TestUnusableBootstrap(t *testing.T) {
	object := func(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetNamespace("clusters-blue")
		u.SetName(name)
		u.SetLabels(map[string]string{"pool": "general", clusterv1.ClusterNameLabel: "blue"})
		u.SetAnnotations(map[string]string{"capacity.cluster-autoscaler.kubernetes.io/cpu": "2", "capacity.cluster-autoscaler.kubernetes.io/memory": "4Gi"})
		return u
	}
	machines := func(name string) *unstructured.Unstructured {
		return object("infrastructure.cluster.x-k8s.io/v1beta1", "TestMachineTemplate", name, map[string]any{"template": map[string]any{"spec": map[string]any{}}})
	}
	deployment := func(name, kind, config string) *unstructured.Unstructured {
		return object("cluster.x-k8s.io/v1beta2", "MachineDeployment", name, map[string]any{"clusterName": "blue", "template": map[string]any{"spec": map[string]any{
			"clusterName":       "blue",
			"bootstrap":         map[string]any{"configRef": map[string]any{"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": kind, "name": config}},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestMachineTemplate", "name": "a"},
		}}})
	}
	objects := environment.Objects{
		machines("a"),
		object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", "direct", map[string]any{"joinConfiguration": map[string]any{}}),
		deployment("direct", "KubeadmConfig", "direct"), deployment("missing", "KubeadmConfigTemplate", "nothing"),
		deployment("absent", "AbsentConfigTemplate", "any"),
	}
	class := &v1alpha1.ClusterAPINodeClass{}
	class.Spec.DefaultArchitecture = "amd64"
	class.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "general"}}
	resolver := template.NewResolver(template.Config{Objects: withoutConfigs{objects}, ClusterName: "blue", Namespace: "clusters-blue", Secrets: environment.Secrets{}, Profiles: profile.Embedded()})
	t.Run("When MachineDeployments have unusable bootstrap references, it should leave out those alone", func(t *testing.T) {
		g := NewWithT(t)
		found, err := resolver.Resolve(t.Context(), class)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Unreadable).To(ConsistOf(MatchError(ContainSubstring("no matches for kind"))))
		g.Expect(found.Invalid).To(ConsistOf(
			MatchError(ContainSubstring("direct: KubeadmConfig clusters-blue/direct has no spec.template")), MatchError(ContainSubstring("missing: KubeadmConfigTemplate nothing, which it refers to, doesn't exist"))))
		gaps := found.Gaps()
		for _, unusable := range []string{"direct", "missing", "absent"} {
			g.Expect(gaps.Has(template.MachineDeploymentKind.String()+"/"+unusable)).To(BeTrue(), unusable)
		}
		g.Expect(gaps.Has(template.MachineDeploymentKind.String()+"/another")).To(BeFalse(), "another source can be known to be gone")
	})
}
