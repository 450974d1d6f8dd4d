// SPDX-License-Identifier: Apache-2.0

package savings_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/savings"
)

// method is one of Karpenter core's, of which only the reason matters.
type method struct {
	disruption.Method
	reason karpv1.DisruptionReason
}

func (m method) Reason() karpv1.DisruptionReason { return m.reason }

func claim(name, nodePool, price string) *karpv1.NodeClaim {
	made := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{karpv1.NodePoolLabelKey: nodePool}}}
	made.Finalizers = []string{karpv1.TerminationFinalizer}
	if price != "" {
		made.Labels[v1alpha1.NodePriceLabel] = price
	}
	made.Status.ProviderID = "capi://clusters-blue/" + name
	return made
}

// fixture has a queue as Karpenter core fills it, and the client that the queue deletes with.
type fixture struct {
	ledger *savings.Ledger
	queue  *disruption.Queue
	guest  client.Client
	refuse bool
}

func newFixture(t *testing.T, stored ...*karpv1.NodeClaim) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{})
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, nodeClaim := range stored {
		builder.WithObjects(nodeClaim.DeepCopy())
	}
	f := &fixture{ledger: savings.New(), queue: disruption.NewQueue(nil, nil, nil, clocktesting.NewFakeClock(time.Unix(0, 0)), nil)}
	f.ledger.Follow(f.queue)
	f.guest = savings.Guest(interceptor.NewClient(builder.Build(), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if f.refuse {
				return errors.New("refused")
			}
			return c.Delete(ctx, object, opts...)
		},
	}), f.ledger)
	return f
}

// start puts a command into the queue.
func (f *fixture) start(reason karpv1.DisruptionReason, candidates []*karpv1.NodeClaim, replacements ...string) *disruption.Command {
	command := &disruption.Command{Method: method{reason: reason}, Succeeded: true}
	for _, nodeClaim := range candidates {
		command.Candidates = append(command.Candidates, &disruption.Candidate{StateNode: &state.StateNode{NodeClaim: nodeClaim}})
	}
	for _, name := range replacements {
		command.Replacements = append(command.Replacements, &disruption.Replacement{Name: name})
	}
	for _, nodeClaim := range candidates {
		f.queue.ProviderIDToCommand[nodeClaim.Status.ProviderID] = command
	}
	return command
}

// expect compares the samples of both counters: "removed general underutilized 0.5".
func (f *fixture) expect(t *testing.T, samples ...string) {
	t.Helper()
	var want strings.Builder
	for _, kind := range []string{"added", "removed"} {
		header := false
		for _, sample := range samples {
			parts := strings.Fields(sample)
			if parts[0] != kind {
				continue
			}
			name := "karpenter_clusterapi_disruption_" + kind + "_dollars_per_hour_total"
			if !header {
				help := map[string]string{
					"added":   "What machines cost that replaced those that consolidation or drift removed,",
					"removed": "What machines cost that consolidation or drift removed,",
				}[kind]
				want.WriteString("# HELP " + name + " " + help + " in US dollars an hour, by the prices at which they were chosen. Labeled by nodepool and reason.\n# TYPE " + name + " counter\n")
				header = true
			}
			want.WriteString(name + `{nodepool="` + parts[1] + `",reason="` + parts[2] + `"} ` + parts[3] + "\n")
		}
	}
	if err := testutil.CollectAndCompare(f.ledger, strings.NewReader(want.String())); err != nil {
		t.Error(err)
	}
}

