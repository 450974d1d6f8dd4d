// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/informer"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/shape"
)

func TestKeep(t *testing.T) {
	known := func(kind, name string) shape.Shape {
		template := &unstructured.Unstructured{}
		template.SetGroupVersionKind(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Kind: kind})
		return shape.Shape{
			Source:       shape.Source{GroupKind: template.GroupVersionKind().GroupKind(), Name: name},
			Template:     template,
			InstanceType: name, Arch: "amd64", OS: "linux",
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}
	}
	unreadable := func(kind string) error {
		return &informer.UnreadableError{GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: kind}, Err: errors.New("forbidden")}
	}
	for _, tc := range []struct {
		name  string
		found *shape.Found
		want  []string
	}{
		{"When everything can be read, it should forget what is gone", &shape.Found{Shapes: []shape.Shape{known("A", "a1")}}, []string{"a1"}},
		{"When a kind can't be read any more, it should keep what was known of it, and nothing else", &shape.Found{
			Shapes: []shape.Shape{known("A", "a1")}, Unreadable: []error{unreadable("B")}}, []string{"a1", "b1", "b2"}},
		{"When a source is malformed by now, it should keep what was known of it, and launch nothing from that", &shape.Found{
			Shapes: []shape.Shape{known("A", "a1"), known("B", "b1")}, Invalid: []*shape.InvalidError{{Source: known("B", "b2").Source}}}, []string{"a1", "b1", "b2 held"}},
		{"When a kind can't be read that was never known, it should keep nothing", &shape.Found{
			Shapes: []shape.Shape{known("A", "a1")}, Unreadable: []error{unreadable("C")}}, []string{"a1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := instancetype.NewStore(instancetype.Config{Pricing: pricing.Default()})
			nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			store.Set(nodeClass, []shape.Shape{known("A", "a1"), known("A", "a2"), known("B", "b1"), known("B", "b2")}, shape.Cluster{})
			var got []string
			for _, sh := range (shapesReady{Config{Store: store}}).keep("default", tc.found) {
				name := sh.Source.Name
				if sh.Held {
					name += " held"
				}
				got = append(got, name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("shapes (-want +got):\n%s", diff)
			}
		})
	}
}
