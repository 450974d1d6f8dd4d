// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// failing is a provider all of whose API calls are counted, and one of which fails.
func failing(s *environment.Environment, calls *environment.Calls) *machine.Provider {
	return machine.New(machine.Config{
		Management:  calls.Client(s.Management.GetClient()),
		Live:        calls.Client(s.Admin),
		Namespace:   s.Namespace,
		ClusterName: s.Cluster.Name,
		Tokens:      bootstraptoken.Minter{Guest: calls.Client(s.Admin), Clock: clock.RealClock{}},
		Profiles:    profile.Embedded(),
		ChildKinds:  environment.ChildKinds,

		CACertHashes: s.CACertHashes,
	})
}

// half makes as many of a NodeClaim's objects as an attempt made before it crashed.
func half(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim, objects int64) {
	t.Helper()
	_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: objects + 1}).Create(t.Context(), s.Plan(nodeClaim))
	if objects < 3 && !errors.Is(err, environment.ErrFault) || objects == 3 && err != nil {
		t.Fatal(err)
	}
}

// owned are the names of a kind's objects that belong to a NodeClaim.
func owned(t *testing.T, s *environment.Environment, nodeClaim *karpv1.NodeClaim) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
		for _, name := range s.Objects(t.Context(), kind) {
			if name == s.Name(kind, nodeClaim.Name) {
				found[kind.Kind]++
			}
		}
	}
	return found
}

func TestReplay(t *testing.T) {
	one := map[string]int{environment.TestMachine.Kind: 1, environment.KubeadmConfig.Kind: 1, machineKind.Kind: 1}
	testReplay(t, environment.New(t), one)
}

func TestReplayRendered(t *testing.T) {
	s := environment.New(t)
	render(s)
	testReplay(t, s, map[string]int{environment.TestMachine.Kind: 1, machineKind.Kind: 1})
}

// testReplay shows that a Create or Delete that fails anywhere can be called again. one is what a NodeClaim has in the end.
func testReplay(t *testing.T, s *environment.Environment, one map[string]int) {
	for objects := range int64(4) {
		for _, lost := range []bool{false, true} {
			what := map[bool]string{false: "fails", true: "takes place and its answer is lost"}[lost]
			t.Run(fmt.Sprintf("When an earlier attempt made %d objects and any call of the next one %s, the one after it should end with one Machine", objects, what), func(t *testing.T) {
				for failAt := int64(1); ; failAt++ {
					nodeClaim := s.NodeClaim(t.Context(), fmt.Sprintf("replay-%d-%t-%d", objects, lost, failAt))
					half(t, s, nodeClaim, objects)
					calls := &environment.Calls{FailAt: failAt, Lost: lost}
					_, err := failing(s, calls).Create(t.Context(), s.Plan(nodeClaim))
					if calls.Count() < failAt {
						if err != nil || failAt == 1 {
							t.Errorf("%d calls, and %v", calls.Count(), err)
						}
						return // every call has failed once
					}
					if !errors.Is(err, environment.ErrFault) {
						t.Errorf("call %d: got %v, want the fault", failAt, err)
					}
					if _, err := s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim)); err != nil {
						t.Errorf("after call %d: %v", failAt, err)
					}
					if diff := cmp.Diff(one, owned(t, s, nodeClaim)); diff != "" {
						t.Errorf("after call %d (-want +got):\n%s", failAt, diff)
					}
				}
			})
		}
		t.Run(fmt.Sprintf("When Create made %d objects and any call of Delete fails, asking again should leave nothing", objects), func(t *testing.T) {
			for failAt := int64(1); ; failAt++ {
				g := NewWithT(t)
				nodeClaim := s.NodeClaim(t.Context(), fmt.Sprintf("delete-%d-%d", objects, failAt))
				half(t, s, nodeClaim, objects)
				calls := &environment.Calls{FailAt: failAt}
				err := failing(s, calls).Delete(t.Context(), nodeClaim)
				g.Eventually(func() error {
					err := s.Machines(nil).Delete(t.Context(), nodeClaim)
					if objects == 3 {
						// Cluster API deletes the infrastructure and bootstrap objects with their Machine.
						for _, kind := range environment.ChildKinds(t.Context()) {
							child := &unstructured.Unstructured{}
							child.SetGroupVersionKind(kind)
							child.SetNamespace(s.Namespace)
							child.SetName(s.Name(kind, nodeClaim.Name))
							g.Expect(client.IgnoreNotFound(s.Admin.Delete(t.Context(), child))).To(Succeed())
						}
					}
					return err
				}).Should(MatchError(machine.ErrNotFound))
				g.Expect(owned(t, s, nodeClaim)).To(BeEmpty())
				if calls.Count() < failAt {
					return
				}
				g.Expect(err).To(MatchError(environment.ErrFault), "call %d", failAt)
			}
		})
	}
}

