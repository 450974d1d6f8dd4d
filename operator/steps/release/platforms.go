// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/payload"
)

// platformsTimeout bounds the query of an image's platforms: a payload is used without them.
const platformsTimeout = 10 * time.Second

// +kubebuilder:rbac:groups="",resources=nodes,verbs=list

// checkPlatforms returns a *payload.Error if no node of the management cluster has a platform of the component's image. What can't be read
// refuses nothing, such as an image in a registry that only the nodes reach.
func (p *puller) checkPlatforms(ctx context.Context, release *payload.Release, r request) error {
	component := release.Components[r.component]
	if p.nodes == nil || component.Image == "" {
		return nil
	}
	node, err := p.node(ctx, client.HasLabels{corev1.LabelArchStable, corev1.LabelOSStable})
	if err != nil || node == nil {
		return nil //nolint:nilerr // unknown
	}
	options := r.options
	options.Timeout = platformsTimeout
	platforms, err := payload.Platforms(ctx, component.Image, options)
	if err != nil || len(platforms) == 0 {
		return nil //nolint:nilerr // unknown
	}
	for _, platform := range platforms {
		parts := strings.FieldsFunc(platform, func(r rune) bool { return r == '/' || r == ':' }) // the third is a variant, which nodes don't have
		fitting, err := p.node(ctx, client.MatchingLabels{corev1.LabelOSStable: parts[0], corev1.LabelArchStable: parts[1]})
		if err != nil || fitting != nil {
			return nil //nolint:nilerr // unknown
		}
	}
	return &payload.Error{Reason: payload.ReasonPlatformMissing, Op: "pulling", Ref: release.Image, Detail: fmt.Sprintf(
		"the image of %s is for %s, and no node of the management cluster is: node %s is %s/%s; choose a payload whose image is for that, or add nodes",
		r.component, strings.Join(platforms, ", "), node.Name, node.Labels[corev1.LabelOSStable], node.Labels[corev1.LabelArchStable])}
}

// node returns a node of the management cluster with these labels; nil if there is none.
func (p *puller) node(ctx context.Context, with client.ListOption) (*metav1.PartialObjectMetadata, error) {
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := p.nodes.List(ctx, nodes, client.Limit(1), with); err != nil || len(nodes.Items) == 0 {
		return nil, err
	}
	return &nodes.Items[0], nil
}
