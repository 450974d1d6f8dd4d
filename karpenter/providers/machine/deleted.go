// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Infrastructure reads objects of kinds that are known only at run time. *informer.Set implements it.
type Infrastructure interface {
	Get(ctx context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error)
}

// Watch lets Delete answer from memory once a watch has reported the deletion of a Machine. Otherwise each answer
// costs a request for the Machine and one for each kind of its objects.
func (p *Provider) Watch(ctx context.Context, machines cache.Cache) error {
	informer, err := machines.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		// The last state of a Machine that went while the watch was interrupted may be any.
		if m, ok := object.(*clusterv1.Machine); ok && m.DeletionTimestamp != nil && p.Owns(m) {
			p.completed.Set(types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel]), m.Spec.InfrastructureRef, finished)
		}
	}})
	return err
}

// isCompleted reports whether a NodeClaim's Machine and its objects are known to be gone. Cluster API deletes them
// before it removes its finalizer from the Machine, unless a person has removed it.
func (p *Provider) isCompleted(ctx context.Context, nodeClaim types.UID) bool {
	value, ok := p.completed.Get(nodeClaim)
	if !ok || p.Infrastructure == nil {
		return false
	}
	ref, ok := value.(clusterv1.ContractVersionedObjectReference)
	if !ok {
		return false
	}
	_, err := p.Infrastructure.Get(ctx, ref.GroupKind(), ref.Name)
	return apierrors.IsNotFound(err)
}
