// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Archive takes files.
type Archive interface {
	// Add a file, whose name has slashes and no parent folders.
	Add(name string, content []byte) error
	Close() error
}

// Stdout is the name of the archive that is written to standard output.
const Stdout = "-"

// Create makes a tar.gz file if a path ends so, else a folder. Neither may exist. Stdout is a tar.gz on a writer. What is made isn't
// complete before Close.
func Create(to string, stdout io.Writer, now time.Time) (Archive, error) {
	if to == Stdout {
		return newTarball(stdout, io.NopCloser(nil), "autonode-dump", now), nil
	}
	if _, err := os.Stat(to); err == nil {
		return nil, fmt.Errorf("--to %s: exists, and isn't overwritten; choose another name, or remove it", to)
	}
	parent := filepath.Dir(to)
	if info, err := os.Stat(parent); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("--to %s: there is no folder %s; create it, or choose another", to, parent)
	}
	if !isTarball(to) {
		if err := os.Mkdir(to, 0o700); err != nil {
			return nil, fmt.Errorf("--to: %w; choose another folder", err)
		}
		return folder(to), nil
	}
	file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--to: %w; choose another folder", err)
	}
	return newTarball(file, file, strings.TrimSuffix(strings.TrimSuffix(filepath.Base(to), ".tgz"), ".tar.gz"), now), nil
}

func isTarball(to string) bool {
	return strings.HasSuffix(to, ".tar.gz") || strings.HasSuffix(to, ".tgz")
}

// checkName rejects a name that no archive can have.
func checkName(to string) error {
	switch extension := filepath.Ext(to); {
	case isTarball(to):
		return nil
	case slices.Contains([]string{".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".txt", ".json", ".yaml", ".yml"}, extension):
		return fmt.Errorf("--to %s: must be a file that ends in .tar.gz, a folder, or %s for standard output", to, Stdout)
	}
	return nil
}

func newTarball(to io.Writer, file io.Closer, top string, now time.Time) *tarball {
	compressed := gzip.NewWriter(to)
	return &tarball{file: file, compressed: compressed, tar: tar.NewWriter(compressed), top: top, now: now}
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
	file       io.Closer
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
