// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const pullTimeout = 5 * time.Minute

// image is an image unpacked on this machine.
type image struct {
	reference string // as the pod wrote it
	id        string // repository@digest
	rootfs    string
	config    v1.ConfigFile
}

// imageStore keeps images unpacked, one directory per digest; it never removes one.
type imageStore struct {
	dir string

	mu sync.Mutex
	// locks has one mutex per digest, so that replicas that start together unpack once.
	locks map[string]*sync.Mutex
}

// present finds an image that is named by digest without asking the registry.
func (s *imageStore) present(reference string) (*image, bool) {
	ref, err := name.NewDigest(reference)
	if err != nil {
		return nil, false
	}
	hash, err := v1.NewHash(ref.DigestStr())
	if err != nil {
		return nil, false
	}
	img, err := s.load(reference, ref.Context(), hash)
	return img, err == nil
}

// pull resolves a reference with one of the keychains, and downloads and unpacks what isn't there yet.
func (s *imageStore) pull(ctx context.Context, reference string, keychains []authn.Keychain) (*image, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, fmt.Errorf("couldn't parse image name %q: %w", reference, err)
	}
	var errs []error
	for _, keychain := range keychains {
		descriptor, err := remote.Get(ref,
			remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain),
			remote.WithPlatform(v1.Platform{OS: goruntime.GOOS, Architecture: goruntime.GOARCH}),
			// The container's own back-off retries.
			remote.WithRetryBackoff(remote.Backoff{Duration: time.Second, Factor: 1, Steps: 1}),
		)
		if err == nil {
			return s.ensure(reference, ref.Context(), descriptor)
		}
		errs = append(errs, fmt.Errorf("resolving %s: %w", ref, err))
	}
	return nil, fmt.Errorf("failed to pull image %q: %w", reference, errors.Join(errs...))
}

func (s *imageStore) ensure(reference string, repository name.Repository, descriptor *remote.Descriptor) (*image, error) {
	lock := s.lock(descriptor.Digest)
	lock.Lock()
	defer lock.Unlock()
	if img, err := s.load(reference, repository, descriptor.Digest); err == nil {
		return img, nil
	}
	if err := s.unpack(descriptor); err != nil {
		return nil, fmt.Errorf("unpacking image %q: %w", reference, err)
	}
	return s.load(reference, repository, descriptor.Digest)
}

func (s *imageStore) lock(hash v1.Hash) *sync.Mutex {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[hash.Hex] == nil {
		s.locks[hash.Hex] = &sync.Mutex{}
	}
	return s.locks[hash.Hex]
}

func (s *imageStore) load(reference string, repository name.Repository, hash v1.Hash) (*image, error) {
	dir := filepath.Join(s.dir, hash.Hex)
	content, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("reading an unpacked image's configuration: %w", err)
	}
	img := &image{reference: reference, id: repository.Digest(hash.String()).Name(), rootfs: filepath.Join(dir, "rootfs")}
	if err := json.Unmarshal(content, &img.config); err != nil {
		return nil, fmt.Errorf("reading an unpacked image's configuration: %w", err)
	}
	return img, nil
}

// unpack makes the image's directory; it appears complete or not at all.
func (s *imageStore) unpack(descriptor *remote.Descriptor) error {
	img, err := descriptor.Image()
	if err != nil {
		return fmt.Errorf("reading the manifest: %w", err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("making the image directory: %w", err)
	}
	work, err := os.MkdirTemp(s.dir, "unpacking-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	rootfs := filepath.Join(work, "rootfs")
	if err := errors.Join(os.Mkdir(rootfs, 0o755), os.WriteFile(filepath.Join(work, "config.json"), config, 0o644)); err != nil {
		return fmt.Errorf("making the image's directory: %w", err)
	}
	content := mutate.Extract(img) // of all layers, without what higher ones hide
	defer content.Close()
	if err := unpackTar(rootfs, content); err != nil {
		return err
	}
	return os.Rename(work, filepath.Join(s.dir, descriptor.Digest.Hex))
}

// unpackTar unpacks an archive. os.Root keeps every name and every symbolic link on the way inside the root directory.
func unpackTar(rootfs string, content io.Reader) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("opening the root directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = unpackEntry(root, header, archive)
		}
		if err != nil {
			return fmt.Errorf("reading the image's files: %w", err)
		}
	}
}

func unpackEntry(root *os.Root, header *tar.Header, content io.Reader) error {
	entry := path.Join(".", header.Name)
	// The agent may always read and replace; set-user-ID has no place here.
	mode := header.FileInfo().Mode().Perm() | 0o600
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(entry, mode|0o700)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(entry), 0o755); err != nil {
			return err
		}
		file, err := root.OpenFile(entry, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	case tar.TypeSymlink:
		if err := root.Symlink(header.Linkname, entry); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil // hard links, devices and pipes: no program of ours needs them
}
