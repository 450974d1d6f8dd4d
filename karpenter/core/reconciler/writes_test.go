// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

func TestLedger(t *testing.T) {
	version := func(version string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", ResourceVersion: version}}
	}
	t.Run("When core has written an object, older ones should lack that, and this and newer ones should not", func(t *testing.T) {
		g, ledger := NewWithT(t), NewLedger()
		g.Expect(ledger.Lacks(version("9"))).To(BeFalse(), "nothing was written")
		ledger.Note(version("10"))
		g.Expect(ledger.Lacks(version("9"))).To(BeTrue())
		g.Expect(ledger.Lacks(version("10"))).To(BeFalse())
		g.Expect(ledger.Lacks(version("100"))).To(BeFalse())
	})
	t.Run("When the answer to an earlier write comes later, it should remember the later write", func(t *testing.T) {
		g, ledger := NewWithT(t), NewLedger()
		ledger.Note(version("10"))
		ledger.Note(version("9"))
		g.Expect(ledger.Lacks(version("9"))).To(BeTrue())
	})
	t.Run("When a NodeClaim of the same name is another one, it should lack nothing", func(t *testing.T) {
		g, ledger := NewWithT(t), NewLedger()
		ledger.Note(version("10"))
		another := version("9")
		another.UID = "two"
		g.Expect(ledger.Lacks(another)).To(BeFalse())
	})
}
