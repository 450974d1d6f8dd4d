// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/operator/scope"
)

// Empty drains a cluster that is to sleep: it waits while NodeClaims or Machines of Karpenter's are left, and removes nothing else.
func (t *Teardown) Empty(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	return t.withGuest(ctx, s, t.memoryOf(s))
}

// IsEmpty reports whether no NodeClaim and no Machine of Karpenter's appeared in a cluster that is asleep, as far as caches can be read.
func (t *Teardown) IsEmpty(ctx context.Context, s *scope.Scope) (bool, error) {
	claims, err := nodeClaims(ctx, s, cached(s.Guest))
	machines, failed := t.machines(ctx, t.Management, s)
	return len(claims)+len(machines) == 0, errors.Join(err, failed)
}

// KeepAsleep marks node classes, and takes Karpenter's finalizers from node classes and Nodes that are being deleted.
func (t *Teardown) KeepAsleep(ctx context.Context, s *scope.Scope) error {
	errs := []error{t.markDraining(ctx, s, &memory{}, cached(s.Guest))}
	classes, err := nodeClasses(ctx, s, cached(s.Guest))
	errs = append(errs, err)
	ends := t.limit(s, t.drainOf(s).phase)
	for _, class := range classes {
		if !class.GetDeletionTimestamp().IsZero() && !ends() {
			errs = append(errs, client.IgnoreNotFound(releaseNodeClass(ctx, s, class, false)))
		}
	}
	nodes := &corev1.NodeList{}
	errs = append(errs, s.Guest.Cached.List(ctx, nodes, client.HasLabels{karpv1.NodePoolLabelKey}))
	for i := range nodes.Items {
		if node := &nodes.Items[i]; !node.DeletionTimestamp.IsZero() && !ends() {
			errs = append(errs, releaseNode(ctx, s.Guest, node.Name))
		}
	}
	return errors.Join(slices.DeleteFunc(errs, apierrors.IsConflict)...) // what has changed comes again
}

// Price is the sum of the list prices an hour of the Machines that Karpenter made; empty where none is known.
func (t *Teardown) Price(ctx context.Context, s *scope.Scope) string {
	price := 0.0
	machines, err := t.machines(ctx, t.Management, s)
	for i := range machines {
		price += annotation.MachineOf(&machines[i]).Price
	}
	if err != nil || price == 0 {
		return ""
	}
	return fmt.Sprintf("$%.3f", price)
}
