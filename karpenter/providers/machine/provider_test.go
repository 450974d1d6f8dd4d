// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

var machineKind = clusterv1.GroupVersion.WithKind("Machine")

type fixture struct {
	*environment.Environment
	*WithT
	t *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{environment.New(t), NewWithT(t), t}
}

// create makes a NodeClaim and its Machine.
func (s *fixture) create(name string, changes ...func(*machine.Plan)) (*karpv1.NodeClaim, *clusterv1.Machine) {
	s.t.Helper()
	nodeClaim := s.NodeClaim(s.t.Context(), name)
	plan := s.Plan(nodeClaim)
	plan.Template.Bootstrap.ConfigTemplate = plan.Template.Bootstrap.ConfigTemplate.DeepCopy()
	for _, change := range changes {
		change(&plan)
	}
	created, err := s.Machines(nil).Create(s.t.Context(), plan)
	s.Expect(err).NotTo(HaveOccurred())
	return nodeClaim, created
}

// hold keeps a Machine that is being deleted, as Cluster API does while its infrastructure goes.
func (s *fixture) hold(m *clusterv1.Machine) {
	s.t.Helper()
	held := m.DeepCopy()
	held.Finalizers = []string{environment.HoldFinalizer}
	s.Expect(s.Admin.Patch(s.t.Context(), held, client.MergeFrom(m))).To(Succeed())
}

// read returns what the API server has of a Machine.
func (s *fixture) read(m *clusterv1.Machine) *clusterv1.Machine {
	s.t.Helper()
	stored := &clusterv1.Machine{}
	s.Expect(s.Admin.Get(s.t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
	return stored
}

// child returns what the API server has of a NodeClaim's infrastructure machine or bootstrap config.
func (s *fixture) child(kind schema.GroupVersionKind, nodeClaim *karpv1.NodeClaim) *unstructured.Unstructured {
	s.t.Helper()
	child := &unstructured.Unstructured{}
	child.SetGroupVersionKind(kind)
	s.Expect(s.Admin.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.MachineName(nodeClaim.Name)}, child)).To(Succeed())
	return child
}

// deleteChildren deletes a NodeClaim's infrastructure machine and bootstrap config, as Cluster API does with their Machine.
func (s *fixture) deleteChildren(nodeClaim *karpv1.NodeClaim) {
	s.t.Helper()
	for _, kind := range environment.ChildKinds(s.t.Context()) {
		child := &unstructured.Unstructured{}
		child.SetGroupVersionKind(kind)
		child.SetNamespace(s.Namespace)
		child.SetName(s.MachineName(nodeClaim.Name))
		s.Expect(client.IgnoreNotFound(s.Admin.Delete(s.t.Context(), child))).To(Succeed())
	}
}

// expectOne expects exactly one Machine with its infrastructure and bootstrap objects, all named for the NodeClaim.
func (s *fixture) expectOne(nodeClaim *karpv1.NodeClaim) {
	s.t.Helper()
	for _, kind := range append(environment.ChildKinds(s.t.Context()), machineKind) {
		s.Expect(s.Objects(s.t.Context(), kind)).To(ConsistOf(s.MachineName(nodeClaim.Name)), kind.Kind)
	}
}

func TestCreateAfterCrash(t *testing.T) {
	for what, change := range map[string]func(*machine.Plan){
		"another version": func(p *machine.Plan) { p.Version = "1.36.3" },
		"another image":   func(p *machine.Plan) { p.Annotations[v1alpha1.NodeImagesHashAnnotation] = "new" },
	} {
		t.Run("When an earlier attempt got to the bootstrap config and the payload brings "+what+" since then, it should not join by the old config", func(t *testing.T) {
			s := newFixture(t)
			nodeClaim := s.NodeClaim(t.Context(), "payload")
			plan := func() machine.Plan {
				p := s.Plan(nodeClaim)
				p.Annotations[v1alpha1.NodeImagesHashAnnotation] = "old"
				p.BootstrapPatches = []v1alpha1.BootstrapPatches{{
					APIGroup: environment.KubeadmConfig.Group, Kind: environment.KubeadmConfig.Kind,
					Patches: []v1alpha1.JSONPatch{{
						Op: v1alpha1.JSONPatchAdd, Path: "/spec/preKubeadmCommands/-", ValueFrom: &v1alpha1.JSONPatchValue{Template: "install {{ .version }}"},
					}},
				}}
				return p
			}
			_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: 3}).Create(t.Context(), plan())
			s.Expect(err).To(MatchError(environment.ErrFault))
			before := s.child(environment.KubeadmConfig, nodeClaim)

			changed := plan()
			change(&changed)
			s.Eventually(func() error {
				_, err := s.Machines(nil).Create(t.Context(), changed)
				return err
			}).Should(Succeed())
			s.expectOne(nodeClaim)
			after := s.child(environment.KubeadmConfig, nodeClaim)
			s.Expect(after.GetUID()).NotTo(Equal(before.GetUID()))
			commands, _, _ := unstructured.NestedStringSlice(after.Object, "spec", "preKubeadmCommands")
			s.Expect(commands).To(Equal([]string{"echo hello", "install " + changed.Version}))
		})
	}

	t.Run("When the Machine was made as something else before, it should return that one", func(t *testing.T) {
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "decided")
		machines := s.Machines(nil)
		first, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		s.Expect(err).NotTo(HaveOccurred())
		plan := s.Plan(nodeClaim)
		plan.NodeLabels["node.kubernetes.io/instance-type"] = "c8-xlarge"
		second, err := machines.Create(t.Context(), plan)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(second.UID).To(Equal(first.UID))
		s.Expect(second.Labels).To(HaveKeyWithValue("node.kubernetes.io/instance-type", "c4-large"))
	})
}

