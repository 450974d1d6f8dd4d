// SPDX-License-Identifier: Apache-2.0

// Package pullsecret reads the pull secrets that HostedClusters name, and wakes their reconciler when one changes. No Secret's content
// is kept but theirs.
package pullsecret

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
)

// index indexes HostedClusters by the pull secret that they name, as <namespace>/<name>.
const index = "autonode.io/pull-secret"

const (
	// remembered is how many Secrets are kept; one more costs a request where it is read.
	remembered = 256
	// maxBytes limits each. Tenants write them, and the largest of OpenShift's has a few kilobytes.
	maxBytes = 64 << 10
)

// Secrets reads pull secrets.
type Secrets struct {
	management client.Client
	live       client.Reader
	watch      cache.Cache
	read       lru.Cache[version, *corev1.Secret]
}

type version struct{ uid, resourceVersion string }

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch

// New adds a watch of the metadata of Secrets of type kubernetes.io/dockerconfigjson to the manager.
func New(ctx context.Context, mgr manager.Manager) (*Secrets, error) {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.HostedCluster{}, index, func(obj client.Object) []string {
		if key := keyOf(obj.(*v1beta1.HostedCluster)); key.Name != "" {
			return []string{key.String()}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("indexing hosted clusters by pull secret: %w", err)
	}
	watch, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme:     mgr.GetScheme(),
		Mapper:     mgr.GetRESTMapper(),
		HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Field: fields.OneTermEqualSelector("type", string(corev1.SecretTypeDockerConfigJson)), Transform: onlyVersion},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the cache of pull secrets: %w", err)
	}
	if err := mgr.Add(watch); err != nil {
		return nil, fmt.Errorf("adding the cache of pull secrets: %w", err)
	}
	return &Secrets{
		management: mgr.GetClient(), live: mgr.GetAPIReader(), watch: watch, read: lru.New[version, *corev1.Secret](remembered),
	}, nil
}

// onlyVersion drops fields that could hold content: kubectl's last-applied annotation repeats the data.
func onlyVersion(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	return obj, nil
}

// Source emits the HostedClusters whose pull secret appeared, changed or went. It belongs to exactly one controller.
func (s *Secrets) Source() source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		kind := source.Kind(s.watch, metadata(), handler.TypedEnqueueRequestsFromMapFunc(s.requests),
			predicate.TypedResourceVersionChangedPredicate[*metav1.PartialObjectMetadata]{})
		if err := kind.Start(ctx, queue); err != nil {
			return fmt.Errorf("watching pull secrets: %w", err)
		}
		return nil
	})
}

func (s *Secrets) requests(ctx context.Context, secret *metav1.PartialObjectMetadata) []reconcile.Request {
	list := &v1beta1.HostedClusterList{}
	if err := s.management.List(ctx, list, client.MatchingFields{index: client.ObjectKeyFromObject(secret).String()}); err != nil {
		return nil // only when the cache is being stopped
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// InvalidError is why a pull secret that a HostedCluster names can't be used, in words for a condition.
type InvalidError struct{ Message string }

func (e *InvalidError) Error() string { return e.Message }

// Get returns the pull secret of a HostedCluster, nil if it names none. Don't modify it. It reads each version of a
// Secret once from the API server; a Secret of another type than kubernetes.io/dockerconfigjson isn't watched, and is
// read every time. A user has to correct the cause of an *InvalidError.
func (s *Secrets) Get(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (*corev1.Secret, error) {
	key := keyOf(hostedCluster)
	if key.Name == "" {
		return nil, nil
	}
	seen := metadata()
	err := s.watch.Get(ctx, key, seen)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the metadata of pull secret %s: %w", key, err)
	}
	if err == nil {
		if secret, ok := s.read.Get(version{string(seen.UID), seen.ResourceVersion}); ok {
			return secret, nil
		}
	}
	secret := &corev1.Secret{}
	switch err := s.live.Get(ctx, key, secret); {
	case apierrors.IsNotFound(err):
		return nil, &InvalidError{Message: fmt.Sprintf("spec.pullSecret: there is no Secret %s", key)}
	case err != nil:
		return nil, fmt.Errorf("reading pull secret %s: %w", key, err)
	}
	secret, err = shrink(secret)
	if err != nil {
		return nil, err
	}
	s.read.Add(version{string(secret.UID), secret.ResourceVersion}, secret)
	return secret, nil
}

// shrink keeps the credentials of a Secret.
func shrink(secret *corev1.Secret) (*corev1.Secret, error) {
	config := secret.Data[corev1.DockerConfigJsonKey]
	switch {
	case len(config) == 0:
		return nil, &InvalidError{Message: fmt.Sprintf("spec.pullSecret: Secret %s has no key %s; it has to be of type %s",
			client.ObjectKeyFromObject(secret), corev1.DockerConfigJsonKey, corev1.SecretTypeDockerConfigJson)}
	case len(config) > maxBytes:
		return nil, &InvalidError{Message: fmt.Sprintf("spec.pullSecret: key %s of Secret %s has %d bytes, more than %d; remove entries",
			corev1.DockerConfigJsonKey, client.ObjectKeyFromObject(secret), len(config), maxBytes)}
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion},
		Type:       secret.Type,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: config},
	}, nil
}

// IsInvalid returns the *InvalidError in err's tree, or nil.
func IsInvalid(err error) *InvalidError {
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		return invalid
	}
	return nil
}

func metadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return m
}

func keyOf(hostedCluster *v1beta1.HostedCluster) client.ObjectKey {
	if hostedCluster.Spec.PullSecret == nil {
		return client.ObjectKey{}
	}
	return client.ObjectKey{Namespace: hostedCluster.Namespace, Name: hostedCluster.Spec.PullSecret.Name}
}
