// SPDX-License-Identifier: Apache-2.0

// Package nodeclass reconciles ClusterAPINodeClasses in the guest cluster.
package nodeclass

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/nodeupgrade"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// retryInterval is the requeue interval for objects that can't be watched while they are missing: those of a kind that isn't
// served, and a bootstrap Secret.
const retryInterval = 30 * time.Second

// Config of the controller.
type Config struct {
	// Guest reads and writes node classes, and reads NodeClaims.
	Guest client.Client
	// AllowedPatches are the allowed bootstrap patches of node classes; nil allows any.
	AllowedPatches []v1alpha1.BootstrapPatches
	// KubeletBounds bound spec.kubelet of node classes; nil for none.
	KubeletBounds *v1alpha1.KubeletBounds
	// Namespace is the control-plane namespace in the management cluster.
	Namespace string
	// Objects are watched for changes of InstanceTypes' sources.
	Objects *informer.Set
	// SharedCatalogs are watched likewise; nil if the platform shares none.
	SharedCatalogs *informer.Set
	// ControlPlanes are likewise: a template that a machine of the control plane was made from isn't for nodes. Nil if they aren't known.
	ControlPlanes *informer.Set
	// InstanceTypes of every node class.
	InstanceTypes *instancetype.Provider
	// Images are the node images that the payload names.
	Images *nodeimage.File
	// Prices are read from a file.
	Prices *pricing.File
	// Profiles of infrastructure kinds.
	Profiles *profile.Profiles
	// Pending counts the pods that wait for a node; nil if it isn't known.
	Pending func(ctx context.Context) (int, error)
	// Version resolves the nodes' version; its tracker is watched.
	Version version.Resolver
	// Upgrade chooses the payload of launches, and is reported and watched.
	Upgrade  *nodeupgrade.Upgrade
	Recorder events.Recorder
	Clock    clock.Clock
	// AvailabilityDelay takes the place of DefaultAvailabilityDelay if it isn't zero.
	AvailabilityDelay time.Duration
}

// Controller of node classes.
type Controller struct {
	Config
	steps []step
}

// step owns one condition. It changes the node class in memory; the controller writes it once.
type step interface {
	reconcile(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
		in *instancetype.Listing) (reconcile.Result, error)
}

// New returns the controller.
func New(config Config) *Controller {
	config.AvailabilityDelay = cmp.Or(config.AvailabilityDelay, DefaultAvailabilityDelay)
	return &Controller{Config: config, steps: []step{
		launchAllowed{config},
		sourcesFound{config},
		referencesResolved{config},
		templatesReady{config},
		offeringsAvailable{config},
		bootstrapReady{config},
		allocatableKnown{config},
	}}
}

// Name of the controller.
func (c *Controller) Name() string { return "nodeclass" }

