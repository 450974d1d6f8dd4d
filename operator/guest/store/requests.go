// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	// longest is the maximum duration of a list or a watch. client-go ends a watch after at most ten minutes.
	longest = 11 * time.Minute
	// asMetadata requests the metadata of objects alone.
	asMetadata = runtime.ContentTypeJSON + ";as=%s;g=meta.k8s.io;v=v1," + runtime.ContentTypeJSON
)

// requests lists and watches a kind. It decodes object by object, so that the first one beyond a bound is the last, and
// one that can't be decoded hides no other.
func (s *Store) requests(k *kind, key kindKey, resource schema.GroupVersionResource) (*toolscache.ListWatch, error) {
	connection, err := s.connect()
	if err != nil {
		return nil, err
	}
	limits, selector := s.config.Kinds(key.GroupVersionKind), ""
	if limits.Label != nil {
		selector = limits.Label.String()
	}
	d, err := s.decoderOf(key, limits.Label)
	if err != nil {
		return nil, err
	}
	request := func(accept string, options metav1.ListOptions) *rest.Request {
		return connection.Get().AbsPath(pathOf(resource, "")...).SetHeader("Accept", accept).VersionedParams(&options, metav1.ParameterCodec)
	}
	inList, inWatch := formats(key)
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			options.LabelSelector = selector
			if options.Continue == "" {
				d.begin(k)
			}
			body, err := request(inList, options).Stream(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { _ = body.Close() }()
			list := &metainternalversion.List{}
			found, err := readItems(body, func(raw []byte) error {
				object, selected := d.decode(raw)
				if object == nil || !selected {
					err := s.usage.collect(k, overhead) // a list without end has an end
					if err != nil {
						s.exceed(err)
					}
					return err
				}
				collected, err := k.collect(object)
				if err != nil {
					return err
				}
				if o, ok := collected.(runtime.Object); ok {
					list.Items = append(list.Items, o)
				}
				return nil
			})
			list.ResourceVersion, list.Continue = found.ResourceVersion, found.Continue
			return list, s.bounded(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			options.Watch, options.AllowWatchBookmarks, options.LabelSelector = true, true, selector
			if ptr.Deref(options.SendInitialEvents, false) {
				d.begin(k)
			}
			body, err := request(inWatch, options).Stream(ctx)
			if err != nil {
				cancel()
				return nil, err
			}
			e := &events{decoder: d, stream: newStream(body), body: body, cancel: cancel}
			return watch.NewStreamWatcher(e, apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "ClientWatchDecoding")), nil
		},
	}, nil
}

// pathOf returns the path of a resource, in a namespace if it isn't empty.
func pathOf(resource schema.GroupVersionResource, namespace string) []string {
	path := []string{"/apis", resource.Group, resource.Version}
	if resource.Group == "" {
		path = []string{"/api", resource.Version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	return append(path, resource.Resource)
}

// formats are the media types of a list and a watch.
func formats(key kindKey) (inList, inWatch string) {
	if key.partial {
		return fmt.Sprintf(asMetadata, "PartialObjectMetadataList"), fmt.Sprintf(asMetadata, "PartialObjectMetadata")
	}
	return runtime.ContentTypeJSON, runtime.ContentTypeJSON
}

// bounded closes the Store for an error that reports that the guest exceeds its bounds.
func (s *Store) bounded(err error) error {
	if errors.Is(err, errTooLarge) {
		err = fmt.Errorf("it sent an object of more than %d MiB", maxText>>20)
		s.exceed(err)
	}
	return err
}

// connect returns the client of all watches.
func (s *Store) connect() (rest.Interface, error) {
	s.connecting.Lock()
	defer s.connecting.Unlock()
	if s.connection != nil {
		return s.connection, nil
	}
	config := rest.CopyConfig(s.config.Guest)
	config.Timeout = 0 // that of calls
	config.NegotiatedSerializer = s.config.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, s.config.HTTP)
	if err != nil {
		return nil, fmt.Errorf("connecting for watches: %w", err)
	}
	s.connection = client
	return client, nil
}
