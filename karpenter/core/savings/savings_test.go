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
	"k8s.io/utils/ptr"
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
	general := func(name, price string) *karpv1.NodeClaim { return claim(name, "general", price) }
	for name, tc := range map[string]struct {
		reason     karpv1.DisruptionReason
		candidates []*karpv1.NodeClaim
		// replacement is the price of the new node; nil for none.
		replacement *string
		want        []string
	}{
		"When an empty node goes, all of its price should count as removed": {
			karpv1.DisruptionReasonEmpty, []*karpv1.NodeClaim{general("one", "0.25")}, nil, []string{"removed general empty 0.25"},
		},
		// 0.5 + 0.25 + 0.25 an hour before, 0.375 after: consolidation saves 0.625.
		"When three nodes are replaced by one, each should count once, however often they are deleted": {
			karpv1.DisruptionReasonUnderutilized, []*karpv1.NodeClaim{general("one", "0.5"), general("two", "0.25"), claim("three", "batch", "0.25")}, ptr.To("0.375"),
			[]string{"removed batch underutilized 0.25", "removed general underutilized 0.75", "added general underutilized 0.375"},
		},
		"When a drifted node's replacement costs more, that should show": {
			karpv1.DisruptionReasonDrifted, []*karpv1.NodeClaim{general("old", "0.5")}, ptr.To("0.75"), []string{"removed general drifted 0.5", "added general drifted 0.75"},
		},
		"When a node that goes has no price, nothing of the command should count": {
			karpv1.DisruptionReasonUnderutilized, []*karpv1.NodeClaim{general("one", ""), general("two", "0.5")}, ptr.To("0.25"), nil,
		},
		"When a replacement has no price, nothing of the command should count": {
			karpv1.DisruptionReasonUnderutilized, []*karpv1.NodeClaim{general("one", "0.25"), general("two", "0.5")}, ptr.To(""), nil,
		},
		"When a price is none, nothing of the command should count": {
			karpv1.DisruptionReasonUnderutilized, []*karpv1.NodeClaim{general("one", "NaN"), general("two", "0.5")}, ptr.To("0.25"), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stored, replacements := tc.candidates, []string(nil)
			if tc.replacement != nil {
				stored, replacements = append(stored, general("new", *tc.replacement)), []string{"new"}
			}
			f := newFixture(t, stored...)
			f.start(tc.reason, tc.candidates, replacements...)
			for range 2 {
				for _, candidate := range tc.candidates {
					g.Expect(client.IgnoreNotFound(f.guest.Delete(t.Context(), candidate))).To(Succeed())
				}
			}
			f.expect(t, tc.want...)
			problems, err := testutil.CollectAndLint(f.ledger)
			g.Expect(problems, err).To(BeEmpty())
		})
	}
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
}
