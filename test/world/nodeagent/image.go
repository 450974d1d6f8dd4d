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
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
)

const (
	pullTimeout = 5 * time.Minute
	// maxImageBytes bounds what one image may unpack to.
	maxImageBytes = 8 << 30
)

// Waiting reasons of a container whose image isn't there, as the kubelet gives them.
const (
	reasonErrImagePull      = "ErrImagePull"
	reasonImagePullBackOff  = "ImagePullBackOff"
	reasonInvalidImageName  = "InvalidImageName"
	reasonErrImageNeverPull = "ErrImageNeverPull"
)

// imageError is a failed pull with the reason to show.
type imageError struct {
	reason string
	err    error
}

func (e *imageError) Error() string { return e.err.Error() }
func (e *imageError) Unwrap() error { return e.err }

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
	// tags remembers what a tag was resolved to, for IfNotPresent.
	tags map[string]v1.Hash
}

func newImageStore(dir string) (*imageStore, error) {
	if err := makeDir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the image directory: %w", err)
	}
	// What a dead agent was unpacking is of no use.
	half, _ := filepath.Glob(filepath.Join(dir, "unpacking-*"))
	for _, left := range half {
		_ = os.RemoveAll(left)
	}
	return &imageStore{dir: dir, locks: map[string]*sync.Mutex{}, tags: map[string]v1.Hash{}}, nil
}

// present finds an image without asking the registry.
func (s *imageStore) present(reference string) (*image, bool) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, false
	}
	hash, ok := s.known(ref)
	if !ok {
		return nil, false
	}
	img, err := s.load(ref, hash)
	if err != nil {
		return nil, false
	}
	img.reference = reference
	return img, true
}

func (s *imageStore) known(ref name.Reference) (v1.Hash, bool) {
	if digest, ok := ref.(name.Digest); ok {
		hash, err := v1.NewHash(digest.DigestStr())
		return hash, err == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	hash, ok := s.tags[ref.Name()]
	return hash, ok
}

// pull resolves a reference with the pull secrets, and downloads and unpacks what isn't there yet.
func (s *imageStore) pull(ctx context.Context, reference string, secrets []*corev1.Secret) (*image, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, &imageError{reasonInvalidImageName, fmt.Errorf("couldn't parse image name %q: %w", reference, err)}
	}
	var errs []error
	for _, auth := range credentialsFor(ref.Context(), secrets) {
		img, err := s.pullAs(ctx, ref, auth)
		if err == nil {
			img.reference = reference
			return img, nil
		}
		errs = append(errs, err)
	}
	return nil, &imageError{reasonErrImagePull, fmt.Errorf("failed to pull image %q: %w", reference, errors.Join(errs...))}
}

func (s *imageStore) pullAs(ctx context.Context, ref name.Reference, auth authn.Authenticator) (*image, error) {
	descriptor, err := remote.Get(ref,
		remote.WithContext(ctx), remote.WithAuth(auth),
		remote.WithPlatform(v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}),
		// The container's own back-off tries again.
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Second, Factor: 1, Steps: 1}),
	)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", ref, err)
	}
	lock := s.lock(descriptor.Digest)
	lock.Lock()
	defer lock.Unlock()
	img, err := s.load(ref, descriptor.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.unpack(ctx, descriptor); err != nil {
			return nil, fmt.Errorf("unpacking %s: %w", ref, err)
		}
		img, err = s.load(ref, descriptor.Digest)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tags[ref.Name()] = descriptor.Digest
	return img, nil
}

func (s *imageStore) lock(hash v1.Hash) *sync.Mutex {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[hash.Hex] == nil {
		s.locks[hash.Hex] = &sync.Mutex{}
	}
	return s.locks[hash.Hex]
}

func (s *imageStore) path(hash v1.Hash) string {
	return filepath.Join(s.dir, hash.Algorithm+"-"+hash.Hex)
}

func (s *imageStore) load(ref name.Reference, hash v1.Hash) (*image, error) {
	dir := s.path(hash)
	content, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("reading an unpacked image's configuration: %w", err)
	}
	img := &image{id: ref.Context().Digest(hash.String()).Name(), rootfs: filepath.Join(dir, "rootfs")}
	if err := json.Unmarshal(content, &img.config); err != nil {
		return nil, fmt.Errorf("reading an unpacked image's configuration: %w", err)
	}
	return img, nil
}

