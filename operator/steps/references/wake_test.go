// SPDX-License-Identifier: Apache-2.0

package references

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/autonode-io/autonode/assets/references"
)

func TestWake(t *testing.T) {
	kinds, err := references.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	template := func() *unstructured.Unstructured {
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"role": "worker"}}}}}
		object.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
		object.SetKind("KwokMachineTemplate")
		object.SetName("workers")
		object.SetResourceVersion("1")
		object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: "blue"})
		return object
	}
	for name, test := range map[string]struct {
		change func(*unstructured.Unstructured)
		wakes  bool
	}{
		"When a template only reports a status, it should wake nobody": {func(object *unstructured.Unstructured) {
			object.Object["status"] = map[string]any{"capacity": map[string]any{"cpu": "4"}}
		}, false},
		"When its machines get another spec, it should wake its Cluster": {func(object *unstructured.Unstructured) {
			NewWithT(t).Expect(unstructured.SetNestedField(object.Object, "other", "spec", "template", "spec", "role")).To(Succeed())
		}, true},
		"When its machines get an annotation, it should wake its Cluster": {func(object *unstructured.Unstructured) {
			NewWithT(t).Expect(unstructured.SetNestedField(object.Object, "b", "spec", "template", "metadata", "annotations", "a")).To(Succeed())
		}, true},
		"When it moves to another Cluster, it should wake those of its namespace": {func(object *unstructured.Unstructured) {
			object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: "green"})
		}, true},
		"When it gets an owner, it should wake those of its namespace": {func(object *unstructured.Unstructured) {
			NewWithT(t).Expect(unstructured.SetNestedSlice(object.Object, []any{map[string]any{
				"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m", "uid": "1",
			}}, "metadata", "ownerReferences")).To(Succeed())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			templates := &Templates{kinds: kinds, events: make(chan event.GenericEvent, 1)}
			changed := template()
			test.change(changed)
			changed.SetResourceVersion("2")
			before, err := templates.shrink(template())
			g.Expect(err).NotTo(HaveOccurred())
			after, err := templates.shrink(changed)
			g.Expect(err).NotTo(HaveOccurred())
			templates.updated(before, after)
			if test.wakes {
				g.Expect(templates.Events()).To(HaveLen(1))
			} else {
				g.Expect(templates.Events()).To(BeEmpty())
			}
		})
	}
}
