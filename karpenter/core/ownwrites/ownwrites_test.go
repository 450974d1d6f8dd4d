// SPDX-License-Identifier: Apache-2.0

package ownwrites_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/ownwrites"
)

func TestLedger(t *testing.T) {
	setUp := func(g Gomega) (*ownwrites.Ledger, client.Client, *karpv1.NodeClaim) {
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}
		ledger := ownwrites.New()
		guest := ownwrites.Guest(fake.NewClientBuilder().WithObjects(claim).WithStatusSubresource(claim).Build(), ledger)
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		return ledger, guest, claim
	}
	for name, write := range map[string]func(g Gomega, guest client.Client, claim *karpv1.NodeClaim){
		"a NodeClaim": func(g Gomega, guest client.Client, claim *karpv1.NodeClaim) {
			before := claim.DeepCopy()
			claim.Labels = map[string]string{"storage": "8131"}
			g.Expect(guest.Patch(t.Context(), claim, client.MergeFrom(before))).To(Succeed())
		},
		"its status": func(g Gomega, guest client.Client, claim *karpv1.NodeClaim) {
			before := claim.DeepCopy()
			claim.Status.NodeName = "one"
			g.Expect(guest.Status().Patch(t.Context(), claim, client.MergeFrom(before))).To(Succeed())
		},
	} {
		t.Run("When core has written "+name+", older ones should lack that, and this and newer ones should not", func(t *testing.T) {
			g := NewWithT(t)
			ledger, guest, claim := setUp(g)
			old := claim.DeepCopy()
			g.Expect(ledger.Lacks(old)).To(BeFalse(), "nothing was written")
			write(g, guest, claim)
			g.Expect(ledger.Lacks(old)).To(BeTrue())
			g.Expect(ledger.Lacks(claim)).To(BeFalse())
			newer := claim.DeepCopy()
			newer.ResourceVersion += "0"
			g.Expect(ledger.Lacks(newer)).To(BeFalse())
		})
	}

	t.Run("When the answer to an earlier write comes later, it should remember the later write", func(t *testing.T) {
		g := NewWithT(t)
		ledger, version := ownwrites.New(), ""
		guest := ownwrites.Guest(interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Patch: func(_ context.Context, _ client.WithWatch, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
				object.SetResourceVersion(version)
				return nil
			},
		}), ledger)
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}
		for _, version = range []string{"10", "9"} {
			g.Expect(guest.Patch(t.Context(), claim.DeepCopy(), client.MergeFrom(claim))).To(Succeed())
		}
		claim.ResourceVersion = "9"
		g.Expect(ledger.Lacks(claim)).To(BeTrue())
	})

	t.Run("When a NodeClaim of the same name is another one, it should lack nothing", func(t *testing.T) {
		g := NewWithT(t)
		ledger, guest, claim := setUp(g)
		old := claim.DeepCopy()
		before := claim.DeepCopy()
		claim.Labels = map[string]string{"storage": "8131"}
		g.Expect(guest.Patch(t.Context(), claim, client.MergeFrom(before))).To(Succeed())
		old.UID = "two"
		g.Expect(ledger.Lacks(old)).To(BeFalse())
	})
}
