// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

// claim creates the objects that everything else depends on: the finalizer, then the ControlPlaneComponent.
func (r *Reconciler) claim(ctx context.Context, s *scope.Scope) error {
	hostedCluster := s.HostedCluster
	if !holds(hostedCluster) {
		if err := r.patchFinalizer(ctx, hostedCluster, controllerutil.AddFinalizer); err != nil {
			return fmt.Errorf("adding the finalizer: %w", err)
		}
	}

	component := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.ControlPlaneNamespace,
		Name:      s.Names().Karpenter,
		Labels: map[string]string{
			apply.LabelManagedBy:                apply.FieldOwner,
			v1beta1.HostedClusterLabel:          hostedCluster.Name,
			v1beta1.HostedClusterNamespaceLabel: hostedCluster.Namespace,
			v1beta1.PlatformLabel:               string(s.Profile.Platform),
		},
	}}
	if names := s.Names(); names.Shared() {
		component.Labels[v1beta1.ControlPlaneNamespaceModeLabel] = string(v1beta1.ControlPlaneNamespaceShared)
		component.Labels[v1beta1.ClusterNameLabel] = names.Cluster
	}
	if s.Component != nil {
		if labels.SelectorFromSet(component.Labels).Matches(labels.Set(s.Component.Labels)) {
			return nil // there is nothing else to it; what is in its status belongs to the step
		}
		return r.applier.Objects(ctx, r.management, nil, component)
	}
	// Create, don't apply: if two operators' HostedClusters share the namespace, unseen by each other, one create
	// fails.
	err := r.management.Create(ctx, component, client.FieldOwner(apply.FieldOwner))
	if apierrors.IsAlreadyExists(err) {
		err = r.liveComponent(ctx, s, component) // the cache may not have seen yet what was just created
		if err == nil && !ownsComponent(s, component) {
			if err := r.patchFinalizer(ctx, hostedCluster, controllerutil.RemoveFinalizer); err != nil {
				return err
			}
			return fmt.Errorf("ControlPlaneComponent %s was created for HostedCluster %s in the meantime", s.ComponentKey(), ownerOf(component))
		}
	}
	if err != nil {
		return fmt.Errorf("creating the ControlPlaneComponent: %w", err)
	}
	s.Component = component
	return nil
}

// patchFinalizer adds or removes the finalizer, in the API server and in the object.
func (r *Reconciler) patchFinalizer(ctx context.Context, hostedCluster *v1beta1.HostedCluster, change func(client.Object, string) bool,
) error {
	patched := hostedCluster.DeepCopy()
	change(patched, v1beta1.HostedClusterFinalizer)
	if err := r.management.Patch(ctx, patched, client.MergeFromWithOptions(hostedCluster, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	hostedCluster.ObjectMeta = patched.ObjectMeta
	return nil
}

func (r *Reconciler) removeFinalizer(ctx context.Context, s *scope.Scope) error {
	hostedCluster := s.HostedCluster
	// The cache may lack the component, and only the finalizer guards it.
	component := &v1beta1.ControlPlaneComponent{}
	switch err := r.liveComponent(ctx, s, component); {
	case err == nil && ownsComponent(s, component):
		return nil // its deletion wakes the reconciler
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading the ControlPlaneComponent: %w", err)
	}
	if err := r.patchFinalizer(ctx, hostedCluster, controllerutil.RemoveFinalizer); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}
