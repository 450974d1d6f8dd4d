// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/naming"
)

// Karpenter doesn't only use the operator's objects: leader election makes this Lease, in the control-plane namespace.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=karpenter-leader-election,verbs=get;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,resourceNames=karpenter,verbs=get;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,resourceNames=karpenter,verbs=get;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=list;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=autonode-abandoned,verbs=get;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles,resourceNames=karpenter,verbs=get;patch

const (
	// stopRecheck is how often to look whether Karpenter's pods are gone: it takes them a moment.
	stopRecheck = time.Second
	// deadPod is how long after its grace period a pod still counts as running.
	deadPod = 30 * time.Second
)

// remove takes Karpenter away, once there is no node of it any more.
func (t *Teardown) remove(ctx context.Context, s *scope.Scope, m *memory, d drain, r *refusals) (scope.Result, error) {
	refused := func(err error) (scope.Result, error) {
		if err := r.take(err); err != nil {
			return scope.Result{}, err
		}
		if !r.hung {
			// It may be our own policies that refuse, where the operator has another name in the guest now.
			if err := operate(ctx, s); err != nil {
				log.FromContext(ctx).Error(err, "Couldn't see to what Karpenter needs in the guest")
			}
		}
		return t.refuse(s, m, d, r, "no node is left"), nil
	}
	deleted := !s.HostedCluster.DeletionTimestamp.IsZero()
	goes, err := createdDefinition(ctx, s)
	if err != nil {
		return refused(err)
	}
	if result, err := t.removeNodeClasses(ctx, s, d, deleted && goes); err != nil {
		return refused(err)
	} else if result.Wait {
		return result, nil
	}
	if result, err := t.removeComponent(ctx, s); err != nil || result.Wait {
		return result, err
	}
	if err := t.releaseNodeClasses(ctx, s, d); err != nil {
		return refused(err)
	}
	if err := errors.Join(t.removeIdentity(ctx, s, d), removeLease(ctx, s)); err != nil {
		return refused(err)
	}
	if !deleted {
		return scope.Result{}, nil
	}
	result, err := t.removeDefinitions(ctx, s, d)
	if err != nil {
		return refused(err)
	}
	return result, nil
}

// requeueAfter is the interval between checks whether a watched object in the guest is gone.
func (t *Teardown) requeueAfter(s *scope.Scope, d drain) time.Duration {
	wait := relistInterval
	if !s.Guest.Complete {
		wait = unwatched
	}
	return d.within(t.Clock.Now(), wait)
}

// removeNodeClasses deletes the default node class; all of them if the definition is to go too. No NodeClaim is left that their
// finalizer protects, so it is removed here, whether or not Karpenter runs. A Karpenter that has more to clean up than that is given
// the time that there is.
func (t *Teardown) removeNodeClasses(ctx context.Context, s *scope.Scope, d drain, all bool) (scope.Result, error) {
	classes, err := nodeClasses(ctx, s, live(s.Guest))
	if err != nil {
		return scope.Result{}, err
	}
	kind := s.Profile.NodeClass
	var blocked []string
	var errs []error
	ends := t.limit(s, d.phase)
	for i, class := range classes {
		if ends() {
			errs = append(errs, unfinished(len(classes)-i, "removing node classes from the guest"))
			break
		}
		ours := s.Profile.DefaultNodeClass != nil && class.GetName() == v1alpha1.DefaultNodeClass
		if !ours && !all {
			continue
		}
		if class.GetDeletionTimestamp().IsZero() {
			if err := s.Guest.Live.Delete(ctx, class, client.Preconditions{UID: ptr.To(class.GetUID())}); client.IgnoreNotFound(err) != nil {
				errs = append(errs, refusal(fmt.Errorf("deleting node class %s in the guest: %w", class.GetName(), err)))
				continue
			}
			log.FromContext(ctx).Info("Deleted a node class", kind.Kind, klog.KObj(class))
		}
		if waits := kind.CleansUp && d.phase != over; !waits {
			if err := releaseNodeClass(ctx, s, class, false); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
				errs = append(errs, refusal(err))
			}
		}
		blocked = append(blocked, class.GetName())
	}
	if err := errors.Join(errs...); err != nil {
		return scope.Result{}, err
	}
	if len(blocked) > 0 && kind.CleansUp {
		if err := operate(ctx, s); err != nil {
			return scope.Result{}, err
		}
	}
	if len(blocked) > 0 {
		return scope.Result{Wait: true, Message: "removing node class " + strings.Join(blocked, ", "), RequeueAfter: t.requeueAfter(s, d)}, nil
	}
	return scope.Result{}, nil
}

