// SPDX-License-Identifier: Apache-2.0

package component

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

func TestOverrideImage(t *testing.T) {
	ours := "registry.example/karpenter@sha256:" + strings.Repeat("a", 64)
	theirs := "registry.example/case-4711@sha256:" + strings.Repeat("b", 64)
	const key, invalid = "annotation autonode.io/override-image: ", "; the release's image runs"
	for _, test := range []struct {
		name       string
		annotation string
		image      string
		want       string // the condition's status and reason
		message    string
		signedOnly bool
	}{
		{
			name: "When it names an image by digest, it should run that and say so", annotation: "karpenter-clusterapi=" + theirs, image: theirs,
			want:    "True/Overridden",
			message: key + "karpenter-clusterapi is " + theirs + " instead of release 1.36.3's " + ours + "; remove the annotation when the case is closed",
		}, {
			name: "When there are blanks around it, they should not matter", annotation: " karpenter-clusterapi=" + theirs + "\n", image: theirs,
			want:    "True/Overridden",
			message: key + "karpenter-clusterapi is " + theirs + " instead of release 1.36.3's " + ours + "; remove the annotation when the case is closed",
		}, {
			name: "When it names a tag, it should run the payload's", annotation: "karpenter-clusterapi=registry.example/case:4711", image: ours,
			want: "False/OverrideInvalid", message: key + `"registry.example/case:4711" isn't an image by digest` + invalid,
		}, {
			name: "When it names another component, it should say which can be overridden", annotation: "etcd=" + theirs, image: ours,
			want: "False/OverrideInvalid", message: key + `"etcd" isn't a component that can have another image; only karpenter-clusterapi can` + invalid,
		}, {
			name: "When it names no component, it should say what it has to look like", annotation: theirs, image: ours,
			want: "False/OverrideInvalid", message: key + `"` + theirs + `" isn't <component>=<image>@sha256:<digest>` + invalid,
		}, {
			name: "When it is empty, it should say what it has to look like", image: ours,
			want: "False/OverrideInvalid", message: key + `"" isn't <component>=<image>@sha256:<digest>` + invalid,
		}, {
			name: "When it names two images, it should follow neither", annotation: "karpenter-clusterapi=" + theirs + ",karpenter-clusterapi=" + ours, image: ours,
			want: "False/OverrideInvalid", message: key + "it names more than one image" + invalid,
		}, {
			name: "When the platform enforces signatures, it should run the payload's", annotation: "karpenter-clusterapi=" + theirs, image: ours, signedOnly: true,
			want: "False/OverrideInvalid", message: key + "the platform enforces signatures of payloads, and this image has none" + invalid,
		}, {
			name: "When it is very long, it should not repeat it", annotation: "karpenter-clusterapi=" + strings.Repeat("x", 200<<10), image: ours,
			want: "False/OverrideInvalid", message: key + "it is longer than 1024 bytes" + invalid,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &scope.Scope{
				HostedCluster: &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{
					Generation: 3, Annotations: map[string]string{v1beta1.OverrideImageAnnotation: test.annotation},
				}},
				Release:   &payload.Release{Version: "1.36.3"},
				Karpenter: payload.Component{Name: "karpenter-clusterapi", Image: ours},
			}
			if got := overrideImage(s, test.signedOnly); got != test.image {
				t.Errorf("it runs %s", got)
			}
			c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ImageOverridden)
			if c == nil || string(c.Status)+"/"+c.Reason != test.want || c.Message != test.message || c.ObservedGeneration != 3 {
				t.Errorf("the condition is %+v", c)
			}

			s.HostedCluster.Annotations = nil
			if got := overrideImage(s, test.signedOnly); got != ours || len(s.HostedCluster.Status.Conditions) > 0 {
				t.Errorf("without the annotation it runs %s, and reports %+v", got, s.HostedCluster.Status.Conditions)
			}
		})
	}
}
