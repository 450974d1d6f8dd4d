// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/state/cost"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

// launch has the cluster's state know machines of all NodeClaims: it counts as synced no earlier.
func (c *core) launch(t *testing.T) {
	t.Helper()
	g, claims := NewWithT(t), &karpv1.NodeClaimList{}
	g.Expect(c.Guest.List(c.Context, claims)).To(Succeed())
	feed := informer.NewNodeClaimController(c.Guest, c.CloudProvider, c.State, cost.NewClusterCost(c.Context, c.CloudProvider, c.Guest))
	for i := range claims.Items {
		if claim := &claims.Items[i]; claim.Status.ProviderID == "" {
			claim.Status.ProviderID = "test://" + claim.Name
			g.Expect(c.Guest.Status().Update(c.Context, claim)).To(Succeed())
			_, err := feed.Reconcile(c.Context, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)})
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(c.State.Synced(c.Context)).To(BeTrue())
}

func TestLimit(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	const counting = "VersionDrifted"
	for _, tc := range []struct {
		name     string
		static   bool
		limit    int
		limitOff bool
		// other: the last node has drifted for another reason.
		other bool
		// want is how many nodes of each kind are replaced in three passes.
		want, wantOther int
	}{
		{name: "When the limit is 0, it should replace only a node that doesn't count", other: true, wantOther: 1},
		{name: "When the limit is 1, it should replace one, while its command is in the queue", limit: 1, want: 1},
		{name: "When the limit is 1, it should replace a node that doesn't count, too", limit: 1, other: true, want: 1, wantOther: 1},
		{name: "When there is no limit, it should replace all", limitOff: true, want: 3},
		{name: "When the NodePool is static and the limit is 0, it should replace only a node that doesn't count", static: true, other: true, wantOther: 1},
		{name: "When the NodePool is static and the limit is 1, it should replace one", static: true, limit: 1, want: 1},
		{name: "When the NodePool is static and the limit is 2, it should replace two", static: true, limit: 2, want: 2},
		{name: "When the NodePool is static and there is no limit, it should replace all", static: true, limitOff: true, want: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, pool := NewWithT(t), newPool("3")
			if tc.static {
				pool.Spec.Replicas = ptr.To[int64](3)
			}
			objects := []client.Object{pool}
			for i := range 3 {
				reason, name := counting, fmt.Sprintf("n%d", i)
				if tc.other && i == 2 {
					reason = "TemplateDrifted"
				}
				node, claim := newNode(name, "c4", karpv1.CapacityTypeOnDemand, room("4"))
				claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, reason, reason)
				pod := newPod(name, name)
				pod.Spec.Containers = requesting("3")
				objects = append(objects, node, claim, pod)
			}
			core := newCore(t, coreConfig{
				Guest: newGuest(objects...), CloudProvider: provider{}, Recorder: &environment.Recorder{}, Clock: clocktesting.NewFakeClock(time.Now()),
				Flags: []string{"--feature-gates=StaticCapacity=true"},
			}, objects)
			counts := func(claim *karpv1.NodeClaim) bool {
				return claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).Reason == counting
			}
			limited := methods.Limit(disruption.NewMethods(core.Context, core.Clock, core.State, core.Guest, core.Provisioner, core.CloudProvider, core.Recorder, core.Queue),
				core.Queue, counts, func(context.Context) (int, bool) { return tc.limit, !tc.limitOff })
			replaced := map[string]bool{}
			for range 3 {
				for _, command := range core.disrupt(t, limited) {
					replaced[command.Candidates[0].NodeClaim.Name] = counts(command.Candidates[0].NodeClaim)
				}
				core.launch(t)
			}
			got := map[bool]int{}
			for _, counted := range replaced {
				got[counted]++
			}
			g.Expect(got[true]).To(Equal(tc.want))
			g.Expect(got[false]).To(Equal(tc.wantOther))
			if tc.static {
				reserved := core.State.NodePoolState.ReserveNodeCount(poolName, 10, 10)
				g.Expect(reserved).To(BeEquivalentTo(10-3-len(replaced)), "core should reserve no node of the NodePool's limit any more")
			}
		})
	}
}
