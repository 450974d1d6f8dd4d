// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	. "github.com/onsi/gomega"
)

// expectErrors calls Read and Resolve, which are to answer alike.
func expectErrors(t *testing.T, ref string, opts Options, reason Reason, words ...string) *Error {
	t.Helper()
	_, err := Resolve(t.Context(), ref, opts)
	expectError(t, err, reason, append(words, "resolving "+ref+": ")...)
	_, err = Read(t.Context(), ref, opts)
	return expectError(t, err, reason, append(words, "pulling "+ref+": ")...)
}

func TestRegistryErrors(t *testing.T) {
	t.Run("When the repository or the tag isn't there, it should say that it was not found", func(t *testing.T) {
		s := newServer(t, nil)
		s.push(t, "release:1", build(t, goodSpec()))
		expectErrors(t, s.host+"/release:2", Options{}, ReasonImageNotFound, "404 Not Found: no such tag")
		expectErrors(t, s.host+"/nothing:1", Options{}, ReasonImageNotFound, "404 Not Found: no such")
		_, err := Read(t.Context(), s.host+"/release@sha256:"+strings.Repeat("0", 64), Options{}) // Resolve needs no answer for a digest
		expectError(t, err, ReasonImageNotFound, "404 Not Found: no such digest")
	})

	t.Run("When nothing listens, it should call the registry unreachable", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		host := listener.Addr().String()
		NewWithT(t).Expect(listener.Close()).To(Succeed())
		expectErrors(t, host+"/release:1", Options{}, ReasonRegistryUnreachable, "connection refused")
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
		expectErrors(t, s.host+"/release:1", Options{}, ReasonRegistryUnreachable, "429", "slow  down please")
	})

	t.Run("When the registry never answers, it should give up in time", func(t *testing.T) {
		s := newServer(t, nil)
		s.onRequest(func(_ http.ResponseWriter, req *http.Request) bool { <-req.Context().Done(); return true })
		expectErrors(t, s.host+"/release:1", Options{Timeout: 50 * time.Millisecond}, ReasonRegistryUnreachable, "no answer")
	})

	t.Run("When the caller gives up, it should say so to errors.Is", func(t *testing.T) {
		s := newServer(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		s.onRequest(func(_ http.ResponseWriter, req *http.Request) bool { cancel(); <-req.Context().Done(); return true })
		_, err := Read(ctx, s.host+"/release:1", Options{})
		NewWithT(t).Expect(errors.Is(err, context.Canceled)).To(BeTrue(), "%v", err)
	})
}

func TestMirrors(t *testing.T) {
	// The source's host exists nowhere, unless a test changes that.
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
		r := readGood(t, source+":1", opts)
		g.Expect(r.Version).To(Equal("1.0.1"))
		g.Expect(r.Image).To(Equal(source + "@" + digest))
		g.Expect(r.ServedBy).To(Equal(a.host + "/mirror/release"))
		g.Expect(b.count("")).To(BeZero())
		g.Expect(Resolve(t.Context(), source+":1", opts)).To(Equal(r.Image))
	})

	t.Run("When a mirror lacks it, is down, or requires credentials, the next should be asked", func(t *testing.T) {
		g := NewWithT(t)
		lacks, down, private, has := newServer(t, nil), newServer(t, nil), newServer(t, &authn.Basic{Username: "a", Password: "b"}), newServer(t, nil)
		down.onRequest(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusNotImplemented)
			return true
		})
		push(t, has, "release", "1.0.1")
		r := readGood(t, source+":1", Options{ImageContentSources: []ImageContentSource{{Source: source,
			Mirrors: []string{lacks.host + "/release", down.host + "/release", private.host + "/release", "Not A Name", has.host + "/release"}}}})
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
		r := readGood(t, has.host+"/release:1", Options{ImageContentSources: []ImageContentSource{{Source: has.host, Mirrors: []string{lacks.host}}}})
		g.Expect(r.ServedBy).To(Equal(has.host + "/release"))
		g.Expect(lacks.count("")).NotTo(BeZero())
	})

	t.Run("When no host has it, it should report each answer, with the reason that helps most", func(t *testing.T) {
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
		r := readGood(t, has.host+"/release:1", Options{Timeout: 4 * time.Second,
			ImageContentSources: []ImageContentSource{{Source: has.host, Mirrors: []string{hangs.host}}}})
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

func TestRegistries(t *testing.T) {
	t.Run("When an image has mirrors, it should report all hosts that are asked for it, in their order and once each", func(t *testing.T) {
		g := NewWithT(t)
		options := Options{ImageContentSources: []ImageContentSource{
			{Source: "a.example", Mirrors: []string{"b.example", "not a mirror", "b.example/other", "c.example:5000/copies"}},
			{Source: "elsewhere.example", Mirrors: []string{"d.example"}},
		}}
		g.Expect(Registries("a.example/release:3", options)).To(Equal([]string{"b.example", "c.example:5000", "a.example"}))
		g.Expect(Registries("other.example/release:3", options)).To(Equal([]string{"other.example"}))
	})
	t.Run("When there is no such image, it should report none", func(t *testing.T) {
		NewWithT(t).Expect(Registries("UPPER/case:::", Options{})).To(BeEmpty())
	})
}
