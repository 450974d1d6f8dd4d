// SPDX-License-Identifier: Apache-2.0

package template

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

func TestRevision(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*unstructured.Unstructured)
		want   string
	}{
		"When a template is as it was, it should have one revision":      {func(*unstructured.Unstructured) {}, "1/3"},
		"When its content was changed, it should have another":           {func(u *unstructured.Unstructured) { u.SetGeneration(4) }, "1/4"},
		"When it was made anew, it should have another":                  {func(u *unstructured.Unstructured) { u.SetUID("2") }, "2/3"},
		"When its labels were changed, it should have the same revision": {func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, "1/3"},
		"When it has no generation, it should have no revision":          {func(u *unstructured.Unstructured) { u.SetGeneration(0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			sh := Template{Template: template("c4", func(u *unstructured.Unstructured) { u.SetGeneration(3); tc.change(u) })}
			if got := sh.Revision(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("When bootstrap data is in a Secret, it should have no revision", func(t *testing.T) {
		if got := secretBootstrap("join").Revision(); got != "" {
			t.Errorf("got %q", got)
		}
	})
}
