// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

type files map[string]string

func (f files) Add(name string, content []byte) error {
	f[name] = string(content)
	return nil
}

func (files) Close() error { return nil }

// TestEndless is a guest whose API server continues each list.
func TestEndless(t *testing.T) {
	g := NewWithT(t)
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"NodeList","metadata":{"continue":"more"},"items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}]}`)
	}))
	t.Cleanup(server.Close)
	written := files{}
	c, err := NewCollector(&rest.Config{Host: server.URL}, written, "guest")
	g.Expect(err).NotTo(HaveOccurred())
	c.list(t.Context(), resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}}, "")
	g.Expect(requests).To(Equal(maxPages), "When a guest continues a list without end, reading should end")
	g.Expect(written).To(HaveKeyWithValue("guest/cluster/nodes.yaml", ContainSubstring("name: a")), "and what was read be kept")
	g.Expect(c.Problems()).To(ConsistOf(ContainSubstring("nodes in namespace (all): more than 200 pages of 500 objects; the rest is missing")))
}
