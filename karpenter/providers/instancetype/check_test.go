// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"strings"
	"testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestCheck(t *testing.T) {
	checks := 0
	failing := ""
	store := newProvider(Config{Pricing: pricing.Default(), Check: func(_ *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) error {
		checks++
		if tmpl.Source.Name == failing {
			return errors.New("patch 0 doesn't apply")
		}
		return nil
	}})
	version := func(resourceVersion string) []template.Template {
		small, large := newTemplate("c2-small", 2, 0.02, nil), newTemplate("c4-large", 4, 0.1, nil)
		large.Source.ResourceVersions = resourceVersion
		return []template.Template{small, large}
	}
	available := func(instanceType string) (offered, available bool) {
		choice, offered, err := store.Resolve("default", instanceType, "a", "on-demand")
		if err != nil {
			t.Fatal(err)
		}
		return offered, offered && choice.Offering.Available
	}
	set(store, nodeClass(1), version("1"), manyZones())
	t.Run("When nothing has changed, it should not check again", func(t *testing.T) {
		set(store, nodeClass(1), version("1"), manyZones())
		if checks != 2 {
			t.Errorf("%d checks of 2 templates", checks)
		}
	})
	t.Run("When a template that was offered fails, it should launch nothing from it, keep it for its nodes, and say why", func(t *testing.T) {
		failing = "c4-large"
		set(store, nodeClass(1), version("2"), manyZones())
		if checks != 3 {
			t.Errorf("%d checks", checks)
		}
		if offered, free := available("c4-large"); !offered || free {
			t.Errorf("offered %t, available %t", offered, free)
		}
		if _, free := available("c2-small"); !free {
			t.Error("the other template is closed too")
		}
		listing, err := store.Refresh(t.Context(), nodeClass(1))
		if err != nil {
			t.Fatal(err)
		}
		if len(listing.Found.Invalid) != 1 || !strings.HasSuffix(listing.Found.Invalid[0].Error(), "c4-large: patch 0 doesn't apply") {
			t.Errorf("got %v", listing.Found.Invalid)
		}
	})
	t.Run("When the node class changes, it should check all again", func(t *testing.T) {
		failing, checks = "", 0
		set(store, nodeClass(2), version("2"), manyZones())
		if _, free := available("c4-large"); !free || checks != 2 {
			t.Errorf("available %t after %d checks", free, checks)
		}
	})
}
