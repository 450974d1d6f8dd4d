// SPDX-License-Identifier: Apache-2.0

// Package headers bounds the headers of answers. Go's clients hold up to 10 MiB of each answer's, for as long as a watch lasts, and no
// limit on its body counts them.
package headers

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// MaxBytes is the most that an answer's headers may take. The largest that API servers and registries send take a few KiB.
const MaxBytes = 64 << 10

// Bound has the clients of a configuration refuse an answer with more headers. Call it before the first client is made.
func Bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		for inner := next; ; {
			switch t := inner.(type) {
			case *http.Transport:
				if t == http.DefaultTransport {
					t = t.Clone() // others in the process have it, too
					t.MaxResponseHeaderBytes = MaxBytes
					return t
				}
				if t.MaxResponseHeaderBytes != MaxBytes {
					t.MaxResponseHeaderBytes = MaxBytes
				}
				return next
			case utilnet.RoundTripperWrapper:
				inner = t.WrappedRoundTripper()
			default:
				return next
			}
		}
	})
}