// Reconcile updates one node class.
func (c *Controller) Reconcile(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (reconcile.Result, error) {
	if nodeClass.DeletionTimestamp != nil {
		return reconcile.Result{}, c.finalize(ctx, nodeClass)
	}
	if err := c.stamp(ctx, nodeClass); err != nil {
		return reconcile.Result{}, err
	}
	stored := nodeClass.DeepCopy()

	conditions := nodeClass.StatusConditions(status.WithClock(c.Clock))
	// First: the versions of templates follow it.
	c.setVersion(nodeClass, conditions)
	c.setUpgrade(nodeClass, conditions)
	in, err := c.InstanceTypes.Refresh(ctx, nodeClass)
	if err != nil {
		return reconcile.Result{}, err
	}
	var result reconcile.Result
	var errs []error
	for _, s := range c.steps {
		r, err := s.reconcile(ctx, nodeClass, conditions, in)
		if r.RequeueAfter > 0 && (result.RequeueAfter == 0 || r.RequeueAfter < result.RequeueAfter) {
			result = r
		}
		errs = append(errs, err)
	}
	explain(conditions)
	nodeClass.Status.ObservedGeneration = nodeClass.Generation

	if !equality.Semantic.DeepEqual(stored.Status, nodeClass.Status) {
		// A merge patch replaces the list of conditions as a whole.
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.Guest.Status().Patch(ctx, nodeClass, patch); err != nil {
			return reconcile.Result{}, errors.Join(append(errs,
				fmt.Errorf("writing the status of the node class: %w", client.IgnoreNotFound(err)))...)
		}
		c.Recorder.Publish(changes(stored, nodeClass)...)
	}
	return result, errors.Join(append(errs, c.publishHash(ctx, nodeClass))...)
}

// explain copies the first failing condition's reason and message to Ready, which users read first.
func explain(conditions status.ConditionSet) {
	ready := conditions.Root()
	if ready.IsTrue() {
		return
	}
	for _, name := range v1alpha1.ReadyConditions() {
		if cause := conditions.Get(name); cause.Status == ready.Status {
			ready.Reason, ready.Message = cause.Reason, cause.Message
			conditions.Set(*ready)
			return
		}
	}
}

// publishHash writes the hash of the templates into an annotation. Karpenter checks for drift when a node class changes,
// else every five minutes. The annotation makes it check a changed template at once.
func (c *Controller) publishHash(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) error {
	snapshot, err := c.InstanceTypes.Cached(nodeClass.Name)
	if errors.Is(err, instancetype.ErrUnresolved) {
		return nil
	}
	if err != nil {
		return err
	}
	hash := templatesHash(snapshot, func(tmpl *template.Template) string {
		hash, _ := c.images(nodeClass, tmpl)
		return hash
	})
	if nodeClass.Annotations[TemplatesHashAnnotation] == hash {
		return nil
	}
	stored := nodeClass.DeepCopy()
	metav1.SetMetaDataAnnotation(&nodeClass.ObjectMeta, TemplatesHashAnnotation, hash)
	if err := c.Guest.Patch(ctx, nodeClass, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the hash of the templates into the node class: %w", err)
	}
	return nil
}

// images returns the hash of the images that a template's nodes boot from, or the name of a variable that has no image.
func (c Config) images(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (hash, missing string) {
	version := cmp.Or(tmpl.NodeVersion, nodeClass.Status.Version)
	return machine.ImagesHash(nodeClass.Spec.BootstrapPatches, tmpl, c.Images.For(version, tmpl.Arch))
}

// stamp sets the finalizer and the hash, before anything is made from the node class.
func (c *Controller) stamp(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) error {
	if old := nodeClass.Annotations[v1alpha1.NodeClassHashVersionAnnotation]; old != "" && old != v1alpha1.NodeClassHashVersion {
		// First, so that it is repeated after a crash.
		if err := c.migrateHash(ctx, nodeClass); err != nil {
			return err
		}
	}
	stored := nodeClass.DeepCopy()
	controllerutil.AddFinalizer(nodeClass, v1alpha1.NodeClassFinalizer)
	metav1.SetMetaDataAnnotation(&nodeClass.ObjectMeta, v1alpha1.NodeClassHashAnnotation, nodeClass.Hash())
	metav1.SetMetaDataAnnotation(&nodeClass.ObjectMeta, v1alpha1.NodeClassHashVersionAnnotation, v1alpha1.NodeClassHashVersion)
	if equality.Semantic.DeepEqual(stored.ObjectMeta, nodeClass.ObjectMeta) {
		return nil
	}
	// A merge patch replaces the list of finalizers as a whole.
	if err := c.Guest.Patch(ctx, nodeClass, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the finalizer and hash of the node class: %w", err)
	}
	return nil
}

// finalize removes the finalizer once no NodeClaim uses the node class.
func (c *Controller) finalize(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) error {
	if !controllerutil.ContainsFinalizer(nodeClass, v1alpha1.NodeClassFinalizer) {
		return nil
	}
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	var users []string
	for i := range nodeClaims.Items {
		if usedBy(&nodeClaims.Items[i]) == nodeClass.Name {
			users = append(users, nodeClaims.Items[i].Name)
		}
	}
	if len(users) > 0 {
		// Deletions of NodeClaims are watched.
		c.Recorder.Publish(inUse(nodeClass, users))
		return nil
	}
	stored := nodeClass.DeepCopy()
	controllerutil.RemoveFinalizer(nodeClass, v1alpha1.NodeClassFinalizer)
	if err := c.Guest.Patch(ctx, nodeClass,
		client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer of the node class: %w", err)
	}
	c.InstanceTypes.Delete(nodeClass.Name)
	return nil
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&v1alpha1.ClusterAPINodeClass{}).
		Watches(&karpv1.NodeClaim{}, handler.Funcs{
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				if nodeClaim, ok := e.Object.(*karpv1.NodeClaim); ok && c.isDeleting(ctx, usedBy(nodeClaim)) {
					queue.Add(request(usedBy(nodeClaim)))
				}
			},
		}).
		WatchesRawSource(source.Func(c.watchOthers)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// isDeleting reports whether a node class waits for its NodeClaims. No other reconcile depends on them.
func (c *Controller) isDeleting(ctx context.Context, name string) bool {
	if name == "" {
		return false
	}
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: name}, nodeClass, client.UnsafeDisableDeepCopy)
	return client.IgnoreNotFound(err) != nil || nodeClass.DeletionTimestamp != nil
}

// watchOthers reconciles every node class after a change outside the guest. It merges simultaneous changes, and those of
// availability for longer.
func (c *Controller) watchOthers(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	changed, available := make(chan struct{}, 1), make(chan struct{}, 1)
	notify := func(channel chan struct{}) func() {
		return func() {
			select {
			case channel <- struct{}{}:
			default:
			}
		}
	}
	c.Objects.OnChange(func(schema.GroupKind) { notify(changed)() })
	if c.SharedCatalogs != nil {
		c.SharedCatalogs.OnChange(func(schema.GroupKind) { notify(changed)() })
	}
	if c.ControlPlanes != nil {
		c.ControlPlanes.OnChange(func(schema.GroupKind) { notify(changed)() })
	}
	c.Version.Tracker.OnChange(notify(changed))
	c.Upgrade.OnChange(notify(changed))
	c.InstanceTypes.OnAvailability(notify(available))
	c.Prices.OnChange(notify(changed))
	c.Profiles.OnChange(notify(changed))
	c.Images.OnChange(notify(changed))
	go func() {
		availability := debounce{interval: c.AvailabilityDelay}
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				c.enqueueAll(ctx, queue, 0)
			case <-available:
				if delay, needed := availability.next(c.Clock.Now()); needed {
					c.enqueueAll(ctx, queue, delay)
				}
			}
		}
	}()
	return nil
}

// enqueueAll reconciles every node class after a delay.
func (c *Controller) enqueueAll(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], delay time.Duration) {
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{}
	if err := c.Guest.List(ctx, nodeClasses, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing node classes")
		return
	}
	for i := range nodeClasses.Items {
		queue.AddAfter(request(nodeClasses.Items[i].Name), delay)
	}
}

// usedBy returns the name of a NodeClaim's node class, or "" if it is of another kind.
func usedBy(nodeClaim *karpv1.NodeClaim) string {
	ref := nodeClaim.Spec.NodeClassRef
	if ref == nil || ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.Kind {
		return ""
	}
	return ref.Name
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
