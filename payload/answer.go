// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/autonode-io/autonode/internal/headers"
)

// standard is how registries are reached if Options.Transport is nil.
var standard = func() http.RoundTripper {
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = headers.MaxBytes
	return transport
}()

type bodyLimitKey struct{}

// withBodyLimit bounds the bodies of layers for requests with the context that it returns.
func withBodyLimit(ctx context.Context, limit int64) context.Context {
	return context.WithValue(ctx, bodyLimitKey{}, limit)
}

// boundedTransport keeps a registry from filling our memory: the library reads most bodies whole, and decodes them.
type boundedTransport struct{ http.RoundTripper }

func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	asked := kindOf(req)
	switch {
	case resp.StatusCode != http.StatusOK:
		resp.Body = replace(resp.Body, explanation(resp.Body))
	case asked == layer:
		limit, _ := req.Context().Value(bodyLimitKey{}).(int64)
		limit = max(limit, maxManifestBytes) // one that is larger than its descriptor declares is distinguished from one that is too large
		remaining := limit
		resp.Body = replace(resp.Body, &budget{r: resp.Body, remaining: &remaining, limit: limit, what: "in one answer of the registry"})
	case asked == manifest:
		resp.Body = replace(resp.Body, document(resp.Body))
	default:
		resp.Body = replace(resp.Body, brief(resp.Body))
	}
	return resp, nil
}

// kind is the kind of a request to a registry.
type kind int

const (
	// anything is any other request, such as one for a token. The response is brief.
	anything kind = iota
	manifest
	layer
)

// kindOf returns the kind of a request. The registry chooses where a redirect leads and where tokens come from, so it is the first request
// that counts, and no request for a token looks like one for a layer: it has a query, or isn't a GET.
func kindOf(req *http.Request) kind {
	for req.Response != nil && req.Response.Request != nil {
		req = req.Response.Request
	}
	path := req.URL.Path
	switch {
	case req.Method != http.MethodGet || req.URL.RawQuery != "" || !strings.HasPrefix(path, "/v2/"):
		return anything
	case strings.Contains(path, "/blobs/"):
		return layer
	case strings.Contains(path, "/manifests/"), strings.Contains(path, "/referrers/"):
		return manifest
	}
	return anything
}

// explanation is the beginning of a body that explains a status, or nothing if it takes too much memory to decode. The status reports more.
func explanation(body io.Reader) io.Reader {
	content, _ := io.ReadAll(io.LimitReader(body, maxAnswerBytes)) // the status counts, also of a connection that ends
	if count(content) != nil {
		content = nil
	}
	return bytes.NewReader(content)
}

// document is a manifest or an index. The library decodes it for a field of it.
func document(body io.Reader) io.Reader {
	remaining := int64(maxManifestBytes)
	content, err := io.ReadAll(&budget{r: body, remaining: &remaining, limit: maxManifestBytes, what: "in one answer of the registry"})
	if err == nil {
		if err = count(content); err != nil {
			err = fmt.Errorf("its manifest: %w", err)
		}
	}
	if err != nil {
		return &source{err: err}
	}
	return bytes.NewReader(content)
}

// brief is a body that is short, such as a token's.
func brief(body io.Reader) io.Reader {
	content, err := io.ReadAll(io.LimitReader(body, maxAnswerBytes+1))
	if err == nil && (len(content) > maxAnswerBytes || count(content) != nil) {
		err = errTalkative
	}
	if err != nil {
		return &source{err: err}
	}
	return bytes.NewReader(content)
}

// replace returns a body with other content.
func replace(body io.Closer, content io.Reader) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{content, body}
}
