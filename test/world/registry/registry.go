// SPDX-License-Identifier: Apache-2.0

// Package registry runs a real OCI registry inside the world's process and packs programs into images for it.
package registry

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a running registry on a loopback port. It speaks plain HTTP and requires a user name and a password for
// everything, so that pull secrets are really exercised.
type Registry struct {
	host               string
	username, password string
	dir                string
	handler            http.Handler
	server             *http.Server
	cancel             context.CancelFunc
	ended              chan struct{} // closed when nothing is left, after err was set
	err                error

	mu     sync.Mutex
	outage bool
	// refused requests since the outage began.
	refused int
}

// Start starts a registry on a free port of 127.0.0.1 that runs until Close, or until ctx ends. Its folder dir keeps the
// blobs, so that images take no memory.
func Start(ctx context.Context, dir string) (*Registry, error) {
	r := &Registry{username: "world", password: rand.Text(), dir: dir, ended: make(chan struct{})}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the registry's folder: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for the registry: %w", err)
	}
	r.host = listener.Addr().String()
	r.handler = registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(r.dir)), registry.Logger(log.New(io.Discard, "", 0)))
	r.server = &http.Server{
		Handler:           http.HandlerFunc(r.serve),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that try HTTPS first
	}
	ctx, r.cancel = context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = r.server.Close() })
	go func() {
		defer close(r.ended)
		if err := r.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			r.err = fmt.Errorf("serving the registry: %w", err)
		}
	}()
	return r, nil
}

// Close stops the registry and waits until its port is free. Closing again does nothing.
func (r *Registry) Close() error {
	r.cancel()
	<-r.ended
	return r.err
}

// Host is the registry's name in image references: "127.0.0.1:41233".
func (r *Registry) Host() string { return r.host }

// Credentials for the registry's basic authentication.
func (r *Registry) Credentials() (username, password string) { return r.username, r.password }

// DockerConfigJSON is the content of a pull secret (key .dockerconfigjson) for this registry.
func (r *Registry) DockerConfigJSON() []byte {
	config := map[string]any{"auths": map[string]authn.AuthConfig{r.host: {Username: r.username, Password: r.password}}}
	content, err := json.Marshal(config)
	if err != nil { // strings only: it can't happen
		return nil
	}
	return content
}

// SetOutage makes every request fail with 503 Service Unavailable, or ends that. It returns how many requests failed so since the last call.
func (r *Registry) SetOutage(outage bool) (refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refused, r.refused, r.outage = r.refused, 0, outage
	return refused
}

// Push writes img to repoAndTag ("autonode/operator:dev", without the host) and returns its whole reference by digest.
func (r *Registry) Push(ctx context.Context, repoAndTag string, img v1.Image) (string, error) {
	tag, err := name.NewTag(r.host + "/" + repoAndTag)
	if err != nil {
		return "", fmt.Errorf("naming an image: %w", err)
	}
	// An upload over HTTP would pass the registry's memory in one piece. A blob that is there already isn't uploaded.
	layers, err := img.Layers()
	if err != nil {
		return "", fmt.Errorf("listing the layers for %s: %w", repoAndTag, err)
	}
	for _, layer := range layers {
		if err := r.store(layer); err != nil {
			return "", fmt.Errorf("storing a layer of %s: %w", repoAndTag, err)
		}
	}
	if err := remote.Write(tag, img, remote.WithContext(ctx), remote.WithAuth(&authn.Basic{Username: r.username, Password: r.password})); err != nil {
		return "", fmt.Errorf("pushing %s: %w", repoAndTag, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("digesting %s: %w", repoAndTag, err)
	}
	return tag.Context().Digest(digest.String()).Name(), nil
}

// store puts a layer where the disk blob handler looks for it.
func (r *Registry) store(layer v1.Layer) (err error) {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	folder := filepath.Join(r.dir, digest.Algorithm)
	path := filepath.Join(folder, digest.Hex)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	content, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer content.Close()
	file, err := os.CreateTemp(r.dir, "layer-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	written, _, err := v1.SHA256(io.TeeReader(content, file))
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if written != digest {
		return fmt.Errorf("its content has changed: the digest is %s instead of %s", written, digest)
	}
	return os.Rename(file.Name(), path)
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	outage := r.outage
	if outage {
		r.refused++
	}
	r.mu.Unlock()
	if outage {
		http.Error(w, "the registry is down for a test", http.StatusServiceUnavailable)
		return
	}
	username, password, _ := req.BasicAuth()
	if subtle.ConstantTimeCompare([]byte(username), []byte(r.username))&subtle.ConstantTimeCompare([]byte(password), []byte(r.password)) != 1 {
		w.Header().Set("WWW-Authenticate", `Basic realm="world"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
		return
	}
	r.handler.ServeHTTP(w, req)
}
