// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/payload/payloadtest"
)

// answer is what a registry sends instead of what it was asked for.
type answer struct {
	// to is a part of the path of the requests that get it.
	to     string
	status int
	header http.Header
	body   func() string
}

// answers are hostile ones, each by what it is.
func answers() map[string]answer {
	const many = 300_000
	manifest := http.Header{"Content-Type": {string(types.OCIManifestSchema1)}}
	index := http.Header{"Content-Type": {string(types.OCIImageIndex)}}
	list := func(before, element, after string) func() string {
		return func() string { return before + strings.Repeat(element+",", many) + element + after }
	}
	return map[string]answer{
		"an error with a list of errors":          {"/manifests/", http.StatusBadRequest, nil, list(`{"errors":[`, `{}`, `]}`)},
		"an error with details that nest":         {"/manifests/", http.StatusForbidden, nil, list(`{"errors":[{"detail":[`, `{}`, `]}]}`)},
		"an error that is a page":                 {"/manifests/", http.StatusNotFound, nil, repeat("<p>no such page</p>", many)},
		"an error to the first request":           {"/v2/", http.StatusForbidden, nil, list(`{"errors":[`, `{}`, `]}`)},
		"headers without end":                     {"/manifests/", http.StatusUnauthorized, http.Header{"Www-Authenticate": {strings.Repeat(`Bearer realm="x",scope="a"`, 100_000)}}, repeat("", 1)},
		"another status with a manifest":          {"/manifests/", http.StatusAccepted, manifest, list(`{"layers":[`, `{}`, `]}`)},
		"a manifest with something behind it":     {"/manifests/", http.StatusOK, manifest, list(`{"layers":[`, `{}`, `]} <html>`)},
		"a manifest of annotations":               {"/manifests/", http.StatusOK, manifest, func() string { return `{"annotations":{` + members(many) + `}}` }},
		"a layer of annotations":                  {"/manifests/", http.StatusOK, manifest, func() string { return `{"layers":[{"annotations":{` + members(many) + `}}]}` }},
		"a config of addresses":                   {"/manifests/", http.StatusOK, manifest, list(`{"config":{"urls":[`, `""`, `]}}`)},
		"an index of features":                    {"/manifests/", http.StatusOK, index, list(`{"manifests":[{"platform":{"os.features":[`, `""`, `]}}]}`)},
		"lists of lists":                          {"/manifests/", http.StatusOK, manifest, list(`{"layers":[`, `{"urls":["",""]},{"urls":["",""]}`, `]}`)},
		"a redirect to a manifest of many layers": {"/elsewhere", http.StatusOK, manifest, list(`{"layers":[`, `{}`, `]}`)},
		"a list of referrers":                     {"/referrers/", http.StatusOK, index, list(`{"manifests":[`, `{}`, `]}`)},
		"an error for referrers":                  {"/referrers/", http.StatusInternalServerError, nil, list(`{"errors":[`, `{}`, `]}`)},
		"an error for a layer":                    {"/blobs/", http.StatusInternalServerError, nil, list(`{"errors":[`, `{}`, `]}`)},
		"a token as long as a book":               {"/token", http.StatusOK, nil, func() string { return `{"token":"` + strings.Repeat("a", 3<<20) + `"}` }},
		"an error instead of a token":             {"/token", http.StatusForbidden, nil, list(`{"errors":[`, `{}`, `]}`)},
		// The registry chooses where tokens come from.
		"a token from where layers are": {"/v2/token/blobs/", http.StatusOK, nil, func() string { return `{"token":"` + strings.Repeat("a", 3<<20) + `"}` }},
	}
}

// members are those of an object in JSON.
func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	return b.String() + `"":""`
}

// serve lets a registry give the answer.
func (a answer) serve(t *testing.T, s *server) {
	t.Helper()
	body := []byte(a.body())
	s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
		path := req.URL.Path
		switch {
		case a.to == "/elsewhere" && strings.Contains(path, "/manifests/"):
			http.Redirect(w, req, a.to, http.StatusTemporaryRedirect)
			return true
		case strings.Contains(a.to, "token") && !strings.Contains(path, "token") && req.Header.Get("Authorization") == "":
			realm := "http://" + s.host + a.to + "sha256:" + strings.Repeat("0", 64)
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		case !strings.Contains(path, a.to):
			return false
		}
		for key, values := range a.header {
			w.Header()[key] = values
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(body)
		return true
	})
}

