// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestKeep(t *testing.T) {
	known := func(kind, name string) template.Template {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Kind: kind})
		return template.Template{
			Source:         template.Source{GroupKind: object.GroupVersionKind().GroupKind(), Name: name},
			Infrastructure: object,
			InstanceType:   name, Arch: "amd64", OS: "linux",
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}
	}
	unreadable := func(kind string) error {
		return &informer.UnreadableError{GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: kind}, Err: errors.New("forbidden")}
	}
	for _, tc := range []struct {
		name  string
		found *template.Found
		want  []string
	}{
		{"When everything can be read, it should forget what is gone", &template.Found{Templates: []template.Template{known("A", "a1")}}, []string{"a1"}},
		{"When a kind can't be read any more, it should keep what was known of it, and nothing else", &template.Found{
			Templates: []template.Template{known("A", "a1")}, Unreadable: []error{unreadable("B")}}, []string{"a1", "b1", "b2"}},
		{"When a source is malformed by now, it should keep what was known of it, and launch nothing from that", &template.Found{
			Templates: []template.Template{known("A", "a1"), known("B", "b1")}, Invalid: []*template.InvalidError{{Source: known("B", "b2").Source}}}, []string{"a1", "b1", "b2 held"}},
		{"When a kind can't be read that was never known, it should keep nothing", &template.Found{
			Templates: []template.Template{known("A", "a1")}, Unreadable: []error{unreadable("C")}}, []string{"a1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := []template.Template{known("A", "a1"), known("A", "a2"), known("B", "b1"), known("B", "b2")}
			var got []string
			for _, tmpl := range keep(before, tc.found) {
				name := tmpl.Source.Name
				if tmpl.Blocked {
					name += " held"
				}
				got = append(got, name)
			}
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want))
		})
	}
}
