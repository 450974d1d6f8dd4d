// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	. "github.com/onsi/gomega"
)

const (
	component = "karpenter-clusterapi"
	image     = "registry.example/karpenter-clusterapi@sha256:9ab21b0c5a7c0e9f0a5fb4d0b4f0c6f0a5fb4d0b4f0c6f0a5fb4d0b4f0c6f0a5"
	other     = "registry.example/other@sha256:1111111111111111111111111111111111111111111111111111111111111111"
)

// server is a real registry, with a log of its requests and, if asked for, a password.
type server struct {
	host string

	mu       sync.Mutex
	requests []string // "GET /v2/release/manifests/1.36.3"
	// intercept answers a request in the registry's place if it returns true.
	intercept func(http.ResponseWriter, *http.Request) bool
}

func newServer(t *testing.T, auth *authn.Basic) *server {
	t.Helper()
	s := &server{}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	listening := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, req.Method+" "+req.URL.Path)
		intercept := s.intercept
		s.mu.Unlock()
		if auth != nil {
			username, password, _ := req.BasicAuth()
			if subtle.ConstantTimeCompare([]byte(username+":"+password), []byte(auth.Username+":"+auth.Password)) != 1 {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
				return
			}
		}
		if intercept != nil && intercept(w, req) {
			return
		}
		handler.ServeHTTP(w, req)
	}))
	listening.Config.ErrorLog = log.New(io.Discard, "", 0)
	listening.Start()
	t.Cleanup(listening.Close)
	s.host = strings.TrimPrefix(listening.URL, "http://")
	return s
}

func (s *server) onRequest(intercept func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = intercept
}

// count tells how many requests began like this.
func (s *server) count(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// push writes an image past this package, so that malformed ones can be written too.
func (s *server) push(t *testing.T, repoAndTag string, what remote.Taggable) (ref, digest string) {
	t.Helper()
	tag, err := name.NewTag(s.host + "/" + repoAndTag)
	if err != nil {
		t.Fatal(err)
	}
	switch w := what.(type) {
	case v1.Image:
		err = remote.Write(tag, w)
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, w)
	default:
		err = remote.Put(tag, what)
	}
	if err != nil {
		t.Fatal(err)
	}
	raw, err := what.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.requests = nil
	s.mu.Unlock()
	return tag.Name(), h.String()
}

func crd(plural string) []byte {
	return fmt.Appendf(nil, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[1]s.karpenter.sh
spec:
  group: karpenter.sh
  names: {kind: Thing, plural: %[1]s}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`, plural)
}

func goodSpec() Spec {
	return Spec{
		Version:  "1.36.3",
		Previous: []string{"1.36.2", "1.36.1"},
		Components: []ComponentSpec{
			{Name: component, Image: image, Versions: map[string]string{"kubernetes": "1.36.3", "karpenter": "1.14.1"},
				CRDs: [][]byte{crd("nodepools"), bytes.Join([][]byte{crd("nodeclaims"), crd("nodeoverlays")}, []byte("---\n"))}},
			{Name: "other", Image: other},
		},
	}
}

func build(t *testing.T, spec Spec) v1.Image {
	t.Helper()
	img, err := Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// tarEntry is one file of a tar archive; a zero kind is a regular file.
type tarEntry struct {
	name    string
	content string
	kind    byte
	link    string
}

func tarOf(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o644}
		if e.kind == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.content))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// imageOf makes an image of raw layers, the lowest first.
func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func layerOf(t *testing.T, entries ...tarEntry) v1.Layer {
	t.Helper()
	return static.NewLayer(gzipped(t, tarOf(t, entries...)), types.OCILayer)
}

// releaseFiles are the entries of a good release, with some of its files replaced; "" removes one.
func releaseFiles(replace map[string]string) []tarEntry {
	files := map[string]string{
		"image-references": `{"kind":"ImageStream","apiVersion":"image.openshift.io/v1","metadata":{"name":"1.36.3"},"spec":{"tags":[` +
			`{"name":"karpenter-clusterapi","annotations":{"io.openshift.build.versions":"kubernetes=1.36.3"},"from":{"kind":"DockerImage","name":"` + image + `"}},` +
			`{"name":"other","from":{"kind":"DockerImage","name":"` + other + `"}}]}}`,
		"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"1.36.3","metadata":{"url":"https://example.com"}}`,
		"0000_50_karpenter-clusterapi_nodepools.yaml": string(crd("nodepools")),
	}
	for file, content := range replace {
		files[file] = content
	}
	entries := []tarEntry{{name: "release-manifests/", kind: tar.TypeDir}}
	for file, content := range files {
		if content != "" {
			entries = append(entries, tarEntry{name: "release-manifests/" + file, content: content})
		}
	}
	return entries
}

func expectError(t *testing.T, err error, reason Reason, words ...string) *Error {
	t.Helper()
	g := NewWithT(t)
	var e *Error
	g.Expect(errors.As(err, &e)).To(BeTrue(), "want an *Error, got %v", err)
	g.Expect(e.Reason).To(Equal(reason), "%v", err)
	g.Expect(ReasonFor(err)).To(Equal(reason))
	for _, w := range words {
		g.Expect(err.Error()).To(ContainSubstring(w))
	}
	g.Expect(len(err.Error())).To(BeNumerically("<", 2000))
	g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
	return e
}

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
		expectError(t, err, ReasonComponentMissing, "was not asked for")
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

