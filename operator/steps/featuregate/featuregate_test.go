// SPDX-License-Identifier: Apache-2.0

package featuregate

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

func TestAllowed(t *testing.T) {
	platform := map[string]bool{"SpotToSpotConsolidation": false, "NodeRepair": false}
	allowed := []string{"SpotToSpotConsolidation", "StaticCapacity"}
	const field, only = "spec.autoNode.provisionerConfig.karpenter.featureGates: ", " without effect; the platform allows HostedClusters SpotToSpotConsolidation, StaticCapacity"
	for _, test := range []struct {
		name    string
		allowed []string
		gates   map[string]bool
		want    map[string]bool
		message string // empty for no condition
	}{
		{
			name: "When a HostedCluster sets no gate, it should set the platform's", allowed: allowed,
			want: platform,
		}, {
			name: "When a HostedCluster sets gates that the platform allows, they should replace the platform's", allowed: allowed,
			gates: map[string]bool{"SpotToSpotConsolidation": true, "StaticCapacity": false},
			want:  map[string]bool{"SpotToSpotConsolidation": true, "NodeRepair": false, "StaticCapacity": false},
		}, {
			name: "When it sets one that the platform doesn't allow, that one should have no effect and the others go on", allowed: allowed,
			gates: map[string]bool{"NodeRepair": true, "SpotToSpotConsolidation": true}, want: map[string]bool{"SpotToSpotConsolidation": true, "NodeRepair": false},
			message: field + "NodeRepair" + only,
		}, {
			name: "When it sets one that doesn't exist, it should say the same", allowed: allowed,
			gates: map[string]bool{"Quantum": true}, want: platform, message: field + "Quantum" + only,
		}, {
			name:  "When the platform allows none, it should say so",
			gates: map[string]bool{"StaticCapacity": true, "NodeOverlay": false}, want: platform,
			message: field + "NodeOverlay, StaticCapacity without effect; the platform allows HostedClusters none",
		}, {
			name: "When a gate's name is long or written for a terminal, it should quote a part of it", allowed: allowed,
			gates: map[string]bool{"\x1b[2J" + strings.Repeat("x", 1000): true}, want: platform, message: only,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			s := &scope.Scope{Mode: scope.On, Guest: &scope.Guest{}, HostedCluster: &v1beta1.HostedCluster{
				ObjectMeta: metav1.ObjectMeta{Generation: 3},
				Spec: v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
					Karpenter: &v1beta1.Karpenter{FeatureGates: test.gates},
				}}},
			}}
			step := New(Config{Platform: platform, Allowed: test.allowed, Clock: clocktesting.NewFakePassiveClock(time.Now())})
			result, err := step.Reconcile(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result).To(Equal(scope.Result{}))
			g.Expect(s.FeatureGates.Set).To(Equal(test.want))
			condition := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.FeatureGatesAccepted)
			if test.message == "" {
				g.Expect(condition).To(BeNil())
				return
			}
			g.Expect(*condition).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.FeatureGateNotAllowedReason),
				HaveField("ObservedGeneration", BeEquivalentTo(3)), HaveField("Message", ContainSubstring(test.message))))
			g.Expect(condition.Message).NotTo(ContainSubstring("\x1b"))
			g.Expect(len(condition.Message)).To(BeNumerically("<", 600))

			s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.FeatureGates = nil
			_, err = step.Reconcile(t.Context(), s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(s.HostedCluster.Status.Conditions).To(BeEmpty())
		})
	}
}
