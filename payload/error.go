// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"fmt"
)

// Reason states in one CamelCase word why an image can't be used; it is meant to be a condition's reason.
type Reason string

const (
	// ReasonInvalidReference: the reference isn't an image reference; correct it where it was written.
	ReasonInvalidReference Reason = "ImageReferenceInvalid"
	// ReasonImagePullUnauthorized: the registry requires credentials, or other ones; add an entry for it to the pull secret.
	ReasonImagePullUnauthorized Reason = "ImagePullUnauthorized"
	// ReasonImageNotFound: the registry has no such repository, tag or digest; correct the reference or push the image.
	ReasonImageNotFound Reason = "ImageNotFound"
	// ReasonRegistryUnreachable: the registry doesn't answer, or returns server errors. Check the network, proxies
	// and the registry. A retry may help.
	ReasonRegistryUnreachable Reason = "RegistryUnreachable"
	// ReasonPayloadMalformed: the image was pulled, but isn't a valid release image. Rebuild it.
	ReasonPayloadMalformed Reason = "PayloadMalformed"
	// ReasonPayloadTooLarge: the image exceeds the bounds of a release image; most often it isn't a release image at all.
	ReasonPayloadTooLarge Reason = "PayloadTooLarge"
	// ReasonComponentMissing: the payload is well formed but lacks a component; choose a payload built for this platform.
	ReasonComponentMissing Reason = "ComponentMissing"
	// ReasonPlatformMissing: a component's image is for other platforms than the management cluster's nodes; choose a payload for theirs.
	ReasonPlatformMissing Reason = "PlatformMissing"
	// ReasonPayloadUnsigned: the image has no signature by a key of Options.Verifier. Sign it, or choose a signed one.
	ReasonPayloadUnsigned Reason = "PayloadUnsigned"
)

const (
	opResolving = "resolving"
	opVerifying = "verifying the signature of"
	opPulling   = "pulling"
	opPushing   = "pushing"
	opReading   = "reading"
	opBuilding  = "building"
)

// Error is why an image could not be read, built or pushed.
type Error struct {
	Reason Reason
	// Op is the operation that failed, as the beginning of a sentence: "pulling".
	Op string
	// Ref is the image as the caller named it; its digest is in it once that is known.
	Ref string
	// Detail is the problem in a form for people. It holds no credentials and is at most about a kilobyte long.
	Detail string
	// Registry is the host that Reason is about, if it is about one: "registry.example:5000".
	Registry string
	// Anonymous reports, for ReasonImagePullUnauthorized, that the keychain had no credentials for the registry: so the pull
	// secret lacks an entry, rather than having a wrong one.
	Anonymous bool
	// Err is the cause, if another package's error was it.
	Err error
}

// Error returns it all in one line: "pulling registry.example/release:1.36.3: 401 Unauthorized: …".
func (e *Error) Error() string { return fmt.Sprintf("%s %s: %s", e.Op, e.Ref, e.Detail) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonFor returns the Reason of the first *Error in err's tree, or "" if there is none.
func ReasonFor(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}