func TestRegistryErrors(t *testing.T) {
	auth := &authn.Basic{Username: "alice", Password: "hunter2"}
	config := func(g Gomega, host, password string) authn.Keychain {
		k, err := KeychainFromDockerConfig(fmt.Appendf(nil, `{"auths":{%q:{"username":"alice","password":%q}}}`, host, password))
		g.Expect(err).NotTo(HaveOccurred())
		return k
	}
	// both calls Read and Resolve, which are to answer alike.
	both := func(t *testing.T, ref string, opts Options, reason Reason, words ...string) *Error {
		t.Helper()
		_, err := Resolve(t.Context(), ref, opts)
		expectError(t, err, reason, append(words, "resolving "+ref+": ")...)
		_, err = Read(t.Context(), ref, opts)
		return expectError(t, err, reason, append(words, "pulling "+ref+": ")...)
	}

	t.Run("When the registry wants credentials and none are given, it should say that there are none", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		e := both(t, s.host+"/release:1", Options{}, ReasonImagePullUnauthorized, "401", "no credentials were given for "+s.host, "who are you?")
		g.Expect(e.Anonymous).To(BeTrue())
		g.Expect(e.Registry).To(Equal(s.host))
		e = both(t, s.host+"/release:1", Options{Keychain: config(g, "elsewhere.example", "hunter2")}, ReasonImagePullUnauthorized, "no credentials were given")
		g.Expect(e.Anonymous).To(BeTrue())
	})

	t.Run("When the credentials are wrong, it should say that they are, and not show them", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		e := both(t, s.host+"/release:1", Options{Keychain: config(g, s.host, "sesame")}, ReasonImagePullUnauthorized, "401", "the credentials given for "+s.host)
		g.Expect(e.Anonymous).To(BeFalse())
		g.Expect(e.Error()).NotTo(ContainSubstring("sesame"))
		g.Expect(e.Temporary()).To(BeFalse())
	})

	t.Run("When the credentials are right, it should read, push and resolve", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		opts := Options{Keychain: config(g, s.host, "hunter2")}
		ref, err := Push(t.Context(), s.host+"/release:1", build(t, goodSpec()), opts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(Resolve(t.Context(), s.host+"/release:1", opts)).To(Equal(ref))
		r, err := ReadDigest(t.Context(), ref, opts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Version).To(Equal("1.36.3"))
	})

	t.Run("When the pull secret's entry can't be read, it should say that, and nothing of its content", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		k, err := KeychainFromDockerConfig(fmt.Appendf(nil, `{"auths":{%q:{"auth":"~~hunter2~~"}}}`, s.host))
		g.Expect(err).NotTo(HaveOccurred())
		e := both(t, s.host+"/release:1", Options{Keychain: k}, ReasonImagePullUnauthorized, `entry "`+s.host+`"`)
		g.Expect(e.Error()).NotTo(ContainSubstring("hunter2"))
	})

	t.Run("When the repository or the tag isn't there, it should say that it was not found", func(t *testing.T) {
		s := newServer(t, nil)
		s.push(t, "release:1", build(t, goodSpec()))
		both(t, s.host+"/release:2", Options{}, ReasonImageNotFound, "404 Not Found")
		both(t, s.host+"/nothing:1", Options{}, ReasonImageNotFound, "404 Not Found")
	})

	t.Run("When a layer isn't there, it should say which", func(t *testing.T) {
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", build(t, goodSpec()))
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"gone"}]}`, http.StatusNotFound)
				return true
			}
			return false
		})
		_, err := Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonImageNotFound, "layer 1 of 1", "gone")
	})

	t.Run("When nothing listens, it should call the registry unreachable, and that temporary", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		host := listener.Addr().String()
		NewWithT(t).Expect(listener.Close()).To(Succeed())
		e := both(t, host+"/release:1", Options{}, ReasonRegistryUnreachable, "connection refused")
		NewWithT(t).Expect(e.Temporary()).To(BeTrue())
	})

	t.Run("When the registry has an error of its own, it should call it unreachable and say what it answered", func(t *testing.T) {
		s := newServer(t, nil)
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if req.URL.Path == "/v2/" {
				return false
			}
			http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"slow \u0007down\nplease"}]}`, http.StatusTooManyRequests)
			return true
		})
		both(t, s.host+"/release:1", Options{}, ReasonRegistryUnreachable, "429", "slow  down please")
	})

	t.Run("When the registry never answers, it should give up in time", func(t *testing.T) {
		s := newServer(t, nil)
		s.onRequest(func(_ http.ResponseWriter, req *http.Request) bool { <-req.Context().Done(); return true })
		both(t, s.host+"/release:1", Options{Timeout: 50 * time.Millisecond}, ReasonRegistryUnreachable, "no answer")
	})

	t.Run("When the caller gives up, it should say so to errors.Is", func(t *testing.T) {
		s := newServer(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		s.onRequest(func(_ http.ResponseWriter, req *http.Request) bool { cancel(); <-req.Context().Done(); return true })
		_, err := Read(ctx, s.host+"/release:1", Options{})
		NewWithT(t).Expect(errors.Is(err, context.Canceled)).To(BeTrue(), "%v", err)
	})

	t.Run("When the registry serves other content than the digest's, it should not be believed", func(t *testing.T) {
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		fake := releaseFiles(map[string]string{"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"6.6.6"}`})
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				_, _ = w.Write(gzipped(t, tarOf(t, fake...)))
				return true
			}
			return false
		})
		_, err := Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonRegistryUnreachable, "layer 1 of 1", "verifying")

		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				_, _ = io.WriteString(w, `{}`)
				return true
			}
			return false
		})
		_, err = Read(t.Context(), ref+"@"+digest, Options{})
		expectError(t, err, ReasonRegistryUnreachable, "does not match")
	})

	t.Run("When the manifest is endless, it should stop reading it", func(t *testing.T) {
		s := newServer(t, nil)
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/manifests/") || req.Method != http.MethodGet {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for chunk := make([]byte, 1<<16); ; {
				if _, err := w.Write(chunk); err != nil {
					return true
				}
			}
		})
		_, err := Read(t.Context(), s.host+"/release:1", Options{})
		expectError(t, err, ReasonPayloadTooLarge, "4 MiB in one answer")
	})
}

func TestMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		replace map[string]string
		only    []string
		want    string
	}{
		"When image-references is missing, it should say that this is no release image": {
			replace: map[string]string{"image-references": ""}, want: "it is no release image: it has no release-manifests/image-references"},
		"When release-metadata is missing, it should say so": {
			replace: map[string]string{"release-metadata": ""}, want: "it has no release-manifests/release-metadata"},
		"When image-references is no JSON, it should say so": {
			replace: map[string]string{"image-references": "{"}, want: "image-references is no ImageStream: unexpected end of JSON"},
		"When image-references is another kind, it should say which": {
			replace: map[string]string{"image-references": `{"kind":"List","apiVersion":"v1"}`}, want: `is a "List" of "v1" and no ImageStream`},
		"When release-metadata is another kind, it should say which": {
			replace: map[string]string{"release-metadata": `{"kind":"x","version":"1.36.3"}`}, want: `kind "x" instead of`},
		"When the version is no semantic version, it should say so": {
			replace: map[string]string{"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"latest"}`}, want: `version "latest" is no semantic version`},
		"When the two files disagree on the version, it should say so": {
			replace: map[string]string{"release-metadata": `{"kind":"cincinnati-metadata-v0","version":"1.36.4"}`}, want: `image-references says version "1.36.3", release-metadata says "1.36.4"`},
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
		"When a CRD is no YAML, it should name the file": {
			replace: map[string]string{"0000_50_karpenter-clusterapi_b.yaml": "a: ]"}, want: "release-manifests/0000_50_karpenter-clusterapi_b.yaml: "},
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
			s := newServer(t, nil)
			ref, _ := s.push(t, "release:1", imageOf(t, layerOf(t, releaseFiles(c.replace)...)))
			_, err := Read(t.Context(), ref, Options{Components: c.only})
			expectError(t, err, ReasonPayloadMalformed, "pulling "+ref+": ", c.want)
		})
	}

	t.Run("When what is broken belongs to a component that isn't used, it should not matter", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", imageOf(t, layerOf(t, releaseFiles(map[string]string{
			"image-references":          stream(tag(component, "v=1.0.0"), tag("twice", ""), tag("twice", ""), `{"name":"odd"}`, tag("versions", "=,")),
			"0000_50_odd_crd.yaml":      "a: ]",
			"0000_50_unheard-of_x.yaml": "a: ]",
			"stray":                     "anything",
			"release-metadata":          `{"kind":"cincinnati-metadata-v0","version":"1.36.3","new":{"field":1}}`,
		})...)))
		r, err := Read(t.Context(), ref, Options{Components: []string{component}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Components).To(HaveLen(1))
		g.Expect(r.Names).To(Equal([]string{component, "odd", "twice", "versions"}))
		g.Expect(r.Components[component].Versions).To(Equal(map[string]string{"v": "1.0.0"}))
	})

	t.Run("When OpenShift ships variants of a CRD for feature sets, it should take the default's", func(t *testing.T) {
		g := NewWithT(t)
		variant := func(sets string) string {
			return strings.Replace(string(crd("things")), "metadata:\n", "metadata:\n  annotations: {release.openshift.io/feature-set: \""+sets+"\"}\n", 1)
		}
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", imageOf(t, layerOf(t, releaseFiles(map[string]string{
			"0000_50_karpenter-clusterapi_a.yaml": variant("CustomNoUpgrade,DevPreviewNoUpgrade"),
			"0000_50_karpenter-clusterapi_b.yaml": variant("Default"),
			"0000_50_karpenter-clusterapi_c.yaml": "kind: ConfigMap\napiVersion: v1\n---\n---\n# nothing\n",
		})...)))
		r, err := Read(t.Context(), ref, Options{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(crdNames(r.Components[component])).To(Equal([]string{"nodepools.karpenter.sh", "things.karpenter.sh"}))
	})
}

func stream(tags ...string) string {
	return `{"kind":"ImageStream","apiVersion":"image.openshift.io/v1","metadata":{"name":"1.36.3"},"spec":{"tags":[` + strings.Join(tags, ",") + `]}}`
}

func tag(name, versions string) string {
	return fmt.Sprintf(`{"name":%q,"annotations":{%q:%q},"from":{"kind":"DockerImage","name":%q}}`, name, AnnotationVersions, versions, other)
}

