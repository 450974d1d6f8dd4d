// SPDX-License-Identifier: Apache-2.0

package component

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

// overrideImage returns the image that Karpenter has to run: the payload's, unless OverrideImageAnnotation names
// another. The condition ImageOverridden reports an invalid annotation, which changes nothing. With signedOnly every
// annotation is invalid: its image would bypass the payload's signature.
func overrideImage(s *scope.Scope, signedOnly bool) string {
	value, ok := s.HostedCluster.Annotations[v1beta1.OverrideImageAnnotation]
	if !ok {
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.ImageOverridden)
		return s.Karpenter.Image
	}
	say := func(status metav1.ConditionStatus, reason, format string, args ...any) {
		s.SetCondition(metav1.Condition{
			Type: v1beta1.ImageOverridden, Status: status, Reason: reason,
			Message: "annotation " + v1beta1.OverrideImageAnnotation + ": " + fmt.Sprintf(format, args...),
		})
	}
	image, err := parseOverride(value, s.Karpenter.Name)
	if signedOnly {
		err = errors.New("the platform enforces signatures of payloads, and this image has none")
	}
	if err != nil {
		say(metav1.ConditionFalse, v1beta1.OverrideInvalidReason, "%v; the release's image runs", err)
		return s.Karpenter.Image
	}
	say(metav1.ConditionTrue, v1beta1.OverriddenReason, "%s is %s instead of release %s's %s; remove the annotation when the case is closed",
		s.Karpenter.Name, image, s.Release.Version, s.Karpenter.Image)
	return image
}

// parseOverride reads "<component>=<image by digest>". A tag isn't enough: it can move while the case is looked into.
func parseOverride(value, component string) (string, error) {
	const limit = 1024
	if len(value) > limit {
		return "", fmt.Errorf("it is longer than %d bytes", limit)
	}
	name, image, ok := strings.Cut(strings.TrimSpace(value), "=")
	switch {
	case !ok || name == "":
		return "", fmt.Errorf("%q isn't <component>=<image>@sha256:<digest>", value)
	case name != component:
		return "", fmt.Errorf("%q isn't a component that can have another image; only %s can", name, component)
	case strings.Contains(image, ","):
		return "", errors.New("it names more than one image")
	}
	return image, payload.CheckPinned(image)
}