// releaseNodeClasses removes Karpenter's marks from the node classes that stay, now that no Karpenter runs which would restore them: the
// finalizer, which would keep their admin from deleting them, and the mark that they drain. Where Karpenter has more to clean up after a
// node class, the finalizer marks that there is something, and stays.
func (t *Teardown) releaseNodeClasses(ctx context.Context, s *scope.Scope, d drain) error {
	if s.Profile.NodeClass.CleansUp {
		return nil
	}
	classes, err := nodeClasses(ctx, s, live(s.Guest))
	if err != nil {
		return err
	}
	var errs []error
	ends := t.limit(s, d.phase)
	for i, class := range classes {
		if ends() {
			errs = append(errs, unfinished(len(classes)-i, "releasing node classes in the guest"))
			break
		}
		errs = append(errs, refusal(client.IgnoreNotFound(releaseNodeClass(ctx, s, class, true))))
	}
	return errors.Join(errs...)
}

// releaseNodeClass removes Karpenter's finalizer, and the mark that the node class drains if that isn't needed any more.
func releaseNodeClass(ctx context.Context, s *scope.Scope, class client.Object, unmark bool) error {
	before, ok := class.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T can't be copied", class)
	}
	kind, annotations := s.Profile.NodeClass, class.GetAnnotations()
	_, marked := annotations[kind.DrainingAnnotation]
	if unmark = unmark && marked; unmark {
		delete(annotations, kind.DrainingAnnotation)
		delete(annotations, v1alpha1.AsleepUntilAnnotation)
		class.SetAnnotations(annotations)
	}
	if !controllerutil.RemoveFinalizer(class, kind.Finalizer) && !unmark {
		return nil
	}
	// Finalizers are a list, which a merge patch replaces whole.
	if err := s.Guest.Live.Patch(ctx, class, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("releasing node class %s in the guest: %w", class.GetName(), err)
	}
	if controllerutil.ContainsFinalizer(class, kind.Finalizer) {
		return fmt.Errorf("releasing node class %s in the guest: something there keeps finalizer %s", class.GetName(), kind.Finalizer)
	}
	return nil
}

// createdDefinition reports whether the operator created the definition of node classes, so that each of them was made for AutoNode.
func createdDefinition(ctx context.Context, s *scope.Scope) (bool, error) {
	definition, err := readDefinition(ctx, s.Guest, s.Profile.NodeClass.Definition())
	return definition != nil && definition.Annotations[crd.CreatedAnnotation] != "", err
}

// stopKarpenter deletes Karpenter's Deployment, and waits until its pods are gone.
func (t *Teardown) stopKarpenter(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	stopping := scope.Result{Wait: true, Message: "stopping Karpenter in namespace " + s.ControlPlaneNamespace, RequeueAfter: stopRecheck}
	deployment, err := s.Profile.Deployment()
	if err != nil {
		return stopping, err
	}
	deployment.Namespace = s.ControlPlaneNamespace
	if err := naming.Apply(s.Names(), deployment); err != nil {
		return stopping, err
	}
	if err := t.deleteInManagement(ctx, deployment); err != nil {
		return stopping, err
	}
	running, err := t.karpenterRuns(ctx, deployment)
	if err != nil || running {
		return stopping, err
	}
	return scope.Result{}, nil
}

// removeComponent stops Karpenter, then deletes the ControlPlaneComponent, which garbage-collects everything else in
// the control-plane namespace. Karpenter stops first: it needs its Role to release its Lease, and a replica that
// outlives the Lease would create it again. The ControlPlaneComponent's deletion triggers a reconcile.
func (t *Teardown) removeComponent(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	stopping, err := t.stopKarpenter(ctx, s)
	if err != nil || stopping.Wait {
		return stopping, err
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: s.ControlPlaneNamespace, Name: s.Names().LeaderElection}}
	if err := t.deleteInManagement(ctx, lease); err != nil {
		return stopping, err
	}
	if s.Component == nil {
		return scope.Result{}, nil
	}
	if err := t.deleteInManagement(ctx, s.Component); err != nil {
		return stopping, err
	}
	if len(s.Component.Finalizers) > 0 {
		return scope.Result{Wait: true, Message: "stopping Karpenter in namespace " + s.ControlPlaneNamespace, RequeueAfter: stopRecheck}, nil
	}
	return scope.Result{}, nil
}

