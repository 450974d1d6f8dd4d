// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/payload"
)

// NodeImagesKey is the key of the ConfigMap of the images that machines boot from.
const NodeImagesKey = "images.json"

// nodeImages are one payload's images, for nodes of its version.
type nodeImages struct {
	Version string             `json:"version"`
	Release string             `json:"release,omitempty"`
	Images  payload.NodeImages `json:"images"`
}

// nodeImages returns the ConfigMap with the payload's images and those of the payload before it, whose version nodes may still get: they
// wait for the control plane, a window or an approval, and may not boot from an image that is newer than they are. It is nil where neither
// names any, or Karpenter reads none.
func (in Input) nodeImages(ctx context.Context) (*corev1.ConfigMap, error) {
	if !in.Profile.ReadsNodeImages {
		return nil, nil
	}
	known := []nodeImages{{Version: in.PayloadVersion, Release: in.ReleaseImage, Images: in.NodeImages}}
	live := &corev1.ConfigMap{}
	err := in.Reader.Get(ctx, client.ObjectKey{Namespace: in.Namespace, Name: in.Names.NodeImages}, live)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", in.Names.NodeImages, err)
	}
	var before []nodeImages
	if !apierrors.IsNotFound(err) {
		// Replace malformed content, which a user has edited.
		_ = json.Unmarshal([]byte(live.Data[NodeImagesKey]), &before)
	}
	at := slices.IndexFunc(before, func(former nodeImages) bool {
		return in.Plan != nil && former.Release == in.Plan.From.Image && former.Release != in.ReleaseImage
	})
	if at < 0 {
		at = slices.IndexFunc(before, func(former nodeImages) bool { return former.Version != in.PayloadVersion && len(former.Images) > 0 })
	}
	if at >= 0 {
		known = append(known, before[at])
	}
	if len(in.NodeImages) == 0 {
		known = known[1:]
	}
	contents, data := map[string]any{}, map[string]string{}
	if len(known) > 0 {
		contents[NodeImagesKey] = known
	}
	if in.Plan != nil {
		contents[upgradeplan.Key] = in.Plan
	}
	for key, content := range contents {
		text, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", key, err)
		}
		data[key] = string(text)
	}
	if len(data) == 0 {
		return nil, nil
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: in.Names.NodeImages}, Data: data}, nil
}
