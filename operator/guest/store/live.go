// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// maxListed limits the memory for a list from the API server, in bytes.
const maxListed = 64 << 20

// live is Config.Live, with lists that are decoded object by object: one that can't be decoded hides no other.
type live struct {
	client.Client
	store *Store
}

// Lists returns a client that reads from the API server. The transform of a Kind applies to its lists, too.
func (s *Store) Lists() client.Client { return live{s.Client, s} }

// List implements client.Reader.
func (l live) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	s := l.store
	gvk, err := apiutil.GVKForObject(into, s.Scheme())
	if err != nil {
		return fmt.Errorf("finding the kind of %T: %w", into, err)
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	_, partial := into.(*metav1.PartialObjectMetadataList)
	if _, unstructured := into.(runtime.Unstructured); unstructured {
		return l.Client.List(ctx, into, opts...)
	}
	key := kindKey{gvk, partial}
	mapping, err := s.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	d, err := s.decoderOf(key, nil)
	if err != nil {
		return err
	}
	connection, err := s.connect()
	if err != nil {
		return err
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	accept, _ := formats(key)
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	body, err := connection.Get().AbsPath(pathOf(mapping.Resource, options.Namespace)...).
		SetHeader("Accept", accept).Timeout(s.config.Timeout).
		VersionedParams(options.AsListOptions(), metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	var items []runtime.Object
	size, count := 0, 0
	k := &kind{gvk: gvk, transform: s.config.Kinds(gvk).Transform}
	found, err := readItems(body, func(raw []byte) error {
		if size, count = size+overhead, count+1; size > maxListed || count > s.usage.bounds.Objects {
			return errors.New("the list is too large")
		}
		object, named := d.decode(raw)
		if object == nil || !named {
			return nil
		}
		shrunk, err := k.shrink(object)
		if o, ok := shrunk.(runtime.Object); ok {
			o.GetObjectKind().SetGroupVersionKind(gvk)
			size += Size(o)
			items = append(items, o)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("listing %s: %w", mapping.Resource.Resource, err)
	}
	into.SetResourceVersion(found.ResourceVersion)
	into.SetContinue(found.Continue)
	return meta.SetList(into, items)
}
