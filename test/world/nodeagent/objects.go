// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// objectTimeout is the timeout of a pod's first read of an object that it refers to.
const objectTimeout = 10 * time.Second

// objects watches the Secrets and ConfigMaps that one pod refers to, each on its own as a kubelet does: a management
// cluster has thousands of others. Only the pod's goroutine uses it.
type objects struct {
	client    kubernetes.Interface
	namespace string
	// changed is called whenever an object that was read changes.
	changed func()
	watches map[string]objectWatch // by resource and name
}

type objectWatch struct {
	store  toolscache.Store
	synced <-chan struct{}
	cancel context.CancelFunc
}

// The resources that a pod refers to.
const (
	secrets    = "secrets"
	configMaps = "configmaps"
)

// data returns what a Secret or a ConfigMap holds.
func (o *objects) data(ctx context.Context, resource, name string) (map[string][]byte, error) {
	object, err := o.get(ctx, resource, name)
	if err != nil {
		return nil, err
	}
	if secret, ok := object.(*corev1.Secret); ok {
		return secret.Data, nil
	}
	configMap := object.(*corev1.ConfigMap)
	data := map[string][]byte{}
	maps.Copy(data, configMap.BinaryData)
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	return data, nil
}

func (o *objects) get(ctx context.Context, resource, name string) (any, error) {
	watch, ok := o.watches[resource+"/"+name]
	if !ok {
		watch = o.watch(resource, name)
		o.watches[resource+"/"+name] = watch
	}
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	select {
	case <-watch.synced:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to read %s %q: %w", resource, name, ctx.Err())
	}
	object, exists, err := watch.store.GetByKey(o.namespace + "/" + name)
	if err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", resource, name, err)
	}
	if !exists {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource[:len(resource)-1]}, name)
	}
	return object, nil
}

func (o *objects) watch(resource, name string) objectWatch {
	var kind runtime.Object = &corev1.Secret{}
	if resource == configMaps {
		kind = &corev1.ConfigMap{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	store, controller := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(o.client.CoreV1().RESTClient(), resource, o.namespace,
			fields.OneTermEqualSelector("metadata.name", name)),
		ObjectType: kind,
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { o.changed() },
			UpdateFunc: func(any, any) { o.changed() },
			DeleteFunc: func(any) { o.changed() },
		},
	})
	go controller.RunWithContext(ctx)
	return objectWatch{store: store, synced: controller.HasSyncedChecker().Done(), cancel: cancel}
}

// stop ends all watches.
func (o *objects) stop() {
	for _, watch := range o.watches {
		watch.cancel()
	}
	clear(o.watches)
}