// deleteInManagement deletes an object if it is there and isn't being deleted yet.
func (t *Teardown) deleteInManagement(ctx context.Context, object client.Object) error {
	gvk, err := t.Management.GroupVersionKindFor(object)
	if err != nil {
		return fmt.Errorf("finding the kind of %T: %w", object, err)
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(gvk)
	switch err := t.Live.Get(ctx, client.ObjectKeyFromObject(object), live); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading %s %s: %w", gvk.Kind, klog.KObj(object), err)
	case !live.DeletionTimestamp.IsZero():
		return nil
	}
	err = t.Management.Delete(ctx, live, client.Preconditions{UID: &live.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s %s: %w", gvk.Kind, klog.KObj(object), err)
	}
	log.FromContext(ctx).Info("Deleted an object", gvk.Kind, klog.KObj(object))
	return nil
}

// karpenterRuns is true while a pod of Karpenter's isn't gone. One whose time to stop passed long ago is on a node that is dead.
func (t *Teardown) karpenterRuns(ctx context.Context, deployment *appsv1.Deployment) (bool, error) {
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := t.Live.List(ctx, pods, client.InNamespace(deployment.Namespace),
		client.MatchingLabels(deployment.Spec.Selector.MatchLabels)); err != nil {
		return false, fmt.Errorf("listing Karpenter's pods: %w", err)
	}
	for i := range pods.Items {
		if end := pods.Items[i].DeletionTimestamp; end == nil || t.Clock.Now().Before(end.Add(deadPod)) {
			return true, nil
		}
	}
	return false, nil
}

// removeIdentity deletes the policies that guard our objects in the guest, then Karpenter's ServiceAccount and its permissions there, and
// with it every token.
func (t *Teardown) removeIdentity(ctx context.Context, s *scope.Scope, d drain) error {
	guest := s.Guest
	ours := client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}
	kinds := []schema.GroupVersionKind{
		admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"),
		admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"),
		rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
		rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
		corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	}
	if s.Profile.Roles != nil {
		kinds = append(kinds, rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), rbacv1.SchemeGroupVersion.WithKind("Role"))
	}
	var errs []error
	ends := t.limit(s, d.phase)
	for _, gvk := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		if err := guest.Live.List(ctx, list, ours); err != nil {
			errs = append(errs, fmt.Errorf("listing %ss in the guest: %w", gvk.Kind, err))
			continue
		}
		for i := range list.Items {
			if ends() {
				return refusal(errors.Join(append(errs, unfinished(len(list.Items)-i, fmt.Sprintf("deleting %ss in the guest", gvk.Kind)))...))
			}
			object := &list.Items[i]
			object.SetGroupVersionKind(gvk)
			if err := guest.Live.Delete(ctx, object, client.Preconditions{UID: &object.UID}); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("deleting %s %s in the guest: %w", gvk.Kind, klog.KObj(object), err))
				continue
			}
			log.FromContext(ctx).Info("Deleted an object in the guest", gvk.Kind, klog.KObj(object))
		}
	}
	return refusal(errors.Join(errs...))
}

var definitionKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")

// removeDefinitions deletes the CustomResourceDefinitions that the operator created, and waits until they are gone, unless the time is
// over.
func (t *Teardown) removeDefinitions(ctx context.Context, s *scope.Scope, d drain) (scope.Result, error) {
	guest, definitions := s.Guest, &metav1.PartialObjectMetadataList{}
	definitions.SetGroupVersionKind(definitionKind)
	if err := guest.Live.List(ctx, definitions, client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}); err != nil {
		return scope.Result{}, fmt.Errorf("listing CustomResourceDefinitions in the guest: %w", err)
	}
	var remaining []string
	var errs []error
	ends := t.limit(s, d.phase)
	for i := range definitions.Items {
		if ends() {
			errs = append(errs, unfinished(len(definitions.Items)-i, "deleting CustomResourceDefinitions in the guest"))
			break
		}
		definition := &definitions.Items[i]
		definition.SetGroupVersionKind(definitionKind)
		if definition.Annotations[crd.CreatedAnnotation] == "" {
			continue
		}
		if definition.DeletionTimestamp.IsZero() {
			if err := guest.Live.Delete(ctx, definition, client.Preconditions{UID: &definition.UID}); client.IgnoreNotFound(err) != nil {
				errs = append(errs, refusal(fmt.Errorf("deleting CustomResourceDefinition %s in the guest: %w", definition.Name, err)))
				continue
			}
			log.FromContext(ctx).Info("Deleted an object in the guest", "CustomResourceDefinition", klog.KObj(definition))
		}
		remaining = append(remaining, definition.Name)
	}
	if err := errors.Join(errs...); err != nil || len(remaining) == 0 || d.phase == over {
		return scope.Result{}, err
	}
	slices.Sort(remaining)
	// It takes seconds, and with the definitions go the watches of their kinds, which shakes a connection: too little to rely on a watch
	// alone.
	return scope.Result{
		Wait: true, Message: "removing CustomResourceDefinition " + strings.Join(remaining, ", ") + " in the guest",
		RequeueAfter: d.within(t.Clock.Now(), unwatched),
	}, nil
}
