// SPDX-License-Identifier: Apache-2.0

// Package references watches the templates of machines and of their bootstrap. Karpenter's Role allows objects that equal one,
// but for fields that may differ, and a policy in the management cluster admits no others.
package references

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/assets/references"
)

const (
	// maxText and maxTexts bound what the templates of a kind add to a Role, whose size etcd bounds, in bytes.
	maxText, maxTexts = 16 << 10, 512 << 10
	// syncTimeout is how long to wait for the first list of a kind.
	syncTimeout = 10 * time.Second
	// events that may wait for the reconciler.
	waiting = 1024
)

// Templates are the texts of the templates of all namespaces, as a Role names them. Of a template it keeps nothing else.
type Templates struct {
	cache  cache.Cache
	live   client.Reader
	cached client.Reader
	mapper meta.RESTMapper
	kinds  references.Kinds
	events chan event.GenericEvent

	mu      sync.Mutex
	watched map[schema.GroupKind]cache.Informer
}

// One rule for each API group, of the kinds whose fields are known. assets/references lists them; a test compares.
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=eksconfigtemplates;k0sworkerconfigtemplates;kthreesconfigtemplates;kubeadmconfigtemplates;nodeadmconfigtemplates;rke2configtemplates;talosconfigtemplates,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=awsmachinetemplates;azuremachinetemplates;gcpmachinetemplates;hcloudmachinetemplates;hetznerbaremetalmachinetemplates;kubemarkmachinetemplates;kubevirtmachinetemplates;kwokmachinetemplates;metal3machinetemplates;nutanixmachinetemplates;openstackmachinetemplates;proxmoxmachinetemplates;vspheremachinetemplates,verbs=list;watch
// +kubebuilder:rbac:groups=vmware.infrastructure.cluster.x-k8s.io,resources=vspheremachinetemplates,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=awsmachines;azuremachines;gcpmachines;hcloudmachines;hetznerbaremetalmachines;kubemarkmachines;kubevirtmachines;kwokmachines;metal3machines;nutanixmachines;openstackmachines;proxmoxmachines;vspheremachines,verbs=get
// +kubebuilder:rbac:groups=vmware.infrastructure.cluster.x-k8s.io,resources=vspheremachines,verbs=get

// New adds the watches to the manager. None starts before a kind is asked for.
func New(mgr manager.Manager) (*Templates, error) {
	kinds, err := references.Embedded()
	if err != nil {
		return nil, err
	}
	t := &Templates{
		live: mgr.GetAPIReader(), cached: mgr.GetClient(), mapper: mgr.GetRESTMapper(), kinds: kinds,
		events: make(chan event.GenericEvent, waiting), watched: map[schema.GroupKind]cache.Informer{},
	}
	t.cache, err = cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(), DefaultTransform: t.shrink,
	})
	if err != nil {
		return nil, fmt.Errorf("creating the cache of templates: %w", err)
	}
	if err := mgr.Add(t); err != nil {
		return nil, fmt.Errorf("adding the cache of templates: %w", err)
	}
	return t, nil
}

// Start implements manager.Runnable.
func (t *Templates) Start(ctx context.Context) error { return t.cache.Start(ctx) }

// GetCache makes the manager start it before its readers.
func (t *Templates) GetCache() cache.Cache { return t.cache }

// Events has the templates that come, change and go.
func (t *Templates) Events() <-chan event.GenericEvent { return t.events }

// textField holds the text of a template's spec.
const textField = "text"

// shrink keeps a template's identity, its owner references, its text, and the annotations that it gives to its machines.
func (t *Templates) shrink(obj any) (any, error) {
	template, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	if _, shrunk := template.Object[textField]; shrunk {
		return obj, nil // a first list passes here twice
	}
	retained := &unstructured.Unstructured{}
	retained.SetGroupVersionKind(template.GroupVersionKind())
	retained.SetNamespace(template.GetNamespace())
	retained.SetName(template.GetName())
	retained.SetUID(template.GetUID())
	retained.SetResourceVersion(template.GetResourceVersion())
	if cluster, ok := template.GetLabels()[clusterv1.ClusterNameLabel]; ok {
		retained.SetLabels(map[string]string{clusterv1.ClusterNameLabel: cluster})
	}
	retained.SetOwnerReferences(template.GetOwnerReferences())
	given, _, err := unstructured.NestedStringMap(template.Object, "spec", "template", "metadata", "annotations")
	if err == nil && len(references.Annotations(given)) <= maxText {
		retained.SetAnnotations(given)
	}
	// A template that is too large or too deep for the policy makes no machine.
	text, err := t.kinds[references.Made(template.GroupVersionKind().GroupKind())].TextOf(template)
	if err != nil || len(text) > maxText {
		text = ""
	}
	retained.Object[textField] = text
	return retained, nil
}

// textsOf returns the text of a template's spec, and those of the annotations that its machines have from it and from MachineDeployments.
func textsOf(template *unstructured.Unstructured, deployed ...map[string]string) []string {
	text, _, _ := unstructured.NestedString(template.Object, textField)
	texts := []string{text}
	for _, annotations := range append(deployed, nil) {
		given := map[string]string{}
		maps.Copy(given, template.GetAnnotations())
		maps.Copy(given, annotations) // they take precedence
		texts = append(texts, references.Annotations(given))
	}
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}

