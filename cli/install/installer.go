// SPDX-License-Identifier: Apache-2.0

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/manifests"
)

const (
	// owner is the field manager of what is installed.
	owner = "autonode-install"
	// interval is between two looks at what is waited for.
	interval = 500 * time.Millisecond
	// readTimeout is how long one of them may take.
	readTimeout = 30 * time.Second
)

// crd is the kind of CustomResourceDefinitions.
var crd = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind()

// ErrConflict is wrapped where another program owns a field that an installation sets.
var ErrConflict = errors.New("another program has installed this with other values")

// Installer applies and removes objects.
type Installer struct {
	Management client.Client
	// Out gets a line for each object.
	Out io.Writer
	// Timeout of each wait.
	Timeout time.Duration
	// Force takes fields from other owners.
	Force bool
}

// Apply applies objects in their order, and waits until the CRDs are served and the Deployments run. Then it prunes: until the new pods
// run, the old ones need what they mount.
func (i *Installer) Apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	definitions, others := splitCRDs(objects)
	for _, step := range [][]*unstructured.Unstructured{definitions, others} {
		for _, object := range step {
			if err := i.apply(ctx, object); err != nil {
				return err
			}
		}
		for _, object := range step {
			if err := i.ready(ctx, object); err != nil {
				return err
			}
		}
	}
	return i.Prune(ctx, objects)
}

// splitCRDs returns the CRDs, and the rest.
func splitCRDs(objects []*unstructured.Unstructured) (definitions, others []*unstructured.Unstructured) {
	return split(objects, func(object *unstructured.Unstructured) bool { return object.GroupVersionKind().GroupKind() == crd })
}

// split returns the objects that match, and the rest.
func split(objects []*unstructured.Unstructured, match func(*unstructured.Unstructured) bool) (matching,
	others []*unstructured.Unstructured) {
	for _, object := range objects {
		if match(object) {
			matching = append(matching, object)
		} else {
			others = append(others, object)
		}
	}
	return matching, others
}

func (i *Installer) apply(ctx context.Context, object *unstructured.Unstructured) error {
	opts := []client.ApplyOption{client.FieldOwner(owner)}
	if i.Force {
		opts = append(opts, client.ForceOwnership)
	}
	err := i.Management.Apply(ctx, client.ApplyConfigurationFromUnstructured(marked(object)), opts...)
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %s: %w; upgrade it the way it was installed, or take it over with --force-conflicts",
			ErrConflict, named(object), err)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("applying %s: the cluster doesn't have this kind: %w", named(object), err)
	case err != nil:
		return fmt.Errorf("applying %s: %w", named(object), err)
	}
	fmt.Fprintf(i.Out, "%s applied\n", named(object))
	return nil
}

// ready waits for a CRD or a Deployment.
func (i *Installer) ready(ctx context.Context, object *unstructured.Unstructured) error {
	var check func(*unstructured.Unstructured) (bool, string)
	switch object.GroupVersionKind().GroupKind() {
	case crd:
		check = established
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		check = available
	default:
		return nil
	}
	last := ""
	err := wait.PollUntilContextTimeout(ctx, interval, i.Timeout, true, func(ctx context.Context) (bool, error) {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(object.GroupVersionKind())
		if err := i.Management.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
			last = cmp.Or(last, err.Error()) // the last one reports that there is no time for another request
			return false, nil                // an API server may be away for a moment; the timeout ends it
		}
		done, why := check(live)
		last = why
		return done, nil
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s isn't ready after %s: %s; see `kubectl%s describe %s %s`", named(object), i.Timeout, last,
			inNamespace(object), strings.ToLower(object.GetKind()), object.GetName())
	}
	fmt.Fprintf(i.Out, "%s is ready\n", named(object))
	return nil
}

func established(object *unstructured.Unstructured) (bool, string) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, definition); err != nil {
		return false, err.Error()
	}
	if condition := apihelpers.FindCRDCondition(definition, apiextensionsv1.Established); condition != nil {
		return condition.Status == apiextensionsv1.ConditionTrue, condition.Message
	}
	return false, "it has no condition Established yet"
}

