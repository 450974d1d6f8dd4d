// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"fmt"
	"io"

	"github.com/autonode-io/autonode/internal/lenient"
)

// A release image can come from anyone who may write a HostedCluster, and the operator reads those of all tenants: no image may
// take more of it than these bounds allow. Each is several times the need of OpenShift's payloads, the largest there are.
const (
	// maxLayers is as many as a container runtime stacks, about.
	maxLayers = 128
	// maxEntries bounds the tar entries in all layers together; an operating system has about a quarter of that.
	maxEntries = 200_000
	// maxFiles bounds the names in release-manifests, in all layers together; OpenShift's payloads have about a thousand.
	maxFiles = 10_000
	// maxNameBytes is the longest name that a file system allows; whatever has a longer one was never a file.
	maxNameBytes = 255
	// maxReferencesBytes bounds image-references and release-metadata, each. They are kept for as long as the release is, in part.
	maxReferencesBytes = 2 << 20
	// maxFileBytes bounds each other file that is kept.
	maxFileBytes = 8 << 20
	// maxKeptBytes bounds all files that are kept together, until they were read.
	maxKeptBytes = 64 << 20
	// maxZstdBytes bounds the window that a zstd frame may ask for, which is memory.
	maxZstdBytes = 64 << 20

	// maxManifestBytes is the manifest size that registries must accept, by the distribution specification.
	maxManifestBytes = 4 << 20
	// maxAnswerBytes bounds responses of a registry or a token server beside manifests and layers: errors, and tokens.
	maxAnswerBytes = 64 << 10
	// maxVersionBytes bounds a version, which becomes a flag and part of a status.
	maxVersionBytes = 128
	// maxReferenceBytes bounds a component's image, which becomes part of a Deployment.
	maxReferenceBytes = 512

	// maxDocuments bounds the YAML documents in the manifests of one component.
	maxDocuments = 1000
	// maxDocumentBytes is the largest request that an API server takes: larger documents can't be applied.
	maxDocumentBytes = 3 << 20
	// maxIndicators bounds the characters of a document that YAML's structure is made of. None makes more than two nodes, so they bound the
	// memory that it takes to find out the document's kind. Karpenter's largest CRD has a thousand.
	maxIndicators = 200_000
	// maxDepth limits the nesting of a CRD's YAML. Decoding its schema takes quadratic time in the depth. The schema
	// of a pod, among the deepest, has forty levels.
	maxDepth = 60
	// maxNodes bounds the nodes in all CRDs of one component, which are kept for as long as the release is, and take up to a
	// kilobyte each. Karpenter's have four thousand.
	maxNodes = 200_000
	// maxCRDs bounds the CRDs of one component.
	maxCRDs = 128

	// maxStreamFields bounds the fields of the stream metadata that node images are in; OpenShift's have a few thousand.
	maxStreamFields = 20_000
	// maxNodeImageBytes bounds the names of all node images together, which become half of a ConfigMap.
	maxNodeImageBytes = 128 << 10
)

var (
	errTooLarge  = errors.New("too large")
	errMalformed = errors.New("malformed")
	// errTalkative isn't about the image.
	errTalkative = fmt.Errorf("the registry or its token server sent more than %d KiB where a registry sends less", maxAnswerBytes>>10)
)

// tooMany returns which bound was exceeded: "too large: more than 4096 tags".
func tooMany(limit int, what string) error {
	return fmt.Errorf("%w: more than %d %s", errTooLarge, limit, what)
}

// refuse makes an error for people of why something can't be read; its Reason depends on whether err is about a bound.
func refuse(err error, format string, args ...any) error {
	e := &Error{Reason: ReasonPayloadMalformed, Detail: shorten(fmt.Sprintf(format, quotable(args)...)), Err: err}
	if errors.Is(err, errTooLarge) {
		e.Reason = ReasonPayloadTooLarge
	}
	return e
}

// count fails if decoding JSON takes much more memory than its text: an element as short as "{}" takes fifty times as much.
func count(content []byte) error {
	if _, err := lenient.Count(content); err != nil {
		return fmt.Errorf("%w: %w", errTooLarge, err)
	}
	return nil
}

// budget is an io.Reader that fails with errTooLarge when more than the rest would be read; several readers share the rest.
type budget struct {
	r         io.Reader
	remaining *int64
	limit     int64 // for the message
	what      string
}

func (b *budget) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	// One byte more shows whether the stream continues.
	if int64(len(p)) > *b.remaining+1 {
		p = p[:*b.remaining+1]
	}
	n, err := b.r.Read(p)
	*b.remaining -= int64(n)
	if *b.remaining < 0 {
		*b.remaining = 0
		return 0, fmt.Errorf("%w: it takes more than %s %s", errTooLarge, megabytes(b.limit), b.what)
	}
	return n, err
}

func megabytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
