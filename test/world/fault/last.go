// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Step is one write that changed something.
type Step struct {
	// Cluster is the name of the API server, as given to LastWrite.Fault.
	Cluster string
	// Verb is the API's: create, update, patch, delete.
	Verb string
	// Resource is the plural, with the subresource: "hostedclusters/status".
	Resource string
	// Object is its namespace, if it has one, and name; for what is created, the namespace.
	Object string
}

// String is for tables.
func (s Step) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", s.Cluster, s.Verb, s.Resource, s.Object))
}

// Steps are the writes after which a client was killed. The LastWrites of one client's restarts share them: a repeated
// write is no new step, so each restart gets further than the one before.
type Steps struct {
	mu   sync.Mutex
	done sets.Set[[sha256.Size]byte]
}

// NewSteps returns Steps that have none yet.
func NewSteps() *Steps { return &Steps{done: sets.New[[sha256.Size]byte]()} }

func (s *Steps) add(key [sha256.Size]byte) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew = !s.done.Has(key)
	s.done.Insert(key)
	return isNew
}

// LastWrite lets one client change something once, in whichever of several API servers: that write is stored, its answer never
// comes, and all later writes hang. Writes that change nothing, and those that are in Steps already, go on before it.
type LastWrite struct {
	steps  *Steps
	client func(*http.Request) bool
	stored chan Step
	// turn is one writer's at a time, and for good the last one's.
	turn chan struct{}
}

// NewLastWrite returns a LastWrite for one life of the client that a request's sender is.
func NewLastWrite(steps *Steps, client func(*http.Request) bool) *LastWrite {
	return &LastWrite{steps: steps, client: client, stored: make(chan Step, 1), turn: make(chan struct{}, 1)}
}

// Stored delivers the step once it is stored.
func (l *LastWrite) Stored() <-chan Step { return l.stored }

// Fault is for the proxy of the API server of that name.
func (l *LastWrite) Fault(cluster string) Fault {
	return func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		ctx := request.Context()
		w, err := parseWrite(cluster, request)
		if err != nil {
			return nil, err
		}
		if w == nil || !l.client(request) {
			return next.RoundTrip(request)
		}
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		response, changed, err := w.forward(next)
		if err != nil || !changed || !l.steps.add(w.key) {
			<-l.turn
			return response, err
		}
		_ = response.Body.Close()
		l.stored <- w.step
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// write is a request that may change something.
type write struct {
	step    Step
	key     [sha256.Size]byte
	request *http.Request
	body    []byte
	// object is the path of what is written, empty for what is created in a collection or stored nowhere.
	object string
}

var requests = apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// unstored are reviews, which are requests in the form of an object, and events. Neither is a step.
func unstored(resource string) bool {
	return resource == "events" || strings.HasSuffix(resource, "reviews")
}

// parseWrite returns nil for what can't change anything. It reads the request's body.
func parseWrite(cluster string, request *http.Request) (*write, error) {
	switch request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return nil, nil
	}
	info, err := requests.NewRequestInfo(request)
	if err != nil {
		return nil, fmt.Errorf("understanding %s %s: %w", request.Method, request.URL.Path, err)
	}
	if !info.IsResourceRequest || unstored(info.Resource) {
		return nil, nil
	}
	w := &write{request: request, step: Step{
		Cluster: cluster, Verb: info.Verb, Resource: info.Resource,
		Object: strings.TrimPrefix(strings.TrimSuffix(info.Namespace+"/"+info.Name, "/"), "/"),
	}}
	if info.Subresource != "" {
		w.step.Resource += "/" + info.Subresource
	}
	if info.Name != "" && request.Method != http.MethodPost {
		w.object = strings.TrimSuffix(request.URL.Path, "/"+info.Subresource)
	}
	if request.Body != nil {
		if w.body, err = io.ReadAll(request.Body); err != nil {
			return nil, fmt.Errorf("reading %s: %w", w.step, err)
		}
		request.Body = io.NopCloser(bytes.NewReader(w.body))
	}
	w.key = sha256.Sum256(slices.Concat([]byte(w.step.String()+"\x00"), timeless(w.body)))
	return w, nil
}

// forward sends the write and reports whether it changed the object. An empty patch or a create always does, unless it
// is rejected.
func (w *write) forward(next http.RoundTripper) (response *http.Response, changed bool, err error) {
	var before string
	if w.object != "" {
		if before, err = w.version(next); err != nil {
			return nil, false, err
		}
	}
	if response, err = next.RoundTrip(w.request); err != nil || response.StatusCode >= http.StatusBadRequest {
		return response, false, err
	}
	if w.object == "" {
		return response, true, nil
	}
	after, err := w.version(next)
	if err != nil {
		_ = response.Body.Close()
		return nil, false, err
	}
	return response, after != before, nil
}

// version returns what distinguishes one state of the object from another; nothing where there is none.
func (w *write) version(next http.RoundTripper) (string, error) {
	// The proxy sends requests in its own name, because the client may not be allowed to, and mustn't stop when the client ends.
	request := w.request.Clone(context.WithoutCancel(w.request.Context()))
	request.Method, request.Body, request.ContentLength = http.MethodGet, nil, 0
	request.URL.Path, request.URL.RawPath, request.URL.RawQuery = w.object, "", ""
	for _, header := range []string{"Impersonate-User", "Impersonate-Group", "Content-Type", "Content-Length", "Accept-Encoding"} {
		request.Header.Del(header)
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	response, err := next.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("looking at the object before or after %s: %w", w.step, err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return "", nil
	default:
		return "", fmt.Errorf("looking at the object before or after %s: %s", w.step, response.Status)
	}
	var object metav1.PartialObjectMetadata
	if err := json.NewDecoder(response.Body).Decode(&object); err != nil {
		return "", fmt.Errorf("looking at the object before or after %s: %w", w.step, err)
	}
	return string(object.UID) + "/" + object.ResourceVersion, nil
}

// volatile fields differ each time, though what is written is the same.
var volatile = []string{"resourceVersion", "uid", "generation", "observedGeneration", "lastTransitionTime", "startedTime", "completionTime"}

// timeless returns a body without what differs each time.
func timeless(body []byte) []byte {
	var content any
	if json.Unmarshal(body, &content) != nil {
		return body
	}
	strip(content)
	stripped, err := json.Marshal(content)
	if err != nil {
		return body
	}
	return stripped
}

func strip(content any) {
	switch content := content.(type) {
	case map[string]any:
		for key, value := range content {
			if slices.Contains(volatile, key) {
				delete(content, key)
			} else {
				strip(value)
			}
		}
	case []any:
		for _, value := range content {
			strip(value)
		}
	}
}
