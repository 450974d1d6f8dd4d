// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// TestInstanceNames: providers find an instance by its name, which is the infrastructure machine's (CAPO's GetInstanceStatusByName,
// CAPK's NewMachine), or the Machine's (CAPV's findVM, CAPX's FindVMByName). Both would adopt, and then destroy, another tenant's.
func TestInstanceNames(t *testing.T) {
	const kind = "AnyMachine"
	long := strings.Repeat("a", 55) + "-x7k2p"
	for name, nodeClaim := range map[string]string{
		"When a NodeClaim's name is short, that of its machine should be the same after the Cluster's hash": "web-x7k2p",
		"When the NodeClaim's name is long, a host should still be able to have the instance's":             long,
		"When the NodeClaim's name doesn't fit a label, it should still be known":                           long + "-" + long,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			blue, green := cluster("blue"), cluster("green")
			objects, err := machine.Build(planOf(kind, nodeClaim, blue))
			g.Expect(err).NotTo(HaveOccurred())
			prefix := v1alpha1.InstancePrefix(blue.UID)
			g.Expect(objects.Infrastructure.GetName()).To(HavePrefix(prefix))
			g.Expect(len(objects.Infrastructure.GetName())).To(BeNumerically("<=", 63))
			g.Expect(objects.Machine.Spec.InfrastructureRef.Name).To(Equal(objects.Infrastructure.GetName()))
			if len(nodeClaim) < 54 {
				g.Expect(objects.Infrastructure.GetName()).To(Equal(prefix + nodeClaim))
			}
			g.Expect(objects.Machine.Name).To(Equal(objects.Infrastructure.GetName()))
			for _, object := range []metav1.Object{objects.Machine, objects.Infrastructure} {
				g.Expect(v1alpha1.NodeClaimOf(object)).To(Equal(nodeClaim))
				g.Expect(v1alpha1.MadeForNodeClaim(object)).To(BeTrue())
			}
			others, err := machine.Build(planOf(kind, nodeClaim, green))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(others.Infrastructure.GetName()).NotTo(Equal(objects.Infrastructure.GetName()))
		})
	}

	t.Run("When a guest's admin names a NodeClaim like an instance of the Cluster, it should make nothing", func(t *testing.T) {
		g := NewWithT(t)
		blue := cluster("blue")
		_, err := machine.Build(planOf(kind, v1alpha1.InstanceName(blue.UID, "web-x7k2p"), blue))
		g.Expect(err).To(MatchError(ContainSubstring("create the NodeClaim with another name")))
	})
}

func cluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, UID: types.UID("uid-of-" + name)}}
}

func planOf(kind, nodeClaim string, cluster *clusterv1.Cluster) machine.Plan {
	return machine.Plan{
		NodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: nodeClaim, UID: "uid"}}, Cluster: cluster, DataSecretName: "any",
		InfrastructureTemplate: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind + "Template",
			"metadata": map[string]any{"namespace": "clusters", "name": "any"}, "spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}},
		}},
	}
}

// asBefore makes the first objects of a plan under the names that earlier versions gave them: the NodeClaim's, later with the Cluster's hash
// for infrastructure machines.
func (s *fixture) asBefore(plan machine.Plan, count int, hash bool) *machine.Objects {
	s.t.Helper()
	objects, err := machine.Build(plan)
	s.Expect(err).NotTo(HaveOccurred())
	objects.Machine.Name = plan.NodeClaim.Name
	if !hash {
		objects.Infrastructure.SetName(plan.NodeClaim.Name)
		objects.Machine.Spec.InfrastructureRef.Name = plan.NodeClaim.Name
	}
	for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine}[:count] {
		s.Expect(s.Admin.Create(s.t.Context(), object)).To(Succeed())
	}
	return objects
}

