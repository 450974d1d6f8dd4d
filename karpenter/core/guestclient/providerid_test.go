// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestProviderID(t *testing.T) {
	const launched, another = "capi://clusters-blue/one", "example://two"
	for name, tc := range map[string]struct {
		// has is the provider ID when the launch begins, meanwhile the one that another client writes, writes what the launch ends with.
		has, meanwhile, writes string
		conflict               bool
		want                   string
	}{
		"When a launch ends, its provider ID should be written":                                     {writes: launched, want: launched},
		"When another client has written another provider ID meanwhile, it should stay":             {meanwhile: another, writes: launched, conflict: true, want: another},
		"When the same provider ID was written meanwhile, the rest of the status should be written": {meanwhile: launched, writes: launched, want: launched},
		"When a patch leaves the provider ID as it is, it should be written, whatever it is by now": {has: launched, meanwhile: another, writes: launched, want: another},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Status: karpv1.NodeClaimStatus{ProviderID: tc.has}}
			direct := fake.NewClientBuilder().WithObjects(claim).WithStatusSubresource(claim).Build()
			guest := ruled(direct, func(*guestclient.Config) {})
			read := &karpv1.NodeClaim{}
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(claim), read)).To(Succeed())
			if tc.meanwhile != "" {
				other := read.DeepCopy()
				other.Status.ProviderID = tc.meanwhile
				g.Expect(direct.Status().Update(t.Context(), other)).To(Succeed())
			}
			stored := read.DeepCopy()
			read.Status.ProviderID, read.Status.NodeName = tc.writes, "one"
			err := guest.Status().Patch(t.Context(), read, client.MergeFrom(stored))
			g.Expect(apierrors.IsConflict(err)).To(Equal(tc.conflict), "%v", err)
			after := &karpv1.NodeClaim{}
			g.Expect(direct.Get(t.Context(), client.ObjectKeyFromObject(claim), after)).To(Succeed())
			g.Expect(after.Status.ProviderID).To(Equal(tc.want))
			g.Expect(after.Status.NodeName == "one").To(Equal(!tc.conflict))
		})
	}
}
