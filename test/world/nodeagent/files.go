// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
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
// once sees no mixture. The scheme is the kubelet's, because programs watch for it: the files lie in a directory of
// their own, `..data` is a symbolic link to it that a rename replaces, and every name at the top is a link through
// `..data`.
func writeAtomically(dir string, files map[string]file) error {
	for name := range files {
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") {
			return fmt.Errorf("%q isn't a path below a volume", name)
		}
	}
	generation, err := os.MkdirTemp(dir, "..generation-")
	if err != nil {
		return fmt.Errorf("making a generation: %w", err)
	}
	if err := writeGeneration(generation, files); err != nil {
		return errors.Join(err, os.RemoveAll(generation))
	}
	next := filepath.Join(dir, dataLinkNew)
	if err := os.Symlink(filepath.Base(generation), next); err != nil {
		return fmt.Errorf("linking the new generation: %w", err)
	}
	if err := os.Rename(next, filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("switching to the new generation: %w", err)
	}
	return linkNames(dir, filepath.Base(generation), files)
}

func writeGeneration(dir string, files map[string]file) error {
	for name, file := range files {
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s: %w", name, err)
		}
		if err := os.WriteFile(target, file.content, file.mode); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}

// linkNames makes the visible names after the switch, so that none dangles, and removes old names and generations.
func linkNames(dir, generation string, files map[string]file) error {
	wanted := map[string]bool{dataLink: true, generation: true}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		wanted[top] = true
		err := os.Symlink(filepath.Join(dataLink, top), filepath.Join(dir, top))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("linking %s: %w", top, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the volume: %w", err)
	}
	for _, entry := range entries {
		if !wanted[entry.Name()] {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("removing what is old: %w", err)
			}
		}
	}
	return nil
}
