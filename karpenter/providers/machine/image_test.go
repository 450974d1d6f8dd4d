// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
)

func images(region string) nodeimage.Images {
	return nodeimage.Images{"aws": {"us-east-1": region, "eu-west-1": "ami-e"}, "metal": {"raw.gz": "https://rhcos.example/raw.gz"}}
}

func TestImagesInPatches(t *testing.T) {
	with := func(p *machine.Plan) { p.Images = images("ami-u") }
	t.Run("When a patch has an image, it should be the payload's", func(t *testing.T) {
		got, err := patched(t, `{}`, with,
			v1alpha1.BootstrapPatch{Path: "/spec/ami", Value: "$(NodeImage.aws.us-east-1)"},
			v1alpha1.BootstrapPatch{Path: "/spec/command", Value: "install --from $(NodeImage.metal.raw.gz) --as $(Version)"},
			v1alpha1.BootstrapPatch{Path: "/spec/alone", Value: "$(NodeImage.metal)"},
		)
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := got.(map[string]any)
		if spec["ami"] != "ami-u" || spec["command"] != "install --from https://rhcos.example/raw.gz --as 1.36.2" || spec["alone"] != "https://rhcos.example/raw.gz" {
			t.Errorf("got %v", spec)
		}
	})
	for name, variable := range map[string]string{
		"the infrastructure": "$(NodeImage.gcp)", "the region": "$(NodeImage.aws.mars-1)", "a region, of which there are several,": "$(NodeImage.aws)",
	} {
		t.Run("When the payload doesn't name "+name+", the machine should not be made without", func(t *testing.T) {
			_, err := patched(t, `{}`, with, v1alpha1.BootstrapPatch{Path: "/spec/ami", Value: "x" + variable})
			if err == nil || !strings.Contains(err.Error(), "bootstrap patch /spec/ami: value: "+variable+": the release payload names no such image") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestImagesHash(t *testing.T) {
	kind := schema.GroupKind{Group: bootstrapGroup, Kind: "AnyConfigTemplate"}
	patches := func(value string) []v1alpha1.BootstrapPatches {
		return []v1alpha1.BootstrapPatches{
			{APIGroup: bootstrapGroup, Kind: "AnyConfig", Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: value}}},
			{APIGroup: bootstrapGroup, Kind: "Another", Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "$(NodeImage.aws.eu-west-1)"}}},
		}
	}
	hash := func(value string, images nodeimage.Images) string {
		hash, _ := machine.ImagesHash(patches(value), kind, images)
		return hash
	}
	const value = "boot $(NodeImage.aws.us-east-1)"
	before := hash(value, images("a"))
	if got := hash("$(NodeImage.aws.us-east-1)", images("ami-1")); got != "6ef70bab29baafa4" {
		t.Errorf("When the images are the same, the hash should be the same for ever, or every node is replaced; raise imagesHashRule: got %s", got)
	}
	if again := hash(value, images("a")); before == "" || again != before || hash(value, images("b")) == before {
		t.Error("When an image changes that a patch uses, the hash should change, and only then")
	}
	if hash("$(NodeImage.metal)", images("a")) != hash("$(NodeImage.metal)", images("b")) {
		t.Error("When an image changes that no patch uses, the hash should stay")
	}
	if hash("$(Version)", images("a")) != "" || hash("$$(NodeImage.aws.us-east-1)", images("a")) != "" {
		t.Error("When no patch uses an image, there should be no hash")
	}
	if got, missing := machine.ImagesHash(patches(value), kind, nil); got != "" || missing != "$(NodeImage.aws.us-east-1)" {
		t.Errorf("When there is no image, it should say which, and have no hash: got %q, %q", got, missing)
	}
}
