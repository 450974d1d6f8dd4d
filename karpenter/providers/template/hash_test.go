// SPDX-License-Identifier: Apache-2.0

package template

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// A failure here means that an upgrade of the provider would replace every node: raise hashRule.
func TestHashesAreStable(t *testing.T) {
	t.Run("When the content of a template is the same, its hash should be the same for ever", func(t *testing.T) {
		got, err := contentHash(template("c4", func(u *unstructured.Unstructured) {
			u.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
				"size": "c4", "tags": []any{"a", "b"}, "disk": int64(40), "spot": true,
			}}}
		}))
		if want := hashRule + "3a1562a755a38d0b7b4fd5b82a0ef1b2"; err != nil || got != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	})
	t.Run("When the name of a Secret is the same, its hash should be the same for ever", func(t *testing.T) {
		if got, want := secretBootstrap("join").Hash, hashRule+"12a258f9ab97d73755ae982634e6c155"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestPatchedTemplate(t *testing.T) {
	read := func(patches string) Template {
		tmpl, invalid := embedded.read(template("c4", func(u *unstructured.Unstructured) {
			u.SetGeneration(3)
			if patches != "" {
				u.SetAnnotations(map[string]string{v1alpha1.InfrastructurePatchesAnnotation: patches})
			}
		}), "")
		NewWithT(t).Expect(invalid).To(BeNil())
		return tmpl
	}
	plain, patched := read(""), read(`[{op: add, path: /spec/market, valueFrom: {variable: capacityType}}]`)
	t.Run("When a source has no patches or an empty list, its hash and revision should be those of the template", func(t *testing.T) {
		if empty := read("[]"); empty.ContentHash != plain.ContentHash || empty.Revision() != "1/3" || plain.Revision() != "1/3" {
			t.Errorf("got %s and %s", empty.ContentHash, empty.Revision())
		}
	})
	t.Run("When patches are written in another way, hash and revision should be the same", func(t *testing.T) {
		again := read(`[{"path": "/spec/market", "op": "add", "valueFrom": {"variable": "capacityType"}}]`)
		if again.ContentHash != patched.ContentHash || again.Revision() != patched.Revision() {
			t.Errorf("got %s and %s, want %s and %s", again.ContentHash, again.Revision(), patched.ContentHash, patched.Revision())
		}
	})
	t.Run("When patches are others, hash and revision should be others", func(t *testing.T) {
		other := read(`[{op: add, path: /spec/spot, valueFrom: {variable: capacityType}}]`)
		if patched.ContentHash == plain.ContentHash || other.ContentHash == patched.ContentHash || patched.Revision() == plain.Revision() || other.Revision() == patched.Revision() {
			t.Errorf("hashes %s, %s, %s; revisions %s, %s, %s", plain.ContentHash, patched.ContentHash, other.ContentHash, plain.Revision(), patched.Revision(), other.Revision())
		}
	})
	t.Run("When the patches are the same, hash and revision should be the same for ever; otherwise raise hashRule", func(t *testing.T) {
		if got, want := patched.ContentHash+" "+patched.Revision(), "bf4158ed6c39e2284c19231457f8e4db 1/3/7fb3267cc8f73e7f"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("When a patch writes the capacity type, both should be offered, and otherwise on-demand", func(t *testing.T) {
		NewWithT(t).Expect(patched.CapacityTypes()).To(Equal([]string{"on-demand", "spot"}))
		NewWithT(t).Expect(plain.CapacityTypes()).To(Equal([]string{"on-demand"}))
	})
}

func TestRevision(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*unstructured.Unstructured)
		want   string
	}{
		"When a template is as it was, it should have one revision":      {func(*unstructured.Unstructured) {}, "1/3"},
		"When its content was changed, it should have another":           {func(u *unstructured.Unstructured) { u.SetGeneration(4) }, "1/4"},
		"When it was recreated, it should have another":                  {func(u *unstructured.Unstructured) { u.SetUID("2") }, "2/3"},
		"When its labels were changed, it should have the same revision": {func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, "1/3"},
		"When it has no generation, it should have no revision":          {func(u *unstructured.Unstructured) { u.SetGeneration(0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := Template{Infrastructure: template("c4", func(u *unstructured.Unstructured) { u.SetGeneration(3); tc.change(u) })}
			NewWithT(t).Expect(tmpl.Revision()).To(Equal(tc.want))
		})
	}
	t.Run("When bootstrap data is in a Secret, it should have no revision", func(t *testing.T) {
		NewWithT(t).Expect(secretBootstrap("join").Revision()).To(Equal(""))
	})
}
