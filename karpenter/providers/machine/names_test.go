// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// TestInstanceNames: providers find an instance by its name, which is the infrastructure machine's (CAPO's GetInstanceStatusByName,
// CAPK's NewMachine), or the Machine's (CAPV's findVM, CAPX's FindVMByName). Both would adopt, and then destroy, another tenant's.
func TestInstanceNames(t *testing.T) {
	const vsphere, nutanix = "VSphereMachine", "NutanixMachine"
	long := strings.Repeat("a", 55) + "-x7k2p"
	for name, c := range map[string]struct {
		kind, nodeClaim string
		// afterMachine: the provider names an instance after its Machine.
		afterMachine bool
	}{
		"When a provider names instances after its own objects, the Machine should have the NodeClaim's name": {"OpenStackMachine", "web-x7k2p", false},
		"When the provider has no profile, the Machine should have the NodeClaim's name":                      {"AnyMachine", "web-x7k2p", false},
		"When vSphere names instances after Machines, both should carry the Cluster's hash":                   {vsphere, "web-x7k2p", true},
		"When Nutanix names instances after Machines, both should carry the Cluster's hash":                   {nutanix, "web-x7k2p", true},
		"When the NodeClaim's name is long, a host should still be able to have the instance's":               {vsphere, long, true},
		"When the NodeClaim's name doesn't fit a label, it should still be known":                             {vsphere, long + "-" + long, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			blue, green := cluster("blue"), cluster("green")
			objects, err := machine.Build(planOf(c.kind, c.nodeClaim, blue))
			g.Expect(err).NotTo(HaveOccurred())
			prefix := v1alpha1.InstancePrefix(blue.UID)
			g.Expect(objects.Infrastructure.GetName()).To(HavePrefix(prefix))
			g.Expect(len(objects.Infrastructure.GetName())).To(BeNumerically("<=", 63))
			g.Expect(objects.Machine.Spec.InfrastructureRef.Name).To(Equal(objects.Infrastructure.GetName()))
			if len(c.nodeClaim) < 54 {
				g.Expect(objects.Infrastructure.GetName()).To(Equal(prefix + c.nodeClaim))
			}
			if c.afterMachine {
				g.Expect(objects.Machine.Name).To(Equal(objects.Infrastructure.GetName()))
			} else {
				g.Expect(objects.Machine.Name).To(Equal(c.nodeClaim))
			}
			for _, object := range []metav1.Object{objects.Machine, objects.Infrastructure} {
				g.Expect(v1alpha1.NodeClaimOf(object)).To(Equal(c.nodeClaim))
				g.Expect(v1alpha1.MadeForNodeClaim(object)).To(BeTrue())
			}
			others, err := machine.Build(planOf(c.kind, c.nodeClaim, green))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(others.Infrastructure.GetName()).NotTo(Equal(objects.Infrastructure.GetName()))
		})
	}

	t.Run("When a guest's admin names a NodeClaim like an instance of the Cluster, it should make nothing", func(t *testing.T) {
		g := NewWithT(t)
		blue := cluster("blue")
		_, err := machine.Build(planOf(vsphere, v1alpha1.InstanceName(blue.UID, "web-x7k2p"), blue))
		g.Expect(err).To(MatchError(ContainSubstring("create the NodeClaim with another name")))
	})
}

func cluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, UID: types.UID("uid-of-" + name)}}
}

func planOf(kind, nodeClaim string, cluster *clusterv1.Cluster) machine.Plan {
	return machine.Plan{
		NodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: nodeClaim, UID: "uid"}}, Cluster: cluster, DataSecretName: "any", Profiles: profile.Embedded(),
		InfrastructureTemplate: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind + "Template",
			"metadata": map[string]any{"namespace": "clusters", "name": "any"}, "spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}},
		}},
	}
}

// asBefore makes the first objects of a plan under the names that earlier versions gave them.
func (s *fixture) asBefore(plan machine.Plan, count int) *machine.Objects {
	s.t.Helper()
	objects, err := machine.Build(plan)
	s.Expect(err).NotTo(HaveOccurred())
	objects.Infrastructure.SetName(plan.NodeClaim.Name)
	objects.Machine.Spec.InfrastructureRef.Name = plan.NodeClaim.Name
	for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine}[:count] {
		s.Expect(s.Admin.Create(s.t.Context(), object)).To(Succeed())
	}
	return objects
}