func TestLedger(t *testing.T) {
	t.Run("When an empty node goes, all of its price should count as removed", func(t *testing.T) {
		g := NewWithT(t)
		one := claim("one", "general", "0.25")
		f := newFixture(t, one)
		f.start(karpv1.DisruptionReasonEmpty, []*karpv1.NodeClaim{one})
		g.Expect(f.guest.Delete(t.Context(), one)).To(Succeed())
		f.expect(t, "removed general empty 0.25")
	})
	t.Run("When three nodes are replaced by one, each should count once, however often they are deleted", func(t *testing.T) {
		// 0.5 + 0.25 + 0.25 an hour before, 0.375 after: consolidation saves 0.625.
		g := NewWithT(t)
		candidates := []*karpv1.NodeClaim{claim("one", "general", "0.5"), claim("two", "general", "0.25"), claim("three", "batch", "0.25")}
		f := newFixture(t, append(candidates, claim("new", "general", "0.375"))...)
		f.start(karpv1.DisruptionReasonUnderutilized, candidates, "new")
		for range 2 {
			for _, candidate := range candidates {
				g.Expect(f.guest.Delete(t.Context(), candidate)).To(Succeed())
			}
		}
		f.expect(t, "removed batch underutilized 0.25", "removed general underutilized 0.75", "added general underutilized 0.375")
	})
	t.Run("When a drifted node's replacement costs more, that should show", func(t *testing.T) {
		g := NewWithT(t)
		old := claim("old", "general", "0.5")
		f := newFixture(t, old, claim("new", "general", "0.75"))
		f.start(karpv1.DisruptionReasonDrifted, []*karpv1.NodeClaim{old}, "new")
		g.Expect(f.guest.Delete(t.Context(), old)).To(Succeed())
		f.expect(t, "removed general drifted 0.5", "added general drifted 0.75")
	})
	t.Run("When only some of a command's nodes could be deleted, only those should count", func(t *testing.T) {
		g := NewWithT(t)
		candidates := []*karpv1.NodeClaim{claim("one", "general", "0.5"), claim("two", "general", "0.25")}
		f := newFixture(t, candidates...)
		f.start(karpv1.DisruptionReasonEmpty, candidates)
		g.Expect(f.guest.Delete(t.Context(), candidates[0])).To(Succeed())
		f.refuse = true
		g.Expect(f.guest.Delete(t.Context(), candidates[1])).NotTo(Succeed())
		f.expect(t, "removed general empty 0.5")
	})
	for name, prices := range map[string][2]string{
		"When a node that goes has no price, nothing of the command should count": {"", "0.25"},
		"When a replacement has no price, nothing of the command should count":    {"0.25", ""},
		"When a price is none, nothing of the command should count":               {"NaN", "0.25"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			candidates := []*karpv1.NodeClaim{claim("one", "general", prices[0]), claim("two", "general", "0.5")}
			f := newFixture(t, append(candidates, claim("new", "general", prices[1]))...)
			f.start(karpv1.DisruptionReasonUnderutilized, candidates, "new")
			for _, candidate := range candidates {
				g.Expect(f.guest.Delete(t.Context(), candidate)).To(Succeed())
			}
			f.expect(t)
		})
	}
	t.Run("When something else deletes a node that waits for its replacement, it should not count", func(t *testing.T) {
		g := NewWithT(t)
		old := claim("old", "general", "0.5")
		f := newFixture(t, old, claim("new", "general", "0.25"))
		f.start(karpv1.DisruptionReasonUnderutilized, []*karpv1.NodeClaim{old}, "new")
		g.Expect(f.guest.Delete(t.Context(), old.DeepCopy())).To(Succeed())
		f.expect(t)
	})
	t.Run("When a command is done and another one takes the next node, both should count", func(t *testing.T) {
		g := NewWithT(t)
		one, two := claim("one", "general", "0.5"), claim("two", "general", "0.25")
		f := newFixture(t, one, two)
		command := f.start(karpv1.DisruptionReasonEmpty, []*karpv1.NodeClaim{one})
		g.Expect(f.guest.Delete(t.Context(), one)).To(Succeed())
		f.queue.CompleteCommand(command)
		f.start(karpv1.DisruptionReasonEmpty, []*karpv1.NodeClaim{two})
		g.Expect(f.guest.Delete(t.Context(), two)).To(Succeed())
		f.expect(t, "removed general empty 0.75")
	})
	t.Run("When its names and help texts are linted, they should follow Prometheus' habits", func(t *testing.T) {
		g := NewWithT(t)
		one := claim("one", "general", "0.25")
		f := newFixture(t, one)
		f.start(karpv1.DisruptionReasonEmpty, []*karpv1.NodeClaim{one})
		g.Expect(f.guest.Delete(t.Context(), one)).To(Succeed())
		problems, err := testutil.CollectAndLint(f.ledger)
		g.Expect(problems, err).To(BeEmpty())
	})
}
