// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func TestMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		replace map[string]string
		only    []string
		want    string
	}{
		"When image-references is no JSON, it should say so": {
			replace: map[string]string{"image-references": "{"}, want: "image-references is no ImageStream: unexpected end of JSON"},
		"When the version is no semantic version, it should say so": {
			replace: map[string]string{"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"latest"}`}, want: `version "latest" is no semantic version`},
		"When the two files disagree on the version, it should say so": {
			replace: map[string]string{"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"1.36.4"}`}, want: `image-references has version "1.36.3", release-metadata has "1.36.4"`},
		"When a component's image is a tag, it should say which": {
			replace: map[string]string{"image-references": stream(`{"name":"a","from":{"kind":"DockerImage","name":"registry.example/a:1"}}`)},
			want:    `tag a in image-references: "registry.example/a:1" isn't an image by digest`},
		"When a component comes from another tag, it should say which": {
			replace: map[string]string{"image-references": stream(`{"name":"a","from":{"kind":"ImageStreamTag","name":"b"}}`)},
			want:    "tag a in image-references isn't from a DockerImage"},
		"When a component has no image, it should say which": {
			replace: map[string]string{"image-references": stream(`{"name":"a"}`)}, want: "tag a in image-references isn't from a DockerImage"},
		"When a tag has no name, it should say so": {
			replace: map[string]string{"image-references": stream(`{"from":{"kind":"DockerImage","name":"` + other + `"}}`)}, want: "a tag without a name"},
		"When two tags have one name, it should say which": {
			replace: map[string]string{"image-references": stream(tag("a", ""), tag("a", ""))}, want: `two tags "a"`},
		"When a component's versions aren't pairs, it should say which": {
			replace: map[string]string{"image-references": stream(tag("a", "kubernetes"))}, want: `"kubernetes" isn't name=version`},
		"When a component's version is no semantic version, it should say which": {
			replace: map[string]string{"image-references": stream(tag("a", "kubernetes=new"))}, want: `kubernetes: "new" is no semantic version`},
		"When a component has two versions of one thing, it should say which": {
			replace: map[string]string{"image-references": stream(tag("a", "kubernetes=1.36.2,kubernetes=1.36.3"))}, want: "kubernetes is both 1.36.2 and 1.36.3"},
		"When a CRD has an old version, it should say so": {
			replace: map[string]string{"0000_50_karpenter-clusterapi_b.yaml": "kind: CustomResourceDefinition\napiVersion: apiextensions.k8s.io/v1beta1"}, want: `apiVersion "apiextensions.k8s.io/v1beta1"`},
		"When a CRD has a name that isn't its own, it should say so": {
			replace: map[string]string{"0000_50_karpenter-clusterapi_b.yaml": strings.Replace(string(crd("a")), "name: a.", "name: b.", 1)}, want: `"b.karpenter.sh" isn't named <plural>.<group>`},
		"When a component has a CRD twice, it should say which": {
			replace: map[string]string{"0000_50_karpenter-clusterapi_b.yaml": string(crd("nodepools"))}, want: "nodepools.karpenter.sh twice"},
		"When only other components were asked for, it should still want well formed files": {
			only: []string{component}, replace: map[string]string{"image-references": "[]"}, want: "no ImageStream"},
	} {
		t.Run(name, func(t *testing.T) {
			ref := released(t, c.replace)
			_, err := Read(t.Context(), ref, Options{Components: c.only})
			expectError(t, err, ReasonPayloadMalformed, "pulling "+ref+": ", c.want)
		})
	}

	t.Run("When what is broken belongs to a component that isn't used, it should not matter", func(t *testing.T) {
		g := NewWithT(t)
		r := readGood(t, released(t, map[string]string{
			"image-references":          stream(tag(component, "v=1.0.0"), tag("twice", ""), tag("twice", ""), `{"name":"odd"}`, tag("versions", "=,")),
			"0000_50_odd_crd.yaml":      "a: ]",
			"0000_50_unheard-of_x.yaml": "a: ]",
			"stray":                     "anything",
			"release-metadata":          `{"kind":"cincinnati-metadata-v0","version":"1.36.3","new":{"field":1}}`,
		}), Options{Components: []string{component}})
		g.Expect(r.Components).To(HaveLen(1))
		g.Expect(r.Names).To(Equal([]string{component, "odd", "twice", "versions"}))
		g.Expect(r.Components[component].Versions).To(Equal(map[string]string{"v": "1.0.0"}))
	})

	t.Run("When a CRD has no newline at its end, it should be read whatever its length is", func(t *testing.T) {
		g := NewWithT(t)
		content, err := yaml.YAMLToJSON(crd("things"))
		g.Expect(err).NotTo(HaveOccurred())
		content = append([]byte(`{"x":"`+strings.Repeat("x", 4096-len(content)-7)+`",`), content[1:]...)
		for range 3 {
			r := readGood(t, released(t, map[string]string{"0000_50_karpenter-clusterapi_x.json": string(content)}), Options{})
			g.Expect(crdNames(r.Components[component])).To(Equal([]string{"nodepools.karpenter.sh", "things.karpenter.sh"}), "%d bytes", len(content))
			content = append([]byte(" "), content...)
		}
	})

	t.Run("When OpenShift ships variants of a CRD for cluster profiles, it should take that for hosted control planes", func(t *testing.T) {
		g := NewWithT(t)
		variant := func(profile string) string {
			return strings.Replace(string(crd("things")), "metadata:\n", "metadata:\n  annotations: {include.release.openshift.io/"+profile+": \"true\"}\n", 1)
		}
		for _, order := range [][2]string{{"ibm-cloud-managed", "self-managed-high-availability"}, {"self-managed-high-availability", "ibm-cloud-managed"}} {
			r := readGood(t, released(t, map[string]string{
				"0000_50_karpenter-clusterapi_a.yaml": variant(order[0]),
				"0000_50_karpenter-clusterapi_b.yaml": variant(order[1]),
			}), Options{})
			g.Expect(crdNames(r.Components[component])).To(Equal([]string{"nodepools.karpenter.sh", "things.karpenter.sh"}))
			g.Expect(r.Components[component].CRDs[1].Annotations).To(HaveKey("include.release.openshift.io/ibm-cloud-managed"))
		}
	})

	t.Run("When OpenShift ships variants of a CRD for feature sets, it should take the default's", func(t *testing.T) {
		g := NewWithT(t)
		variant := func(sets string) string {
			return strings.Replace(string(crd("things")), "metadata:\n", "metadata:\n  annotations: {release.openshift.io/feature-set: \""+sets+"\"}\n", 1)
		}
		r := readGood(t, released(t, map[string]string{
			"0000_50_karpenter-clusterapi_a.yaml": variant("CustomNoUpgrade,DevPreviewNoUpgrade"),
			"0000_50_karpenter-clusterapi_b.yaml": variant("Default"),
			"0000_50_karpenter-clusterapi_c.yaml": "kind: ConfigMap\napiVersion: v1\n---\n---\n# nothing\n",
		}), Options{})
		g.Expect(crdNames(r.Components[component])).To(Equal([]string{"nodepools.karpenter.sh", "things.karpenter.sh"}))
	})
}

func stream(tags ...string) string {
	return `{"kind":"ImageStream","apiVersion":"image.openshift.io/v1","metadata":{"name":"1.36.3"},"spec":{"tags":[` + strings.Join(tags, ",") + `]}}`
}

func tag(name, versions string) string {
	return fmt.Sprintf(`{"name":%q,"annotations":{%q:%q},"from":{"kind":"DockerImage","name":%q}}`, name, AnnotationVersions, versions, other)
}