func TestCreateTaken(t *testing.T) {
	for name, other := range map[string]func(s *fixture, nodeClaim *karpv1.NodeClaim) client.Object{
		"When a person's infrastructure machine has the name, it should leave it alone": func(s *fixture, nodeClaim *karpv1.NodeClaim) client.Object {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(environment.TestMachine)
			return o
		},
		"When another cluster's bootstrap config has the name, it should leave it alone": func(s *fixture, nodeClaim *karpv1.NodeClaim) client.Object {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(environment.KubeadmConfig)
			o.SetLabels(map[string]string{clusterv1.ClusterNameLabel: "green", v1alpha1.NodeClaimUIDLabel: string(nodeClaim.UID)})
			return o
		},
		"When an earlier NodeClaim's Machine has the name, it should leave it alone": func(s *fixture, nodeClaim *karpv1.NodeClaim) client.Object {
			objects, err := machine.Build(s.Plan(nodeClaim))
			s.Expect(err).NotTo(HaveOccurred())
			objects.Machine.Labels[v1alpha1.NodeClaimUIDLabel] = "earlier"
			return objects.Machine
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			nodeClaim := s.NodeClaim(t.Context(), "taken")
			other := other(s, nodeClaim)
			other.SetNamespace(s.Namespace)
			other.SetName(s.MachineName(nodeClaim.Name))
			s.Expect(s.Admin.Create(t.Context(), other)).To(Succeed())

			_, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
			s.Expect(err).To(MatchError(machine.ErrTaken))
			after := other.DeepCopyObject().(client.Object)
			s.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(other), after)).To(Succeed())
			s.Expect(after.GetResourceVersion()).To(Equal(other.GetResourceVersion()), "it was written to")
		})
	}
}

func TestCreateConcurrently(t *testing.T) {
	t.Run("When a thousand NodeClaims come at once, it should make a thousand Machines, one each", func(t *testing.T) {
		s := newFixture(t)
		machines := s.Machines(nil)
		// The connection is there, as it is in a provider that runs.
		s.create("first")
		const count = 1000
		var group errgroup.Group
		for i := range count {
			nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}}
			attempts := 1
			if i%20 == 0 {
				attempts = 2 // as if two replicas believed to lead
			}
			for range attempts {
				group.Go(func() error {
					var created *clusterv1.Machine
					var err error
					// A busy API server times out. Karpenter tries again, and so does this.
					for range 10 {
						if created, err = machines.Create(t.Context(), s.Plan(nodeClaim)); err == nil {
							break
						}
					}
					if err == nil && created.Labels[v1alpha1.NodeClaimUIDLabel] != string(nodeClaim.UID) {
						return fmt.Errorf("NodeClaim %s got Machine %s of another", nodeClaim.Name, created.Name)
					}
					return err
				})
			}
		}
		s.Expect(group.Wait()).To(Succeed())
		for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
			s.Expect(s.Objects(t.Context(), kind)).To(HaveLen(count+1), kind.Kind)
		}
	})
}

