// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/autonode-io/autonode/operator/provider"
)

// metadataClient reads the metadata of fully watched kinds from that watch. Otherwise the cache would start a second
// watch for the metadata: a watch costs some hundred kilobytes, and a guest has few objects.
type metadataClient struct {
	client.Client
	whole map[schema.GroupVersionKind]client.Object
}

func newMetadataClient(cached client.Client, profile *provider.Profile) (client.Client, error) {
	whole := map[schema.GroupVersionKind]client.Object{}
	for _, kind := range watches(profile) {
		if _, partial := kind.object.(*metav1.PartialObjectMetadata); partial {
			continue
		}
		gvk, err := apiutil.GVKForObject(kind.object, cached.Scheme())
		if err != nil {
			return nil, fmt.Errorf("finding the kind of %T: %w", kind.object, err)
		}
		whole[gvk] = kind.object
	}
	return metadataClient{cached, whole}, nil
}

func (c metadataClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	partial, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return c.Client.Get(ctx, key, obj, opts...)
	}
	gvk := partial.GroupVersionKind()
	whole, ok := c.whole[gvk]
	if !ok {
		return c.Client.Get(ctx, key, obj, opts...)
	}
	whole = whole.DeepCopyObject().(client.Object)
	if err := c.Client.Get(ctx, key, whole, opts...); err != nil {
		return err
	}
	*partial = *meta.AsPartialObjectMetadata(whole)
	partial.SetGroupVersionKind(gvk)
	return nil
}
