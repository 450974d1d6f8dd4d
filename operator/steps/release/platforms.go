// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/payload"
)

// platformsTimeout bounds the query of an image's platforms: a payload is used without them.
const platformsTimeout = 10 * time.Second

// +kubebuilder:rbac:groups="",resources=nodes,verbs=list

// checkPlatforms returns a *payload.Error if no node of the management cluster has a platform of the component's image. What can't be read
// refuses nothing, such as an image in a registry that only the nodes reach.
func (p *puller) checkPlatforms(ctx context.Context, release *payload.Release, r request) error {
	nodes, known := &metav1.PartialObjectMetadataList{}, sets.New[string]()
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if p.nodes == nil || p.nodes.List(ctx, nodes) != nil {
		return nil //nolint:nilerr // unknown
	}
	for i := range nodes.Items {
		if labels := nodes.Items[i].Labels; labels[corev1.LabelArchStable] != "" {
			known.Insert(labels[corev1.LabelOSStable] + "/" + labels[corev1.LabelArchStable])
		}
	}
	component := release.Components[r.component]
	if known.Len() == 0 || component.Image == "" {
		return nil
	}
	options := r.options
	options.Timeout = platformsTimeout
	platforms, err := payload.Platforms(ctx, component.Image, options)
	if err != nil || len(platforms) == 0 || known.HasAny(platforms...) {
		return nil //nolint:nilerr // unknown
	}
	return &payload.Error{Reason: payload.ReasonPlatformMissing, Op: "pulling", Ref: release.Image, Detail: fmt.Sprintf(
		"the image of %s is for %s, and the nodes of the management cluster are %s; choose a payload whose image is for one of theirs, "+
			"or add nodes",
		r.component, strings.Join(platforms, ", "), strings.Join(sets.List(known), ", "))}
}