func TestDelete(t *testing.T) {
	t.Run("When there is a Machine, it should set that Cluster API doesn't drain, delete it once, leave hooks to their owners, and say so until it is gone", func(t *testing.T) {
		const (
			preDrain     = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/migrate"
			preTerminate = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/backup"
		)
		s := newFixture(t)
		machines := s.Machines(nil)
		nodeClaim, created := s.create("gone", func(p *machine.Plan) {
			p.Annotations[preDrain], p.Annotations[preTerminate] = "live-migrator", "velero"
		})
		s.Expect(created.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), "a Machine that a person deletes has to be drained")
		s.hold(created)

		s.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		s.Eventually(func(g Gomega) {
			cached := &clusterv1.Machine{}
			g.Expect(s.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(created), cached)).To(Succeed())
			g.Expect(cached.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		counted := &environment.Faults{Client: s.Management.GetClient()}
		for range 3 {
			s.Expect(s.Machines(counted).Delete(t.Context(), nodeClaim)).To(Succeed(), "still there")
		}
		s.Expect(counted.Writes()).To(BeZero())
		deleting := s.read(created)
		s.Expect(deleting.Annotations).To(And(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation),
			HaveKeyWithValue(preDrain, "live-migrator"), HaveKeyWithValue(preTerminate, "velero")))
		s.expectOne(nodeClaim)

		// Cluster API deletes the infrastructure and bootstrap objects, then removes its finalizer.
		s.deleteChildren(nodeClaim)
		released := deleting.DeepCopy()
		released.Finalizers = nil
		s.Expect(s.Admin.Patch(t.Context(), released, client.MergeFrom(deleting))).To(Succeed())
		s.Eventually(func() error { return machines.Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
	})

	t.Run("When a Machine of the same name belongs to another owner, it should leave it alone", func(t *testing.T) {
		s := newFixture(t)
		machines := s.Machines(nil)
		theirs, _ := s.create("theirs")
		ours := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: theirs.Name, UID: "another"}}
		s.Expect(machines.Delete(t.Context(), ours)).To(MatchError(machine.ErrNotFound))
		s.expectOne(theirs)
	})
}

func TestFind(t *testing.T) {
	s := newFixture(t)
	machines := s.Machines(nil)
	nodeClaim, created := s.create("find")
	synthetic := machine.SyntheticProviderID(client.ObjectKeyFromObject(created))

	t.Run("When a machine has no provider ID yet, it should be found by the synthetic one and by its NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { _, err := machines.ForProviderID(t.Context(), synthetic); return err }).Should(Succeed())
		found, err := machines.ForNodeClaim(t.Context(), nodeClaim.UID)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.UID).To(Equal(created.UID))
		g.Expect(machines.ProviderID(t.Context(), found)).To(Equal(synthetic))
	})
	t.Run("When a machine has its real provider ID, it should be found by both", func(t *testing.T) {
		g := NewWithT(t)
		patched := created.DeepCopy()
		patched.Spec.ProviderID = "cloud://real"
		g.Expect(s.Admin.Patch(t.Context(), patched, client.MergeFrom(created))).To(Succeed())
		g.Eventually(func() error { _, err := machines.ForProviderID(t.Context(), "cloud://real"); return err }).Should(Succeed())
		found, err := machines.ForProviderID(t.Context(), synthetic)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(machines.ProviderID(t.Context(), found)).To(Equal("cloud://real"))
	})
	t.Run("When Machines of another cluster and of a person are in the namespace, it should list only its own", func(t *testing.T) {
		g := NewWithT(t)
		for name, change := range map[string]func(m *clusterv1.Machine){
			"green":  func(m *clusterv1.Machine) { m.Labels[clusterv1.ClusterNameLabel] = "green" },
			"person": func(m *clusterv1.Machine) { delete(m.Labels, v1alpha1.NodeClaimUIDLabel) },
		} {
			objects, err := machine.Build(s.Plan(s.NodeClaim(t.Context(), name)))
			g.Expect(err).NotTo(HaveOccurred())
			change(objects.Machine)
			g.Expect(s.Admin.Create(t.Context(), objects.Machine)).To(Succeed())
		}
		all := &clusterv1.MachineList{}
		g.Eventually(func() (int, error) {
			err := s.Management.GetClient().List(t.Context(), all)
			return len(all.Items), err
		}).Should(Equal(3))
		listed, err := machines.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(listed).To(HaveLen(1))
		g.Expect(listed[0].Name).To(Equal(created.Name))
	})
	t.Run("When nothing has a provider ID, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		for _, id := range []string{"", "cloud://unknown", "capi://other/machine"} {
			_, err := machines.ForProviderID(t.Context(), id)
			g.Expect(err).To(MatchError(machine.ErrNotFound), id)
		}
	})
}
