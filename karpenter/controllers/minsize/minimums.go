// SPDX-License-Identifier: Apache-2.0

package minsize

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
)

// minimums holds the minimum size of each source. Several node classes may select one source, which still has one
// minimum.
type minimums struct {
	// snapshots of the node classes that have been read.
	snapshots []*instancetype.Snapshot
	// complete: snapshots has every node class.
	complete bool
}

// minimums reads the node classes' current selections.
func (c *Controller) minimums(ctx context.Context) (minimums, error) {
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{}
	if err := c.Guest.List(ctx, nodeClasses, client.UnsafeDisableDeepCopy); err != nil {
		return minimums{}, fmt.Errorf("listing node classes: %w", err)
	}
	found := minimums{complete: true}
	for i := range nodeClasses.Items {
		snapshot, err := c.InstanceTypes.Cached(nodeClasses.Items[i].Name)
		if errors.Is(err, instancetype.ErrUnresolved) {
			found.complete = false
			continue
		}
		if err != nil {
			return minimums{}, err
		}
		found.snapshots = append(found.snapshots, snapshot)
	}
	return found, nil
}

// of returns a source's minimum size. A source that has become unreadable or unusable keeps its last minimum. If no
// node class has the source, its minimum is unknown until all of them have been resolved and each can confirm that
// the source is gone. Snapshots of different age may differ: a minimum that is too high is corrected when the other
// node class is resolved.
func (m minimums) of(source string) (size int, known bool) {
	found, gone := false, m.complete
	for _, snapshot := range m.snapshots {
		if tmpl, ok := snapshot.Template(source); ok {
			found, size = true, max(size, tmpl.Minimum())
		} else if !found {
			gone = gone && snapshot.Knows(source)
		}
	}
	return size, found || gone
}
