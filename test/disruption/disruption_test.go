// SPDX-License-Identifier: Apache-2.0

package disruption_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/test/disruption"
)

func TestCounts(t *testing.T) {
	const (
		launched    = karpv1.ConditionTypeLaunched
		registered  = karpv1.ConditionTypeRegistered
		initialized = karpv1.ConditionTypeInitialized
		chosen      = karpv1.ConditionTypeDisruptionReason
		terminating = karpv1.ConditionTypeInstanceTerminating
	)
	for _, tc := range []struct {
		name    string
		is      []string
		deleted bool
		want    bool
	}{
		{name: "When a node runs, it should not count", is: []string{launched, registered, initialized}},
		{name: "When a node is chosen, it should count", is: []string{launched, registered, initialized, chosen}, want: true},
		{name: "When a node is deleted, it should count", is: []string{launched, registered, initialized}, deleted: true, want: true},
		{name: "When its machine is being terminated, it should not count any more", is: []string{launched, registered, initialized, chosen, terminating}, deleted: true},
		{name: "When a replacement finds no capacity, it should not count", deleted: true},
		{name: "When a replacement is given up before it has a node, it should not count", is: []string{launched}, deleted: true},
		{name: "When a replacement is given up before its node is initialized, it should not count", is: []string{launched, registered}, deleted: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := &karpv1.NodeClaim{}
			for _, condition := range tc.is {
				claim.StatusConditions().SetTrue(condition)
			}
			if tc.deleted {
				claim.DeletionTimestamp = ptr.To(metav1.Now())
			}
			NewWithT(t).Expect(disruption.Counts(claim)).To(Equal(tc.want))
		})
	}
}