func TestLayers(t *testing.T) {
	dir := func(file string) string { return "release-manifests/" + file }
	good := releaseFiles(nil)
	base := layerOf(t, tarEntry{name: "etc/os-release", content: "an operating system"})
	with := func(replace map[string]string) v1.Layer { return layerOf(t, releaseFiles(replace)...) }
	newer := stream(tag(component, "kubernetes=1.99.0"))

	for name, c := range map[string]struct {
		layers []v1.Layer // the lowest first
		// node and crds are what the component is expected to have; want is an error's text.
		node string
		crds []string
		want string
		// pulled is how many layers may be pulled at most; zero: all.
		pulled int
	}{
		"When the release is in the top layer, it should pull that alone": {
			layers: []v1.Layer{base, with(nil)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}, pulled: 1},
		"When the release lies below others, it should be found": {
			layers: []v1.Layer{base, with(nil), layerOf(t, tarEntry{name: "a", content: "b"})}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}, pulled: 2},
		"When an upper layer replaces a file, it should win": {
			layers: []v1.Layer{base, with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer})},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}, pulled: 2},
		"When an upper layer replaces both files, the CRDs below should still count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer}, tarEntry{name: dir("release-metadata"),
				content: `{"kind":"cincinnati-metadata-v0","version":"1.36.3"}`})},
			node: "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When an upper layer adds a CRD, both should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("0000_50_karpenter-clusterapi_x.yaml"), content: string(crd("xs"))})},
			node:   "1.36.3", crds: []string{"nodepools.karpenter.sh", "xs.karpenter.sh"}},
		"When the files are spread over layers, it should find all of them": {
			layers: []v1.Layer{layerOf(t, good[1]), layerOf(t, good[2]), layerOf(t, good[3])}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a whiteout removes a CRD, it should be gone": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh.0000_50_karpenter-clusterapi_nodepools.yaml")})}, node: "1.36.3"},
		"When a whiteout is beside a file of its name, the file should stay": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("image-references"), content: newer}, tarEntry{name: dir(".wh.image-references")})},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When a whiteout removes image-references, it should say so": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh.image-references")})}, want: "image-references was removed or is no regular file"},
		"When the directory is opaque, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir(".wh..wh..opq")}, tarEntry{name: dir("image-references"), content: newer})},
			want:   "has no release-manifests/release-metadata", pulled: 1},
		"When the whole root is opaque, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: ".wh..wh..opq"})}, want: "it is no release image", pulled: 1},
		"When the directory is removed, nothing below should count": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: ".wh.release-manifests"})}, want: "it is no release image", pulled: 1},
		"When the directory becomes a link, it should not be followed": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: "release-manifests", kind: tar.TypeSymlink, link: "/etc"})}, want: "it is no release image", pulled: 1},
		"When image-references becomes a link, it should not be followed": {
			layers: []v1.Layer{with(nil), layerOf(t, tarEntry{name: dir("image-references"), kind: tar.TypeSymlink, link: "release-metadata"})},
			want:   "image-references was removed or is no regular file"},
		"When a name leads out of the image or deeper, it should be ignored": {
			layers: []v1.Layer{with(nil), layerOf(t,
				tarEntry{name: "release-manifests/../release-manifests/image-references", content: newer},
				tarEntry{name: "../release-manifests/image-references", content: newer},
				tarEntry{name: "release-manifests/deep/image-references", content: newer},
				tarEntry{name: "etc/image-references", content: newer},
			)},
			node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When names begin with ./ or /, they should mean the same": {
			layers: []v1.Layer{layerOf(t, tarEntry{name: "./" + good[1].name, content: good[1].content}, tarEntry{name: "/" + good[2].name, content: good[2].content},
				tarEntry{name: "./release-manifests/./" + strings.TrimPrefix(good[3].name, "release-manifests/"), content: good[3].content})},
			node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a name comes twice in a layer, the last should count": {
			layers: []v1.Layer{layerOf(t, append(releaseFiles(nil), tarEntry{name: dir("image-references"), content: newer})...)},
			node:   "1.99.0", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer isn't compressed, it should be read": {
			layers: []v1.Layer{static.NewLayer(tarOf(t, good...), types.OCIUncompressedLayer)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer is compressed with zstd, it should be read": {
			layers: []v1.Layer{static.NewLayer(zstdOf(t, tarOf(t, good...)), types.OCILayerZStd)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When a layer is empty, it should be passed over": {
			layers: []v1.Layer{with(nil), static.NewLayer(nil, types.OCIUncompressedLayer)}, node: "1.36.3", crds: []string{"nodepools.karpenter.sh"}},
		"When there is no layer, it should say that this is no release image": {want: "it is no release image"},
		"When a layer is no archive, it should say which": {
			layers: []v1.Layer{with(nil), static.NewLayer(bytes.Repeat([]byte("no tar"), 200), types.OCIUncompressedLayer)}, want: "layer 2 of 2: malformed: reading its tar archive"},
		"When a gzip stream is cut off, it should say so": {
			layers: []v1.Layer{static.NewLayer(gzipped(t, tarOf(t, good...))[:100], types.OCILayer)}, want: "layer 1 of 1: malformed"},
		"When a gzip header is broken, it should say so": {
			layers: []v1.Layer{static.NewLayer([]byte{0x1f, 0x8b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, types.OCILayer)}, want: "layer 1 of 1: malformed: gzip"},
		"When a layer has a foreign media type, it should be refused": {
			layers: []v1.Layer{static.NewLayer(gzipped(t, tarOf(t, good...)), types.DockerForeignLayer)}, want: "isn't that of a layer"},
		"When a layer is something else than an archive, it should be refused": {
			layers: []v1.Layer{static.NewLayer([]byte("wasm"), "application/wasm")}, want: `media type "application/wasm" isn't that of a layer`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer(t, nil)
			// Foreign layers aren't pushed unless that is asked for.
			ref, err := newTag(s.host + "/release:1")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.Write(ref, imageOf(t, c.layers...), remote.WithNondistributable)).To(Succeed())
			r, err := Read(t.Context(), ref.Name(), Options{})
			if c.pulled > 0 {
				g.Expect(s.count("GET /v2/release/blobs/")).To(BeNumerically("<=", c.pulled))
			}
			if c.want != "" {
				expectError(t, err, ReasonPayloadMalformed, c.want)
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.Components[component].NodeVersion()).To(Equal(c.node))
			g.Expect(crdNames(r.Components[component])).To(Equal(c.crds))
		})
	}
}

func newTag(s string) (name.Tag, error) { return name.NewTag(s) }

func zstdOf(t *testing.T, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(content, nil)
}

