// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func images(region string) nodeimage.Images {
	return nodeimage.Images{"aws": {"us-east-1": region, "eu-west-1": "ami-e"}, "metal": {"raw.gz": "https://rhcos.example/raw.gz"}}
}

func TestImagesInPatches(t *testing.T) {
	with := func(p *machine.Plan) { p.Images = images("ami-u") }
	t.Run("When a patch has an image, it should be the payload's", func(t *testing.T) {
		got, err := patched(t, `{}`, with, `
- {op: add, path: /spec/ami, valueFrom: {variable: image.aws.us-east-1}}
- {op: add, path: /spec/command, valueFrom: {template: 'install --from {{ image "metal" "raw.gz" }} --as {{ .version }}'}}
- {op: add, path: /spec/alone, valueFrom: {variable: image.metal}}`)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		spec, _ := got.(map[string]any)
		if spec["ami"] != "ami-u" || spec["command"] != "install --from https://rhcos.example/raw.gz --as 1.36.2" || spec["alone"] != "https://rhcos.example/raw.gz" {
			t.Errorf("got %v", spec)
		}
	})
	for name, variable := range map[string]string{
		"the infrastructure": "image.gcp", "the region": "image.aws.mars-1", "a region, of which there are several,": "image.aws",
	} {
		t.Run("When the payload doesn't name "+name+", the machine should not be made without", func(t *testing.T) {
			_, err := patched(t, `{}`, with, `[{op: add, path: /spec/ami, valueFrom: {variable: `+variable+`}}]`)
			if err == nil || !strings.Contains(err.Error(), "patch 0 (add /spec/ami): the release names no "+variable) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestImagesHash(t *testing.T) {
	const (
		bootstrap = `[{op: add, path: /spec/a, valueFrom: {template: 'boot {{ image "aws" "us-east-1" }}'}}]`
		metal     = `[{op: add, path: /spec/a, valueFrom: {variable: image.metal}}]`
	)
	hash := func(bootstrap, infrastructure string, images nodeimage.Images) (hash, missing string) {
		patches := anyConfig(t, bootstrap)
		another := anyConfig(t, `[{op: add, path: /spec/a, valueFrom: {variable: image.aws.eu-west-1}}]`)[0]
		another.Kind = "Another"
		tmpl := &template.Template{Patches: infrastructurePatches(t, infrastructure)}
		tmpl.Bootstrap.ConfigTemplate = object(t, `{"apiVersion": "bootstrap.cluster.x-k8s.io/v1", "kind": "AnyConfigTemplate"}`)
		return machine.ImagesHash(append(patches, another), tmpl, images)
	}
	is := func(bootstrap, infrastructure string, images nodeimage.Images) string {
		sum, _ := hash(bootstrap, infrastructure, images)
		return sum
	}
	before := is(bootstrap, "[]", images("a"))
	NewWithT(t).Expect(is(`[{op: add, path: /spec/a, valueFrom: {variable: image.aws.us-east-1}}]`, "[]", images("ami-1"))).To(Equal("6ef70bab29baafa4"),
		"the same images have the same hash for ever, or every node is replaced; raise imagesHashRule")
	if again := is(bootstrap, "[]", images("a")); before == "" || again != before || is(bootstrap, "[]", images("b")) == before {
		t.Error("When an image changes that a patch uses, the hash should change, and only then")
	}
	if is("[]", bootstrap, images("a")) == "" || is("[]", bootstrap, images("a")) == is("[]", bootstrap, images("b")) {
		t.Error("When an image changes that a patch of the infrastructure machine uses, the hash should change")
	}
	NewWithT(t).Expect(is(metal, "[]", images("a"))).To(Equal(is(metal, "[]", images("b"))), "When an image changes that no patch uses, the hash should stay")
	if is(`[{op: add, path: /spec/image, valueFrom: {template: "image {{ .version }}"}}]`, "[]", images("a")) != "" {
		t.Error("When no patch uses an image, there should be no hash")
	}
	if got, missing := hash(bootstrap, "[]", nil); got != "" || missing != "image.aws.us-east-1" {
		t.Errorf("When there is no image, it should say which, and have no hash: got %q, %q", got, missing)
	}
}
