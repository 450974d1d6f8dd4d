// SPDX-License-Identifier: Apache-2.0

// Package statusonly keeps Karpenter core from sending patches that change nothing.
//
// Upstream gap: after each pass over a NodeClaim, core patches it first and its status then, also if only the status has changed. The API
// server takes no status from the first patch (docs/upstream/repeated-passes.md).
package statusonly

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Guest wraps Karpenter core's guest client: a patch of a NodeClaim that has nothing but its status isn't sent. What core passes stays as
// it is then.
func Guest(guest client.Client) client.Client { return patcher{guest} }

type patcher struct{ client.Client }

// Patch implements client.Client.
func (p patcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && patch.Type() == types.MergePatchType {
		data, err := patch.Data(nodeClaim)
		if err != nil {
			return fmt.Errorf("computing a patch of NodeClaim %s: %w", nodeClaim.Name, err)
		}
		var changes map[string]json.RawMessage
		if err := json.Unmarshal(data, &changes); err != nil {
			return fmt.Errorf("reading a patch of NodeClaim %s: %w", nodeClaim.Name, err)
		}
		if delete(changes, "status"); len(changes) == 0 {
			return nil
		}
	}
	return p.Client.Patch(ctx, object, patch, opts...)
}
