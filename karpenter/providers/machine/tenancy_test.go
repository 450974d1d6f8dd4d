// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestSeveralClustersInOneNamespace(t *testing.T) {
	s := newFixture(t)
	greenCluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "green"}, Spec: *s.Cluster.Spec.DeepCopy()}
	s.Expect(s.Admin.Create(t.Context(), greenCluster)).To(Succeed())
	blue := s.Machines(nil)
	config := blue.Config
	config.ClusterName = greenCluster.Name
	green := machine.New(config)
	plan := func(nodeClaim *karpv1.NodeClaim, cluster *clusterv1.Cluster) machine.Plan {
		p := s.Plan(nodeClaim)
		p.Cluster = cluster
		return p
	}
	blueClaim, greenClaim := s.NodeClaim(t.Context(), "blue"), s.NodeClaim(t.Context(), "green")
	blueMachine, err := blue.Create(t.Context(), plan(blueClaim, s.Cluster))
	s.Expect(err).NotTo(HaveOccurred())
	greenMachine, err := green.Create(t.Context(), plan(greenClaim, greenCluster))
	s.Expect(err).NotTo(HaveOccurred())
	names := func(p *machine.Provider) func() ([]string, error) {
		return func() ([]string, error) {
			list, err := p.List(t.Context())
			var names []string
			for i := range list {
				names = append(names, list[i].Name)
			}
			return names, err
		}
	}

	t.Run("When two Karpenters share a namespace, each should list and find only its own Machines", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(names(blue)).Should(ConsistOf(blueMachine.Name))
		g.Eventually(names(green)).Should(ConsistOf(greenMachine.Name))
		_, err := blue.ForNodeClaim(t.Context(), greenClaim.UID)
		g.Expect(err).To(MatchError(machine.ErrNotFound))
		_, err = green.ForNodeClaim(t.Context(), blueClaim.UID)
		g.Expect(err).To(MatchError(machine.ErrNotFound))
		_, err = blue.ForProviderID(t.Context(), green.ProviderID(t.Context(), greenMachine))
		g.Expect(err).To(MatchError(machine.ErrNotFound))
	})
	t.Run("When a NodeClaim of one has the name of the other's, it should have objects of its own and leave the other's alone", func(t *testing.T) {
		g := NewWithT(t)
		namesake := blueClaim.DeepCopy()
		namesake.UID = types.UID("the-green-one")
		created, err := green.Create(t.Context(), plan(namesake, greenCluster))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(names(green)).Should(ConsistOf(greenMachine.Name, created.Name))
		g.Expect(s.Objects(t.Context(), environment.TestMachine)).To(ConsistOf(
			s.MachineName(blueClaim.Name), v1alpha1.InstanceName(greenCluster.UID, greenClaim.Name), created.Name))
		g.Expect(green.Delete(t.Context(), namesake)).To(Succeed())
		g.Eventually(names(green)).Should(ConsistOf(greenMachine.Name))
		g.Expect(names(blue)()).To(ConsistOf(blueMachine.Name))
	})
	t.Run("When one deletes a NodeClaim of the other, it should find nothing to delete", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(green.Delete(t.Context(), blueClaim)).To(MatchError(machine.ErrNotFound))
		g.Expect(s.Objects(t.Context(), machineKind)).To(ConsistOf(blueMachine.Name, greenMachine.Name))
		g.Expect(blue.Delete(t.Context(), blueClaim)).To(Succeed())
		g.Eventually(names(blue)).Should(BeEmpty())
		g.Expect(names(green)()).To(ConsistOf(greenMachine.Name))
	})
}
