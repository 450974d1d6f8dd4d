// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// settle is how long after Karpenter lost the right to launch nodes one may still appear: the guest's authorizer reads roles from a
// watch, and a request that it has let through has still to be written.
const settle = 5 * time.Second

// stopLaunching keeps Karpenter from launching nodes for the pods that it evicts: by a mark on its node classes where the provider has
// one, else by withholding the right to, which the step does that gives it its rights. It returns whether no NodeClaim can appear any more.
// Both are in the guest, which may refuse them. It can't refuse withholdMachines.
func (t *Teardown) stopLaunching(ctx context.Context, s *scope.Scope, m *memory, read lister, r *refusals) (bool, error) {
	if s.Profile.NodeClass.DrainingAnnotation != "" {
		return true, r.take(t.markDraining(ctx, s, m, read))
	}
	if s.Component == nil {
		return true, nil // without it there is no Karpenter
	}
	now := t.Clock.Now()
	if !m.withheld.IsZero() && m.generation == s.HostedCluster.Generation {
		return now.Sub(m.withheld) >= settle, nil
	}
	if err := operate(ctx, s); err != nil {
		return false, r.take(refusal(err))
	}
	m.withheld, m.generation = now, s.HostedCluster.Generation
	return false, nil
}

// withholdMachines takes Karpenter's right to create Machines, and their infrastructure and bootstrap objects, in its control-plane
// namespace, once those that it had begun are made. It applies where a guest keeps no mark on its node classes. Turning AutoNode on applies
// the whole Role again.
func (t *Teardown) withholdMachines(ctx context.Context, s *scope.Scope, m *memory) error {
	withheld := m.machinesWithheld && m.roleGeneration == s.HostedCluster.Generation
	if withheld || s.Sleep.Wanted() || s.Profile.Role == nil || t.Clock.Since(m.began) < settle {
		return nil
	}
	role := &rbacv1.Role{}
	key := s.ComponentKey()
	if err := t.Live.Get(ctx, key, role); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Role %s: %w", key, err)
	}
	before, changed := client.MergeFrom(role.DeepCopy()), false
	for i := range role.Rules {
		rule := &role.Rules[i]
		if slices.Contains(rule.APIGroups, coordinationv1.GroupName) || slices.Contains(rule.APIGroups, "") {
			continue // leader election, and events
		}
		verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return verb == "create" })
		changed = changed || len(verbs) < len(rule.Verbs)
		rule.Verbs = verbs
	}
	if changed {
		if err := t.Management.Patch(ctx, role, before); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("withholding the right to create Machines in Role %s: %w", key, err)
		}
		log.FromContext(ctx).Info("Took the right to create Machines from Karpenter", "Role", key)
	}
	m.machinesWithheld, m.roleGeneration = true, s.HostedCluster.Generation
	return nil
}

// operate runs the steps that Karpenter needs to drain, for the duration of the drain.
func operate(ctx context.Context, s *scope.Scope) error {
	if s.Component == nil || s.Upkeep == nil {
		return nil
	}
	return s.Upkeep(ctx)
}

// recordUnattended writes down that machines may be left where the guest went away before its Karpenter had removed them.
func (t *Teardown) recordUnattended(ctx context.Context, s *scope.Scope) error {
	if s.Profile.Unattended == nil {
		return nil
	}
	if status := s.HostedCluster.Status.AutoNode; status != nil && status.NodeClaimCount != nil && *status.NodeClaimCount == 0 {
		return nil // none was left when it was last seen
	}
	return t.record(ctx, s, "the Cluster and its kubeconfig went away before Karpenter had removed its nodes", findings{})
}

// removeLease deletes Karpenter's Lease where that is in the guest. In management it goes with the component.
func removeLease(ctx context.Context, s *scope.Scope) error {
	if !s.Profile.LeaseInGuest {
		return nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceSystem, Name: v1beta1.DedicatedNames().LeaderElection,
	}}
	if err := s.Guest.Live.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Lease %s/%s in the guest: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}
