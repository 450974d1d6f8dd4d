// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// TestDeadline has nodes that Karpenter never finishes with: b had joined, and Karpenter hadn't registered it (kubernetes-sigs/cluster-api#7237),
// and c has a status that its guest's admin has written.
func TestDeadline(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	f := setUp(ctx, t, "forced")
	f.claim(ctx, g, "a")
	for name, node := range map[string]string{"b": "", "c": strings.Repeat("n", 100<<10) + "\n"} {
		claim := f.claim(ctx, g, name)
		claim.Status.NodeName = node
		g.Expect(clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
	}
	f.delete()
	yesterday := ptr.To(scalar.NewTime(f.clock.Now().Add(-24 * time.Hour)))
	f.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{ // it was falling asleep, which has another deadline
		Sleep: &v1beta1.SleepStatus{}, DrainStartedTime: yesterday, DrainRequestedTime: yesterday,
	}

	t.Run("When the deadline passes, it should wake for that, and let Karpenter terminate pods, once", func(t *testing.T) {
		g := NewWithT(t)
		f.reconcile(ctx, g)
		f.pass(drainTimeout - 10*time.Second)
		result := f.reconcile(ctx, g)
		g.Expect(result.RequeueAfter).To(BeNumerically("<", 30*time.Second))
		g.Expect(f.event()).To(BeEmpty())
		f.pass(result.RequeueAfter)
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring("pods are terminated by force"))
		g.Expect(f.claimOf(ctx, g, "a").Annotations).To(HaveKeyWithValue(karpv1.NodeClaimTerminationTimestampAnnotationKey, f.clock.Now().UTC().Format(time.RFC3339)))
		g.Expect(f.event()).To(ContainSubstring(v1beta1.DrainForcedReason))
		f.pass(5*time.Minute - 20*time.Second)
		g.Expect(f.reconcile(ctx, g).RequeueAfter).To(Equal(20 * time.Second))
		g.Expect(f.event()).To(BeEmpty())
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
	})

	t.Run("When Karpenter doesn't finish even by force, it should delete the Machines itself, leave no Node, and write down what a ConfigMap holds", func(t *testing.T) {
		g := NewWithT(t)
		f.pass(20 * time.Second)
		machine := f.machineOf(ctx, g, "a")
		before := machine.DeepCopy()
		for _, key := range []string{
			clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/stay", clusterv1.PreDrainDeleteHookAnnotationPrefix + "/stay", clusterv1.PausedAnnotation, "example.com/owner",
		} {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, key, "me")
		}
		g.Expect(clusters.Management.Client.Patch(ctx, machine, client.MergeFrom(before))).To(Succeed())
		f.finishes(ctx, g)
		machine = f.machineOf(ctx, g, "a")
		g.Expect(machine.DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(machine.Annotations).To(And(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation), HaveKey("example.com/owner")))
		g.Expect(machine.Annotations).NotTo(Or(HaveKey(HaveSuffix("/stay")), HaveKey(clusterv1.PausedAnnotation)), "nothing would end its costs")
		for _, name := range []string{"a", "b"} {
			scopetest.ExpectGone(ctx, g, clusters.Guest.Client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		record := expectRecord(ctx, g, f)
		g.Expect(record.Data).To(HaveKeyWithValue("machines", "a nodeClaim=a providerID=kwok://a\nb nodeClaim=b providerID=kwok://b\nc nodeClaim=c providerID=kwok://c\n"))
		g.Expect(strings.Split(record.Data["nodeClaims"], "\n")).To(ConsistOf("a node=a", "b node=", HavePrefix(`c node="nnn`), ""))
		g.Expect(len(record.Data["nodeClaims"])).To(BeNumerically("<", 1<<10))
		g.Expect(f.event()).To(ContainSubstring(v1beta1.AbandonedReason))
		g.Expect(f.event()).To(BeEmpty())
		f.expectEquipment(ctx, g, false)
		for _, name := range []string{"a", "b", "c"} {
			f.clusterAPIRemoves(ctx, g, name)
		}
	})
}
