// SPDX-License-Identifier: Apache-2.0

// Package providerid keeps Karpenter core from replacing a provider ID that another client has written into a NodeClaim during its launch.
//
// Upstream gap: core writes the result of a launch without an optimistic lock (docs/upstream/status-write-lost.md).
package providerid

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Guest wraps Karpenter core's guest client: a patch of a NodeClaim's status that would replace a provider ID fails with a conflict. Core
// then reads the NodeClaim again.
func Guest(guest client.Client) client.Client { return reader{guest} }

type reader struct{ client.Client }

// Status implements client.Client.
func (r reader) Status() client.SubResourceWriter { return writer{r.Client.Status(), r.Client} }

type writer struct {
	client.SubResourceWriter
	guest client.Client
}

// Patch implements client.SubResourceWriter.
func (w writer) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if !ok || nodeClaim.Status.ProviderID == "" {
		return w.SubResourceWriter.Patch(ctx, object, patch, opts...)
	}
	current := &karpv1.NodeClaim{}
	if err := w.guest.Get(ctx, client.ObjectKeyFromObject(nodeClaim), current); client.IgnoreNotFound(err) != nil {
		return err
	}
	// Nearly always the two are the same, or the NodeClaim has none yet. Only otherwise it matters what the patch declares.
	if has := current.Status.ProviderID; has != "" && has != nodeClaim.Status.ProviderID {
		written, err := providerID(nodeClaim, patch)
		if err != nil {
			return err
		}
		if written != "" {
			return apierrors.NewConflict(schema.GroupResource{Group: apis.Group, Resource: "nodeclaims"}, nodeClaim.Name,
				fmt.Errorf("it got the provider ID %s while %s was launched", has, written))
		}
	}
	return w.SubResourceWriter.Patch(ctx, object, patch, opts...)
}

// providerID is what a merge patch writes; empty if it leaves the provider ID as it is.
func providerID(nodeClaim *karpv1.NodeClaim, patch client.Patch) (string, error) {
	data, err := patch.Data(nodeClaim)
	if err != nil {
		return "", fmt.Errorf("computing a patch of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	var change struct {
		Status struct {
			ProviderID string `json:"providerID"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return "", fmt.Errorf("reading a patch of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	return change.Status.ProviderID, nil
}
