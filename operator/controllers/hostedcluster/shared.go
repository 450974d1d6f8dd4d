// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/operator/scope"
)

// In a dedicated control-plane namespace, names limit the operator's writes. In a shared one the names depend on the Cluster, so the
// namespace's owner grants the rights there, by a RoleBinding to the ClusterRole in manifests/rbac/sharednamespace.yaml.

const (
	// accessRecheck is how often to ask again for rights that are missing: no watch shows a RoleBinding that isn't the operator's.
	accessRecheck = 30 * time.Second
	// accessKnown is how long the API server's answer that the operator has the rights is good for. Without them, writes fail anyway.
	accessKnown = 10 * time.Minute
)

// sharedAccess remembers where the operator has the rights.
type sharedAccess struct {
	mu    sync.Mutex
	until map[client.ObjectKey]time.Time
}

func (a *sharedAccess) known(key client.ObjectKey, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Before(a.until[key])
}

func (a *sharedAccess) remember(key client.ObjectKey, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until == nil {
		a.until = map[client.ObjectKey]time.Time{}
	}
	// Expired entries may be of HostedClusters that are gone.
	maps.DeleteFunc(a.until, func(_ client.ObjectKey, expires time.Time) bool { return !now.Before(expires) })
	a.until[key] = now.Add(accessKnown)
}

// mayWrite reports whether the operator may write in the control-plane namespace, and the remedy if it may not. It requests the one right
// that only the ClusterRole for shared namespaces grants for every name: to bind Karpenter's Role.
func (r *Reconciler) mayWrite(ctx context.Context, s *scope.Scope) (allowed bool, message string, err error) {
	key := s.ComponentKey()
	// A drain checks each time: a namespace that is being deleted takes the rights away, and then the drain ends in another way.
	if !s.Names().Shared() || !s.Draining() && r.access.known(key, r.clock.Now()) {
		return true, "", nil
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: key.Namespace, Verb: "bind", Group: rbacv1.GroupName, Resource: "roles", Name: key.Name,
		},
	}}
	if err := r.management.Create(ctx, review); err != nil {
		return false, "", fmt.Errorf("asking what the operator may do in namespace %s: %w", key.Namespace, err)
	}
	if review.Status.Allowed {
		r.access.remember(key, r.clock.Now())
		return true, "", nil
	}
	return false, fmt.Sprintf("the operator may not write in namespace %s, which HostedClusters share; its owner has to run: %s",
		key.Namespace, consent.SharedNamespaceCommand(key.Namespace, cmp.Or(r.operatorNamespace, "autonode-system"), "autonode-operator")), nil
}

// drainShared handles a drain in a shared namespace without the rights there; nil means that the drain can go on. A namespace that is being
// deleted takes its RoleBindings along, and Karpenter and the Machines: then only the last Machine is waited for.
func (r *Reconciler) drainShared(ctx context.Context, s *scope.Scope) *outcome {
	allowed, message, err := r.mayWrite(ctx, s)
	if err != nil {
		return &outcome{state: draining, blocked: true, errs: []error{err}}
	}
	if allowed {
		return nil
	}
	blocked := &outcome{
		state: draining, blocked: true, message: message, reason: v1beta1.NamespaceAccessMissingReason, requeueAfter: accessRecheck,
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.management.Get(ctx, client.ObjectKey{Name: s.ControlPlaneNamespace}, namespace); err != nil {
		blocked.errs = append(blocked.errs, fmt.Errorf("reading Namespace %s: %w", s.ControlPlaneNamespace, err))
		return blocked
	}
	if namespace.DeletionTimestamp.IsZero() || s.HostedCluster.DeletionTimestamp.IsZero() {
		return blocked
	}
	machines := &clusterv1.MachineList{}
	if err := r.live.List(ctx, machines, client.InNamespace(s.ControlPlaneNamespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.ClusterKey().Name},
		client.HasLabels{v1alpha1.NodeClaimUIDLabel}, client.Limit(1)); err != nil {
		blocked.errs = append(blocked.errs, fmt.Errorf("listing Machines: %w", err))
		return blocked
	}
	if len(machines.Items) > 0 {
		blocked.message = fmt.Sprintf("namespace %s is being deleted; waiting for Machine %s, which Cluster API deletes", s.ControlPlaneNamespace,
			machines.Items[0].Name)
		return blocked
	}
	return &outcome{state: off}
}

// liveComponent reads the ControlPlaneComponent from the API server. In a shared namespace it lists, which the operator may do without
// the rights there.
func (r *Reconciler) liveComponent(ctx context.Context, s *scope.Scope, component *v1beta1.ControlPlaneComponent) error {
	key := s.ComponentKey()
	if !s.Names().Shared() {
		return r.live.Get(ctx, key, component)
	}
	list := &v1beta1.ControlPlaneComponentList{}
	if err := r.live.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Name == key.Name {
			list.Items[i].DeepCopyInto(component)
			return nil
		}
	}
	return apierrors.NewNotFound(v1beta1.GroupVersion.WithResource("controlplanecomponents").GroupResource(), key.Name)
}

// conflictingOwner returns the owner of a ControlPlaneComponent, as namespace/name, that can't be in the control-plane namespace together
// with this HostedCluster's: of another mode. It may be that of another operator's HostedCluster, which this one doesn't see.
func (r *Reconciler) conflictingOwner(ctx context.Context, s *scope.Scope) (string, error) {
	list := &v1beta1.ControlPlaneComponentList{}
	if err := r.management.List(ctx, list, client.InNamespace(s.ControlPlaneNamespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("listing the ControlPlaneComponents of namespace %s: %w", s.ControlPlaneNamespace, err)
	}
	for i := range list.Items {
		component := &list.Items[i]
		names, ok := v1beta1.NamesOf(component)
		if ok && !ownsComponent(s, component) && (!names.Shared() || !s.Names().Shared()) {
			return ownerOf(component), nil
		}
	}
	return "", nil
}

// excludes reports whether two HostedClusters can't have the same control-plane namespace.
func excludes(a, b *v1beta1.HostedCluster) bool {
	return a.Namespace != b.Namespace || !a.SharesNamespace() || !b.SharesNamespace() || a.ClusterName() == b.ClusterName()
}

// exclusion returns why a HostedCluster can't have its control-plane namespace beside another one, whose key is given.
func exclusion(s *scope.Scope, other string, sameCluster bool) string {
	switch {
	case !s.HostedCluster.SharesNamespace():
		return fmt.Sprintf("spec.controlPlaneNamespace: namespace %s already belongs to HostedCluster %s; a control plane needs one of its own",
			s.ControlPlaneNamespace, other)
	case sameCluster:
		return fmt.Sprintf("spec.infraID: Cluster %s already belongs to HostedCluster %s; name another one", s.ClusterKey(), other)
	}
	return fmt.Sprintf("spec.controlPlaneNamespaceMode: namespace %s already belongs to HostedCluster %s, which doesn't share it; "+
		"recreate that one with controlPlaneNamespaceMode: Shared, or use another namespace", s.ControlPlaneNamespace, other)
}