// Texts returns those of the templates of a kind in a namespace that belong, sorted and each once, as a Role names them.
// The annotations are those that MachineDeployments give to their machines.
func (t *Templates) Texts(
	ctx context.Context, namespace string, kind schema.GroupKind, belongs func(metav1.Object) bool, annotations []map[string]string,
) ([]string, error) {
	if _, ok := t.kinds[references.Made(kind)]; !ok {
		return nil, nil
	}
	mapping, err := t.mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up kind %s: %w", kind, err)
	}
	watched, err := t.watch(ctx, mapping)
	if err != nil || !watched {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := t.cache.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing %s: %w", mapping.Resource.Resource, err)
	}
	others, err := t.ofControlPlane(ctx, namespace, mapping.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	var texts []string
	for i := range list.Items {
		if belongs(&list.Items[i]) && !slices.Contains(others, list.Items[i].GetName()) {
			texts = append(texts, textsOf(&list.Items[i], annotations...)...)
		}
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	size := 0
	for i, text := range texts {
		if size += len(text); size > maxTexts {
			log.FromContext(ctx).Info("Templates differ in too many ways; machines of the others are rejected",
				"kind", kind.String(), "limit", maxTexts)
			return texts[:i], nil
		}
	}
	return texts, nil
}

// ofControlPlane returns the names of the templates of a kind that the control plane's machines were made from.
// Karpenter uses none of these.
func (t *Templates) ofControlPlane(ctx context.Context, namespace string, kind schema.GroupVersionKind) (names []string, err error) {
	machines := &clusterv1.MachineList{}
	if strings.HasSuffix(kind.Kind, "MachineTemplate") {
		err = t.cached.List(ctx, machines, client.InNamespace(namespace), client.HasLabels{clusterv1.MachineControlPlaneLabel})
	}
	for i := range machines.Items {
		m, infrastructure := &machines.Items[i], &metav1.PartialObjectMetadata{}
		infrastructure.SetGroupVersionKind(kind.GroupVersion().WithKind(references.Made(kind.GroupKind()).Kind))
		// The cache leaves out a name that is the Machine's own.
		key := client.ObjectKey{Namespace: namespace, Name: cmp.Or(m.Spec.InfrastructureRef.Name, m.Name)}
		if err := t.live.Get(ctx, key, infrastructure); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading a machine of the control plane: %w", err)
		}
		names = append(names, infrastructure.Annotations[clusterv1.TemplateClonedFromNameAnnotation])
	}
	return names, err
}

// watch sees to it that a kind is watched, and reports whether the operator may.
func (t *Templates) watch(ctx context.Context, mapping *meta.RESTMapping) (bool, error) {
	t.mu.Lock()
	informer, ok := t.watched[mapping.GroupVersionKind.GroupKind()]
	t.mu.Unlock()
	if !ok {
		// A reflector retries a forbidden watch for ever, and logs no remedy.
		probe := &unstructured.UnstructuredList{}
		probe.SetGroupVersionKind(mapping.GroupVersionKind)
		if err := t.live.List(ctx, probe, client.Limit(1)); apierrors.IsForbidden(err) {
			log.FromContext(ctx).Info("The operator may not list templates; their machines are rejected. Allow it to list and watch them",
				"resource", mapping.Resource.GroupResource().String())
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("listing %s: %w", mapping.Resource.Resource, err)
		}
		var err error
		if informer, err = t.inform(ctx, mapping); err != nil {
			return false, err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	// Without all of them, Karpenter would lose permissions that it has already.
	if !toolscache.WaitForCacheSync(waiting.Done(), informer.HasSynced) {
		return false, fmt.Errorf("%s aren't listed yet", mapping.Resource.Resource)
	}
	return true, nil
}

// inform starts the watch of a kind.
func (t *Templates) inform(ctx context.Context, mapping *meta.RESTMapping) (cache.Informer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kind := mapping.GroupVersionKind.GroupKind()
	if informer, ok := t.watched[kind]; ok {
		return informer, nil
	}
	template := &unstructured.Unstructured{}
	template.SetGroupVersionKind(mapping.GroupVersionKind)
	informer, err := t.cache.GetInformer(ctx, template, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", mapping.Resource.Resource, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial { // who asked first reads those
				t.changed(obj)
			}
		},
		UpdateFunc: t.updated,
		DeleteFunc: t.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", mapping.Resource.Resource, err)
	}
	t.watched[kind] = informer
	return informer, nil
}

// updated passes on a template if anything that shrink retains has changed: its text, or whose it is.
func (t *Templates) updated(before, after any) {
	previous, ok := before.(*unstructured.Unstructured)
	template, alsoOK := after.(*unstructured.Unstructured)
	if ok && alsoOK {
		previous = previous.DeepCopy()
		previous.SetResourceVersion(template.GetResourceVersion())
	}
	if !equality.Semantic.DeepEqual(previous, template) {
		t.changed(after)
	}
}

func (t *Templates) changed(obj any) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if template, ok := obj.(*unstructured.Unstructured); ok {
		t.events <- event.GenericEvent{Object: template}
	}
}