// TestNamesOfBefore: a version before all objects carried their Cluster's hash may have begun a Create, or ended it.
func TestNamesOfBefore(t *testing.T) {
	for names, hash := range map[string]bool{"after the NodeClaim": false, "after the NodeClaim, but its infrastructure machine after the Cluster": true} {
		for count := range 4 {
			t.Run(fmt.Sprintf("When an earlier version made %d objects, called %s, this one should end with one Machine", count, names), func(t *testing.T) {
				testNamesOfBefore(newFixture(t), count, hash, count == 3)
			})
		}
		t.Run(fmt.Sprintf("When an earlier version made all objects, called %s, and the cache lacks them, this one should end with one Machine", names), func(t *testing.T) {
			testNamesOfBefore(newFixture(t), 3, hash, false)
		})
	}

	t.Run("When an earlier version made objects without a Machine and the NodeClaim is deleted, it should leave none", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "before")
		s.asBefore(s.Plan(nodeClaim), 2, false)
		s.Eventually(func() error { return s.Machines(nil).Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
		for _, kind := range environment.ChildKinds(t.Context()) {
			s.Expect(s.Objects(t.Context(), kind)).To(BeEmpty())
		}
	})

	t.Run("When a replica of an earlier version makes another Machine meanwhile and the NodeClaim is deleted, it should leave neither", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "meanwhile")
		objects := s.asBefore(s.Plan(nodeClaim), 2, true)
		racing := &racing{Client: s.Management.GetClient(), after: func(object client.Object) error {
			if _, ok := object.(*clusterv1.Machine); !ok {
				return nil
			}
			return s.Admin.Create(t.Context(), objects.Machine)
		}}
		_, err := s.Machines(racing).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(s.Objects(t.Context(), machineKind)).To(ConsistOf(nodeClaim.Name, s.Name(machineKind, nodeClaim.Name)))
		machines := s.Machines(nil)
		s.Eventually(func() error {
			_, err := machines.ForNodeClaim(t.Context(), nodeClaim.UID)
			return err
		}).Should(MatchError(ContainSubstring("2 Machines have it")))
		s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		s.Eventually(func() []string { return s.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})
}

// unseeing is a client whose cache has no Machine yet.
type unseeing struct{ client.Client }

// List implements client.Client.
func (u unseeing) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*clusterv1.MachineList); ok {
		return nil
	}
	return u.Client.List(ctx, list, opts...)
}

// testNamesOfBefore continues, and then deletes, what an earlier version began. cached waits until the cache has the Machine.
func testNamesOfBefore(s *fixture, count int, hash, cached bool) {
	ctx := s.t.Context()
	machines := s.Machines(nil)
	if !cached {
		machines = s.Machines(unseeing{s.Management.GetClient()})
	}
	nodeClaim := s.NodeClaim(ctx, "before")
	before := s.asBefore(s.Plan(nodeClaim), count, hash)
	if cached {
		s.Eventually(func() error {
			_, err := machines.ForNodeClaim(ctx, nodeClaim.UID)
			return err
		}).Should(Succeed())
	}
	created, err := machines.Create(ctx, s.Plan(nodeClaim))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.Objects(ctx, machineKind)).To(ConsistOf(created.Name))
	s.Expect(s.Objects(ctx, environment.TestMachine)).To(ContainElement(created.Spec.InfrastructureRef.Name))
	if count < 3 {
		s.Expect(created.Name).To(Equal(s.Name(machineKind, nodeClaim.Name)))
		s.Expect(created.Spec.InfrastructureRef.Name).To(Equal(created.Name))
		return
	}
	s.Expect(created.UID).To(Equal(before.Machine.UID))
	s.Expect(s.Objects(ctx, environment.TestMachine)).To(ConsistOf(before.Infrastructure.GetName()))
	s.Expect(machines.None(ctx, nodeClaim)).To(BeFalse())
	s.Expect(machines.Delete(ctx, nodeClaim)).To(Succeed())
	s.Eventually(func() []string { return s.Objects(ctx, machineKind) }).Should(BeEmpty())
}

// racing is a client that does something after each object that it creates.
type racing struct {
	client.Client
	after func(client.Object) error
}

// Create implements client.Client.
func (r *racing) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return errors.Join(r.Client.Create(ctx, object, opts...), r.after(object))
}