func available(object *unstructured.Unstructured) (bool, string) {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return false, err.Error()
	}
	wanted, status := ptr.Deref(deployment.Spec.Replicas, 1), deployment.Status
	why := fmt.Sprintf("%d of %d replicas are updated, %d available", status.UpdatedReplicas, wanted, status.AvailableReplicas)
	for _, condition := range status.Conditions {
		late := condition.Type == appsv1.DeploymentProgressing && condition.Reason == "ProgressDeadlineExceeded"
		if late || condition.Type == appsv1.DeploymentReplicaFailure {
			why += ": " + condition.Message
		}
	}
	return status.ObservedGeneration >= deployment.Generation && status.UpdatedReplicas >= wanted && status.AvailableReplicas >= wanted, why
}

// Found reports whether the cluster has the operator's Deployment or a CRD of HostedClusters: without both, it isn't a management cluster.
func (i *Installer) Found(ctx context.Context, objects []*unstructured.Unstructured) (bool, error) {
	for _, object := range objects {
		if object.GetKind() != "Deployment" && object.GetName() != "hostedclusters."+v1beta1.Group {
			continue
		}
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(object.GroupVersionKind())
		switch err := i.Management.Get(ctx, client.ObjectKeyFromObject(object), live); {
		case err == nil:
			return true, nil
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return false, fmt.Errorf("looking for %s: %w", named(object), err)
		}
	}
	return false, nil
}

// Remove deletes objects in the reverse of their order, and what another version has applied, all but the CRDs and what guards them. With
// definitions it deletes those as well, last.
func (i *Installer) Remove(ctx context.Context, objects []*unstructured.Unstructured, definitions bool) error {
	crds, rest := splitCRDs(objects)
	guard, others := split(rest, func(object *unstructured.Unstructured) bool { return object.GetName() == manifests.Guard })
	slices.Reverse(others)
	// Before the namespace goes, with which the API server would delete some of it.
	if err := i.Prune(ctx, objects); err != nil {
		return err
	}
	if err := i.remove(ctx, others); err != nil {
		return err
	}
	if !definitions {
		fmt.Fprintf(i.Out, "%d CustomResourceDefinitions and their guard stay; --delete-crds deletes them\n", len(crds))
		return nil
	}
	for _, object := range crds {
		confirmed := &unstructured.Unstructured{}
		confirmed.SetGroupVersionKind(object.GroupVersionKind())
		confirmed.SetName(object.GetName())
		patch := client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"`+v1beta1.ConfirmDeletionAnnotation+`":"true"}}}`))
		if err := i.Management.Patch(ctx, confirmed, patch); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("confirming the deletion of %s: %w", named(object), err)
		}
	}
	if err := i.remove(ctx, crds); err != nil {
		return err
	}
	return i.remove(ctx, guard)
}

// remove deletes objects and waits until they are gone.
func (i *Installer) remove(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		err := i.Management.Delete(ctx, object.DeepCopy(), client.PropagationPolicy("Background"))
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("deleting %s: %w", named(object), err)
		}
		fmt.Fprintf(i.Out, "%s deleted\n", named(object))
	}
	for _, object := range objects {
		live := &unstructured.Unstructured{}
		var unread error
		err := wait.PollUntilContextTimeout(ctx, interval, i.Timeout, true, func(context.Context) (bool, error) {
			// A read has a time of its own: one that the end of the wait cut short would hide what the API server reports about the object.
			read, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			found := &unstructured.Unstructured{}
			found.SetGroupVersionKind(object.GroupVersionKind())
			if unread = i.Management.Get(read, client.ObjectKeyFromObject(object), found); unread == nil {
				live = found
			}
			return apierrors.IsNotFound(unread) || meta.IsNoMatchError(unread), nil
		})
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s is still there after %s%s; see its finalizers with `kubectl%s get %s %s -o yaml`", named(object),
				i.Timeout, holdup(live, unread),
				inNamespace(object), strings.ToLower(object.GetKind()), object.GetName())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holdup is why an object that is being deleted is still there, as far as that is known: what its API server reported last, a condition,
// or its finalizers.
func holdup(live *unstructured.Unstructured, unread error) string {
	if unread != nil {
		return ": " + unread.Error()
	}
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, entry := range conditions {
		condition, _ := entry.(map[string]any)
		if condition["type"] == string(apiextensionsv1.Terminating) && condition["status"] == string(apiextensionsv1.ConditionTrue) {
			return fmt.Sprintf(": %v: %v", condition["reason"], condition["message"])
		}
	}
	if finalizers := live.GetFinalizers(); len(finalizers) > 0 {
		return ": it has the finalizers " + strings.Join(finalizers, ", ")
	}
	return ""
}

func named(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + klog.KObj(object).String()
}

func inNamespace(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return ""
	}
	return " -n " + object.GetNamespace()
}
