// SPDX-License-Identifier: Apache-2.0

package component

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/payload"
)

func TestNodeImages(t *testing.T) {
	named := func(ami string) payload.NodeImages { return payload.NodeImages{"amd64": {"aws": {"us-east-1": ami}}} }
	entry := func(version, ami string) string {
		return `{"version":"` + version + `","images":{"amd64":{"aws":{"us-east-1":"` + ami + `"}}}}`
	}
	for name, test := range map[string]struct {
		version string
		images  payload.NodeImages
		before  string
		want    string // empty for no ConfigMap
	}{
		"When no payload names an image, there should be no ConfigMap":                             {version: "1.36.3"},
		"When the first payload names images, they should be there":                                {version: "1.36.3", images: named("a"), want: "[" + entry("1.36.3", "a") + "]"},
		"When nothing has changed, it should stay as it is":                                        {version: "1.37.1", images: named("b"), before: "[" + entry("1.37.1", "b") + "," + entry("1.36.3", "a") + "]", want: "[" + entry("1.37.1", "b") + "," + entry("1.36.3", "a") + "]"},
		"When the next payload comes, the former one's should stay for nodes that wait":            {version: "1.37.1", images: named("b"), before: "[" + entry("1.36.3", "a") + "]", want: "[" + entry("1.37.1", "b") + "," + entry("1.36.3", "a") + "]"},
		"When the one after that comes, the oldest should go":                                      {version: "1.38.0", images: named("c"), before: "[" + entry("1.37.1", "b") + "," + entry("1.36.3", "a") + "]", want: "[" + entry("1.38.0", "c") + "," + entry("1.37.1", "b") + "]"},
		"When the former payload comes back, it should be the first again":                         {version: "1.36.3", images: named("a"), before: "[" + entry("1.37.1", "b") + "," + entry("1.36.3", "a") + "]", want: "[" + entry("1.36.3", "a") + "," + entry("1.37.1", "b") + "]"},
		"When another payload of the same version comes, its images should take the others' place": {version: "1.36.3", images: named("a2"), before: "[" + entry("1.36.3", "a") + "]", want: "[" + entry("1.36.3", "a2") + "]"},
		"When a payload names none any more, the former one's should stay":                         {version: "1.37.1", before: "[" + entry("1.36.3", "a") + "]", want: "[" + entry("1.36.3", "a") + "]"},
		"When its content is malformed, it should be replaced":                                     {version: "1.36.3", images: named("a"), before: "{", want: "[" + entry("1.36.3", "a") + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.PayloadVersion, in.NodeImages = test.version, test.images
			reader := fake.NewClientBuilder()
			if test.before != "" {
				reader = reader.WithObjects(&corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: in.Namespace, Name: v1beta1.DedicatedNames().NodeImages}, Data: map[string]string{NodeImagesKey: test.before},
				})
			}
			in.Reader = reader.Build()
			got, err := in.nodeImages(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			data := ""
			if got != nil {
				data = got.Data[NodeImagesKey]
			}
			if diff := cmp.Diff(test.want, data); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUpgradePlan(t *testing.T) {
	named := func(ami string) payload.NodeImages { return payload.NodeImages{"amd64": {"aws": {"us-east-1": ami}}} }
	entry := func(version, release, ami string) string {
		return `{"version":"` + version + `","release":"` + release + `","images":{"amd64":{"aws":{"us-east-1":"` + ami + `"}}}}`
	}
	plan := func(version string) *upgradeplan.Plan {
		return &upgradeplan.Plan{To: upgradeplan.Release{Image: "C", Version: version}, From: upgradeplan.Release{Image: "A", Version: "1.36.3"}}
	}
	planned := func(version string) string {
		return `{"to":{"image":"C","version":"` + version + `"},"from":{"image":"A","version":"1.36.3"},"canaries":0,"soak":"0s","maxFailures":0}`
	}
	for name, test := range map[string]struct {
		version string
		images  payload.NodeImages
		plan    *upgradeplan.Plan
		before  string
		want    map[string]string // nil for no ConfigMap
	}{
		"When neither a plan nor images are needed, there should be no ConfigMap": {version: "1.38.0"},
		"When no payload names an image, the plan should be there alone": {
			version: "1.38.0", plan: plan("1.38.0"),
			want: map[string]string{upgradeplan.Key: planned("1.38.0")},
		},
		"When a payload between was halted, the images of the completed one should stay": {
			version: "1.38.0", images: named("c"), plan: plan("1.38.0"), before: "[" + entry("1.37.1", "B", "b") + "," + entry("1.36.3", "A", "a") + "]",
			want: map[string]string{NodeImagesKey: "[" + entry("1.38.0", "C", "c") + "," + entry("1.36.3", "A", "a") + "]", upgradeplan.Key: planned("1.38.0")},
		},
		"When the payload has other images of the same version, the completed one's should stay beside them": {
			version: "1.36.3", images: named("c"), plan: plan("1.36.3"), before: "[" + entry("1.36.3", "A", "a") + "]",
			want: map[string]string{NodeImagesKey: "[" + entry("1.36.3", "C", "c") + "," + entry("1.36.3", "A", "a") + "]", upgradeplan.Key: planned("1.36.3")},
		},
		"When the payload is the completed one, its images should be there once": {
			version: "1.36.3", images: named("c"), plan: &upgradeplan.Plan{To: upgradeplan.Release{Image: "C"}, From: upgradeplan.Release{Image: "C"}},
			before: "[" + entry("1.36.3", "C", "c") + "]",
			want: map[string]string{NodeImagesKey: "[" + entry("1.36.3", "C", "c") + "]",
				upgradeplan.Key: `{"to":{"image":"C","version":""},"from":{"image":"C","version":""},"canaries":0,"soak":"0s","maxFailures":0}`},
		},
		"When the payload names no images, the completed one's should be there alone": {
			version: "1.38.0", plan: plan("1.38.0"), before: "[" + entry("1.36.3", "A", "a") + "]",
			want: map[string]string{NodeImagesKey: "[" + entry("1.36.3", "A", "a") + "]", upgradeplan.Key: planned("1.38.0")},
		},
		"When the plan is over, it should go, and the former images stay": {
			version: "1.38.0", images: named("c"), before: "[" + entry("1.38.0", "C", "c") + "," + entry("1.36.3", "A", "a") + "]",
			want: map[string]string{NodeImagesKey: "[" + entry("1.38.0", "C", "c") + "," + entry("1.36.3", "A", "a") + "]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.PayloadVersion, in.NodeImages, in.ReleaseImage, in.Plan = test.version, test.images, "C", test.plan
			in.Reader = fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: in.Namespace, Name: v1beta1.DedicatedNames().NodeImages}, Data: map[string]string{NodeImagesKey: test.before},
			}).Build()
			got, err := in.nodeImages(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got == nil {
				got = &corev1.ConfigMap{}
			}
			if diff := cmp.Diff(test.want, got.Data); diff != "" {
				t.Error(diff)
			}
		})
	}
}
