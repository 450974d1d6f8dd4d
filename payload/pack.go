// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
)

const (
	// maxReleaseBytes bounds a Release as JSON: decoded in memory it takes about three times as much. Karpenter's CRDs are a
	// twentieth of it.
	maxReleaseBytes = 16 << 20
	// maxPackedBytes bounds it compressed.
	maxPackedBytes = 4 << 20
)

// Packed is a Release in a form to keep: CRDs, which are most of it, take a tenth of their decoded size.
type Packed struct {
	content []byte
	size    int64
}

// Pack fails with an *Error of ReasonPayloadTooLarge where a Release is larger than is worth keeping.
func (r *Release) Pack() (Packed, error) {
	tooLarge := func(limit int) (Packed, error) {
		err := fmt.Errorf("%w: what is to be kept of it takes more than %s", errTooLarge, megabytes(int64(limit)))
		return Packed{}, &Error{Reason: ReasonPayloadTooLarge, Op: opReading, Ref: r.Image, Detail: err.Error(), Err: err}
	}
	content, err := json.Marshal(r)
	if err != nil {
		return Packed{}, fmt.Errorf("encoding a release: %w", err)
	}
	if len(content) > maxReleaseBytes {
		return tooLarge(maxReleaseBytes)
	}
	packed := &bytes.Buffer{}
	w := gzip.NewWriter(packed)
	if _, err := w.Write(content); err != nil {
		return Packed{}, fmt.Errorf("compressing a release: %w", err)
	}
	if err := w.Close(); err != nil {
		return Packed{}, fmt.Errorf("compressing a release: %w", err)
	}
	if packed.Len() > maxPackedBytes {
		return tooLarge(maxPackedBytes)
	}
	return Packed{content: bytes.Clone(packed.Bytes()), size: int64(len(content))}, nil
}

// Bytes is its size in memory.
func (p Packed) Bytes() int64 { return int64(len(p.content)) }

// Decoded is the Release's approximate size in memory.
func (p Packed) Decoded() int64 { return 3 * p.size }

// Release unpacks it.
func (p Packed) Release() (*Release, error) {
	r, err := gzip.NewReader(bytes.NewReader(p.content))
	if err != nil {
		return nil, fmt.Errorf("decompressing a release: %w", err)
	}
	release := &Release{}
	if err := json.NewDecoder(r).Decode(release); err != nil {
		return nil, fmt.Errorf("decoding a release: %w", err)
	}
	for name, component := range release.Components {
		component.release = release.Image
		release.Components[name] = component
	}
	return release, nil
}
