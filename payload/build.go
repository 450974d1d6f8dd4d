// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"context"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// AnnotationVersions is the annotation on a component's tag in image-references: comma-separated name=version pairs.
const AnnotationVersions = "io.openshift.build.versions"

// Spec says what a release image holds.
type Spec struct {
	// Version is the release's semantic version, without a leading "v".
	Version string
	// Previous are versions from which an upgrade is meant to work.
	Previous []string
	// Components are what the release ships, in any order.
	Components []ComponentSpec
}

// ComponentSpec says what a release holds of one component.
type ComponentSpec struct {
	// Name is lower case letters, digits and dashes: "karpenter-clusterapi".
	Name string
	// Image is the component's image by digest.
	Image string
	// Versions are the versions of what the image contains; nodes run Versions[KubernetesVersion].
	Versions map[string]string
	// CRDs are YAML or JSON documents of CustomResourceDefinitions; one element may hold several documents.
	CRDs [][]byte
}

// Build makes a release image. It is deterministic: the same Spec gives the same digest. It has no timestamps.
func Build(spec Spec) (v1.Image, error) { return nil, errors.New("not written yet") }

// Push writes img to ref (a tag or a repository) and returns it by digest: "registry.example/release@sha256:…".
func Push(ctx context.Context, ref string, img v1.Image, opts Options) (string, error) {
	return "", errors.New("not written yet")
}
