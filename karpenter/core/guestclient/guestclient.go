// SPDX-License-Identifier: Apache-2.0

// Package guestclient is Karpenter core's client of the guest, with rules for its writes of NodeClaims and Nodes: a file for each kind.
package guestclient

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Config of a client.
type Config struct {
	// Suspended returns an error while the management cluster doesn't answer.
	Suspended func() error
	// Declares reports whether a machine template of a node class declares a label.
	Declares func(nodeClass, key string) bool
	// AwaitsTaints reports whether Cluster API still has to write more to a Node than labels.
	AwaitsTaints func(ctx context.Context, node *corev1.Node) bool
	// UnknownZone is the zone of an offering that has none.
	UnknownZone string
	// Created gets each NodeClaim that was created, or the error.
	Created func(ctx context.Context, nodeClaim *karpv1.NodeClaim, err error)
	// Deleted gets each NodeClaim that was deleted.
	Deleted func(nodeClaim *karpv1.NodeClaim)
	// Written gets each NodeClaim and Node that a patch returned.
	Written func(object client.Object)
}

// New returns a client with the rules. guest reads from a cache.
func New(guest client.Client, config Config) client.Client { return &ruled{guest, config} }

type ruled struct {
	client.Client
	Config
}

// pendingKey is the key of a context in which no pod is pending.
type pendingKey struct{}

// WithoutPending returns a context in which a client lists no pods without a node.
func WithoutPending(ctx context.Context) context.Context {
	return context.WithValue(ctx, pendingKey{}, true)
}

// List implements client.Client.
func (r *ruled) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok && ctx.Value(pendingKey{}) != nil && listsPending(opts) {
		pods.Items = nil
		return nil
	}
	return r.Client.List(ctx, list, opts...)
}

// listsPending reports whether pods without a node are listed, as the provisioner does.
func listsPending(opts []client.ListOption) bool {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if options.FieldSelector == nil {
		return false
	}
	node, exact := options.FieldSelector.RequiresExactMatch("spec.nodeName")
	return exact && node == ""
}

// Create implements client.Client.
func (r *ruled) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if !ok {
		return r.Client.Create(ctx, object, opts...)
	}
	r.leaveLabels(nodeClaim)
	err := r.Client.Create(ctx, object, opts...)
	r.Created(ctx, nodeClaim, err)
	return err
}

// Delete implements client.Client.
func (r *ruled) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if !ok {
		return r.Client.Delete(ctx, object, opts...)
	}
	if err := r.Suspended(); err != nil && !r.deletesNode(ctx, nodeClaim) {
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err)
	}
	if err := r.Client.Delete(ctx, nodeClaim, opts...); err != nil {
		return err
	}
	r.Deleted(nodeClaim)
	return nil
}

// Patch implements client.Client.
func (r *ruled) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	switch object := object.(type) {
	case *karpv1.NodeClaim:
		change, err := decode(object, patch)
		if err != nil {
			return err
		}
		if err := r.checkTermination(object, change); err != nil || !writesObject(change) {
			return err
		}
	case *corev1.Node:
		return r.patchNode(ctx, object, patch, opts...)
	}
	return r.written(object, r.Client.Patch(ctx, object, patch, opts...))
}

// Status implements client.Client.
func (r *ruled) Status() client.SubResourceWriter { return statusWriter{r.Client.Status(), r} }

type statusWriter struct {
	client.SubResourceWriter
	guest *ruled
}

// Patch implements client.SubResourceWriter.
func (w statusWriter) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok {
		if err := w.guest.checkProviderID(ctx, nodeClaim, patch); err != nil {
			return err
		}
	}
	return w.guest.written(object, w.SubResourceWriter.Patch(ctx, object, patch, opts...))
}

// written passes on a patch's error, and its result without one.
func (r *ruled) written(object client.Object, err error) error {
	switch object.(type) {
	case *karpv1.NodeClaim, *corev1.Node:
		if err == nil {
			r.Written(object)
		}
	}
	return err
}

// decode returns a merge patch's changes; nil of another patch.
func decode(object client.Object, patch client.Patch) (map[string]any, error) {
	if patch.Type() != types.MergePatchType {
		return nil, nil //nolint:nilnil // the patch stays as it is
	}
	data, err := patch.Data(object)
	if err != nil {
		return nil, fmt.Errorf("computing a patch of %s: %w", object.GetName(), err)
	}
	change := map[string]any{}
	if err := json.Unmarshal(data, &change); err != nil {
		return nil, fmt.Errorf("reading a patch of %s: %w", object.GetName(), err)
	}
	return change, nil
}
