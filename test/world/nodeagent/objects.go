// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// objectTimeout is how long a pod waits for the first reading of an object that it refers to.
const objectTimeout = 10 * time.Second

// objectKey names a Secret or ConfigMap.
type objectKey struct {
	resource string // "secrets" or "configmaps"
	types.NamespacedName
}

// objectCache watches the Secrets and ConfigMaps that pods refer to, each on its own, as the kubelet does: a node may
// read no other. A watch lives while a pod uses it.
type objectCache struct {
	client kubernetes.Interface

	mu      sync.Mutex
	watches map[objectKey]*objectWatch
}

type objectWatch struct {
	store  cache.Store
	synced cache.DoneChecker
	cancel context.CancelFunc
	// users are told of every change.
	users map[types.UID]func()
}

func newObjectCache(client kubernetes.Interface) *objectCache {
	return &objectCache{client: client, watches: map[objectKey]*objectWatch{}}
}

// user returns a reader for one pod; changed is called whenever something that it has read changes.
func (c *objectCache) user(pod types.UID, changed func()) *objectUser {
	return &objectUser{cache: c, pod: pod, changed: changed}
}

// watch finds or starts an object's watch and makes the pod one of its users.
func (c *objectCache) watch(key objectKey, pod types.UID, changed func()) *objectWatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if existing, ok := c.watches[key]; ok {
		existing.users[pod] = changed
		return existing
	}
	ctx, cancel := context.WithCancel(context.Background())
	started := &objectWatch{cancel: cancel, users: map[types.UID]func(){pod: changed}}
	notify := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, tell := range started.users {
			tell()
		}
	}
	var object runtime.Object = &corev1.Secret{}
	if key.resource == "configmaps" {
		object = &corev1.ConfigMap{}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), key.resource, key.Namespace,
			fields.OneTermEqualSelector("metadata.name", key.Name)),
		ObjectType: object,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify() },
			UpdateFunc: func(any, any) { notify() },
			DeleteFunc: func(any) { notify() },
		},
	})
	started.store, started.synced = store, controller.HasSyncedChecker()
	go controller.RunWithContext(ctx)
	c.watches[key] = started
	return started
}

// release ends a pod's use of everything it has read.
func (c *objectCache) release(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, watch := range c.watches {
		delete(watch.users, pod)
		if len(watch.users) == 0 {
			watch.cancel()
			delete(c.watches, key)
		}
	}
}

// objectUser is one pod's view.
type objectUser struct {
	cache   *objectCache
	pod     types.UID
	changed func()
}

var _ reader = (*objectUser)(nil)

func (u *objectUser) get(ctx context.Context, resource, namespace, name string) (any, error) {
	key := objectKey{resource, types.NamespacedName{Namespace: namespace, Name: name}}
	watch := u.cache.watch(key, u.pod, u.changed)
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	select {
	case <-watch.synced.Done():
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to read %s %q: %w", resource, name, ctx.Err())
	}
	object, exists, err := watch.store.GetByKey(key.String())
	if err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", resource, name, err)
	}
	if !exists {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource[:len(resource)-1]}, name)
	}
	return object, nil
}

func (u *objectUser) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	object, err := u.get(ctx, "secrets", namespace, name)
	if err != nil {
		return nil, err
	}
	return object.(*corev1.Secret), nil
}

func (u *objectUser) configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	object, err := u.get(ctx, "configmaps", namespace, name)
	if err != nil {
		return nil, err
	}
	return object.(*corev1.ConfigMap), nil
}
