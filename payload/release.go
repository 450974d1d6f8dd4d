// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// KubernetesVersion is the name under which a component's tag states for which Kubernetes version of nodes it was released.
const KubernetesVersion = "kubernetes"

// Release is the content of a release image. It is immutable once read: callers share it and must not change it.
type Release struct {
	// Version is the release's semantic version, without a leading "v": "1.36.3".
	Version string
	// Previous holds the versions from which an upgrade to this one is meant to work; often empty.
	Previous []string
	// Image is the release image by digest, under its source's name even when a mirror served it:
	// "registry.example/release@sha256:…".
	Image string
	// Digest is the digest in Image: "sha256:…". For a multi-architecture image it is the index's.
	Digest string
	// ServedBy is the repository that answered: the source's own, or one of its mirrors.
	ServedBy string
	// Unverified is the Reason why no signature was verified, if Options.Verifier doesn't enforce one: ReasonPayloadUnsigned, or that of the
	// registry's error. It is empty for a signed image, and without a Verifier.
	Unverified Reason
	// Components holds the components that were asked for (all of them unless Options.Components names some), by name.
	Components map[string]Component
	// NodeImages name the images that machines boot from; empty if the payload has none.
	NodeImages NodeImages
	// Names lists every component in the payload, sorted, whether or not it was asked for.
	Names []string
}

// Component is one thing that a release ships.
type Component struct {
	// Name is the name of the component's tag in the payload, like "karpenter-clusterapi".
	Name string
	// Image is the component's image by digest.
	Image string
	// Versions are the versions of the image's contents, by name, like kubernetes: 1.36.3.
	Versions map[string]string
	// CRDs are the CustomResourceDefinitions that belong to the component, sorted by name.
	CRDs []*apiextensionsv1.CustomResourceDefinition

	release string // for error messages
}

// Component returns the component of that name, or an *Error with ReasonComponentMissing that names those there are.
func (r *Release) Component(name string) (Component, error) {
	if c, ok := r.Components[name]; ok {
		return c, nil
	}
	detail := fmt.Sprintf("release %s has no component %q; it has %s", r.Version, name, enumerate(r.Names, 10))
	if slices.Contains(r.Names, name) {
		detail = fmt.Sprintf("component %q of release %s was not requested when the payload was read", name, r.Version)
	}
	return Component{}, &Error{Reason: ReasonComponentMissing, Op: opReading, Ref: r.Image, Detail: detail}
}

// NodeVersion returns the Kubernetes version that nodes of this component are to run, without a leading "v": "1.36.3".
// It is an *Error with ReasonPayloadMalformed if the payload doesn't say.
func (c Component) NodeVersion() (string, error) {
	if v := c.Versions[KubernetesVersion]; v != "" {
		return v, nil
	}
	return "", &Error{Reason: ReasonPayloadMalformed, Op: opReading, Ref: c.release,
		Detail: fmt.Sprintf("tag %s in image-references names no %s version in its annotation %s", c.Name, KubernetesVersion, AnnotationVersions)}
}

// enumerate joins names for a message, at most limit of them.
func enumerate(names []string, limit int) string {
	if len(names) == 0 {
		return "none"
	}
	if len(names) > limit {
		return fmt.Sprintf("%s and %d more", enumerate(names[:limit], limit), len(names)-limit)
	}
	return fmt.Sprint(quotable([]any{strings.Join(names, ", ")})...)
}
