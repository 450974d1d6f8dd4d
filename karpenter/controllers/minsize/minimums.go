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

// minimums are how many machines of each source stay. Several node classes may select one source; it has one minimum all the same.
type minimums struct {
	sizes map[string]int
	// snapshots of the node classes that have been read.
	snapshots []*instancetype.Snapshot
	// complete: that is all of them.
	complete bool
}

// minimums reads what the node classes select now.
func (c *Controller) minimums(ctx context.Context) (minimums, error) {
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{}
	if err := c.Guest.List(ctx, nodeClasses, client.UnsafeDisableDeepCopy); err != nil {
		return minimums{}, fmt.Errorf("listing node classes: %w", err)
	}
	found := minimums{sizes: map[string]int{}, complete: true}
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
		for sh := range snapshot.Shapes() {
			// Read at different times they may differ. Too much is put right when the other node class is read.
			if size := sh.Minimum(); size > 0 {
				found.sizes[sh.Source.Annotation()] = max(found.sizes[sh.Source.Annotation()], size)
			}
		}
	}
	return found, nil
}

// of is how many machines of a source stay. A source that can't be read or used by now still has the minimum that it had. Where none of the node
// classes has the source, it is unknown whether there is a minimum as long as one of them hasn't been read since the start, or can't tell
// whether the source has gone.
func (m minimums) of(source string) (size int, known bool) {
	known = m.complete
	for _, snapshot := range m.snapshots {
		if _, found := snapshot.Shape(source); found {
			return m.sizes[source], true
		}
		known = known && snapshot.Knows(source)
	}
	return 0, known
}
