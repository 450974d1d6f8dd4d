// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// failing is a provider all of whose API calls are counted, and one of which fails.
func failing(s *fixture, calls *environment.Calls) *machine.Provider {
	config := s.Machines(calls.Client(s.Management.GetClient())).Config
	config.Live, config.Tokens.Guest = calls.Client(s.Admin), calls.Client(s.Admin)
	return machine.New(config)
}

// half makes as many of a NodeClaim's objects as an attempt made before it crashed.
func (s *fixture) half(nodeClaim *karpv1.NodeClaim, objects int64) {
	s.t.Helper()
	_, err := s.Machines(&environment.Faults{Client: s.Management.GetClient(), FailAt: objects + 1}).Create(s.t.Context(), s.Plan(nodeClaim))
	if objects < 3 {
		s.Expect(err).To(MatchError(environment.ErrFault))
	} else {
		s.Expect(err).NotTo(HaveOccurred())
	}
}

// owned are the names of a kind's objects that belong to a NodeClaim.
func (s *fixture) owned(nodeClaim *karpv1.NodeClaim) map[string]int {
	s.t.Helper()
	found := map[string]int{}
	for _, kind := range append(environment.ChildKinds(s.t.Context()), machineKind) {
		for _, name := range s.Objects(s.t.Context(), kind) {
			if name == s.MachineName(nodeClaim.Name) {
				found[kind.Kind]++
			}
		}
	}
	return found
}

func TestReplay(t *testing.T) {
	one := map[string]int{environment.TestMachine.Kind: 1, environment.KubeadmConfig.Kind: 1, machineKind.Kind: 1}
	testReplay(t, newFixture(t), one)
}

func TestReplayRendered(t *testing.T) {
	s := newFixture(t)
	render(s)
	testReplay(t, s, map[string]int{environment.TestMachine.Kind: 1, machineKind.Kind: 1})
}

