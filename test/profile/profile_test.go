// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/profile"
)

func TestFetch(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/debug/pprof/heap":
			_, _ = w.Write([]byte("a profile"))
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half of"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "heap.pprof")

	t.Run("When the profile is cut short or refused, it should fail and leave no file", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(profile.Fetch(t.Context(), server.Client(), server.URL+"/cut", file)).NotTo(Succeed())
		g.Expect(profile.Fetch(t.Context(), server.Client(), server.URL+"/other", file)).To(MatchError(ContainSubstring("404")))
		g.Expect(file).NotTo(BeAnExistingFile())
	})

	t.Run("When there is one, it should write it", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(profile.Fetch(t.Context(), server.Client(), server.URL+"/debug/pprof/heap", file)).To(Succeed())
		g.Expect(os.ReadFile(file)).To(BeEquivalentTo("a profile"))
	})
}
