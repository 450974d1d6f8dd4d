// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/payload"
)

// NodeImagesKey is the key of the ConfigMap of the images that machines boot from.
const NodeImagesKey = "images.json"

// nodeImages are one payload's images, for nodes of its version.
type nodeImages struct {
	Version string             `json:"version"`
	Images  payload.NodeImages `json:"images"`
}

// nodeImages returns the ConfigMap with the payload's images and those of the payload before it, whose version nodes may still get: they
// wait for the control plane, a window or an approval, and may not boot from an image that is newer than they are. It is nil where neither
// names any, or Karpenter reads none.
func (in Input) nodeImages(ctx context.Context) (*corev1.ConfigMap, error) {
	if !in.Profile.ReadsNodeImages {
		return nil, nil
	}
	known := []nodeImages{{Version: in.PayloadVersion, Images: in.NodeImages}}
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
	for _, former := range before {
		if former.Version != in.PayloadVersion && len(former.Images) > 0 {
			known = append(known, former)
			break
		}
	}
	if len(in.NodeImages) == 0 {
		if known = known[1:]; len(known) == 0 {
			return nil, nil
		}
	}
	content, err := json.Marshal(known)
	if err != nil {
		return nil, fmt.Errorf("encoding node images: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: in.Names.NodeImages},
		Data:       map[string]string{NodeImagesKey: string(content)},
	}, nil
}
