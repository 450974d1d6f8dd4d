// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"errors"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrFault is the error of a write that is made to fail.
var ErrFault = errors.New("the connection broke")

// Calls fails one API call, be it a read or a write, through any of the clients that it wraps.
type Calls struct {
	// FailAt is the number of the call that fails, counted from 1; 0 for none.
	FailAt int64
	// Lost: the call takes place, and its answer is lost.
	Lost bool

	calls atomic.Int64
}

// Count is the number of calls so far.
func (c *Calls) Count() int64 { return c.calls.Load() }

// Client wraps a client.
func (c *Calls) Client(wrapped client.Client) client.Client { return &calling{wrapped, c} }

type calling struct {
	client.Client
	calls *Calls
}

func (c *calling) call(do func() error) error {
	if c.calls.calls.Add(1) != c.calls.FailAt {
		return do()
	}
	if c.calls.Lost {
		_ = do() // the caller gets no answer
	}
	return ErrFault
}

// Get implements client.Client.
func (c *calling) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return c.call(func() error { return c.Client.Get(ctx, key, object, opts...) })
}

// List implements client.Client.
func (c *calling) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.call(func() error { return c.Client.List(ctx, list, opts...) })
}

// Create implements client.Client.
func (c *calling) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return c.call(func() error { return c.Client.Create(ctx, object, opts...) })
}

// Patch implements client.Client.
func (c *calling) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.call(func() error { return c.Client.Patch(ctx, object, patch, opts...) })
}

// Delete implements client.Client.
func (c *calling) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return c.call(func() error { return c.Client.Delete(ctx, object, opts...) })
}

// Status implements client.Client.
func (c *calling) Status() client.SubResourceWriter { return &callingStatus{c.Client.Status(), c} }

type callingStatus struct {
	client.SubResourceWriter
	calling *calling
}

// Patch implements client.SubResourceWriter.
func (c *callingStatus) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return c.calling.call(func() error { return c.SubResourceWriter.Patch(ctx, object, patch, opts...) })
}

// Faults is a client one of whose writes fails: either it never reaches the API server, or its answer is lost. From outside, a
// crash at that point looks the same.
type Faults struct {
	client.Client
	// FailAt is the number of the write that fails, counted from 1; 0 for none.
	FailAt int64
	// Lost: the write takes place, and its answer is lost.
	Lost bool

	writes atomic.Int64
}

// Writes counts the writes so far.
func (f *Faults) Writes() int64 { return f.writes.Load() }

func (f *Faults) write(do func() error) error {
	if f.writes.Add(1) != f.FailAt {
		return do()
	}
	if f.Lost {
		return errors.Join(do(), ErrFault)
	}
	return ErrFault
}

// Create implements client.Client.
func (f *Faults) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return f.write(func() error { return f.Client.Create(ctx, object, opts...) })
}

// Patch implements client.Client.
func (f *Faults) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return f.write(func() error { return f.Client.Patch(ctx, object, patch, opts...) })
}

// Delete implements client.Client.
func (f *Faults) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return f.write(func() error { return f.Client.Delete(ctx, object, opts...) })
}

// Conflicting is a client whose first patch meets a change that came between.
type Conflicting struct {
	client.Client
	patches atomic.Int64
}

// Patch implements client.Client.
func (c *Conflicting) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if c.patches.Add(1) == 1 {
		return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), errors.New("it has changed"))
	}
	return c.Client.Patch(ctx, object, patch, opts...)
}
