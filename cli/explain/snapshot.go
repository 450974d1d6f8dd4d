// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/awslabs/operatorpkg/object"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// ErrReadOnly is the error of every write to a snapshot.
var ErrReadOnly = errors.New("a snapshot can't be written")

// ErrNoKarpenter is returned for a cluster without Karpenter's kinds.
var ErrNoKarpenter = errors.New("the cluster has no NodePools, so Karpenter doesn't run in it; choose another with --context or " +
	"--kubeconfig, " +
	"or ask the platform team to set spec.autoNode")

// kinds are what Karpenter core's scheduling and disruption read. A cluster without an optional kind has none of its objects.
var kinds = []struct {
	list     client.ObjectList
	optional bool
	// buffers: it is read only where there are CapacityBuffers, which refer to its objects.
	buffers bool
}{
	{list: &karpv1.NodePoolList{}},
	{list: &karpv1.NodeClaimList{}},
	{list: &corev1.NodeList{}},
	{list: &corev1.PodList{}},
	{list: &corev1.NamespaceList{}},
	{list: &corev1.PersistentVolumeClaimList{}},
	{list: &corev1.PersistentVolumeList{}},
	{list: &appsv1.DaemonSetList{}},
	{list: &policyv1.PodDisruptionBudgetList{}},
	{list: &storagev1.StorageClassList{}},
	{list: &storagev1.CSINodeList{}, optional: true},
	{list: &v1alpha1.ClusterAPINodeClassList{}, optional: true},
	{list: &karpv1alpha1.NodeOverlayList{}, optional: true},
	{list: &resourcev1.ResourceSliceList{}, optional: true},
	{list: &resourcev1.ResourceClaimList{}, optional: true},
	{list: &resourcev1.DeviceClassList{}, optional: true},
	{list: &autoscalingv1beta1.CapacityBufferList{}, optional: true},
	{list: &corev1.PodTemplateList{}, optional: true, buffers: true},
	{list: &appsv1.DeploymentList{}, optional: true, buffers: true},
	{list: &appsv1.ReplicaSetList{}, optional: true, buffers: true},
	{list: &appsv1.StatefulSetList{}, optional: true, buffers: true},
}

// Snapshot is what a guest contained at one moment. It implements client.Client for Karpenter core; writes fail, but for those to a
// status, which are dropped.
type Snapshot struct {
	client.Client // nil: what isn't implemented below panics in a test
	objects       map[schema.GroupVersionKind][]client.Object
	// Events are those of NodeClaims, which say why launches have failed. They outlive the NodeClaims.
	Events []corev1.Event
	// Unread has why an optional kind couldn't be read, by kind.
	Unread map[string]error
}

var _ client.Client = (*Snapshot)(nil)

// Read lists everything that Karpenter core reads. Node classes have to be registered in client-go's scheme, where Karpenter core looks
// for all kinds.
func Read(ctx context.Context, guest client.Reader) (*Snapshot, error) {
	s := &Snapshot{objects: map[schema.GroupVersionKind][]client.Object{}, Unread: map[string]error{}}
	// What the API server has in its cache is new enough, and costs etcd nothing.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	for _, kind := range kinds {
		gvk, err := kindOf(kind.list)
		if err != nil {
			return nil, err
		}
		s.objects[gvk] = nil
		if kind.buffers && len(list[*autoscalingv1beta1.CapacityBuffer](s)) == 0 {
			continue
		}
		list, _ := kind.list.DeepCopyObject().(client.ObjectList)
		switch err := guest.List(ctx, list, cached); {
		case meta.IsNoMatchError(err) && !kind.optional:
			return nil, ErrNoKarpenter
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
			continue
		case err != nil && kind.optional:
			s.Unread[gvk.Kind] = err
			continue
		case err != nil:
			return nil, fmt.Errorf("listing objects of kind %s: %w", gvk.Kind, err)
		}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			if object, ok := item.(client.Object); ok {
				s.objects[gvk] = append(s.objects[gvk], object)
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("reading objects of kind %s: %w", gvk.Kind, err)
		}
	}
	events := &corev1.EventList{}
	if err := guest.List(ctx, events, client.MatchingFields{"involvedObject.kind": "NodeClaim"}); err != nil {
		s.Unread["Event"] = err
	}
	s.Events = events.Items
	return s, nil
}

// withNodePool returns a snapshot that shares all objects but NodePools, of which it has one.
func (s *Snapshot) withNodePool(nodePool *karpv1.NodePool) *Snapshot {
	narrowed := &Snapshot{objects: maps.Clone(s.objects), Events: s.Events, Unread: s.Unread}
	narrowed.objects[object.GVK(nodePool)] = []client.Object{nodePool}
	return narrowed
}

