// SPDX-License-Identifier: Apache-2.0

// Package nodeclass keeps the default node class in guest clusters as spec.autoNode of the HostedCluster declares.
package nodeclass

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

// Config is the input of New.
type Config struct {
	Apply *apply.Applier
	// Guest returns a guest that is connected, else nil. In a pause, the Scope has none.
	Guest func(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (guest *scope.Guest, requeueAfter time.Duration, err error)
}

// NodeClass is the step.
type NodeClass struct {
	Config
}

var _ scope.Step = (*NodeClass)(nil)

// New returns the step.
func New(config Config) *NodeClass {
	return &NodeClass{Config: config}
}

// Name implements scope.Step.
func (n *NodeClass) Name() string { return "nodeclass" }

// Reconcile applies the default node class. Fields that the HostedCluster doesn't name are the cluster's admin's. Node classes
// that an earlier teardown marked as draining may launch again, and all learn which rollout of Karpenter is complete. In a pause it only
// reports that.
func (n *NodeClass) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Mode == scope.Paused {
		return n.reportPause(ctx, s), nil
	}
	if s.Profile.DefaultNodeClass != nil {
		desired := s.Profile.DefaultNodeClass(s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter)
		generation, err := n.Apply.Object(ctx, s.Guest.Cached, nil, desired)
		if err != nil {
			return scope.Result{}, fmt.Errorf("in the guest: %w", err)
		}
		s.NodeClassGeneration = generation
	}
	if err := Annotate(ctx, s); err != nil {
		return scope.Result{}, err
	}
	return reportStopped(ctx, s)
}

// Annotate sets the annotations that Karpenter reads on node classes.
func Annotate(ctx context.Context, s *scope.Scope) error {
	kind := s.Profile.NodeClass
	if kind.DrainingAnnotation == "" && kind.RolloutAnnotation == "" {
		return nil
	}
	classes := kind.NewList()
	if err := s.Guest.Cached.List(ctx, classes); err != nil {
		return fmt.Errorf("listing node classes in the guest: %w", err)
	}
	return meta.EachListItem(classes, func(item runtime.Object) error {
		class, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%T isn't a node class", item)
		}
		return annotate(ctx, s, class)
	})
}

func annotate(ctx context.Context, s *scope.Scope, class client.Object) error {
	before, ok := class.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T can't be copied", class)
	}
	kind, annotations := s.Profile.NodeClass, class.GetAnnotations()
	_, draining := annotations[kind.DrainingAnnotation]
	draining = draining && !s.Sleep.Wanted()
	rolledOut := kind.RolloutAnnotation != "" && s.Rollout != "" && annotations[kind.RolloutAnnotation] != s.Rollout
	if !draining && !rolledOut {
		return nil
	}
	if draining {
		delete(annotations, kind.DrainingAnnotation)
		delete(annotations, v1alpha1.AsleepUntilAnnotation)
	}
	if rolledOut {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[kind.RolloutAnnotation] = s.Rollout
	}
	class.SetAnnotations(annotations)
	if err := s.Guest.Cached.Patch(ctx, class, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotating node class %s in the guest: %w", class.GetName(), err)
	}
	if draining {
		log.FromContext(ctx).Info("Let a node class launch again", kind.Kind, klog.KObj(class))
	}
	return nil
}
