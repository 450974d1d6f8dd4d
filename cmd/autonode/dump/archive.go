// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Archive takes files.
type Archive interface {
	// Add a file, whose name has slashes and no parent folders.
	Add(name string, content []byte) error
	Close() error
}

// Create makes a tar.gz file if a path ends so, else a folder. Neither may exist.
func Create(to string, now time.Time) (Archive, error) {
	if !strings.HasSuffix(to, ".tar.gz") && !strings.HasSuffix(to, ".tgz") {
		if err := os.Mkdir(to, 0o700); err != nil {
			return nil, fmt.Errorf("%w; name a folder that doesn't exist, or a file that ends in .tar.gz", err)
		}
		return folder(to), nil
	}
	file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file that doesn't exist", err)
	}
	compressed := gzip.NewWriter(file)
	top := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(to), ".tgz"), ".tar.gz")
	return &tarball{file: file, compressed: compressed, tar: tar.NewWriter(compressed), top: top, now: now}, nil
}

type folder string

// Add implements Archive.
func (f folder) Add(name string, content []byte) error {
	to := filepath.Join(string(f), filepath.FromSlash(path.Clean("/"+name)))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// Close implements Archive.
func (folder) Close() error { return nil }

type tarball struct {
	file       *os.File
	compressed *gzip.Writer
	tar        *tar.Writer
	top        string
	now        time.Time
}

// Add implements Archive.
func (t *tarball) Add(name string, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: t.top + path.Clean("/"+name), Mode: 0o600, Size: int64(len(content)), ModTime: t.now}
	if err := t.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := t.tar.Write(content)
	return err
}

// Close implements Archive.
func (t *tarball) Close() error {
	return errors.Join(t.tar.Close(), t.compressed.Close(), t.file.Close())
}
