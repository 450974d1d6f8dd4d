// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// Names of the definitions of the kinds that the steps read in a guest.
const (
	NodePoolDefinition  = "nodepools." + apis.Group
	NodeClaimDefinition = "nodeclaims." + apis.Group
)

// AddToScheme registers the kinds that the steps read and write in a guest cluster.
func AddToScheme(scheme *runtime.Scheme) error {
	karpenter := schema.GroupVersion{Group: apis.Group, Version: "v1"}
	metav1.AddToGroupVersion(scheme, karpenter)
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme,
		v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("registering the guest's kinds: %w", err)
		}
	}
	return nil
}

// StoreKinds limits the stores of guests to the objects that the steps read. A kind without a watch, such as Pod or Secret,
// is read from the API server: a store of a guest's Pods could be larger than all others together.
func StoreKinds(scheme *runtime.Scheme, others []Kind) (func(schema.GroupVersionKind) store.Kind, error) {
	ours := store.Kind{Label: labels.SelectorFromSet(labels.Set{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}), Transform: shrink}
	provisioned, err := labels.NewRequirement(karpv1.NodePoolLabelKey, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("selecting Karpenter's nodes: %w", err)
	}
	objects := map[client.Object]store.Kind{
		&apiextensionsv1.CustomResourceDefinition{}:                 ours,
		&corev1.ServiceAccount{}:                                    ours,
		&rbacv1.ClusterRole{}:                                       ours,
		&rbacv1.ClusterRoleBinding{}:                                ours,
		&admissionregistrationv1.ValidatingAdmissionPolicy{}:        ours,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}: ours,
		&rbacv1.Role{}:                                              ours,
		&rbacv1.RoleBinding{}:                                       ours,
		&corev1.Node{}:                                              {Label: labels.NewSelector().Add(*provisioned), Transform: shrink},
	}
	for _, other := range others {
		if other.Transform != nil {
			objects[other.Object] = store.Kind{Transform: other.Transform}
		}
	}
	kinds := map[schema.GroupVersionKind]store.Kind{}
	for object, kind := range objects {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, fmt.Errorf("finding the kind of %T: %w", object, err)
		}
		kinds[gvk] = kind
	}
	return func(gvk schema.GroupVersionKind) store.Kind {
		if kind, ok := kinds[gvk]; ok {
			return kind
		}
		return store.Kind{Transform: shrink}
	}, nil
}

// Kind is a kind in guests that another controller than the HostedCluster's watches, with its own queue.
type Kind struct {
	// Object of the kind, which every guest serves.
	Object client.Object
	// Transform limits the fields that are kept; nil keeps all.
	Transform toolscache.TransformFunc
	// Index is the name of an index of the cached objects by Extract's result; empty for none.
	Index   string
	Extract client.IndexerFunc
	// For reports whether to watch the guest of a HostedCluster.
	For func(*scope.Scope) bool
	// Handle returns the event handler for the guest of a HostedCluster. Each connection sends it all objects, after
	// the watches of Karpenter's kinds have started. It must not block.
	Handle func(hostedCluster types.NamespacedName) toolscache.ResourceEventHandler
}

// watched is a kind in a guest whose changes reconcile the HostedCluster.
type watched struct {
	object client.Object
	// crd that has to be Established before the watch can start; empty for built-in kinds.
	crd string
	// delay merges bursts.
	delay time.Duration
	// differs reports whether an update matters; nil means that every update does.
	differs func(before, after client.Object) bool
}

func watches(profile *provider.Profile) []watched {
	metadata := func(gvk schema.GroupVersionKind) client.Object {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(gvk)
		return object
	}
	kinds := []watched{
		{object: &apiextensionsv1.CustomResourceDefinition{}},
		{object: metadata(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))},
		{object: metadata(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))},
		{object: metadata(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))},
		{object: metadata(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"))},
		{object: metadata(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"))},
		{object: &corev1.Node{}, delay: burst, differs: nodeDiffers},
		{object: &karpv1.NodePool{}, crd: NodePoolDefinition, delay: burst, differs: specDiffers},
		{object: &karpv1.NodeClaim{}, crd: NodeClaimDefinition, delay: burst, differs: nodeClaimDiffers},
		{object: profile.NodeClass.New(), crd: profile.NodeClass.Definition(), delay: burst, differs: nodeClassDiffers},
	}
	if profile.Roles != nil {
		kinds = append(kinds,
			watched{object: metadata(rbacv1.SchemeGroupVersion.WithKind("Role"))},
			watched{object: metadata(rbacv1.SchemeGroupVersion.WithKind("RoleBinding"))},
		)
	}
	return kinds
}

// isServed requests one object from the API server, because a kind is Established before it is served: an informer that
// starts too early backs off for seconds.
func isServed(ctx context.Context, guest *scope.Guest, kind watched) (bool, error) {
	if established, err := IsEstablished(ctx, guest.Cached, kind.crd); err != nil || !established {
		return false, err // the definition's own watch brings us back
	}
	gvk, err := apiutil.GVKForObject(kind.object, guest.Live.Scheme())
	if err != nil {
		return false, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk)
	err = guest.Live.List(ctx, list, client.Limit(1))
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing %ss in the guest: %w", gvk.Kind, err)
	}
	return true, nil
}

// IsEstablished reports whether a guest has accepted the CRD of that name.
func IsEstablished(ctx context.Context, guest client.Reader, name string) (bool, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := guest.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading CustomResourceDefinition %s in the guest: %w", name, err)
	}
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established), nil
}
