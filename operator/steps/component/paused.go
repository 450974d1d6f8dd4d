// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// Replicas is the step that scales Karpenter to zero for a pause or a sleep, the only way to stop it from launching, disrupting
// and deleting, and back. It changes nothing else and needs no payload, so a missing input doesn't prevent it. Run it
// after the step that renews Karpenter's token, which has expired during the pause.
type Replicas struct{ component *Component }

var _ scope.Step = Replicas{}

// Replicas returns the step.
func (c *Component) Replicas() Replicas { return Replicas{c} }

// Name implements scope.Step.
func (Replicas) Name() string { return "replicas" }

// Reconcile implements scope.Step. Its message reports the effect of a pause on Karpenter.
func (r Replicas) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	live, err := r.component.deployment(ctx, s)
	if err != nil || live == nil {
		return scope.Result{}, err
	}
	if s.Mode != scope.Paused && !s.Sleep.Asleep {
		return scope.Result{}, r.restore(ctx, s, live)
	}
	if ptr.Deref(live.Spec.Replicas, 1) != 0 {
		if err := r.component.scale(ctx, live, 0); err != nil {
			return scope.Result{}, err
		}
		log.FromContext(ctx).Info("Scaled Karpenter to zero", "Deployment", klog.KObj(live))
	}
	if s.Mode != scope.Paused {
		return scope.Result{}, nil
	}
	message := "Karpenter is scaled to zero; nodes and pods go on running"
	if live.Status.Replicas > 0 {
		message = "Karpenter is being scaled to zero; nodes and pods go on running"
	}
	return scope.Result{Message: message}, r.component.applyStatus(ctx, s, func(component *v1beta1.ControlPlaneComponent) {
		set(component, v1beta1.Available, metav1.ConditionFalse, v1beta1.PausedReason, message)
	})
}

func (r Replicas) restore(ctx context.Context, s *scope.Scope, live *appsv1.Deployment) error {
	if ptr.Deref(live.Spec.Replicas, 1) != 0 {
		return nil
	}
	asset, err := s.Profile.Deployment()
	if err != nil {
		return err
	}
	size, _, err := r.component.size(ctx, s)
	if err != nil {
		return err
	}
	size.adapt(asset)
	if err := r.component.scale(ctx, live, ptr.Deref(asset.Spec.Replicas, 1)); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Restored Karpenter's replicas", "Deployment", klog.KObj(live))
	return nil
}

// deployment returns the component's Deployment from the cache; nil if there is none.
func (c *Component) deployment(ctx context.Context, s *scope.Scope) (*appsv1.Deployment, error) {
	live := &appsv1.Deployment{}
	key := s.ComponentKey()
	switch err := c.Management.Get(ctx, key, live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the Deployment: %w", err)
	case s.Component == nil || !metav1.IsControlledBy(live, s.Component) || !live.DeletionTimestamp.IsZero():
		return nil, nil
	}
	return live, nil
}

// scale changes only the number of replicas: other changes have to wait.
func (c *Component) scale(ctx context.Context, live *appsv1.Deployment, replicas int32) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := c.Management.Patch(ctx, live.DeepCopy(), patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("scaling Deployment %s to %d: %w", klog.KObj(live), replicas, err)
	}
	return nil
}
