// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/scope"
)

// settle is how long after Karpenter lost the right to launch nodes one may still appear: the guest's authorizer reads roles from a
// watch, and a request that it has let through has still to be written.
const settle = 5 * time.Second

// stopLaunching keeps Karpenter from launching nodes for the pods that it evicts: by a mark on its node classes where the provider knows
// one, else by withholding the right to, which the step does that gives it its rights. It returns whether no NodeClaim can appear any more.
func (t *Teardown) stopLaunching(ctx context.Context, s *scope.Scope, m *memory, read lister) (bool, error) {
	if s.Profile.NodeClass.DrainingAnnotation != "" {
		return true, markDraining(ctx, s, read)
	}
	if s.Component == nil {
		return true, nil // without it there is no Karpenter
	}
	now := t.Clock.Now()
	if !m.withheld.IsZero() && m.generation == s.HostedCluster.Generation {
		return now.Sub(m.withheld) >= settle, nil
	}
	if err := t.operate(ctx, s); err != nil {
		return false, err
	}
	m.withheld, m.generation = now, s.HostedCluster.Generation
	return false, nil
}

// operate does what Karpenter needs to drain, for as long as that takes.
func (t *Teardown) operate(ctx context.Context, s *scope.Scope) error {
	if s.Component == nil {
		return nil
	}
	for _, step := range t.Operand {
		if _, err := step.Reconcile(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", step.Name(), err)
		}
	}
	return nil
}

// recordUnattended writes down that machines may be left where the guest went away before its Karpenter had removed them.
func (t *Teardown) recordUnattended(ctx context.Context, s *scope.Scope) error {
	if s.Profile.Unattended == nil {
		return nil
	}
	if status := s.HostedCluster.Status.AutoNode; status != nil && status.NodeClaimCount != nil && *status.NodeClaimCount == 0 {
		return nil // none was left when it was last seen
	}
	return t.record(ctx, s, "the Cluster and its kubeconfig went away before Karpenter had removed its nodes", nil, nil)
}

// removeLease deletes Karpenter's Lease where that is in the guest. In management it goes with the component.
func removeLease(ctx context.Context, s *scope.Scope) error {
	if !s.Profile.LeaseInGuest {
		return nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName}}
	if err := s.Guest.Live.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Lease %s/%s in the guest: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}
