// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// reported are infrastructure machines as a cache has them, by name.
type reported map[string]*unstructured.Unstructured

func (r reported) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	if object, ok := r[name]; ok && object.GroupVersionKind().GroupKind() == kind {
		return object, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}

// instance returns an infrastructure machine of a Machine that reports a provider ID.
func instance(m *clusterv1.Machine, providerID string, status map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"providerID": providerID}, "status": status}}
	object.SetGroupVersionKind(environment.TestMachine)
	object.SetName(m.Spec.InfrastructureRef.Name)
	object.SetLabels(map[string]string{v1alpha1.NodeClaimUIDLabel: m.Labels[v1alpha1.NodeClaimUIDLabel]})
	return object
}

func TestInstanceID(t *testing.T) {
	s := newFixture(t)
	machines := s.Machines(nil)
	created, err := machines.Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "early")))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	synthetic := machine.SyntheticProviderID(client.ObjectKeyFromObject(created))
	NewWithT(t).Eventually(func() error { _, err := machines.ForProviderID(t.Context(), synthetic); return err }).Should(Succeed())
	provisioned := map[string]any{"initialization": map[string]any{"provisioned": true}}
	anothers := instance(created, "cloud://1", provisioned)
	anothers.SetLabels(map[string]string{v1alpha1.NodeClaimUIDLabel: "another"})

	for name, tc := range map[string]struct {
		infrastructure *unstructured.Unstructured
		known          bool
	}{
		"When its infrastructure is provisioned and Cluster API hasn't copied the provider ID, it should be known by it":       {instance(created, "cloud://1", provisioned), true},
		"When its infrastructure follows the older contract and is ready, it should be known by the provider ID":               {instance(created, "cloud://1", map[string]any{"ready": true}), true},
		"When its infrastructure isn't provisioned, Cluster API wouldn't copy the provider ID, and it should have none":        {instance(created, "cloud://1", map[string]any{}), false},
		"When its infrastructure is provisioned and reports no provider ID, it should have none":                               {instance(created, "", provisioned), false},
		"When an infrastructure machine of that name belongs to another NodeClaim, it should not be known by that provider ID": {anothers, false},
		"When its infrastructure isn't in the cache, it should have none":                                                      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			machines, cache := s.Machines(nil), reported{}
			machines.Infrastructure = cache
			if tc.infrastructure != nil {
				cache[tc.infrastructure.GetName()] = tc.infrastructure
			}
			node := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud://1"}}
			found, err := machines.ForProviderID(t.Context(), "cloud://1")
			if !tc.known {
				g.Expect(err).To(MatchError(machine.ErrNotFound))
				g.Expect(machines.ProviderID(t.Context(), created)).To(Equal(synthetic))
				g.Expect(machines.HasTaints(t.Context(), node)).To(BeTrue(), "its Machine isn't known")
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.UID).To(Equal(created.UID))
			g.Expect(machines.ProviderID(t.Context(), found)).To(Equal("cloud://1"))
			g.Expect(machines.HasTaints(t.Context(), node)).To(BeFalse())
		})
	}

	t.Run("When a Machine has taints that Cluster API writes to its node, it should have some", func(t *testing.T) {
		g := NewWithT(t)
		machines := s.Machines(nil)
		patched := created.DeepCopy()
		patched.Spec.ProviderID = "cloud://1"
		patched.Spec.Taints = []clusterv1.MachineTaint{{Key: "team", Value: "web", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways}}
		g.Expect(s.Admin.Patch(t.Context(), patched, client.MergeFrom(created))).To(Succeed())
		g.Eventually(func() error { _, err := machines.ForProviderID(t.Context(), "cloud://1"); return err }).Should(Succeed())
		g.Expect(machines.HasTaints(t.Context(), &corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud://1"}})).To(BeTrue())
		g.Expect(machines.InstanceID(t.Context(), patched)).To(Equal("cloud://1"))
	})
}
