// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
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

// count reports how many requests began like this.
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
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func layerOf(t testing.TB, entries ...tarEntry) v1.Layer {
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
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if files[file] != "" {
			entries = append(entries, tarEntry{name: "release-manifests/" + file, content: files[file]})
		}
	}
	return entries
}

// released serves a good release, with some of its files replaced.
func released(t *testing.T, replace map[string]string) (ref string) {
	t.Helper()
	ref, _ = newServer(t, nil).push(t, "release:1", imageOf(t, layerOf(t, releaseFiles(replace)...)))
	return ref
}

// readGood reads a release that is well formed.
func readGood(t *testing.T, ref string, opts Options) *Release {
	t.Helper()
	r, err := Read(t.Context(), ref, opts)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return r
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