// TestAnswers pulls from a mirror that answers with more than it was asked for. A namespace has six pulls at a time.
func TestAnswers(t *testing.T) {
	source := newServer(t, nil)
	ref, _ := source.push(t, "release:1", build(t, goodSpec()))
	key := payloadtest.Key(t)
	for name, a := range answers() {
		t.Run("When a mirror answers with "+name+", it should take little memory", func(t *testing.T) {
			g := NewWithT(t)
			mirror := newServer(t, nil)
			mirror.push(t, "release:1", build(t, goodSpec()))
			a.serve(t, mirror)
			opts := Options{
				Verifier: verifier(t, false, key), Platform: &v1.Platform{OS: "linux", Architecture: "amd64"},
				ImageContentSources: []ImageContentSource{{Source: source.host, Mirrors: []string{mirror.host}}},
			}
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			release, err := Read(t.Context(), ref, opts)
			goruntime.ReadMemStats(&after)
			g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", maxAllocated), "bytes allocated")
			g.Expect(mirror.count("GET /")).To(BeNumerically(">", 1))
			if a.status == http.StatusOK && a.to != "/referrers/" && !strings.Contains(a.to, "token") {
				g.Expect(ReasonFor(err)).To(Equal(ReasonPayloadTooLarge), "%v", err)
				return
			}
			// It reports nothing about the image, so the source is asked. Without a signature the image is unverified.
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(release.Version).To(Equal(goodSpec().Version))
			if a.to != "/referrers/" {
				g.Expect(release.ServedBy).To(HavePrefix(source.host))
			}
		})
	}
}

// FuzzAnswers reads a signed image from a registry, one kind of whose answers is whatever it likes.
func FuzzAnswers(f *testing.F) {
	asked := []string{"/v2/", "/manifests/1", "/manifests/sha256", ".sig", "/referrers/", "/blobs/", "/token"}
	for _, a := range []answer{
		{to: "/v2/", status: 401, body: repeat(`{"errors":[{"code":"UNAUTHORIZED","message":"no","detail":{}}]}`, 1)},
		{to: "/token", status: 200, body: repeat(`{"token":"a","access_token":"b","refresh_token":"c","expires_in":1}`, 1)},
		{to: "/manifests/1", status: 429, body: repeat(`{"errors":[{"code":"TOOMANYREQUESTS"}]}`, 1)},
		{to: "/manifests/1", status: 200, body: repeat(`{"schemaVersion":1}`, 1)},
		{to: "/referrers/", status: 200, body: repeat(fmt.Sprintf(indexOf, goodChild), 1)},
		{to: ".sig", status: 200, body: repeat(fmt.Sprintf(imageManifest, goodLayer), 1)},
		{to: "/manifests/sha256", status: 307, body: repeat("", 1)},
		{to: "/blobs/", status: 206, body: repeat("x", 1)},
	} {
		for _, challenge := range []string{"", `Bearer realm="https://registry.example/token",service="x",scope="y"`, `Basic realm="x"`} {
			f.Add(uint8(slices.Index(asked, a.to)), a.status, string(types.OCIImageIndex), challenge, []byte(a.body()))
		}
	}
	key := payloadtest.PublicPEM(f, payloadtest.Key(f))
	layer := tarOf(f, releaseFiles(nil)...)
	f.Fuzz(func(t *testing.T, which uint8, status int, mediaType, challenge string, body []byte) {
		synctest.Test(t, func(t *testing.T) { // there are pauses between attempts
			verifier, err := NewVerifier(key, nil, false)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			top, child := specimen{manifest: fmt.Sprintf(imageManifest, goodLayer)}.fill(layer)
			shelf := &shelf{mediaType: string(types.OCIManifestSchema1), top: top, child: child, layer: layer}
			to := asked[int(which)%len(asked)]
			registry := roundTripper(func(req *http.Request) (*http.Response, error) {
				if !strings.Contains(req.URL.Path, to) && (to != "/token" || req.URL.Path != "/v2/") {
					return shelf.RoundTrip(req)
				}
				header := http.Header{"Content-Type": {mediaType}, "Location": {mediaType}, "Www-Authenticate": {challenge}}
				answered := status
				if to == "/token" && req.URL.Path == "/v2/" {
					answered, header["Www-Authenticate"] = http.StatusUnauthorized, []string{`Bearer realm="https://registry.example/token"`}
				}
				return &http.Response{Request: req, Header: header, StatusCode: answered, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
					ContentLength: -1, Body: io.NopCloser(bytes.NewReader(body))}, nil
			})
			release, err := Read(t.Context(), "registry.example/release:1", Options{Transport: registry, MaxBytes: 1 << 20, Verifier: verifier})
			var e *Error
			switch {
			case err == nil:
				checkRelease(t, release)
			case !errors.As(err, &e) || e.Reason == "":
				t.Errorf("unexpected kind of error: %v", err)
			case len(err.Error()) > 2000 || !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), "\n"):
				t.Errorf("unfit for a condition: %q", err)
			}
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
