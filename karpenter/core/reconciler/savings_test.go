// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// method is one of Karpenter core's, of which only the reason matters.
type method struct {
	disruption.Method
	reason karpv1.DisruptionReason
}

func (m method) Reason() karpv1.DisruptionReason { return m.reason }

func (m method) ConsolidationType() string {
	if m.reason == karpv1.DisruptionReasonDrifted {
		return ""
	}
	return "multi"
}

func TestSavings(t *testing.T) {
	for name, tc := range map[string]struct {
		reason karpv1.DisruptionReason
		err    error
		want   map[string]float64
	}{
		"When consolidation has deleted the nodes of two NodePools, it should count what each of them saves": {
			reason: karpv1.DisruptionReasonUnderutilized, want: map[string]float64{"general": 0.75, "batch": 0.25},
		},
		"When the command has failed, it should count nothing":                    {reason: karpv1.DisruptionReasonUnderutilized, err: errors.New("no capacity")},
		"When nodes have drifted, whose replacements may cost more, it shouldn't": {reason: karpv1.DisruptionReasonDrifted},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			queue := disruption.NewQueue(nil, nil, nil, clocktesting.NewFakeClock(time.Unix(0, 0)), nil)
			command := &disruption.Command{Method: method{reason: tc.reason}}
			for nodePool, price := range map[string]float64{"general": 0.75, "batch": 0.25} {
				nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: nodePool + "-1", Labels: map[string]string{karpv1.NodePoolLabelKey: nodePool}}}
				nodeClaim.Status.ProviderID = "example://" + nodePool
				command.Candidates = append(command.Candidates, &disruption.Candidate{StateNode: &state.StateNode{NodeClaim: nodeClaim}, Price: price})
				queue.ProviderIDToCommand[nodeClaim.Status.ProviderID] = command
			}
			before := savings(g)
			pass := Savings(queue)(Registered{Inner: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				if command.Succeeded = tc.err == nil; command.Succeeded {
					queue.CompleteCommand(command)
				}
				return reconcile.Result{}, tc.err
			})})
			for range 2 {
				_, err := pass.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(command.Candidates[0].NodeClaim)})
				g.Expect(errors.Is(err, tc.err)).To(BeTrue())
			}
			for nodePool, value := range savings(g) {
				g.Expect(value-before[nodePool]).To(BeNumerically("~", tc.want[nodePool]), nodePool)
			}
			g.Expect(len(savings(g))).To(BeNumerically(">=", len(tc.want)))
		})
	}
}

// savings are those counted so far, by NodePool.
func savings(g Gomega) map[string]float64 {
	values := map[string]float64{}
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if !strings.Contains(family.GetName(), "_saved_") {
			continue
		}
		for _, one := range family.GetMetric() {
			for _, pair := range one.GetLabel() {
				if pair.GetName() == "nodepool" {
					values[pair.GetValue()] += one.GetCounter().GetValue()
				}
			}
		}
	}
	return values
}
