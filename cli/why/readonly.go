// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// errWrite is the error of every request of this command's that would change a cluster. None is sent.
var errWrite = errors.New("explaining doesn't write")

// readOnlyConfig returns a configuration with which nothing can be written, whatever uses it.
func readOnlyConfig(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	// No client-side limit: there are few requests.
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnlyTransport{next} })
	return config
}

type readOnlyTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t readOnlyTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, errWrite)
	}
	return t.next.RoundTrip(request)
}