// bomb is a gzip stream that unpacks to a good release and then a file of zeros.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "release-manifests/zeros", Size: size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for left := size; left > 0; left -= int64(len(chunk)) {
		if _, err := w.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestBounds(t *testing.T) {
	read := func(t *testing.T, img v1.Image, opts Options) error {
		t.Helper()
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", img)
		_, err := Read(t.Context(), ref, opts)
		return err
	}

	t.Run("When a layer unpacks to far more than it is, it should stop at the bound", func(t *testing.T) {
		layer := bomb(t, 64<<20)
		NewWithT(t).Expect(len(layer)).To(BeNumerically("<", 1<<20))
		err := read(t, imageOf(t, static.NewLayer(layer, types.OCILayer)), Options{MaxBytes: 4 << 20})
		expectError(t, err, ReasonPayloadTooLarge, "layer 1 of 1", "more than 4 MiB unpacked", "is it a release image?")
	})

	t.Run("When what follows the archive unpacks to too much, it should stop there too", func(t *testing.T) {
		content := append(tarOf(t, releaseFiles(nil)...), make([]byte, 8<<20)...)
		err := read(t, imageOf(t, static.NewLayer(gzipped(t, content), types.OCILayer)), Options{MaxBytes: 4 << 20})
		expectError(t, err, ReasonPayloadTooLarge, "more than 4 MiB unpacked")
	})

	t.Run("When layers are large only together, the bound should hold for their sum", func(t *testing.T) {
		layers := make([]v1.Layer, 4)
		for i := range layers {
			layers[i] = layerOf(t, tarEntry{name: fmt.Sprintf("file-%d", i), content: strings.Repeat("x", 1<<20)})
		}
		expectError(t, read(t, imageOf(t, layers...), Options{MaxBytes: 3 << 20}), ReasonPayloadTooLarge, "3 MiB unpacked")
	})

	t.Run("When a layer is too large to pull, it should not be pulled at all", func(t *testing.T) {
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", imageOf(t, static.NewLayer(make([]byte, 2<<20), types.OCIUncompressedLayer)))
		_, err := Read(t.Context(), ref, Options{MaxBytes: 1 << 20})
		expectError(t, err, ReasonPayloadTooLarge, "would take more than 1 MiB", "is it a release image?")
		NewWithT(t).Expect(s.count("GET /v2/release/blobs/")).To(BeZero())
	})

	t.Run("When a release takes just the bytes that are allowed, it should be read", func(t *testing.T) {
		g := NewWithT(t)
		content := tarOf(t, releaseFiles(nil)...)
		layer := static.NewLayer(content, types.OCIUncompressedLayer)
		g.Expect(read(t, imageOf(t, layer), Options{MaxBytes: int64(len(content))})).To(Succeed())
		expectError(t, read(t, imageOf(t, layer), Options{MaxBytes: int64(len(content)) - 1}), ReasonPayloadTooLarge)
	})

	t.Run("When one kept file is huge, it should be refused", func(t *testing.T) {
		files := releaseFiles(map[string]string{"0000_50_karpenter-clusterapi_x.yaml": strings.Repeat("#", maxFileBytes+1)})
		expectError(t, read(t, imageOf(t, layerOf(t, files...)), Options{}), ReasonPayloadTooLarge, "0000_50_karpenter-clusterapi_x.yaml takes more than 8 MiB")
	})

	t.Run("When all kept files together are huge, it should be refused", func(t *testing.T) {
		var files []tarEntry
		for i := range maxKeptBytes/maxFileBytes + 1 {
			files = append(files, tarEntry{name: fmt.Sprintf("release-manifests/0000_50_a_%d.yaml", i), content: strings.Repeat("#", maxFileBytes)})
		}
		expectError(t, read(t, imageOf(t, layerOf(t, files...)), Options{}), ReasonPayloadTooLarge, "the files in release-manifests take more than 64 MiB")
	})

	t.Run("When there are too many layers, it should be refused", func(t *testing.T) {
		layers := make([]v1.Layer, maxLayers+1)
		for i := range layers {
			layers[i] = static.NewLayer(nil, types.OCIUncompressedLayer)
		}
		expectError(t, read(t, imageOf(t, layers...), Options{}), ReasonPayloadTooLarge, "129 layers")
	})

	t.Run("When there are too many files, it should be refused", func(t *testing.T) {
		files := newOverlay(wanted(nil))
		files.entries = maxEntries - 1
		err := files.add(bytes.NewReader(tarOf(t, tarEntry{name: "a"}, tarEntry{name: "b"})))
		NewWithT(t).Expect(err).To(MatchError(errTooLarge))
	})
}

// arbitrary is a manifest of any kind.
type arbitrary struct {
	mediaType types.MediaType
	content   string
}

func (a arbitrary) RawManifest() ([]byte, error)        { return []byte(a.content), nil }
func (a arbitrary) MediaType() (types.MediaType, error) { return a.mediaType, nil }

