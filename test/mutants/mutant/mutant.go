// SPDX-License-Identifier: Apache-2.0

// Package mutant reads mutants, and makes their edits. A mutant breaks one thing, and names the test that has to fail then.
//
// An edit is found by what it is in, not by its line: a declaration of Go code by the folder of its package and its name,
// anything else by its file. It survives when code moves within its package, and when anything beside it changes.
package mutant

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Mutant is a mistake, and the test that has to notice it.
type Mutant struct {
	Name    string `json:"name"`
	Breaks  string `json:"breaks"`  // in words
	Package string `json:"package"` // of the test, such as ./capacity
	Run     string `json:"run"`     // what go test -run gets
	Edits   []Edit `json:"edits"`   // made one after the other
}

// anyLines is a line of a text that is replaced. It stands for any lines, up to the first that is like the next line.
const anyLines = "..."

// Edit replaces a text, which is there once. Each line of it is compared without the space around it; "..." stands for any lines.
type Edit struct {
	// Folder is that of the Go package whose Symbol is edited: a function, a method such as Holder.Abandon, a type, a variable
	// or a constant. The declaration's comment isn't part of it.
	Folder string `json:"folder,omitempty"`
	Symbol string `json:"symbol,omitempty"`
	// File is edited instead where it isn't Go code.
	File    string `json:"file,omitempty"`
	Replace string `json:"replace"`
	With    string `json:"with,omitempty"`
}

// Read reads the mutants of all files of a folder, in the order of their names.
func Read(folder string) ([]Mutant, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var mutants []Mutant
		if err := yaml.UnmarshalStrict(content, &mutants); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		for _, m := range mutants {
			if err := m.check(); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if slices.ContainsFunc(all, func(other Mutant) bool { return other.Name == m.Name }) {
				return nil, fmt.Errorf("%s: there are two mutants called %s", path, m.Name)
			}
			all = append(all, m)
		}
	}
	return all, nil
}

func (m Mutant) check() error {
	if m.Name == "" || m.Breaks == "" || m.Package == "" || m.Run == "" || len(m.Edits) == 0 {
		return fmt.Errorf("mutant %q lacks name, breaks, package, run or edits", m.Name)
	}
	for i, e := range m.Edits {
		if (e.Folder == "") != (e.Symbol == "") || (e.Folder == "") == (e.File == "") {
			return fmt.Errorf("edit %d of %s needs folder and symbol, or file", i+1, m.Name)
		}
		if strings.TrimSpace(e.Replace) == "" {
			return fmt.Errorf("edit %d of %s replaces nothing", i+1, m.Name)
		}
	}
	return nil
}

// Edited returns the content of the files that the mutant changes, by their paths below root. It writes none.
func (m Mutant) Edited(root string) (map[string][]byte, error) {
	changed := map[string][]byte{}
	for i, e := range m.Edits {
		if err := e.make(root, changed); err != nil {
			return nil, fmt.Errorf("edit %d of %s: %w", i+1, m.Name, err)
		}
	}
	return changed, nil
}

func (e Edit) make(root string, changed map[string][]byte) error {
	read := func(path string) ([]byte, error) {
		if content, ok := changed[path]; ok {
			return content, nil
		}
		return os.ReadFile(filepath.Join(root, path))
	}
	if e.File != "" {
		content, err := read(e.File)
		if err != nil {
			return err
		}
		changed[e.File], err = e.replace(content, 0, len(content))
		return err
	}
	path, where, err := find(root, e.Folder, e.Symbol, read)
	if err != nil {
		return err
	}
	content, err := read(path)
	if err != nil {
		return err
	}
	edited, err := e.replace(content, where.from, where.to)
	if err != nil {
		return err
	}
	changed[path], err = withoutUnused(content, edited)
	return err
}

func (e Edit) replace(content []byte, from, to int) ([]byte, error) {
	lines := strings.Split(strings.TrimSpace(e.Replace), "\n")
	for i, line := range lines {
		if lines[i] = regexp.QuoteMeta(strings.TrimSpace(line)); strings.TrimSpace(line) == anyLines {
			lines[i] = `(?s:.*?)`
		}
	}
	found := regexp.MustCompile(strings.Join(lines, `[ \t]*\n\s*`)).FindAllIndex(content[from:to], -1)
	if len(found) != 1 {
		return nil, fmt.Errorf("%s has %q %d times, instead of once", strings.TrimSpace(e.Folder+" "+e.Symbol+e.File), e.Replace, len(found))
	}
	return slices.Concat(content[:from+found[0][0]], []byte(strings.TrimSpace(e.With)), content[from+found[0][1]:]), nil
}

// Break writes what the mutant changes in a tree. Back writes what was there before.
func (m Mutant) Break(tree string) (back func() error, err error) {
	changed, err := m.Edited(tree)
	if err != nil {
		return nil, err
	}
	before := map[string][]byte{}
	back = func() error {
		var failed error
		for path, content := range before {
			failed = errors.Join(failed, os.WriteFile(filepath.Join(tree, path), content, 0o600))
		}
		return failed
	}
	for path, content := range changed {
		if before[path], err = os.ReadFile(filepath.Join(tree, path)); err != nil {
			delete(before, path)
			return nil, errors.Join(err, back())
		}
		if err := os.WriteFile(filepath.Join(tree, path), content, 0o600); err != nil {
			return nil, errors.Join(err, back())
		}
	}
	return back, nil
}
