// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Release gives up a Lease that this program's predecessor in the same pod holds, and tells whether there was one. A container is only
// started when the one before it has ended, so nobody has to wait until the Lease expires. It is for the start, before the
// election. That somebody else was quicker is no error.
func Release(ctx context.Context, leases coordinationclient.LeaseInterface, name, pod string, clock clock.PassiveClock) (released bool, err error) {
	if pod == "" {
		return false, nil
	}
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the lease: %w", err)
	}
	if lease.Labels[v1alpha1.LeaderPodLabel] != pod || ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		return false, nil
	}
	// As client-go's elector does it when it ends.
	now := metav1.NewMicroTime(clock.Now())
	lease.Spec = coordinationv1.LeaseSpec{
		LeaseTransitions:     lease.Spec.LeaseTransitions,
		LeaseDurationSeconds: ptr.To[int32](1),
		RenewTime:            &now,
		AcquireTime:          &now,
	}
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("releasing the lease: %w", err)
	}
	return true, nil
}
