// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

func TestText(t *testing.T) {
	pod := &explain.PodAnswer{
		Summary: "Pod shop/web fits none of 2 NodePools", Waits: []string{"a larger instance type"},
		NodePools: []explain.NodePoolAnswer{
			{Name: "general", Reason: "none of 13 instance types fits: needs 64 cpu; the largest has 32", Refused: []explain.Refusal{
				{Reason: "needs 64 cpu; the largest has 32", Count: 12, Names: []string{"large", "medium"}},
				{Reason: "the NodePool requires kubernetes.io/arch In [amd64]", Count: 1, Names: []string{"arm"}},
			}},
			{Name: "huge", Fits: true, Reason: "2 instance types fit", AcceptedCount: 2, Accepted: []explain.Accepted{{InstanceType: "xxl", Zone: "a", CapacityType: "spot", Price: 1.5}}},
		},
		Nodes:   []explain.Refusal{{Reason: "exceeds node resources", Count: 1, Names: []string{"n"}}},
		Missing: []string{"prices"},
	}
	node := &explain.NodeAnswer{
		Summary: "Node n stays: Can't replace with a cheaper node", Blocking: []string{"pod shop/db has annotation karpenter.sh/do-not-disrupt"},
		Methods: []explain.MethodAnswer{{Name: "repair", Reason: "kept"}, {Name: "empty", Reason: "kept"},
			{Name: "drift", Reason: "the node hasn't drifted"}, {Name: "consolidation", Disrupts: true, Reason: "it would be removed"}},
		Facts: []string{"c4 in zone a, spot"},
	}
	for name, test := range map[string]struct {
		print func(*bytes.Buffer)
		want  string
	}{
		"When a pod is explained, the answer should be the first line, and every NodePool have its reason": {func(to *bytes.Buffer) { printPodAnswer(to, pod) }, `Pod shop/web fits none of 2 NodePools

Waits for:
  a larger instance type

NodePool general: no, none of 13 instance types fits: needs 64 cpu; the largest has 32
  - 12: needs 64 cpu; the largest has 32 (large, medium and 10 more)
  - 1: the NodePool requires kubernetes.io/arch In [amd64] (arm)

NodePool huge: yes, 2 instance types fit
  + xxl  zone a, spot, $1.500 an hour
  + 1 more

Existing nodes:
  - 1: exceeds node resources (n)

Not known:
  prices
`},
		"When a node is explained, the answer should be the first line, and every method have its reason": {func(to *bytes.Buffer) { printNodeAnswer(to, node) }, `Node n stays: Can't replace with a cheaper node

Kept by:
  pod shop/db has annotation karpenter.sh/do-not-disrupt

What Karpenter tries, in this order:
  repair, empty: no, kept
  drift: no, the node hasn't drifted
  consolidation: yes, it would be removed

Facts:
  c4 in zone a, spot
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			test.print(&out)
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	refusals := []explain.Refusal{{Reason: hostile, Count: 1, Names: []string{hostile}}}
	podAnswer := &explain.PodAnswer{
		Pod: hostile, Summary: hostile, Waits: []string{hostile}, Nodes: refusals, Missing: []string{hostile},
		NodePools: []explain.NodePoolAnswer{{
			Name: hostile, Reason: hostile, Refused: refusals, Accepted: []explain.Accepted{{InstanceType: hostile, Zone: hostile, CapacityType: hostile}}, AcceptedCount: 2,
		}},
	}
	nodeAnswer := &explain.NodeAnswer{
		Node: hostile, Summary: hostile, Blocking: []string{hostile}, Facts: []string{hostile}, Missing: []string{hostile},
		Methods: []explain.MethodAnswer{{Name: hostile, Reason: hostile}},
	}
	gone := &v1alpha1.NodeRecord{
		Launch: v1alpha1.NodeLaunch{Node: hostile, For: hostile, CapacityType: hostile, InstanceType: hostile, Zone: hostile, Refused: []v1alpha1.RecordText{hostile}},
		End:    &v1alpha1.NodeEnd{Because: hostile, Lived: hostile, Cost: hostile, LaunchedAfter: hostile, RegisteredAfter: hostile, InitializedAfter: hostile},
	}
	printertest.Harmless(t, "why pod", func(out io.Writer) error { printPodAnswer(out, podAnswer); return nil })
	printertest.Harmless(t, "why node", func(out io.Writer) error { printNodeAnswer(out, nodeAnswer); return nil })
	printertest.Harmless(t, "why node (gone)", func(out io.Writer) error { printGone(out, gone); return nil })
}
