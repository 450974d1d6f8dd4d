// SPDX-License-Identifier: Apache-2.0

package why

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/clitest"
)

// recordOf returns the record of a node that went at an hour of 2026-11-30.
func recordOf(name, node string, hour int) *v1alpha1.NodeRecord {
	end := time.Date(2026, 11, 30, hour, 0, 0, 0, time.UTC)
	return &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: name}, Launch: v1alpha1.NodeLaunch{
		Time: new(scalar.NewTime(end.Add(-time.Hour))), Node: v1alpha1.RecordText(node), InstanceType: "c2-small", Zone: "a", CapacityType: "spot", PricePerHour: "$0.083",
		For: "2 pods, shop/cart", Refused: []v1alpha1.RecordText{"spot c2-tiny in zone a: InsufficientCapacity"},
	}, End: &v1alpha1.NodeEnd{
		Time: new(scalar.NewTime(end)), Lived: "60m", Cost: "$0.08", Reason: "Empty", Because: "Empty: 1 node became 0", LaunchedAfter: "4s", RegisteredAfter: "40s", InitializedAfter: "45s",
	}}
}

func TestGone(t *testing.T) {
	why := func(t *testing.T, args ...string) (string, error) {
		t.Helper()
		return clitest.Run(t, NewCommand(), append([]string{"node", "--kubeconfig", server.Kubeconfig}, args...)...)
	}
	running, unpriced := recordOf("web-r-1a2b3c4d", "running", 8), recordOf("own-1-1a2b3c4d", "own", 8)
	running.End, unpriced.Launch.PricePerHour, unpriced.Launch.Zone, unpriced.End.Cost = nil, "", "", ""
	unpriced.End.Lived, unpriced.End.RegisteredAfter, unpriced.End.InitializedAfter = "", "", ""
	server.Create(t, running, unpriced, recordOf("web-x1-1a2b3c4d", "went", 8), recordOf("web-x2-2a2b3c4d", "went", 10), recordOf("web-x3-3a2b3c4d", "went", 9))

	t.Run("When a node is gone, it should say why, what it was launched for and what it cost", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(why(t, "web-x1")).To(Equal(`Node went has been gone since 2026-11-30 08:00:00 UTC: Empty: 1 node became 0

Facts:
  launched at 2026-11-30 07:00:00 UTC for 2 pods, shop/cart
  spot c2-small in zone a, $0.083/h
  lived 60m for $0.08
  launched after 4s
  registered after 40s
  initialized after 45s
  unavailable at its launch: spot c2-tiny in zone a: InsufficientCapacity
`))
		g.Expect(why(t, "own")).To(ContainSubstring("\n  spot c2-small in zone unknown\n  lived an unknown time for an unknown price\n  launched after 4s\n  unavailable at"))
	})
	t.Run("When several nodes had the name, it should have the one that went last", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(why(t, "went", "-o", "name")).To(Equal("web-x2-2a2b3c4d\n"))
		g.Expect(why(t, "web-x3", "-o", "name")).To(Equal("web-x3-3a2b3c4d\n"), "by its NodeClaim")
	})
	t.Run("When no record has ended, it should say how to find the node", func(t *testing.T) {
		for _, name := range []string{"running", "web-r", "web-x", "none"} {
			_, err := why(t, name)
			NewWithT(t).Expect(err).To(MatchError(`the cluster has no node and no NodeClaim "` + name + "\"; see `kubectl get nodes,nodeclaims`"))
		}
	})
	t.Run("When the user may not list NodeRecords, it should say how to find the node", func(t *testing.T) {
		groups := []string{"", "apps", "events.k8s.io", "karpenter.sh", "policy", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io"}
		viewer := server.AddUser(t, "gone-viewer", rbacv1.PolicyRule{APIGroups: groups, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}},
			rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"clusterapinodeclasses"}, Verbs: []string{"list", "watch"}})
		_, err := why(t, "web-x1", "--kubeconfig", viewer)
		NewWithT(t).Expect(err).To(MatchError(HavePrefix(`the cluster has no node and no NodeClaim "web-x1"`)))
	})
	t.Run("When a node of that name exists, it should explain that node", func(t *testing.T) {
		g := NewWithT(t)
		makeGuest(t)
		makeNode(t, "went", "medium", "8")
		g.Expect(why(t, "went")).To(And(HavePrefix("Node went "), Not(ContainSubstring("gone")), ContainSubstring("\nWhat Karpenter tries, in this order:\n")))
	})
}
