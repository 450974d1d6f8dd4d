// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const (
	// lag is the time during which the provider doesn't annotate or delete a Machine a second time, although the cache still shows it as
	// it was.
	lag = time.Minute
	// finished is the time during which the provider doesn't look again for objects of a deleted NodeClaim that had none.
	finished = time.Minute
)

// Delete deletes a NodeClaim's Machine, or the objects of an incomplete Create. It returns nil while any is left, and
// ErrNotFound when none is. While the Cluster is paused it waits.
func (p *Provider) Delete(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if _, ok := p.gone.Get(nodeClaim.UID); ok {
		return ErrNotFound
	}
	paused, err := p.Paused(ctx)
	if err != nil {
		return err
	}
	machines, err := p.indexed(ctx, nodeClaimUIDIndex, string(nodeClaim.UID))
	if err != nil {
		return err
	}
	if len(machines) == 0 {
		machine, err := p.deleteRemains(ctx, nodeClaim, paused)
		if machine == nil {
			return err
		}
		machines = append(machines, *machine)
	}
	if paused {
		return nil
	}
	// There may be two: a moved Cluster has another UID, so that a Create which didn't see the moved Machine made one of another name.
	var errs []error
	for i := range machines {
		errs = append(errs, p.deleteMachine(ctx, &machines[i]))
	}
	return errors.Join(errs...)
}

// deleteRemains is Delete for a NodeClaim that has no Machine in the cache, which may lag behind a Create: it returns the one that there
// is.
func (p *Provider) deleteRemains(ctx context.Context, nodeClaim *karpv1.NodeClaim, paused bool) (*clusterv1.Machine, error) {
	if !p.isCompleted(ctx, nodeClaim.UID) {
		machine, err := p.findLive(ctx, nodeClaim)
		// Another owner's Machine of that name isn't this NodeClaim's.
		if err == nil || !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrTaken) {
			return machine, err
		}
		if remain, err := p.deleteObjects(ctx, nodeClaim, paused); err != nil || remain {
			return nil, err
		}
	}
	p.gone.Set(nodeClaim.UID, nil, finished)
	return nil, ErrNotFound
}

// deleteMachine annotates the Machine so that Cluster API doesn't drain it again, and deletes it. Karpenter has drained the node by then.
func (p *Provider) deleteMachine(ctx context.Context, machine *clusterv1.Machine) error {
	if _, ok := p.deleted.Get(machine.UID); ok {
		return nil
	}
	if err := p.skipDrain(ctx, machine); err != nil {
		return err
	}
	if machine.DeletionTimestamp == nil {
		if err := p.delete(ctx, machine); err != nil {
			return err
		}
	}
	p.deleted.Set(machine.UID, nil, lag)
	return nil
}

// Drained tells Cluster API not to drain a Machine whose node Karpenter has drained, before Delete would. Each change of a Machine makes
// Cluster API reconcile it, which it does at most once a second: one just before the deletion would delay that.
func (p *Provider) Drained(ctx context.Context, machine *clusterv1.Machine) error {
	if paused, err := p.Paused(ctx); err != nil || paused || machine.DeletionTimestamp != nil {
		return err
	}
	return p.skipDrain(ctx, machine)
}

// skipDrain annotates a Machine. It does so only once its node is drained, so that Cluster API drains a Machine that a person deletes.
func (p *Provider) skipDrain(ctx context.Context, machine *clusterv1.Machine) error {
	// Drained and Delete come from two controllers, often within milliseconds.
	_, err, _ := p.annotates.Do(string(machine.UID), func() (any, error) {
		if _, ok := p.drained.Get(machine.UID); ok {
			return nil, nil
		}
		return nil, p.annotateDrained(ctx, machine)
	})
	return err
}

func (p *Provider) annotateDrained(ctx context.Context, machine *clusterv1.Machine) error {
	patched := machine.DeepCopy()
	for _, key := range []string{clusterv1.ExcludeNodeDrainingAnnotation, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation} {
		if _, ok := patched.Annotations[key]; !ok {
			metav1.SetMetaDataAnnotation(&patched.ObjectMeta, key, "")
		}
	}
	if len(patched.Annotations) == len(machine.Annotations) {
		return nil
	}
	if err := p.Management.Patch(ctx, patched, client.MergeFrom(machine), FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("telling Cluster API not to drain Machine %s again: %w", klog.KObj(machine), err)
	}
	p.drained.Set(machine.UID, nil, lag)
	return nil
}

// deleteObjects deletes the objects of a Create that didn't get as far as the Machine, unless the Cluster is paused.
// It reports whether any is left.
func (p *Provider) deleteObjects(ctx context.Context, nodeClaim *karpv1.NodeClaim, paused bool) (remain bool, err error) {
	if p.ChildKinds == nil {
		return false, nil
	}
	instance, err := p.InstanceName(ctx, nodeClaim.Name)
	if err != nil {
		return false, err
	}
	for _, kind := range p.ChildKinds(ctx) {
		there, err := p.deleteObject(ctx, kind, instance, nodeClaim.UID, paused)
		remain = remain || there
		if err != nil {
			return remain, err
		}
	}
	return remain, nil
}

func (p *Provider) deleteObject(
	ctx context.Context, kind schema.GroupVersionKind, name string, nodeClaim types.UID, paused bool,
) (there bool, err error) {
	child := &unstructured.Unstructured{}
	child.SetGroupVersionKind(kind)
	switch err := p.Live.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, child); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %s %s/%s: %w", kind.Kind, p.Namespace, name, err)
	case !p.ownsFor(child, nodeClaim):
		return false, nil
	case child.GetDeletionTimestamp() != nil || paused:
		return true, nil
	}
	return true, p.delete(ctx, child)
}

// GarbageCollect deletes an object of a NodeClaim that no longer exists. Cluster API drains the node.
func (p *Provider) GarbageCollect(ctx context.Context, object client.Object) error {
	if !p.Owns(object) {
		return fmt.Errorf("garbage-collecting %s: %w", klog.KObj(object), ErrTaken)
	}
	return p.delete(ctx, object)
}

// delete deletes this very object, by its UID, and no successor of the same name.
func (p *Provider) delete(ctx context.Context, object client.Object) error {
	uid := object.GetUID()
	err := p.Management.Delete(ctx, object, client.Preconditions{UID: &uid})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting %T %s: %w", object, klog.KObj(object), err)
	}
	log.FromContext(ctx).V(1).Info("deleting object", "kind", object.GetObjectKind().GroupVersionKind().Kind, "object", klog.KObj(object))
	return nil
}

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
