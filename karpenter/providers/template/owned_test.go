// SPDX-License-Identifier: Apache-2.0

package template

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOwnedHash(t *testing.T) {
	// written is a template whose size, tags and disks people have written.
	written := func(change func(content map[string]any)) *unstructured.Unstructured {
		content := map[string]any{
			"size": "c2", "tags": map[string]any{"team": "web"}, "disks": []any{map[string]any{"name": "root"}},
		}
		if change != nil {
			change(content)
		}
		return template("c2-small", func(u *unstructured.Unstructured) {
			u.Object["spec"] = map[string]any{"template": map[string]any{"spec": content}}
			field := func(fields, subresource string) metav1.ManagedFieldsEntry {
				return metav1.ManagedFieldsEntry{Manager: "someone", Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields)}
			}
			u.SetManagedFields([]metav1.ManagedFieldsEntry{
				field(`{"f:spec":{"f:template":{"f:spec":{".":{},"f:size":{},"f:tags":{".":{},"f:team":{}}}}}}`, ""),
				field(`{"f:spec":{"f:template":{"f:spec":{"f:disks":{"k:{\"name\":\"root\"}":{".":{},"f:name":{}}}}}}}`, ""),
				field(`{"f:spec":{"f:template":{"f:spec":{"f:default":{}}}}}`, "status"),
			})
		})
	}
	before := ownedHash(written(nil))
	for name, tc := range map[string]struct {
		change func(map[string]any)
		same   bool
	}{
		"nothing has changed":            {func(map[string]any) {}, true},
		"a webhook has added a field":    {func(content map[string]any) { content["default"] = "x" }, true},
		"a webhook has added a tag":      {func(content map[string]any) { content["tags"].(map[string]any)["cluster"] = "x" }, true},
		"an owned field has changed":     {func(content map[string]any) { content["size"] = "c4" }, false},
		"an owned tag has changed":       {func(content map[string]any) { content["tags"].(map[string]any)["team"] = "db" }, false},
		"an owned field is gone":         {func(content map[string]any) { delete(content, "size") }, false},
		"an owned list has another item": {func(content map[string]any) { content["disks"] = []any{} }, false},
	} {
		t.Run("When "+name+", it should see only what people have written", func(t *testing.T) {
			if got := ownedHash(written(tc.change)); before == "" || (got == before) != tc.same {
				t.Errorf("before %q, after %q", before, got)
			}
		})
	}
	t.Run("When there is no record of who wrote it, it should say nothing", func(t *testing.T) {
		NewWithT(t).Expect(ownedHash(template("c2-small", nil))).To(Equal(""))
	})
	t.Run("When the record can't be read, it should say nothing", func(t *testing.T) {
		u := template("c2-small", func(u *unstructured.Unstructured) {
			u.SetManagedFields([]metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`[`)}})
		})
		NewWithT(t).Expect(ownedHash(u)).To(Equal(""))
	})
}
