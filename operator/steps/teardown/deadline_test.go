// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
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

// TestRecords ends drains of nodes that have records: Karpenter hasn't written the end of a's.
func TestRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		deleted bool
		// unserved: the guest has no NodeRecords, as with Karpenter's AWS provider.
		unserved bool
		want     string
	}{
		"When AutoNode is turned off and Karpenter doesn't finish, it should write why into the nodes' records": {
			want: "Teardown: Karpenter didn't remove its nodes within 30m0s, and 5m0s more by force",
		},
		"When the HostedCluster is deleted, and the records with it, it should write none":  {deleted: true},
		"When the guest has no records, it should not write down that they are left behind": {unserved: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, ctx := NewWithT(t), t.Context()
			f := setUp(ctx, t, fmt.Sprintf("records-%t-%t", tc.deleted, tc.unserved))
			var records []*v1alpha1.NodeRecord
			for _, name := range []string{"a", "b"} {
				claim := f.claim(ctx, g, name)
				record := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeRecordName(claim), Labels: map[string]string{"kept": "yes"}}}
				record.Launch.Node = v1alpha1.RecordText(name)
				if name == "b" {
					record.End = &v1alpha1.NodeEnd{Reason: "Expired", Because: "Expired: by Karpenter"}
					claim.StatusConditions().SetTrue(karpv1.ConditionTypeInstanceTerminating)
					g.Expect(clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
				}
				g.Expect(clusters.Guest.Client.Create(ctx, record)).To(Succeed())
				records = append(records, record)
			}
			f.claim(ctx, g, "c") // it has none
			if tc.unserved {
				f.Guest.Live = unserved{f.Guest.Live}
			}
			f.disable()
			if tc.deleted {
				f.delete()
			}
			for _, phase := range []time.Duration{drainTimeout, 5 * time.Minute} {
				f.reconcile(ctx, g)
				f.pass(phase)
			}
			f.finishes(ctx, g)
			for _, record := range records {
				g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(record), record)).To(Succeed())
			}
			got := ""
			if end := records[0].End; end != nil {
				got = end.Because
				g.Expect(end.Reason).To(Equal("Teardown"))
				g.Expect(end.Time.At()).To(Equal(f.clock.Now()))
				g.Expect(records[0].Labels).To(Equal(map[string]string{"kept": "yes", v1alpha1.RecordedDayLabel: f.clock.Now().UTC().Format(time.DateOnly)}))
				g.Expect(records[0].Launch.Node).To(BeEquivalentTo("a"))
			}
			g.Expect(got).To(Equal(tc.want))
			g.Expect(records[1].End.Because).To(Equal("Expired: by Karpenter"))
			g.Expect(expectRecord(ctx, g, f).Data).NotTo(HaveKey("leftInGuest"))
		})
	}
}

// unserved is a guest that has no NodeRecords.
type unserved struct{ client.Client }

func (u unserved) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if _, ok := object.(*v1alpha1.NodeRecord); ok {
		return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: v1alpha1.Group, Kind: "NodeRecord"}}
	}
	return u.Client.Patch(ctx, object, patch, options...)
}
