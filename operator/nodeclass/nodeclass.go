// SPDX-License-Identifier: Apache-2.0

// Package nodeclass keeps the default ClusterAPINodeClass in guest clusters as spec.autoNode of the HostedCluster says.
package nodeclass

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

// Config is what New needs.
type Config struct {
	Apply *apply.Applier
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
// that an earlier teardown marked as draining may launch again.
func (n *NodeClass) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	desired := Desired(s.HostedCluster)
	if desired == nil {
		return scope.Result{}, nil
	}
	if err := n.Apply.Objects(ctx, s.Guest.Cached, nil, desired); err != nil {
		return scope.Result{}, fmt.Errorf("in the guest: %w", err)
	}
	classes := &v1alpha1.ClusterAPINodeClassList{}
	if err := s.Guest.Cached.List(ctx, classes); err != nil {
		return scope.Result{}, fmt.Errorf("listing node classes in the guest: %w", err)
	}
	for i := range classes.Items {
		class := &classes.Items[i]
		if _, draining := class.Annotations[v1alpha1.DrainingAnnotation]; !draining {
			continue
		}
		before := client.MergeFrom(class.DeepCopy())
		delete(class.Annotations, v1alpha1.DrainingAnnotation)
		if err := s.Guest.Cached.Patch(ctx, class, before); client.IgnoreNotFound(err) != nil {
			return scope.Result{}, fmt.Errorf("letting node class %s launch again in the guest: %w", class.Name, err)
		}
		log.FromContext(ctx).Info("Let a node class launch again", v1alpha1.Kind, klog.KObj(class))
	}
	return scope.Result{}, nil
}

// Desired renders the default node class; nil for a platform that has none.
func Desired(hostedCluster *v1beta1.HostedCluster) *v1alpha1.ClusterAPINodeClass {
	autoNode := hostedCluster.Spec.AutoNode
	if autoNode == nil || autoNode.ProvisionerConfig.Karpenter == nil || autoNode.ProvisionerConfig.Karpenter.ClusterAPI == nil {
		return nil
	}
	config := autoNode.ProvisionerConfig.Karpenter.ClusterAPI.DeepCopy()
	return &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			ShapeSelectors:   config.ShapeSelectors,
			Bootstrap:        config.Bootstrap,
			Kubelet:          config.Kubelet,
			BootstrapPatches: config.BootstrapPatches,
		},
	}
}
