// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"io"
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
			r, err := Read(t.Context(), from, Options{})
			g.Expect(err).NotTo(HaveOccurred())
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
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", build(t, goodSpec()))
		r, err := Read(t.Context(), ref, Options{Components: []string{"karpenter-aws", component}})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = r.Component("karpenter-aws")
		expectError(t, err, ReasonComponentMissing, `release 1.36.3 has no component "karpenter-aws"; it has karpenter-clusterapi, other`)
	})

	t.Run("When a component was not asked for, it should say so instead of calling it missing", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", build(t, goodSpec()))
		r, err := Read(t.Context(), ref, Options{Components: []string{component}})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = r.Component("other")
		expectError(t, err, ReasonComponentMissing, "was not requested")
	})

	t.Run("When a component names no kubernetes version, it should say where that belongs", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		r, err := Read(t.Context(), ref, Options{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = r.Components["other"].NodeVersion()
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

	t.Run("When the reference has a tag, it should ask for its digest and pull nothing", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(s.host + "/release@" + digest))
		g.Expect(s.count("GET /v2/release/")).To(BeZero())
		g.Expect(s.count("HEAD /v2/release/manifests/1")).To(Equal(1))
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

	t.Run("When the tag moves, it should return the new digest", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, first := s.push(t, "release:1", build(t, goodSpec()))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(HaveSuffix(first))
		spec := goodSpec()
		spec.Version = "1.36.4"
		_, second := s.push(t, "release:1", build(t, spec))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(HaveSuffix(second))
	})
}

func TestPlatforms(t *testing.T) {
	versioned := func(version string) v1.Image {
		spec := goodSpec()
		spec.Version = version
		return build(t, spec)
	}
	index := func(t *testing.T, images map[string]v1.Image) v1.ImageIndex {
		t.Helper()
		idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for platform, img := range images {
			p, err := v1.ParsePlatform(platform)
			if err != nil {
				t.Fatal(err)
			}
			idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p}})
		}
		return idx
	}

	t.Run("When the image has several platforms, it should read this one's and keep the index's digest", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		foreign := map[string]string{"amd64": "arm64"}[goruntime.GOARCH]
		if foreign == "" {
			foreign = "s390x"
		}
		ref, digest := s.push(t, "release:1", index(t, map[string]v1.Image{
			"unknown/unknown": versioned("0.0.1"), "linux/" + foreign: versioned("0.0.2"), "linux/" + goruntime.GOARCH: versioned("0.0.3")}))
		r, err := Read(t.Context(), ref, Options{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Version).To(Equal("0.0.3"))
		g.Expect(r.Digest).To(Equal(digest))
		g.Expect(Resolve(t.Context(), ref, Options{})).To(Equal(r.Image))

		r, err = Read(t.Context(), ref, Options{Platform: &v1.Platform{OS: "linux", Architecture: foreign}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Version).To(Equal("0.0.2"))
	})

	t.Run("When no platform fits, it should name those that there are", func(t *testing.T) {
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", index(t, map[string]v1.Image{"unknown/unknown": versioned("0.0.1"), "linux/s390x": versioned("0.0.2")}))
		_, err := Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonPayloadMalformed, "no image for linux/", "it has linux/s390x")
	})

	t.Run("When an index names an index, it should be refused", func(t *testing.T) {
		s := newServer(t, nil)
		inner := index(t, map[string]v1.Image{"linux/amd64": versioned("0.0.1")})
		outer := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: inner,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
		ref, _ := s.push(t, "release:1", outer)
		_, err := Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonPayloadMalformed, "names another index")
	})

	for name, c := range map[string]struct {
		mediaType types.MediaType
		content   string
		want      string
	}{
		"When the manifest has the old format, it should be refused": {
			types.DockerManifestSchema1Signed, `{"schemaVersion":1}`, "isn't that of an image"},
		"When the manifest is of an unheard-of type, it should be refused": {
			"application/json", `{}`, `media type "application/json" isn't that of an image`},
		"When the manifest is an artifact, it should say of which type": {
			types.OCIManifestSchema1, `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"}}`, `an artifact of type "application/vnd.cncf.helm.config.v1+json"`},
		"When the manifest declares another type than the registry, it should be refused": {
			types.OCIManifestSchema1, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`, "its manifest has media type"},
		"When the manifest is no JSON, it should say so": {
			types.OCIManifestSchema1, `{`, "its manifest is no JSON"},
		"When the manifest has fields of wrong types, it should say so": {
			types.OCIManifestSchema1, `{"config":1}`, "its manifest can't be read"},
		"When the index has fields of wrong types, it should say so": {
			types.OCIImageIndex, `{"manifests":1}`, "its index can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, nil)
			// The registry would refuse some of them itself.
			s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
				if !strings.Contains(req.URL.Path, "/manifests/") {
					return false
				}
				w.Header().Set("Content-Type", string(c.mediaType))
				_, _ = io.WriteString(w, c.content)
				return true
			})
			_, err := Read(t.Context(), s.host+"/release:1", Options{})
			expectError(t, err, ReasonPayloadMalformed, c.want)
		})
	}

	t.Run("When the registry calls it plain JSON, the manifest's own type should count", func(t *testing.T) {
		g := NewWithT(t)
		got, err := declaredType("application/json", []byte(`{"mediaType":"`+string(types.DockerManifestSchema2)+`"}`))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(types.DockerManifestSchema2))
	})
}