// TestTwoLeaders: a replica that has lost its Lease may end a Create that another one has begun again.
func TestTwoLeaders(t *testing.T) {
	t.Run("When a Create spans a change of leader and the new one chooses another offering, it should end with a machine of one offering", func(t *testing.T) {
		g := NewWithT(t)
		s := environment.New(t)
		nodeClaim := s.NodeClaim(t.Context(), "two")
		stale, plan := s.Plan(nodeClaim), s.Plan(nodeClaim)
		plan.NodeLabels[corev1.LabelInstanceTypeStable] = "c2-small"
		half(t, s, nodeClaim, 2) // of the stale plan, by the old leader
		machines := s.Machines(nil)
		for range 2 { // its infrastructure machine, and its bootstrap config
			_, err := machines.Create(t.Context(), plan)
			g.Expect(err).To(MatchError(machine.ErrLeftover))
		}
		objects, err := machine.Build(stale)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Admin.Create(t.Context(), objects.Machine)).To(Succeed())

		_, err = machines.Create(t.Context(), plan)
		g.Expect(err).To(MatchError(machine.ErrLeftover), "the old leader's Machine has the new one's infrastructure")
		var created *clusterv1.Machine
		g.Eventually(func() error {
			created, err = machines.Create(t.Context(), plan)
			return err
		}).Should(Succeed())
		infrastructure := &unstructured.Unstructured{}
		infrastructure.SetGroupVersionKind(environment.TestMachine)
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: created.Spec.InfrastructureRef.Name}, infrastructure)).To(Succeed())
		for _, object := range []client.Object{created, infrastructure} {
			g.Expect(object.GetLabels()).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		}
	})
}

func TestPaused(t *testing.T) {
	for how, set := range map[string]func(cluster *clusterv1.Cluster, paused bool){
		"by spec.paused":   func(cluster *clusterv1.Cluster, paused bool) { cluster.Spec.Paused = &paused },
		"by an annotation": annotate,
	} {
		t.Run(how, func(t *testing.T) { testPaused(t, set) })
	}
}

// annotate pauses a Cluster by Cluster API's annotation, whose value doesn't matter.
func annotate(cluster *clusterv1.Cluster, paused bool) {
	cluster.Annotations = map[string]string{}
	if paused {
		cluster.Annotations[clusterv1.PausedAnnotation] = ""
	}
}

func testPaused(t *testing.T, set func(cluster *clusterv1.Cluster, paused bool)) {
	g := NewWithT(t)
	s := environment.New(t)
	machines := s.Machines(nil)
	nodeClaim, late := s.NodeClaim(t.Context(), "before"), s.NodeClaim(t.Context(), "late")
	created, err := machines.Create(t.Context(), s.Plan(nodeClaim))
	g.Expect(err).NotTo(HaveOccurred())
	half(t, s, late, 2)
	pause := func(paused bool) {
		stored := s.Cluster.DeepCopy()
		set(s.Cluster, paused)
		g.Expect(s.Admin.Patch(t.Context(), s.Cluster, client.MergeFrom(stored))).To(Succeed())
		g.Eventually(func() (bool, error) { return machines.Paused(t.Context()) }).Should(Equal(paused))
	}
	before := s.Objects(t.Context(), environment.TestMachine)
	pause(true)

	t.Run("When the Cluster is paused, it should make nothing and say why", func(t *testing.T) {
		_, err := machines.Create(t.Context(), s.Plan(s.NodeClaim(t.Context(), "paused")))
		NewWithT(t).Expect(err).To(MatchError(machine.ErrPaused))
	})
	t.Run("When the Cluster is paused, it should delete nothing and say that it is still there", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(machines.Delete(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(machines.Delete(t.Context(), late)).To(Succeed())
		after := &clusterv1.Machine{}
		g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(created), after)).To(Succeed())
		g.Expect(after.ResourceVersion).To(Equal(created.ResourceVersion), "it was written to")
		g.Expect(s.Objects(t.Context(), environment.TestMachine)).To(Equal(before))
	})
	pause(false)
	t.Run("When the Cluster resumes, it should delete", func(t *testing.T) {
		g := NewWithT(t)
		for _, n := range []*karpv1.NodeClaim{nodeClaim, late} {
			g.Expect(machines.Delete(t.Context(), n)).To(Succeed())
		}
		g.Expect(s.Objects(t.Context(), machineKind)).To(BeEmpty())
		g.Expect(s.Objects(t.Context(), environment.KubeadmConfig)).To(ConsistOf(nodeClaim.Name), "that of the other never had a Machine")
	})
}
