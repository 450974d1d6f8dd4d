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
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/guest/wire"
	"github.com/autonode-io/autonode/operator/message"
)

const (
	// maxAnswer is the largest answer to a call, in bytes. Lists are read by the guest's Store.
	maxAnswer = 8 << 20
	// maxAnswerCost limits the memory for one answer while it is decoded.
	maxAnswerCost = 64 << 20
	// maxRefusal is the largest answer that isn't a success, and maxRefusalCost limits the memory for it.
	maxRefusal     = 1 << 20
	maxRefusalCost = 4 << 20
	// maxRefusalText limits the text of a refusal that isn't a Status.
	maxRefusalText = 512

	// undecodable is a format that client-go has no decoder for.
	undecodable = "text/plain"
)

var envelope = []byte("k8s\x00")

// bounded measures a guest's responses before client-go decodes them. Client-go decodes a response as the kind that the response names,
// whichever kind was requested.
type bounded struct {
	next   http.RoundTripper
	scheme *runtime.Scheme
}

var _ http.RoundTripper = (*bounded)(nil)

// WrappedRoundTripper lets idle connections be closed.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	switch ok := response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices; {
	case response.StatusCode == http.StatusSwitchingProtocols, ok && store.DecodesItself(request.Context()):
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
	format := formatOf(response, content, gvk)
	if format != undecodable {
		if err := b.check(content, gvk, maxAnswerCost); err != nil {
			return nil, fmt.Errorf("the answer can't be used: %w", err)
		}
	}
	return replaced(response, format, content), nil
}

// formatOf returns the format from which a response that names a kind may be decoded.
func formatOf(response *http.Response, content []byte, gvk schema.GroupVersionKind) string {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case gvk.Kind == "" || gvk.Version == "":
		return undecodable // it would be decoded as what was asked for, and that is unknown here
	case bytes.HasPrefix(content, envelope):
		return runtime.ContentTypeProtobuf
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
	format := formatOf(response, content, gvk)
	if format != undecodable && gvk.Kind == "Status" && gvk.Group == "" && b.check(content, gvk, maxRefusalCost) == nil {
		return replaced(response, format, content)
	}
	return replaced(response, undecodable, []byte(message.QuoteUpTo(string(content), maxRefusalText)))
}

// check measures an object of the kind that it names.
func (b *bounded) check(content []byte, gvk schema.GroupVersionKind, limit int) error {
	of := b.typeOf(gvk)
	object, err := wire.Unwrap(content)
	if err != nil {
		return err
	}
	var checked wire.Checked
	if object.Protobuf {
		checked, err = of.CheckProtobuf(object.Raw, limit)
	} else {
		checked, err = of.CheckJSON(object.Raw, limit)
	}
	if err == nil && len(checked.Faults) > 0 {
		err = errors.New(checked.Faults[0].String())
	}
	return err
}

// anything is the type of objects without a known kind.
var anything = sync.OnceValue(func() *wire.Type { return wire.Of(reflect.TypeFor[map[string]any]()) })

func (b *bounded) typeOf(gvk schema.GroupVersionKind) *wire.Type {
	if gvk.Group == metav1.GroupName {
		switch gvk.Kind {
		case "PartialObjectMetadata":
			return wire.Of(reflect.TypeFor[metav1.PartialObjectMetadata]())
		case "PartialObjectMetadataList":
			return wire.Of(reflect.TypeFor[metav1.PartialObjectMetadataList]())
		}
	}
	object, err := b.scheme.New(gvk)
	if err != nil {
		return anything()
	}
	return wire.Of(reflect.TypeOf(object).Elem())
}

// kindOf returns the kind that an object names, as decoders find it.
func kindOf(content []byte) schema.GroupVersionKind {
	var named metav1.TypeMeta
	if wrapped, ok := bytes.CutPrefix(content, envelope); ok {
		unknown := runtime.Unknown{}
		if err := unknown.Unmarshal(wrapped); err != nil {
			return schema.GroupVersionKind{}
		}
		named = metav1.TypeMeta{APIVersion: unknown.APIVersion, Kind: unknown.Kind}
	} else if err := json.Unmarshal(content, &named); err != nil {
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
