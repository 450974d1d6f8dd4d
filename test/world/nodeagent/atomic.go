// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// file is one file of a volume that is made from objects.
type file struct {
	content []byte
	mode    os.FileMode
}

const (
	dataLink    = "..data"
	dataLinkNew = "..data_tmp"
)

// writeAtomically makes a directory show exactly the given files, all of one generation: a reader that opens `..data`
// once sees no mixture. The scheme is the kubelet's, since programs watch for it: the files lie in a directory named by
// time, `..data` is a symbolic link to it that is replaced by a rename, and every name at the top is a link through
// `..data`. It tells whether anything changed. The owner is -1 or the user that the files are for.
func writeAtomically(dir string, files map[string]file, owner int) (bool, error) {
	for name := range files {
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") {
			return false, fmt.Errorf("%q isn't a path below a volume", name)
		}
	}
	current := filepath.Join(dir, dataLink)
	old, err := os.Readlink(current)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the current generation: %w", err)
	}
	if err == nil && same(filepath.Join(dir, old), files) {
		return false, nil
	}
	generation, err := os.MkdirTemp(dir, "..generation-")
	if err != nil {
		return false, fmt.Errorf("making a generation: %w", err)
	}
	if err := writeGeneration(generation, files, owner); err != nil {
		return false, errors.Join(err, os.RemoveAll(generation))
	}
	next := filepath.Join(dir, dataLinkNew)
	_ = os.Remove(next) // of an agent that died here
	if err := os.Symlink(filepath.Base(generation), next); err != nil {
		return false, fmt.Errorf("linking the new generation: %w", err)
	}
	if err := os.Rename(next, current); err != nil {
		return false, fmt.Errorf("switching to the new generation: %w", err)
	}
	return true, errors.Join(linkNames(dir, files), removeStale(dir, filepath.Base(generation)))
}

func writeGeneration(dir string, files map[string]file, owner int) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("making a generation: %w", err)
	}
	for name, file := range files {
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s: %w", name, err)
		}
		if err := os.WriteFile(target, file.content, file.mode); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		if err := os.Chmod(target, file.mode); err != nil { // whatever the umask
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return chownAll(dir, owner)
}

// linkNames makes the visible names, after the switch so that none dangles, and removes those that went.
func linkNames(dir string, files map[string]file) error {
	wanted := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(filepath.ToSlash(name), "/")
		wanted[top] = true
	}
	for name := range wanted {
		err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("linking %s: %w", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the volume: %w", err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, "..") && !wanted[name] {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("removing %s: %w", name, err)
			}
		}
	}
	return nil
}

func removeStale(dir, current string) error {
	generations, _ := filepath.Glob(filepath.Join(dir, "..generation-*"))
	for _, generation := range generations {
		if filepath.Base(generation) != current {
			if err := os.RemoveAll(generation); err != nil {
				return fmt.Errorf("removing an old generation: %w", err)
			}
		}
	}
	return nil
}

// same compares a generation with what is wanted.
func same(dir string, files map[string]file) bool {
	count := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		count++
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[name]
		if !ok {
			return fs.ErrNotExist
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		have, err := os.ReadFile(path)
		if err != nil || info.Mode().Perm() != want.mode || !bytes.Equal(have, want.content) {
			return errors.Join(err, fs.ErrInvalid)
		}
		return nil
	})
	return err == nil && count == len(files)
}

// chownAll gives a tree to a user, as only root can; -1 leaves it.
func chownAll(dir string, owner int) error {
	if owner < 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, owner, owner)
	})
}
