// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// TestOwner: providers start no instance before its object has a Machine as owner. Cluster API sees to that, too, a second later or more.
func TestOwner(t *testing.T) {
	controller := func(s *fixture, created *clusterv1.Machine) *metav1.OwnerReference {
		infrastructure := &unstructured.Unstructured{}
		infrastructure.SetGroupVersionKind(environment.TestMachine)
		key := types.NamespacedName{Namespace: s.Namespace, Name: created.Spec.InfrastructureRef.Name}
		s.Expect(s.Admin.Get(t.Context(), key, infrastructure)).To(Succeed())
		s.Expect(infrastructure.GetOwnerReferences()).To(ContainElement(HaveField("Kind", "Cluster")))
		return metav1.GetControllerOfNoCopy(infrastructure)
	}

	t.Run("When a machine has its bootstrap data, the Machine should own the infrastructure machine at once", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		_, created := s.create("owned")
		s.Expect(controller(s, created)).To(Equal(&metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: created.Name, UID: created.UID, Controller: ptr.To(true),
		}))
	})

	t.Run("When a bootstrap provider has to make the data first, it should be left to Cluster API", func(t *testing.T) {
		s := newFixture(t)
		_, created := s.create("waiting")
		s.Expect(controller(s, created)).To(BeNil())
	})

	t.Run("When a machine replaces a node that runs until then, it should be left to Cluster API", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		config := s.Machines(nil).Config
		nodeClaim := s.NodeClaim(t.Context(), "replacement")
		config.IsReplacement = func(name string) bool { return name == nodeClaim.Name }
		created, err := machine.New(config).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(controller(s, created)).To(BeNil())
	})

	t.Run("When something else owns the infrastructure machine by then, it should stay so, and the launch go on", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other", Controller: ptr.To(true)}
		racing := &racing{Client: s.Management.GetClient(), after: func(object client.Object) error {
			if object.GetObjectKind().GroupVersionKind() != environment.TestMachine {
				return nil
			}
			adopted := object.DeepCopyObject().(client.Object)
			adopted.SetOwnerReferences(append(adopted.GetOwnerReferences(), other))
			return s.Admin.Patch(t.Context(), adopted, client.MergeFrom(object))
		}}
		created, err := s.Machines(racing).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "adopted")))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(controller(s, created)).To(Equal(&other))
	})

	t.Run("When the API server refuses the patch, the launch should go on", func(t *testing.T) {
		s := newFixture(t)
		render(s)
		created, err := s.Machines(unpatching{s.Management.GetClient()}).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "refused")))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(controller(s, created)).To(BeNil())
	})
}

// unpatching is a client whose patches are refused.
type unpatching struct{ client.Client }

// Patch implements client.Client.
func (unpatching) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return environment.ErrFault
}
