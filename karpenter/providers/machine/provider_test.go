// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
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

var machineKind = clusterv1.GroupVersion.WithKind("Machine")

// expectOne expects exactly one Machine with its infrastructure and bootstrap objects, all named for the NodeClaim.
func expectOne(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) {
	t.Helper()
	for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
		if diff := cmp.Diff([]string{s.Name(kind, nodeClaim.Name)}, s.Objects(t.Context(), kind)); diff != "" {
			t.Errorf("%s objects (-want +got):\n%s", kind.Kind, diff)
		}
	}
}

func TestCreateAfterCrash(t *testing.T) {
	for _, lost := range []bool{false, true} {
		what := map[bool]string{false: "fails", true: "is made and its answer is lost"}[lost]
		for failAt := int64(1); failAt <= 3; failAt++ {
			t.Run(fmt.Sprintf("When write %d %s, it should go on there when called again and make one Machine", failAt, what), func(t *testing.T) {
				s := environment.New(t)
				nodeClaim := s.NodeClaim(t.Context(), "crash")
				faults := &environment.Faults{Client: s.Management.GetClient(), FailAt: failAt, Lost: lost}
				machines := s.Machines(faults)

				_, err := machines.Create(t.Context(), s.Plan(nodeClaim))
				if !errors.Is(err, environment.ErrFault) {
					t.Fatalf("got %v, want the fault", err)
				}
				created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
				if err != nil {
					t.Fatal(err)
				}
				if created.UID == "" || created.Name != nodeClaim.Name {
					t.Errorf("got Machine %q with UID %q", created.Name, created.UID)
				}
				again, err := machines.Create(t.Context(), s.Plan(nodeClaim))
				if err != nil {
					t.Fatal(err)
				}
				if again.UID != created.UID {
					t.Errorf("a third call made another Machine")
				}
				expectOne(t, s, nodeClaim)
			})
		}
	}

	t.Run("When nothing fails, it should write three times", func(t *testing.T) {
		s := environment.New(t)
		counted := &environment.Faults{Client: s.Management.GetClient()}
		if _, err := s.Machines(counted).Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "count"))); err != nil {
			t.Fatal(err)
		}
		if got := counted.Writes(); got != 3 {
			t.Errorf("got %d writes", got)
		}
	})

	t.Run("When an earlier attempt chose another form, it should remove what is left of it and then make the new one", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "other")
		machines := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: 3})
		_, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).To(MatchError(environment.ErrFault))

		plan := s.Plan(nodeClaim)
		plan.NodeLabels["node.kubernetes.io/instance-type"] = "c8-xlarge"
		g.Eventually(func() error {
			_, err := machines.Create(t.Context(), plan)
			return err
		}).Should(Succeed())
		expectOne(t, s, nodeClaim)
		for _, kind := range environment.ChildKinds(t.Context()) {
			child := &unstructured.Unstructured{}
			child.SetGroupVersionKind(kind)
			g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.Name(kind, nodeClaim.Name)}, child)).To(Succeed())
			g.Expect(child.GetLabels()).To(HaveKeyWithValue("node.kubernetes.io/instance-type", "c8-xlarge"))
		}
	})

	for what, change := range map[string]func(*machine.Plan){
		"another version": func(p *machine.Plan) { p.Version = "1.36.3" },
		"another image":   func(p *machine.Plan) { p.Annotations[v1alpha1.NodeImagesHashAnnotation] = "new" },
	} {
		t.Run("When an earlier attempt got to the bootstrap config and the payload brings "+what+" since then, it should not join by the old config", func(t *testing.T) {
			g := NewWithT(t)
			s := environment.New(t)
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
			g.Expect(err).To(MatchError(environment.ErrFault))
			config := func() *unstructured.Unstructured {
				u := &unstructured.Unstructured{}
				u.SetGroupVersionKind(environment.KubeadmConfig)
				g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: nodeClaim.Name}, u)).To(Succeed())
				return u
			}
			before := config()

			changed := plan()
			change(&changed)
			g.Eventually(func() error {
				_, err := s.Machines(nil).Create(t.Context(), changed)
				return err
			}).Should(Succeed())
			expectOne(t, s, nodeClaim)
			after := config()
			g.Expect(after.GetUID()).NotTo(Equal(before.GetUID()))
			commands, _, _ := unstructured.NestedStringSlice(after.Object, "spec", "preKubeadmCommands")
			g.Expect(commands).To(Equal([]string{"echo hello", "install " + changed.Version}))
		})
	}

	t.Run("When the Machine was made as something else before, it should return that one", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "decided")
		machines := s.Machines(nil)
		first, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		plan := s.Plan(nodeClaim)
		plan.NodeLabels["node.kubernetes.io/instance-type"] = "c8-xlarge"
		second, err := machines.Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second.UID).To(Equal(first.UID))
		g.Expect(second.Labels).To(HaveKeyWithValue("node.kubernetes.io/instance-type", "c4-large"))
	})
}

