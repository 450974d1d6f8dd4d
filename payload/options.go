// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Defaults and bounds.
const (
	// DefaultTimeout bounds a whole Read, Resolve or Push, including every mirror that is tried.
	DefaultTimeout = time.Minute
	// DefaultMaxBytes bounds the bytes that one Read pulls, and those that it unpacks; an OpenShift payload takes about a tenth of it.
	DefaultMaxBytes int64 = 256 << 20
)

// Options say how to reach registries and which parts to read. The zero value reads public images.
type Options struct {
	// Keychain holds the credentials; nil means none. See KeychainFromDockerConfig.
	Keychain authn.Keychain
	// ImageContentSources name mirrors to try, in order, before a source itself.
	ImageContentSources []ImageContentSource
	// Components are the names of those components that the caller will use: their tags and CRDs must be well formed, and those of
	// all others are left alone. Nil means all. A name that the payload lacks is no error here; Release.Component reports it.
	Components []string
	// Platform chooses from a multi-architecture image; nil means Linux with this program's architecture, or else amd64.
	Platform *v1.Platform
	// Transport is how to reach registries (proxies, certificate authorities); nil means the standard one.
	Transport http.RoundTripper
	// Discreet keeps responses of servers other than registries, and connection errors, out of errors: the author of
	// the image reference, who reads the error, may not be allowed to reach that server.
	Discreet bool
	// Verifier verifies signatures of release images; nil skips that.
	Verifier *Verifier
	// UserAgent is our name in registries' logs; empty means "autonode".
	UserAgent string
	// MaxBytes bounds the bytes pulled and, separately, the bytes unpacked; zero means DefaultMaxBytes.
	MaxBytes int64
	// Timeout bounds the whole call beside the context's own deadline; zero means DefaultTimeout.
	Timeout time.Duration
}

// ImageContentSource is where else the images under a source can be pulled from.
type ImageContentSource struct {
	// Source is a registry or repository, or the beginning of one at a slash: "registry.example/openshift". With
	// several entries that match an image, those with the longest source count.
	Source string
	// Mirrors replace Source in an image's name; they are tried in this order.
	Mirrors []string
}