func TestPlatforms(t *testing.T) {
	versioned := func(version string) v1.Image {
		spec := goodSpec()
		spec.Version = version
		return build(t, spec)
	}
	index := func(t *testing.T, images map[string]v1.Image) v1.ImageIndex {
		t.Helper()
		var idx v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
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
		foreign := map[string]string{"amd64": "arm64"}[runtime.GOARCH]
		if foreign == "" {
			foreign = "s390x"
		}
		ref, digest := s.push(t, "release:1", index(t, map[string]v1.Image{
			"unknown/unknown": versioned("0.0.1"), "linux/" + foreign: versioned("0.0.2"), "linux/" + runtime.GOARCH: versioned("0.0.3")}))
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
		"When the manifest says another type than the registry, it should be refused": {
			types.OCIManifestSchema1, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`, "its manifest says media type"},
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

func TestMirrors(t *testing.T) {
	// The source's host exists nowhere, unless a test says otherwise.
	const source = "source.invalid/ocp/release"

	push := func(t *testing.T, s *server, repository, version string) string {
		t.Helper()
		spec := goodSpec()
		spec.Version = version
		_, digest := s.push(t, repository+":1", build(t, spec))
		return digest
	}

	t.Run("When several mirrors have it, the first should be asked alone, and the source's name kept", func(t *testing.T) {
		g := NewWithT(t)
		a, b := newServer(t, nil), newServer(t, nil)
		digest := push(t, a, "mirror/release", "1.0.1")
		push(t, b, "mirror/release", "1.0.2")
		opts := Options{ImageContentSources: []ImageContentSource{{Source: "source.invalid/ocp", Mirrors: []string{a.host + "/mirror", b.host + "/mirror"}}}}
		r, err := Read(t.Context(), source+":1", opts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Version).To(Equal("1.0.1"))
		g.Expect(r.Image).To(Equal(source + "@" + digest))
		g.Expect(r.ServedBy).To(Equal(a.host + "/mirror/release"))
		g.Expect(b.count("")).To(BeZero())
		g.Expect(Resolve(t.Context(), source+":1", opts)).To(Equal(r.Image))
	})

	t.Run("When a mirror lacks it, is down, or wants credentials, the next should be asked", func(t *testing.T) {
		g := NewWithT(t)
		lacks, down, private, has := newServer(t, nil), newServer(t, nil), newServer(t, &authn.Basic{Username: "a", Password: "b"}), newServer(t, nil)
		down.onRequest(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusNotImplemented)
			return true
		})
		push(t, has, "release", "1.0.1")
		r, err := Read(t.Context(), source+":1", Options{ImageContentSources: []ImageContentSource{{Source: source,
			Mirrors: []string{lacks.host + "/release", down.host + "/release", private.host + "/release", "Not A Name", has.host + "/release"}}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.ServedBy).To(Equal(has.host + "/release"))
	})

	t.Run("When a mirror has the manifest but not the layers, the next should be asked", func(t *testing.T) {
		g := NewWithT(t)
		partial, has := newServer(t, nil), newServer(t, nil)
		digest := push(t, partial, "release", "1.0.1")
		push(t, has, "release", "1.0.1")
		partial.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
			return false
		})
		r, err := ReadDigest(t.Context(), source+"@"+digest, Options{ImageContentSources: []ImageContentSource{{Source: source,
			Mirrors: []string{partial.host + "/release", has.host + "/release"}}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.ServedBy).To(Equal(has.host + "/release"))
	})

	t.Run("When no mirror has it, the source should be asked last", func(t *testing.T) {
		g := NewWithT(t)
		lacks, has := newServer(t, nil), newServer(t, nil)
		push(t, has, "release", "1.0.1")
		r, err := Read(t.Context(), has.host+"/release:1", Options{ImageContentSources: []ImageContentSource{{Source: has.host, Mirrors: []string{lacks.host}}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.ServedBy).To(Equal(has.host + "/release"))
		g.Expect(lacks.count("")).NotTo(BeZero())
	})

	t.Run("When nobody has it, it should tell what each answered, with the reason that helps most", func(t *testing.T) {
		g := NewWithT(t)
		lacks, private := newServer(t, nil), newServer(t, &authn.Basic{Username: "a", Password: "b"})
		_, err := Read(t.Context(), lacks.host+"/release:1", Options{ImageContentSources: []ImageContentSource{{Source: lacks.host + "/release",
			Mirrors: []string{private.host + "/mirror"}}}})
		e := expectError(t, err, ReasonImagePullUnauthorized, "pulling "+lacks.host+"/release:1: "+private.host+"/mirror: 401", "; "+lacks.host+"/release: 404")
		g.Expect(e.Registry).To(Equal(private.host))
	})

	t.Run("When a mirror hangs, it should leave time for the others", func(t *testing.T) {
		g := NewWithT(t)
		hangs, has := newServer(t, nil), newServer(t, nil)
		hangs.onRequest(func(_ http.ResponseWriter, req *http.Request) bool { <-req.Context().Done(); return true })
		push(t, has, "release", "1.0.1")
		r, err := Read(t.Context(), has.host+"/release:1", Options{Timeout: 4 * time.Second,
			ImageContentSources: []ImageContentSource{{Source: has.host, Mirrors: []string{hangs.host}}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.ServedBy).To(Equal(has.host + "/release"))
	})

	t.Run("When the mirror's payload is malformed, it should be reported and not hidden by asking on", func(t *testing.T) {
		broken, has := newServer(t, nil), newServer(t, nil)
		broken.push(t, "release:1", imageOf(t))
		push(t, has, "release", "1.0.1")
		_, err := Read(t.Context(), has.host+"/release:1", Options{ImageContentSources: []ImageContentSource{{Source: has.host, Mirrors: []string{broken.host}}}})
		expectError(t, err, ReasonPayloadMalformed)
	})

	for name, c := range map[string]struct {
		image   string
		sources []ImageContentSource
		want    []string
	}{
		"When nothing is configured, only the source is asked": {"registry.example/aa/bb", nil, []string{"registry.example/aa/bb"}},
		"When the source is a whole registry, paths are kept": {"registry.example/aa/bb", []ImageContentSource{{"registry.example", []string{"m.example", "n.example/x/"}}},
			[]string{"m.example/aa/bb", "n.example/x/aa/bb", "registry.example/aa/bb"}},
		"When a source ends within a name, it doesn't match": {"registry.example/aab", []ImageContentSource{{"registry.example/aa", []string{"m.example"}}},
			[]string{"registry.example/aab"}},
		"When a source is another port, it doesn't match": {"registry.example:5000/aa", []ImageContentSource{{"registry.example", []string{"m.example"}}},
			[]string{"registry.example:5000/aa"}},
		"When several sources match, the longest decides": {"registry.example/aa/bb", []ImageContentSource{
			{"registry.example", []string{"m.example"}}, {"registry.example/aa", []string{"n.example"}}, {"registry.example/aa/", []string{"o.example"}}},
			[]string{"n.example/bb", "o.example/bb", "registry.example/aa/bb"}},
		"When a mirror is the source itself or comes twice, it is asked once": {"registry.example/aa", []ImageContentSource{
			{"registry.example", []string{"registry.example", "m.example", "m.example"}}}, []string{"registry.example/aa", "m.example/aa"}},
		"When the source is exactly the repository, the mirror is too": {"registry.example/aa", []ImageContentSource{{"registry.example/aa", []string{"m.example/z"}}},
			[]string{"m.example/z", "registry.example/aa"}},
		"When Docker Hub goes by another name, it is the same": {"nginx", []ImageContentSource{{"docker.io/library", []string{"m.example/hub"}}},
			[]string{"m.example/hub/nginx", "index.docker.io/library/nginx"}},
		"When an entry is empty, it is ignored": {"registry.example/aa", []ImageContentSource{{"", []string{"m.example"}}}, []string{"registry.example/aa"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			repository, err := repositoryOf(c.image)
			g.Expect(err).NotTo(HaveOccurred())
			var got []string
			for _, p := range (Options{ImageContentSources: c.sources}).places(repository) {
				got = append(got, p.name)
			}
			g.Expect(cmp.Diff(c.want, got)).To(BeEmpty())
		})
	}
}

func repositoryOf(s string) (name.Repository, error) { return name.NewRepository(s) }

func TestBuild(t *testing.T) {
	t.Run("When a release is built twice, in any order, it should have one digest", func(t *testing.T) {
		g := NewWithT(t)
		first, err := build(t, goodSpec()).Digest()
		g.Expect(err).NotTo(HaveOccurred())
		spec := goodSpec()
		spec.Components[0], spec.Components[1] = spec.Components[1], spec.Components[0]
		spec.Previous[0], spec.Previous[1] = spec.Previous[1], spec.Previous[0]
		second, err := build(t, spec).Digest()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).To(Equal(first))
	})

	t.Run("When a release is built, its unpacked content should be what it has always been", func(t *testing.T) {
		// The compressed digest may vary with Go's compressor; this one changes only when we change what a release holds.
		const golden = "sha256:727f15f3daded4578a7f5c2794bec0c6c9afe6dbcbe49e913a66e349ef9d11c7"
		g := NewWithT(t)
		layers, err := build(t, goodSpec()).Layers()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(layers).To(HaveLen(1))
		got, err := layers[0].DiffID()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.String()).To(Equal(golden))
	})

	t.Run("When a release is built, it should have no timestamps and say its version in a label", func(t *testing.T) {
		g := NewWithT(t)
		config, err := build(t, goodSpec()).ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Created.IsZero()).To(BeTrue())
		g.Expect(config.Config.Labels).To(Equal(map[string]string{LabelRelease: "1.36.3"}))
		g.Expect(config.OS + "/" + config.Architecture).To(Equal("linux/amd64"))
	})

	for name, c := range map[string]struct {
		change func(*Spec)
		want   string
	}{
		"When the version is none, it should say so":           {func(s *Spec) { s.Version = "latest" }, `building release latest: `},
		"When a previous version is none, it should say so":    {func(s *Spec) { s.Previous = []string{"x"} }, `previous version "x"`},
		"When an image is a tag, it should say which":          {func(s *Spec) { s.Components[0].Image = "a/b:c" }, `"a/b:c" isn't an image by digest`},
		"When a name has an underscore, it should say which":   {func(s *Spec) { s.Components[0].Name = "a_b" }, `component "a_b"`},
		"When a component comes twice, it should say which":    {func(s *Spec) { s.Components[1].Name = component; s.Components[1].CRDs = nil }, "two tags"},
		"When a component's version is none, it should say so": {func(s *Spec) { s.Components[0].Versions["kubernetes"] = "new" }, `"new" is no semantic version`},
		"When a CRD is no YAML, it should name the component":  {func(s *Spec) { s.Components[0].CRDs = [][]byte{[]byte("a: ]")} }, "component karpenter-clusterapi: "},
		"When a CRD is given twice, it should say which":       {func(s *Spec) { s.Components[0].CRDs = [][]byte{crd("as"), crd("as")} }, "as.karpenter.sh is given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := goodSpec()
			c.change(&spec)
			_, err := Build(spec)
			expectError(t, err, ReasonPayloadMalformed, c.want)
		})
	}
}

