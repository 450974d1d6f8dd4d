// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/leak"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// secrets are what each world's Secrets have ever held: tokens are rotated, bootstrap tokens and machines' bootstrap data go with their machines, and
// may be in a log or an object all the same.
var secrets sync.Map // of *leak.Finder, by *localworld.World

// rememberSecrets learns each Secret of a world when it is made and whenever it changes, until ctx ends.
func rememberSecrets(ctx context.Context, world *localworld.World) error {
	finder := &leak.Finder{}
	for _, cluster := range clustersOf(world) {
		if err := follow(ctx, finder, cluster); err != nil {
			return fmt.Errorf("following the Secrets of %s: %w", cluster.Name, err)
		}
	}
	secrets.Store(world, finder)
	return nil
}

func follow(ctx context.Context, finder *leak.Finder, cluster *controlplane.Cluster) error {
	reader, err := newClient(cluster.RESTConfig())
	if err != nil {
		return err
	}
	informer := toolscache.NewSharedInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.SecretList{}
			return list, reader.List(ctx, list, &client.ListOptions{Raw: &options})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return reader.Watch(ctx, &corev1.SecretList{}, &client.ListOptions{Raw: &options})
		},
	}, &corev1.Secret{}, 0)
	learn := func(object any) { finder.Learn(cluster.Name, object.(*corev1.Secret)) }
	handled, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: learn, UpdateFunc: func(_, object any) { learn(object) },
	})
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		return ctx.Err()
	}
	return nil
}