// TestNamesOfBefore: a version before infrastructure machines carried their Cluster's hash may have begun a Create, or ended it.
func TestNamesOfBefore(t *testing.T) {
	for count := range 4 {
		t.Run(fmt.Sprintf("When an earlier version made %d objects and this one creates the NodeClaim's machine, it should be one", count), func(t *testing.T) {
			s := newFixture(t)
			machines := s.Machines(nil)
			nodeClaim := s.NodeClaim(t.Context(), "before")
			before := s.asBefore(s.Plan(nodeClaim), count)
			if count == 3 {
				s.Eventually(func() error {
					_, err := machines.ForNodeClaim(t.Context(), nodeClaim.UID)
					return err
				}).Should(Succeed())
			}
			created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
			s.Expect(err).NotTo(HaveOccurred())
			if count == 3 {
				s.Expect(created.UID).To(Equal(before.Machine.UID))
				s.Expect(created.Spec.InfrastructureRef.Name).To(Equal(nodeClaim.Name))
				s.Expect(s.Objects(t.Context(), environment.TestMachine)).To(ConsistOf(nodeClaim.Name))
			} else {
				s.Expect(created.Spec.InfrastructureRef.Name).To(Equal(s.Name(environment.TestMachine, nodeClaim.Name)))
			}
			s.Expect(s.Objects(t.Context(), machineKind)).To(ConsistOf(nodeClaim.Name))
		})
	}

	t.Run("When instances are named after Machines, it should create those with the hash, find one of an earlier version without, and delete both", func(t *testing.T) {
		s := newFixture(t)
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		s.Expect(os.WriteFile(path, fmt.Appendf(nil, "- {apiGroup: %s, kind: %s, instanceNamedAfter: Machine}\n", environment.TestMachine.Group, environment.TestMachine.Kind), 0o600)).To(Succeed())
		config := s.Machines(nil).Config
		var err error
		config.Profiles, err = profile.New(path)
		s.Expect(err).NotTo(HaveOccurred())
		machines := machine.New(config)
		earlier, later := s.NodeClaim(t.Context(), "earlier"), s.NodeClaim(t.Context(), "later")
		before := s.asBefore(s.Plan(earlier), 3)
		created, err := machines.Create(t.Context(), s.Plan(earlier))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(created.UID).To(Equal(before.Machine.UID))
		for range 2 {
			created, err = machines.Create(t.Context(), s.Plan(later))
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(created.Name).To(Equal(s.Name(environment.TestMachine, later.Name)))
		}
		s.Expect(s.Objects(t.Context(), machineKind)).To(ConsistOf(earlier.Name, created.Name))
		for _, nodeClaim := range []*karpv1.NodeClaim{earlier, later} {
			s.Expect(machines.None(t.Context(), nodeClaim)).To(BeFalse())
			s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		}
		s.Eventually(func() []string { return s.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})

	t.Run("When an earlier version made objects without a Machine and the NodeClaim is deleted, it should leave none", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "before")
		s.asBefore(s.Plan(nodeClaim), 2)
		s.Eventually(func() error { return s.Machines(nil).Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
		for _, kind := range environment.ChildKinds(t.Context()) {
			s.Expect(s.Objects(t.Context(), kind)).To(BeEmpty())
		}
	})

	t.Run("When a replica of an earlier version makes the Machine meanwhile, it should be that one, without a second infrastructure machine", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "meanwhile")
		objects := s.asBefore(s.Plan(nodeClaim), 1)
		racing := &racing{Client: s.Management.GetClient(), after: func(object client.Object) error {
			if object.GetObjectKind().GroupVersionKind() != environment.TestMachine || objects.Machine == nil {
				return nil
			}
			theirs := objects.Machine
			objects.Machine = nil
			return s.Admin.Create(t.Context(), theirs)
		}}
		created, err := s.Machines(racing).Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(created.Spec.InfrastructureRef.Name).To(Equal(nodeClaim.Name))
		s.Expect(s.Objects(t.Context(), environment.TestMachine)).To(ConsistOf(nodeClaim.Name))
	})
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