func TestPush(t *testing.T) {
	t.Run("When the credentials are missing, it should say so", func(t *testing.T) {
		s := newServer(t, &authn.Basic{Username: "a", Password: "b"})
		_, err := Push(t.Context(), s.host+"/release:1", build(t, goodSpec()), Options{})
		expectError(t, err, ReasonImagePullUnauthorized, "pushing "+s.host+"/release:1: 401")
	})
	t.Run("When the target is a digest of something else, it should say what the image's is", func(t *testing.T) {
		_, err := Push(t.Context(), other, build(t, goodSpec()), Options{})
		expectError(t, err, ReasonInvalidReference, "the image's digest is sha256:")
	})
	t.Run("When the target is no reference, it should say so", func(t *testing.T) {
		_, err := Push(t.Context(), "???", build(t, goodSpec()), Options{})
		expectError(t, err, ReasonInvalidReference, "pushing ???: ")
	})
}

func TestKeychain(t *testing.T) {
	const config = `{"auths": {
		"https://index.docker.io/v1/":    {"username": "hub", "password": "p"},
		"registry.example":               {"auth": "aG9zdDpwOnE="},
		"registry.example/team":          {"username": "team", "password": "p"},
		"registry.example/team/project":  {"username": "project", "password": "p"},
		"registry.example:5000":          {"username": "port", "password": "p"},
		"*.example.com":                  {"username": "wild", "password": "p"},
		"exact.example.com":              {"username": "exact", "password": "p"},
		"*.example.com/deep":             {"username": "deep", "password": "p"},
		"tokens.example":                 {"identitytoken": "t"},
		"broken.example":                 {"auth": "%%%secret%%%"},
		"shape.example":                  {"auth": {"secret": 1}},
		"empty.example":                  {}
	}, "credsStore": "ignored"}`
	k, err := KeychainFromDockerConfig([]byte(config))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	for image, want := range map[string]string{
		"nginx":                                 "hub",
		"docker.io/team/app":                    "hub",
		"registry.example/app":                  "host",
		"registry.example/team/app":             "team",
		"registry.example/team":                 "team",
		"registry.example/teamwork/app":         "host",
		"registry.example/team/project":         "project",
		"registry.example/team/project/x":       "project",
		"registry.example:5000/team":            "port",
		"registry.example:5001/team":            "",
		"sub.registry.example/app":              "",
		"a.example.com/app":                     "wild",
		"a.b.example.com/app":                   "",
		"exact.example.com/app":                 "exact",
		"exact.example.com/deep/app":            "deep",
		"empty.example/app":                     "",
		"elsewhere.example/registry.example/ab": "",
	} {
		t.Run("When "+image+" is pulled, it should use "+fmt.Sprintf("%q", want), func(t *testing.T) {
			g := NewWithT(t)
			repository, err := repositoryOf(image)
			g.Expect(err).NotTo(HaveOccurred())
			auth, err := k.Resolve(repository)
			g.Expect(err).NotTo(HaveOccurred())
			got, err := auth.Authorization()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got.Username).To(Equal(want))
			g.Expect(auth == authn.Anonymous).To(Equal(want == ""))
			if want == "host" {
				g.Expect(got.Password).To(Equal("p:q"))
			}
		})
	}

	t.Run("When an entry is a token, it should be given", func(t *testing.T) {
		g := NewWithT(t)
		repository, err := repositoryOf("tokens.example/app")
		g.Expect(err).NotTo(HaveOccurred())
		auth, err := k.Resolve(repository)
		g.Expect(err).NotTo(HaveOccurred())
		got, err := auth.Authorization()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.IdentityToken).To(Equal("t"))
	})

	for _, host := range []string{"broken.example", "shape.example"} {
		t.Run("When the entry of "+host+" is broken, only that should fail, without showing it", func(t *testing.T) {
			g := NewWithT(t)
			repository, err := repositoryOf(host + "/app")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = k.Resolve(repository)
			g.Expect(err).To(MatchError(ContainSubstring(fmt.Sprintf("entry %q", host))))
			g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
		})
	}

	for name, c := range map[string]struct{ config, want string }{
		"When it is no JSON, it should say where":        {`{"auths": hunter2}`, "invalid JSON at byte"},
		"When it is empty, it should say so":             {``, "invalid JSON at byte 0"},
		"When it has no auths, it should say so":         {`{}`, `it has no "auths"`},
		"When its auths are no object, it should say so": {`{"auths": "hunter2"}`, `field "auths" must not be a JSON string`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := KeychainFromDockerConfig([]byte(c.config))
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
		})
	}
}

