// SPDX-License-Identifier: Apache-2.0

// Package registry runs a real OCI registry inside the world's process and packs programs into images for it.
package registry

import (
	"context"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Config says how to run a registry.
type Config struct {
	// Dir keeps the blobs; empty means a temporary folder that Close removes.
	Dir string
}

// Registry is a running registry on a free loopback port. It speaks plain HTTP and wants a user name and a password for
// everything, so that pull secrets are really exercised.
type Registry struct{}

// Start starts a registry that runs until Close, or until ctx ends.
func Start(ctx context.Context, c Config) (*Registry, error) { return nil, errors.New("not written yet") }

// Close stops the registry and waits until its port is free.
func (r *Registry) Close() error { return nil }

// Host is the registry's name in image references: "127.0.0.1:41233".
func (r *Registry) Host() string { return "" }

// DockerConfigJSON is the content of a pull secret (key .dockerconfigjson) for this registry.
func (r *Registry) DockerConfigJSON() []byte { return nil }

// Push writes img to repoAndTag ("autonode/operator:dev", without the host) and returns its whole reference by digest.
func (r *Registry) Push(ctx context.Context, repoAndTag string, img v1.Image) (string, error) {
	return "", errors.New("not written yet")
}

// Pulls counts the successful GETs of manifests and blobs. What is a repository ("autonode/release"), a repository with a tag or a
// digest ("autonode/release:1.36.3", "autonode/release@sha256:…"), or a digest alone (a manifest's or a blob's).
func (r *Registry) Pulls(what string) int { return 0 }

// PackProgram makes an image with one static binary at /<entrypoint> and nothing else: no base image, user 65532.
func PackProgram(binary, entrypoint string, labels map[string]string) (v1.Image, error) {
	return nil, errors.New("not written yet")
}
