// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"
)

func TestRead(t *testing.T) {
	t.Run("When a built release is pushed, it should be read as it was specified, by tag and by digest", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, err := Push(t.Context(), s.host+"/release:1.36.3", build(t, goodSpec()), Options{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, from := range []string{ref, s.host + "/release:1.36.3"} {
			r := readGood(t, from, Options{})
			g.Expect(r.Version).To(Equal("1.36.3"))
			g.Expect(r.Previous).To(Equal([]string{"1.36.1", "1.36.2"}))
			g.Expect(r.Image).To(Equal(ref))
			g.Expect(r.Image).To(HaveSuffix("@" + r.Digest))
			g.Expect(r.ServedBy).To(Equal(s.host + "/release"))
			g.Expect(r.Names).To(Equal([]string{component, "other"}))
			c, err := r.Component(component)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.Name).To(Equal(component))
			g.Expect(c.Image).To(Equal(image))
			g.Expect(cmp.Diff(map[string]string{"kubernetes": "1.36.3", "karpenter": "1.14.1"}, c.Versions)).To(BeEmpty())
			g.Expect(c.NodeVersion()).To(Equal("1.36.3"))
			g.Expect(crdNames(c)).To(Equal([]string{"nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh", "nodepools.karpenter.sh"}))
		}
	})

	t.Run("When a component isn't in the payload, it should name those that are", func(t *testing.T) {
		ref, _ := newServer(t, nil).push(t, "release:1", build(t, goodSpec()))
		_, err := readGood(t, ref, Options{Components: []string{"karpenter-aws", component}}).Component("karpenter-aws")
		expectError(t, err, ReasonComponentMissing, `release 1.36.3 has no component "karpenter-aws"; it has karpenter-clusterapi, other`)
	})

	t.Run("When a component was not asked for, it should say so instead of calling it missing", func(t *testing.T) {
		ref, _ := newServer(t, nil).push(t, "release:1", build(t, goodSpec()))
		_, err := readGood(t, ref, Options{Components: []string{component}}).Component("other")
		expectError(t, err, ReasonComponentMissing, "was not requested")
	})

	t.Run("When a component names no kubernetes version, it should say where that belongs", func(t *testing.T) {
		ref, digest := newServer(t, nil).push(t, "release:1", build(t, goodSpec()))
		_, err := readGood(t, ref, Options{}).Components["other"].NodeVersion()
		expectError(t, err, ReasonPayloadMalformed, digest, "tag other", AnnotationVersions)
	})

	t.Run("When ReadDigest is given a tag, it should refuse", func(t *testing.T) {
		_, err := ReadDigest(t.Context(), "registry.example/release:1", Options{})
		expectError(t, err, ReasonInvalidReference, "doesn't name a digest")
	})

	for name, ref := range map[string]string{
		"When the reference is empty, it should say so":                       "",
		"When the reference has capitals, it should say so":                   "registry.example/Release:1",
		"When the reference has a broken digest, it should say so":            "registry.example/release@sha256:12",
		"When the reference is very long and odd, it should be cut to a line": "registry.example/" + strings.Repeat("a\n", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(t.Context(), ref, Options{})
			expectError(t, err, ReasonInvalidReference)
			_, err = Resolve(t.Context(), ref, Options{})
			expectError(t, err, ReasonInvalidReference)
		})
	}
}

func crdNames(c Component) []string {
	var names []string
	for _, crd := range c.CRDs {
		names = append(names, crd.Name)
	}
	return names
}

func TestResolve(t *testing.T) {
	t.Run("When the reference has a digest, it should make no request", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		got, err := Resolve(t.Context(), ref+"@"+digest, Options{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(s.host + "/release@" + digest))
		g.Expect(s.count("")).To(BeZero())
	})

	t.Run("When the reference has a tag, it should ask for its digest each time and pull nothing", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(s.host + "/release@" + digest))
		g.Expect(s.count("GET /v2/release/")).To(BeZero())
		g.Expect(s.count("HEAD /v2/release/manifests/1")).To(Equal(1))
		spec := goodSpec()
		spec.Version = "1.36.4"
		_, moved := s.push(t, "release:1", build(t, spec))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(s.host + "/release@" + moved))
	})

	t.Run("When the registry answers no HEAD requests, it should use GET", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return true
			}
			return false
		})
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(s.host + "/release@" + digest))
	})
}

func TestPlatforms(t *testing.T) {
	versioned := func(version string) v1.Image {
		spec := goodSpec()
		spec.Version = version
		return build(t, spec)
	}
	t.Run("When the image has several platforms, it should read this one's and keep the index's digest", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		foreign := map[string]string{"amd64": "arm64"}[goruntime.GOARCH]
		if foreign == "" {
			foreign = "s390x"
		}
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for version, architecture := range map[string]string{"0.0.2": foreign, "0.0.3": goruntime.GOARCH} {
			platform := v1.Platform{OS: "linux", Architecture: architecture}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: versioned(version), Descriptor: v1.Descriptor{Platform: &platform}})
		}
		ref, digest := s.push(t, "release:1", index)
		r := readGood(t, ref, Options{})
		g.Expect(r.Version).To(Equal("0.0.3"))
		g.Expect(r.Digest).To(Equal(digest))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(r.Image))
		g.Expect(readGood(t, ref, Options{Platform: &v1.Platform{OS: "linux", Architecture: foreign}}).Version).To(Equal("0.0.2"))
		g.Expect(Platforms(t.Context(), ref, Options{})).To(ConsistOf("linux/"+foreign, "linux/"+goruntime.GOARCH))
	})

	t.Run("When the image has one platform, it should be that of its config", func(t *testing.T) {
		g := NewWithT(t)
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "arm64", Variant: "v8"})
		g.Expect(err).NotTo(HaveOccurred())
		ref, _ := newServer(t, nil).push(t, "karpenter:1", img)
		g.Expect(Platforms(t.Context(), ref, Options{})).To(Equal([]string{"linux/arm64"}))
	})

	t.Run("When the registry calls it plain JSON, the manifest's own type should count", func(t *testing.T) {
		g := NewWithT(t)
		got, err := declaredType("application/json", []byte(`{"mediaType":"`+string(types.DockerManifestSchema2)+`"}`))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(types.DockerManifestSchema2))
	})
}