// testReplay shows that a Create or Delete that fails anywhere can be called again. one is what a NodeClaim has in the end.
func testReplay(t *testing.T, s *fixture, one map[string]int) {
	for objects := range int64(4) {
		for _, lost := range []bool{false, true} {
			what := map[bool]string{false: "fails", true: "takes place and its answer is lost"}[lost]
			t.Run(fmt.Sprintf("When an earlier attempt made %d objects and any call of the next one %s, the one after it should end with one Machine", objects, what), func(t *testing.T) {
				g := NewWithT(t)
				for failAt := int64(1); ; failAt++ {
					nodeClaim := s.NodeClaim(t.Context(), fmt.Sprintf("replay-%d-%t-%d", objects, lost, failAt))
					s.half(nodeClaim, objects)
					calls := &environment.Calls{FailAt: failAt, Lost: lost}
					_, err := failing(s, calls).Create(t.Context(), s.Plan(nodeClaim))
					if calls.Count() < failAt {
						g.Expect(err).NotTo(HaveOccurred())
						g.Expect(failAt).To(BeNumerically(">", 1))
						return // every call has failed once
					}
					if err == nil {
						g.Expect(one).NotTo(HaveKey(environment.KubeadmConfig.Kind), "call %d isn't the one that makes the Machine an owner", failAt)
						g.Expect(calls.Count()).To(Equal(failAt), "a call before the one that makes the Machine an owner failed")
					} else {
						g.Expect(err).To(MatchError(environment.ErrFault), "call %d", failAt)
					}
					_, err = s.Machines(nil).Create(t.Context(), s.Plan(nodeClaim))
					g.Expect(err).NotTo(HaveOccurred(), "after call %d", failAt)
					g.Expect(s.owned(nodeClaim)).To(Equal(one), "after call %d", failAt)
				}
			})
		}
		t.Run(fmt.Sprintf("When Create made %d objects and any call of Delete fails, asking again should leave nothing", objects), func(t *testing.T) {
			for failAt := int64(1); ; failAt++ {
				g := NewWithT(t)
				nodeClaim := s.NodeClaim(t.Context(), fmt.Sprintf("delete-%d-%d", objects, failAt))
				s.half(nodeClaim, objects)
				calls := &environment.Calls{FailAt: failAt}
				err := failing(s, calls).Delete(t.Context(), nodeClaim)
				g.Eventually(func() error {
					err := s.Machines(nil).Delete(t.Context(), nodeClaim)
					if objects == 3 {
						s.deleteChildren(nodeClaim)
					}
					return err
				}).Should(MatchError(machine.ErrNotFound))
				g.Expect(s.owned(nodeClaim)).To(BeEmpty())
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
		s := newFixture(t)
		nodeClaim := s.NodeClaim(t.Context(), "two")
		stale, plan := s.Plan(nodeClaim), s.Plan(nodeClaim)
		plan.NodeLabels[corev1.LabelInstanceTypeStable] = "c2-small"
		s.half(nodeClaim, 2) // of the stale plan, by the old leader
		machines := s.Machines(nil)
		for range 2 { // its infrastructure machine, and its bootstrap config
			_, err := machines.Create(t.Context(), plan)
			s.Expect(err).To(MatchError(machine.ErrLeftover))
		}
		objects, err := machine.Build(stale)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(s.Admin.Create(t.Context(), objects.Machine)).To(Succeed())

		_, err = machines.Create(t.Context(), plan)
		s.Expect(err).To(MatchError(machine.ErrLeftover), "the old leader's Machine has the new one's infrastructure")
		var created *clusterv1.Machine
		s.Eventually(func() error {
			created, err = machines.Create(t.Context(), plan)
			return err
		}).Should(Succeed())
		s.expectOne(nodeClaim)
		for _, object := range []client.Object{created, s.child(environment.TestMachine, nodeClaim), s.child(environment.KubeadmConfig, nodeClaim)} {
			s.Expect(object.GetLabels()).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		}
	})
}

func TestPaused(t *testing.T) {
	for how, set := range map[string]func(cluster *clusterv1.Cluster, paused bool){
		"by spec.paused": func(cluster *clusterv1.Cluster, paused bool) { cluster.Spec.Paused = &paused },
		"by an annotation, whose value doesn't matter": func(cluster *clusterv1.Cluster, paused bool) {
			cluster.Annotations = map[string]string{}
			if paused {
				cluster.Annotations[clusterv1.PausedAnnotation] = ""
			}
		},
	} {
		t.Run(how, func(t *testing.T) { testPaused(t, set) })
	}
}

func testPaused(t *testing.T, set func(cluster *clusterv1.Cluster, paused bool)) {
	s := newFixture(t)
	machines := s.Machines(nil)
	nodeClaim, created := s.create("before")
	late := s.NodeClaim(t.Context(), "late")
	s.half(late, 2)
	pause := func(paused bool) {
		stored := s.Cluster.DeepCopy()
		set(s.Cluster, paused)
		s.Expect(s.Admin.Patch(t.Context(), s.Cluster, client.MergeFrom(stored))).To(Succeed())
		s.Eventually(func() (bool, error) { return machines.Paused(t.Context()) }).Should(Equal(paused))
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
		g.Expect(s.read(created).ResourceVersion).To(Equal(created.ResourceVersion), "it was written to")
		g.Expect(s.Objects(t.Context(), environment.TestMachine)).To(Equal(before))
	})
	pause(false)
	t.Run("When the Cluster resumes, it should delete", func(t *testing.T) {
		g := NewWithT(t)
		for _, n := range []*karpv1.NodeClaim{nodeClaim, late} {
			g.Expect(machines.Delete(t.Context(), n)).To(Succeed())
		}
		g.Expect(s.Objects(t.Context(), machineKind)).To(BeEmpty())
		g.Expect(s.Objects(t.Context(), environment.KubeadmConfig)).To(ConsistOf(s.MachineName(nodeClaim.Name)), "that of the other never had a Machine")
	})
}
