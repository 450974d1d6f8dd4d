// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// longest is the maximum duration of a list or a watch. client-go ends a watch after at most ten minutes.
	longest = 11 * time.Minute
	// brief is the minimum duration of a watch that begins with a list of large objects, and half its maximum.
	brief = 30 * time.Second
)

// requests lists and watches a kind.
func (s *Store) requests(k *kind, key kindKey, resource schema.GroupVersionResource) (*toolscache.ListWatch, error) {
	if err := s.connect(); err != nil {
		return nil, err
	}
	var list func(context.Context, metav1.ListOptions) (runtime.Object, error)
	var start func(context.Context, metav1.ListOptions) (watch.Interface, error)
	if key.partial {
		objects := s.meta.Resource(resource)
		list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		}
		start = objects.Watch
	} else {
		requests, err := apiutil.RESTClientForGVK(key.GroupVersionKind, false, false, s.untimed(), s.config.Codecs, s.config.HTTP)
		if err != nil {
			return nil, fmt.Errorf("connecting for %s: %w", key.Kind, err)
		}
		parameters := runtime.NewParameterCodec(s.Scheme())
		list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			into, err := s.Scheme().New(key.GroupVersion().WithKind(key.Kind + "List"))
			if err != nil {
				return nil, err
			}
			return into, requests.Get().Resource(resource.Resource).VersionedParams(&options, parameters).Do(ctx).Into(into)
		}
		start = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return requests.Get().Resource(resource.Resource).VersionedParams(&options, parameters).Watch(ctx)
		}
	}
	limits, selector := s.config.Kinds(key.GroupVersionKind), ""
	if limits.Label != nil {
		selector = limits.Label.String()
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			options.LabelSelector = selector
			return list(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			options.Watch, options.AllowWatchBookmarks, options.LabelSelector = true, true, selector
			if ptr.Deref(options.SendInitialEvents, false) && limits.Large && k.attempts.Add(1) == 1 {
				options.TimeoutSeconds = ptr.To(int64(wait.Jitter(brief, 1).Seconds()))
			}
			started, err := start(ctx, options)
			if err != nil {
				cancel()
				return nil, err
			}
			return bounded{started, cancel}, nil
		},
	}, nil
}

// bounded is a watch whose context ends with it.
type bounded struct {
	watch.Interface
	cancel context.CancelFunc
}

func (b bounded) Stop() {
	b.Interface.Stop()
	b.cancel()
}

// connect makes the client of all watches of metadata.
func (s *Store) connect() error {
	if s.meta != nil {
		return nil
	}
	objects, err := metadata.NewForConfigAndClient(s.untimed(), s.config.HTTP)
	if err != nil {
		return fmt.Errorf("connecting for metadata: %w", err)
	}
	s.meta = objects
	return nil
}

// untimed is the configuration without the timeout of calls.
func (s *Store) untimed() *rest.Config {
	config := rest.CopyConfig(s.config.Guest)
	config.Timeout = 0
	return config
}