func kindOf(object runtime.Object) (schema.GroupVersionKind, error) {
	gvk, err := apiutil.GVKForObject(object, clientgoscheme.Scheme)
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	return gvk, err
}

// Get implements client.Reader.
func (s *Snapshot) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	gvk, err := kindOf(into)
	if err != nil {
		return err
	}
	for _, object := range s.objects[gvk] {
		if object.GetName() == key.Name && (object.GetNamespace() == key.Namespace || object.GetNamespace() == "") {
			return assign(object, into)
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(gvk.Kind)}, key.Name)
}

// withoutPendingKey is the key of a context in which List returns no pods without a node.
type withoutPendingKey struct{}

// List implements client.Reader. A field that Karpenter core doesn't index is an error.
func (s *Snapshot) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	gvk, err := kindOf(into)
	if err != nil {
		return err
	}
	objects, known := s.objects[gvk]
	if !known {
		return fmt.Errorf("the snapshot doesn't contain objects of kind %s", gvk.Kind)
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	shared := o.UnsafeDisableDeepCopy != nil && *o.UnsafeDisableDeepCopy
	found := []runtime.Object{}
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == "" && ctx.Value(withoutPendingKey{}) != nil {
			continue
		}
		if o.Namespace != "" && object.GetNamespace() != o.Namespace ||
			o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		if o.FieldSelector != nil {
			set := indexed(object)
			for _, requirement := range o.FieldSelector.Requirements() {
				if !set.Has(requirement.Field) {
					return fmt.Errorf("the snapshot doesn't index field %s of %T", requirement.Field, object)
				}
			}
			if !o.FieldSelector.Matches(set) {
				continue
			}
		}
		if shared {
			found = append(found, object)
		} else {
			found = append(found, object.DeepCopyObject())
		}
	}
	return meta.SetList(into, found)
}

// assign copies an object into another of its type.
func assign(from, into client.Object) error {
	to, value := reflect.ValueOf(into), reflect.ValueOf(from.DeepCopyObject())
	if to.Type() != value.Type() {
		return fmt.Errorf("reading a %T into a %T", from, into)
	}
	to.Elem().Set(value.Elem())
	return nil
}

// indexed returns the fields by which Karpenter core lists objects of a kind.
func indexed(object client.Object) fields.Set {
	reference := func(path string, ref *karpv1.NodeClassReference) fields.Set {
		ref = cmp.Or(ref, &karpv1.NodeClassReference{})
		return fields.Set{path + ".group": ref.Group, path + ".kind": ref.Kind, path + ".name": ref.Name}
	}
	switch o := object.(type) {
	case *corev1.Pod:
		return fields.Set{"spec.nodeName": o.Spec.NodeName}
	case *corev1.Node:
		return fields.Set{"spec.providerID": o.Spec.ProviderID}
	case *karpv1.NodeClaim:
		set := reference("spec.nodeClassRef", o.Spec.NodeClassRef)
		set["status.providerID"] = o.Status.ProviderID
		return set
	case *karpv1.NodePool:
		return reference("spec.template.spec.nodeClassRef", o.Spec.Template.Spec.NodeClassRef)
	}
	return nil
}

// Scheme implements client.Client.
func (s *Snapshot) Scheme() *runtime.Scheme { return clientgoscheme.Scheme }

// Create implements client.Writer.
func (s *Snapshot) Create(context.Context, client.Object, ...client.CreateOption) error {
	return ErrReadOnly
}

// Update implements client.Writer.
func (s *Snapshot) Update(context.Context, client.Object, ...client.UpdateOption) error {
	return ErrReadOnly
}

// Patch implements client.Writer.
func (s *Snapshot) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return ErrReadOnly
}

// Apply implements client.Writer.
func (s *Snapshot) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return ErrReadOnly
}

// Delete implements client.Writer.
func (s *Snapshot) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return ErrReadOnly
}

// DeleteAllOf implements client.Writer.
func (s *Snapshot) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return ErrReadOnly
}

// Status implements client.Client. Karpenter's controller of NodeOverlays reports in their status what it has evaluated.
func (s *Snapshot) Status() client.SubResourceWriter { return dropped{} }

type dropped struct{ client.SubResourceWriter }

// Update implements client.SubResourceWriter.
func (dropped) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return nil
}

// Patch implements client.SubResourceWriter.
func (dropped) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}
