// SPDX-License-Identifier: Apache-2.0

// Package minsize keeps Karpenter's consolidation from taking a template source below its minimum size. The minimum has
// the Cluster Autoscaler's meaning: it launches nothing, drifted nodes are still replaced, and forced removals still
// go ahead.
//
// Karpenter has no such limit, but it doesn't disrupt a node with the annotation karpenter.sh/do-not-disrupt. The
// controller sets it on as many nodes as the minimum, with a second annotation that distinguishes it from a user's. Both
// are on the Node, so they hold while no Karpenter runs and after a failover.
package minsize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const (
	// afterConflict is the requeue interval after a conflict, so that the cache can catch up. Not every change of a
	// Node triggers a reconcile here.
	afterConflict = 100 * time.Millisecond
	// suspendedInterval is the requeue interval while suspended. No event marks the end of a suspension.
	suspendedInterval = 5 * time.Second
)

// everything is the request for all sources. Any other one names a source: removing a node affects all others of its
// source, and no node of another one.
var everything = reconcile.Request{}

// Config of the controller.
type Config struct {
	// Guest reads node classes, NodeClaims and Nodes from a cache, and writes Nodes.
	Guest client.Client
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	// Machines returns the source that a node was made from.
	Machines *machine.Provider
	// InstanceTypes returns the templates and their minimums.
	InstanceTypes *instancetype.Provider
	// Suspended reports whether nothing may act, because another process may hold the Lease.
	Suspended func() bool
}

// Controller marks the nodes that stay. It handles one request at a time.
type Controller struct {
	Config
	// written holds the resource version that each Node had before the controller wrote it, by name. While the cache
	// returns that version, it lacks the write, and a node that was just unmarked would count as marked.
	written map[string]string
	// marked holds the sources that have, or had, a marked node. Without one, and without a minimum, there is nothing
	// to do for a source.
	marked sync.Map
}

// New returns the controller.
func New(config Config) *Controller { return &Controller{Config: config, written: map[string]string{}} }

// Name of the controller.
func (c *Controller) Name() string { return "node.minsize" }

// Reconcile marks as many nodes of each source as its minimum declares. Once the cache has those marks, it unmarks the
// others.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if c.Suspended() {
		return reconcile.Result{RequeueAfter: suspendedInterval}, nil
	}
	minimums, err := c.minimums(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if request != everything {
		if minimum, known := minimums.of(request.Name); minimum == 0 && known && !c.hasMarks(request.Name) {
			return reconcile.Result{}, nil
		}
	} else if err := c.forgetDeleted(ctx); err != nil {
		return reconcile.Result{}, err
	}
	machines, err := c.machines(ctx, request)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for _, source := range slices.Sorted(maps.Keys(machines)) {
		members, err := c.members(ctx, source, machines[source])
		if err != nil {
			return reconcile.Result{}, err
		}
		errs = append(errs, c.choose(ctx, source, members, minimums)...)
	}
	return requeueResult(errs)
}

// choose marks and unmarks the nodes of one source.
func (c *Controller) choose(ctx context.Context, source string, members []member, minimums minimums) (errs []error) {
	if slices.ContainsFunc(members, c.isUnseen) {
		// The cache's update triggers a reconcile.
		return nil
	}
	minimum, known := minimums.of(source)
	keep, release := choose(members, minimum, known)
	if len(keep) > 0 || slices.ContainsFunc(members, func(m member) bool { return m.mark == ours || m.mark == damaged }) {
		c.marked.Store(source, nil)
	}
	for _, m := range keep {
		errs = append(errs, c.keep(ctx, m, source))
	}
	for _, m := range release {
		errs = append(errs, c.release(ctx, m, source))
	}
	return errs
}

func (c *Controller) hasMarks(source string) bool {
	_, ok := c.marked.Load(source)
	return ok
}

// isUnseen reports whether the cache lacks the controller's last write of a node.
func (c *Controller) isUnseen(m member) bool {
	before, unseen := c.written[m.node.Name]
	if unseen && m.node.ResourceVersion != before {
		delete(c.written, m.node.Name)
		return false
	}
	return unseen
}

// forgetDeleted forgets the writes of Nodes that are gone.
func (c *Controller) forgetDeleted(ctx context.Context) error {
	for name := range c.written {
		switch found, err := c.get(ctx, name, &corev1.Node{}); {
		case err != nil:
			return fmt.Errorf("reading Node %s: %w", name, err)
		case !found:
			delete(c.written, name)
		}
	}
	return nil
}

