// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/message"
)

const (
	// maxAnswer is the largest answer to a call, in bytes. Lists are read by the guest's Store.
	maxAnswer = 8 << 20
	// maxRefusal is the largest answer that isn't a success.
	maxRefusal = 1 << 20
	// maxRefusalText limits the text of a refusal that isn't a Status.
	maxRefusalText = 512

	// undecodable is a format that client-go has no decoder for.
	undecodable = "text/plain"
)

// bounded asks a guest for JSON, and measures its responses before client-go decodes them. Client-go decodes a response as the kind that it
// names, whichever kind was requested.
type bounded struct {
	next   http.RoundTripper
	scheme *runtime.Scheme
	charge func(bytes int) // that of a Store
	// streams: successful answers are those to a Store, which decodes them object by object.
	streams bool
}

var _ http.RoundTripper = (*bounded)(nil)

// WrappedRoundTripper lets idle connections be closed.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	if accept := request.Header.Get("Accept"); strings.Contains(accept, runtime.ContentTypeProtobuf) {
		request = request.Clone(request.Context())
		request.Header.Set("Accept", strings.ReplaceAll(accept, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON))
	}
	response, err := b.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	switch ok := response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices; {
	case response.StatusCode == http.StatusSwitchingProtocols, ok && b.streams:
		return response, nil
	case ok:
		return b.answer(response)
	default:
		return b.refusal(response), nil
	}
}

// answer measures a successful answer.
func (b *bounded) answer(response *http.Response) (*http.Response, error) {
	content, err := read(response, maxAnswer)
	if err != nil {
		return nil, err
	}
	gvk := kindOf(content)
	format := formatOf(response, gvk)
	if format != undecodable {
		if err := b.check(content, gvk); err != nil {
			return nil, fmt.Errorf("the answer can't be used: %w", err)
		}
	}
	return replaced(response, format, content), nil
}

// formatOf returns the format from which a response that names a kind may be decoded.
func formatOf(response *http.Response, gvk schema.GroupVersionKind) string {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case gvk.Kind == "" || gvk.Version == "":
		return undecodable // it would be decoded as the kind in the request, which is unknown here
	case err != nil || kind == runtime.ContentTypeJSON:
		return runtime.ContentTypeJSON
	}
	return undecodable
}

// refusal keeps a Status, and the beginning of anything else as text.
func (b *bounded) refusal(response *http.Response) *http.Response {
	content, err := read(response, maxRefusal)
	if err != nil {
		return replaced(response, undecodable, []byte(err.Error()))
	}
	gvk := kindOf(content)
	format := formatOf(response, gvk)
	if format != undecodable && gvk.Kind == "Status" && gvk.Group == "" && b.check(content, gvk) == nil {
		return replaced(response, format, content)
	}
	return replaced(response, undecodable, []byte(message.QuoteUpTo(string(content), maxRefusalText)))
}

// check decodes an object of the kind that it names.
func (b *bounded) check(content []byte, gvk schema.GroupVersionKind) error {
	object, err := b.scheme.New(gvk)
	if err != nil {
		object = &metav1.PartialObjectMetadata{} // of a kind without a type
	}
	problem, err := store.Decode(content, object, b.charge)
	if err == nil && problem != "" {
		err = errors.New(problem)
	}
	return err
}

// kindOf returns the kind that an object names, as decoders find it.
func kindOf(content []byte) schema.GroupVersionKind {
	var named metav1.TypeMeta
	if err := json.Unmarshal(content, &named); err != nil {
		return schema.GroupVersionKind{}
	}
	return named.GroupVersionKind()
}

// read reads an answer, and closes it.
func read(response *http.Response, limit int64) ([]byte, error) {
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("the answer is longer than %d KiB", limit>>10)
	}
	return content, nil
}

func replaced(response *http.Response, format string, content []byte) *http.Response {
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	response.Header.Set("Content-Type", format)
	response.Header.Del("Content-Length")
	return response
}