// unpack makes the image's directory; it appears complete or not at all.
func (s *imageStore) unpack(ctx context.Context, descriptor *remote.Descriptor) error {
	remoteImage, err := descriptor.Image()
	if err != nil {
		return fmt.Errorf("reading the manifest: %w", err)
	}
	config, err := remoteImage.RawConfigFile()
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	layers, err := remoteImage.Layers()
	if err != nil {
		return fmt.Errorf("reading the layers: %w", err)
	}
	work, err := os.MkdirTemp(s.dir, "unpacking-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	rootfs := filepath.Join(work, "rootfs")
	for _, make := range []func() error{
		func() error { return os.Chmod(work, 0o755) },
		func() error { return os.Mkdir(rootfs, 0o755) },
		func() error { return os.WriteFile(filepath.Join(work, "config.json"), config, 0o644) },
	} {
		if err := make(); err != nil {
			return fmt.Errorf("making the image's directory: %w", err)
		}
	}
	budget := int64(maxImageBytes)
	for i, layer := range layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := unpackLayer(rootfs, layer, &budget); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return os.Rename(work, s.path(descriptor.Digest))
}

func unpackLayer(rootfs string, layer v1.Layer, budget *int64) error {
	content, err := layer.Uncompressed()
	if err != nil {
		return fmt.Errorf("downloading: %w", err)
	}
	defer content.Close()
	if err := unpackTar(rootfs, content, budget); err != nil {
		return err
	}
	// The digest is checked at the end of the stream, which the archive's end needn't be.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return fmt.Errorf("downloading: %w", err)
	}
	return nil
}

const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// unpackTar applies one layer. os.Root keeps every name and every symbolic link on the way inside the root directory.
func unpackTar(rootfs string, content io.Reader, budget *int64) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("opening the root directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	mine := map[string]bool{} // what this layer made: an opaque whiteout hides only what lower layers made
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		entry, err := localName(header.Name)
		if err != nil {
			return err
		}
		if entry == "." {
			continue
		}
		if err := unpackEntry(root, entry, header, archive, budget, mine); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
		for made := entry; made != "."; made = path.Dir(made) {
			mine[made] = true
		}
	}
}

// localName is a name below the root directory; one that climbs out of it is an attack or a mistake.
func localName(entry string) (string, error) {
	cleaned := path.Clean(strings.TrimLeft(entry, "/"))
	if !filepath.IsLocal(cleaned) {
		return "", fmt.Errorf("%q leaves the image's root directory", entry)
	}
	return cleaned, nil
}

func unpackEntry(root *os.Root, entry string, header *tar.Header, content io.Reader, budget *int64, mine map[string]bool) error {
	dir, base := path.Split(entry)
	dir = path.Clean(dir)
	if base == whiteoutOpaque {
		return removeOthers(root, dir, mine)
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return root.RemoveAll(path.Join(dir, hidden))
	}
	if err := makeParents(root, dir); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeDir {
		// A higher layer replaces, whatever was there; a directory's files stay only if it stays a directory.
		if err := root.RemoveAll(entry); err != nil {
			return err
		}
	}
	// The agent may always read and replace; set-user-ID has no place here.
	mode := header.FileInfo().Mode().Perm() | 0o600
	switch header.Typeflag {
	case tar.TypeDir:
		if info, err := root.Lstat(entry); err == nil && !info.IsDir() {
			if err := root.RemoveAll(entry); err != nil {
				return err
			}
		}
		if err := root.Mkdir(entry, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return root.Chmod(entry, mode|0o700)
	case tar.TypeReg:
		*budget -= header.Size
		if *budget < 0 {
			return fmt.Errorf("the image is larger than %d bytes", int64(maxImageBytes))
		}
		return writeEntry(root, entry, mode, content)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, entry)
	case tar.TypeLink:
		target, err := localName(header.Linkname)
		if err != nil {
			return err
		}
		return root.Link(target, entry)
	default:
		return nil // devices and pipes need root, and no program of ours needs them
	}
}

// makeParents makes the directories that an archive doesn't list, for everybody to enter whatever the umask.
func makeParents(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if _, err := root.Stat(dir); err == nil {
		return nil
	}
	if err := makeParents(root, path.Dir(dir)); err != nil {
		return err
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}

func writeEntry(root *os.Root, entry string, mode os.FileMode, content io.Reader) error {
	file, err := root.OpenFile(entry, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Chmod(mode), file.Close()) // Chmod: the umask must not decide who may run it
}

func removeOthers(root *os.Root, dir string, mine map[string]bool) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := path.Join(dir, entry.Name()); !mine[name] {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return nil
}