func TestCreateTaken(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) client.Object{
		"When a person's infrastructure machine has the name, it should leave it alone": func(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) client.Object {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(environment.TestMachine)
			return o
		},
		"When another cluster's bootstrap config has the name, it should leave it alone": func(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) client.Object {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(environment.KubeadmConfig)
			o.SetLabels(map[string]string{clusterv1.ClusterNameLabel: "green", v1alpha1.NodeClaimUIDLabel: string(nodeClaim.UID)})
			return o
		},
		"When an earlier NodeClaim's Machine has the name, it should leave it alone": func(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) client.Object {
			objects, err := machine.Build(s.Plan(nodeClaim))
			if err != nil {
				t.Fatal(err)
			}
			objects.Machine.Labels[v1alpha1.NodeClaimUIDLabel] = "earlier"
			return objects.Machine
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := environment.New(t)
			nodeClaim := s.NodeClaim(t.Context(), "taken")
			other := other(t, s, nodeClaim)
			other.SetNamespace(s.Namespace)
			other.SetName(s.Name(other.GetObjectKind().GroupVersionKind(), nodeClaim.Name))
			g.Expect(s.Admin.Create(t.Context(), other)).To(Succeed())

			_, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
			g.Expect(err).To(MatchError(machine.ErrTaken))
			after := other.DeepCopyObject().(client.Object)
			g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(other), after)).To(Succeed())
			g.Expect(after.GetResourceVersion()).To(Equal(other.GetResourceVersion()), "it was written to")
		})
	}
}

func TestCreateConcurrently(t *testing.T) {
	t.Run("When a thousand NodeClaims come at once, it should make a thousand Machines, one each", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		// The connection is there, as it is in a provider that runs.
		_, err := machines.Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "first")))
		g.Expect(err).NotTo(HaveOccurred())
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
		g.Expect(group.Wait()).To(Succeed())
		for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
			g.Expect(s.Objects(t.Context(), kind)).To(HaveLen(count+1), kind.Kind)
		}
	})
}

func TestDelete(t *testing.T) {
	t.Run("When there is a Machine, it should set that Cluster API doesn't drain, delete it, and say so until it is gone", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		nodeClaim := s.NodeClaim(t.Context(), "gone")
		created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), "a Machine that a person deletes has to be drained")
		// Cluster API holds the Machine while its infrastructure goes.
		held := created.DeepCopy()
		held.Finalizers = []string{environment.HoldFinalizer}
		g.Expect(s.Admin.Patch(t.Context(), held, client.MergeFrom(created))).To(Succeed())

		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		deleting := &clusterv1.Machine{}
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(created), deleting)).To(Succeed())
		g.Expect(deleting.DeletionTimestamp).NotTo(BeNil())
		g.Expect(deleting.Annotations).To(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
		g.Expect(deleting.Annotations).To(HaveKey(clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation))
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed(), "still there")

		// Cluster API deletes the infrastructure and bootstrap objects, then removes its finalizer.
		for _, kind := range environment.ChildKinds(t.Context()) {
			child := &unstructured.Unstructured{}
			child.SetGroupVersionKind(kind)
			child.SetNamespace(s.Namespace)
			child.SetName(s.Name(kind, nodeClaim.Name))
			g.Expect(s.Admin.Delete(t.Context(), child)).To(Succeed())
		}
		released := deleting.DeepCopy()
		released.Finalizers = nil
		g.Expect(s.Admin.Patch(t.Context(), released, client.MergeFrom(deleting))).To(Succeed())
		g.Eventually(func() error { return machines.Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
	})

	t.Run("When nothing was ever written, it should say that nothing is there", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		g.Expect(s.Machines(nil).Delete(t.Context(), s.NodeClaim(t.Context(), "never"))).To(MatchError(machine.ErrNotFound))
	})

	for failAt := int64(2); failAt <= 3; failAt++ {
		t.Run(fmt.Sprintf("When Create got no further than write %d, it should delete the existing objects", failAt-1), func(t *testing.T) {
			g := NewWithT(t)
			s := environment.New(t)
			nodeClaim := s.NodeClaim(t.Context(), "half")
			_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: failAt}).Create(t.Context(), s.Plan(nodeClaim))
			g.Expect(err).To(MatchError(environment.ErrFault))

			machines := s.Machines(nil)
			g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
			g.Eventually(func() error { return machines.Delete(t.Context(), nodeClaim) }).Should(MatchError(machine.ErrNotFound))
			for _, kind := range environment.ChildKinds(t.Context()) {
				g.Expect(s.Objects(t.Context(), kind)).To(BeEmpty(), kind.Kind)
			}
		})
	}

	t.Run("When a Machine of the same name belongs to another owner, it should leave it alone", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		machines := s.Machines(nil)
		theirs := s.NodeClaim(t.Context(), "theirs")
		_, err := machines.Create(t.Context(), s.Plan(theirs))
		g.Expect(err).NotTo(HaveOccurred())
		ours := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: theirs.Name, UID: "another"}}
		g.Expect(machines.Delete(t.Context(), ours)).To(MatchError(machine.ErrNotFound))
		expectOne(t, s, theirs)
	})
}

func TestFind(t *testing.T) {
	g := NewWithT(t)
	s := environment.New(t)
	machines := s.Machines(nil)
	nodeClaim := s.NodeClaim(t.Context(), "find")
	created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
	g.Expect(err).NotTo(HaveOccurred())
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