// machines returns the Machines of the requested sources, by source. Machines whose source is unknown are left out.
func (c *Controller) machines(ctx context.Context, request reconcile.Request) (map[string][]clusterv1.Machine, error) {
	if request != everything {
		machines, err := c.Machines.ForSource(ctx, request.Name)
		return map[string][]clusterv1.Machine{request.Name: machines}, err
	}
	all, err := c.Machines.List(ctx)
	if err != nil {
		return nil, err
	}
	machines := map[string][]clusterv1.Machine{}
	for i := range all {
		if source := machine.Source(&all[i]); source != "" {
			machines[source] = append(machines[source], all[i])
		}
	}
	return machines, nil
}

// members returns the members of a source with these Machines.
func (c *Controller) members(ctx context.Context, source string, machines []clusterv1.Machine) (members []member, err error) {
	for i := range machines {
		nodeClaim, node := &karpv1.NodeClaim{}, &corev1.Node{}
		switch found, err := c.get(ctx, v1alpha1.NodeClaimOf(&machines[i]), nodeClaim); {
		case err != nil:
			return nil, fmt.Errorf("reading the NodeClaim of Machine %s: %w", machines[i].Name, err)
		case !found, string(nodeClaim.UID) != machines[i].Labels[v1alpha1.NodeClaimUIDLabel], nodeClaim.Status.NodeName == "":
			continue
		}
		switch found, err := c.get(ctx, nodeClaim.Status.NodeName, node); {
		case err != nil:
			return nil, fmt.Errorf("reading Node %s: %w", nodeClaim.Status.NodeName, err)
		case !found:
			continue
		}
		if m, registered := memberOf(nodeClaim, node, source); registered {
			members = append(members, m)
		}
	}
	return members, nil
}

// get reads an object of the guest from the cache. The object is shared: don't modify it.
func (c *Controller) get(ctx context.Context, name string, object client.Object) (found bool, err error) {
	err = c.Guest.Get(ctx, types.NamespacedName{Name: name}, object, client.UnsafeDisableDeepCopy)
	return err == nil, client.IgnoreNotFound(err)
}

// keep marks a node.
func (c *Controller) keep(ctx context.Context, m member, source string) error {
	node := m.node.DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
	node.Annotations[v1alpha1.KeptForMinimumAnnotation] = source
	written, err := c.write(ctx, m.node, node)
	if err != nil {
		return fmt.Errorf("keeping Node %s for the minimum size of %s: %w", node.Name, source, err)
	}
	if written {
		log.FromContext(ctx).Info("keeping a node for the minimum size of its source", "Node", klog.KObj(node), "template", source)
	}
	return nil
}

// release removes a node's mark. It keeps a do-not-disrupt value that a user has set.
func (c *Controller) release(ctx context.Context, m member, source string) error {
	node := m.node.DeepCopy()
	delete(node.Annotations, v1alpha1.KeptForMinimumAnnotation)
	if node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		delete(node.Annotations, karpv1.DoNotDisruptAnnotationKey)
	}
	written, err := c.write(ctx, m.node, node)
	if err != nil {
		return fmt.Errorf("releasing Node %s, which was kept for the minimum size of %s: %w", node.Name, source, err)
	}
	if written {
		log.FromContext(ctx).Info("released a node that was kept for the minimum size of its source", "Node", klog.KObj(node), "template", source, "drifted", m.drifted)
	}
	return nil
}

// write updates a node's annotations if the node still exists. The optimistic lock keeps it from overwriting a user's
// concurrent change.
func (c *Controller) write(ctx context.Context, stored, node *corev1.Node) (written bool, err error) {
	before := stored.ResourceVersion
	if err := c.Guest.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if node.ResourceVersion == before {
		return false, nil
	}
	c.written[node.Name] = before
	return true, nil
}

// requeueResult returns the requeue interval after failed writes. A conflict isn't an error.
func requeueResult(errs []error) (reconcile.Result, error) {
	result := reconcile.Result{}
	errs = slices.DeleteFunc(errs, func(err error) bool {
		if apierrors.IsConflict(err) {
			result.RequeueAfter = afterConflict
			return true
		}
		return err == nil
	})
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}
