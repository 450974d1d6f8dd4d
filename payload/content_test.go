// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"
)

func TestContent(t *testing.T) {
	t.Run("When a layer isn't there, it should say which", func(t *testing.T) {
		s := newServer(t, nil)
		ref, _ := s.push(t, "release:1", build(t, goodSpec()))
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"gone"}]}`, http.StatusNotFound)
				return true
			}
			return false
		})
		_, err := Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonImageNotFound, "layer 1 of 1", "gone")
	})

	t.Run("When the registry serves another manifest than the digest's, it should not be believed", func(t *testing.T) {
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				_, _ = io.WriteString(w, `{}`)
				return true
			}
			return false
		})
		_, err := Read(t.Context(), ref+"@"+digest, Options{})
		expectError(t, err, ReasonRegistryUnreachable, "does not match")
	})

	t.Run("When the registry calls other content a manifest of schema 1, it should not be believed either", func(t *testing.T) {
		s := newServer(t, nil)
		ref, digest := s.push(t, "release:1", build(t, goodSpec()))
		spec := goodSpec()
		spec.Version = "6.6.6"
		other := build(t, spec)
		s.push(t, "release:2", other)
		content, err := other.RawManifest()
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.DockerManifestSchema1Signed))
			w.Header().Set("Docker-Content-Digest", digest)
			_, _ = w.Write(content)
			return true
		})
		_, err = ReadDigest(t.Context(), ref+"@"+digest, Options{})
		expectError(t, err, ReasonRegistryUnreachable, "does not match "+digest)
		_, err = Read(t.Context(), ref, Options{})
		expectError(t, err, ReasonRegistryUnreachable, "does not match "+digest)
	})

	t.Run("When the manifest is endless, it should stop reading it", func(t *testing.T) {
		s := newServer(t, nil)
		s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/manifests/") || req.Method != http.MethodGet {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for chunk := make([]byte, 1<<16); ; {
				if _, err := w.Write(chunk); err != nil {
					return true
				}
			}
		})
		_, err := Read(t.Context(), s.host+"/release:1", Options{})
		expectError(t, err, ReasonPayloadTooLarge, "4 MiB in one answer")
	})
}