// FuzzReadLayer reads two layers, as they could come from anyone's image, and what they hold.
func FuzzReadLayer(f *testing.F) {
	good := tarOf(f, releaseFiles(nil)...)
	f.Add([]byte{}, good)
	f.Add(gzipped(f, good), []byte("x"))
	f.Add(good, tarOf(f, tarEntry{name: "release-manifests/.wh.image-references"}))
	f.Add(good, tarOf(f, tarEntry{name: "release-manifests", kind: tar.TypeSymlink, link: "/"}))
	f.Add(tarOf(f, releaseFiles(map[string]string{"image-references": stream(tag("a", "kubernetes=1.2.3,b=")), "0000_50_a_b.yaml": "a: &a [*a]"})...), []byte{})
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		const limit = 1 << 20
		left := int64(limit)
		files := newOverlay(wanted(nil))
		for _, layer := range [][]byte{upper, lower} {
			stream, err := unpack(bytes.NewReader(layer))
			if err != nil {
				return
			}
			err = files.add(&budget{r: stream, left: &left, limit: limit, what: "unpacked"})
			if closing := stream.Close(); err != nil || closing != nil {
				return
			}
		}
		kept := 0
		for file, content := range files.files {
			if strings.Contains(file, "/") || file == ".." {
				t.Errorf("kept %q", file)
			}
			kept += len(content)
		}
		if kept > limit {
			t.Errorf("kept %d bytes of at most %d", kept, limit)
		}
		release, err := parse("registry.example/release@sha256:0", files, nil)
		if err != nil {
			if ReasonFor(err) != ReasonPayloadMalformed {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		for _, name := range release.Names {
			c, err := release.Component(name)
			if err != nil {
				t.Errorf("component %q: %v", name, err)
			}
			if !strings.Contains(c.Image, "@sha256:") {
				t.Errorf("component %q has image %q", name, c.Image)
			}
		}
		if _, err := json.Marshal(release); err != nil {
			t.Errorf("encoding the release: %v", err)
		}
	})
}
