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

// Release releases a Lease that this container's predecessor in the same pod holds, and reports whether there was
// one. The kubelet starts a container only after the previous one has exited, so there is no need to wait for the
// Lease to expire. Call it at startup, before the election. A conflict with another candidate is no error.
func Release(ctx context.Context, leases coordinationclient.LeaseInterface, name, pod string, clock clock.PassiveClock,
) (released bool, err error) {
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
	// What client-go's elector writes when it releases.
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
