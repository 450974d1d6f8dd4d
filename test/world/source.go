// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modulePath is AutoNode's own.
const modulePath = "github.com/autonode-io/autonode"

var errNoSource = errors.New("the operator and Karpenter are built from AutoNode's source, and the working directory isn't in it: " +
	"go there, set AUTONODE_SOURCE, or start the world without them (--without-operator)")

// findSource returns the folder of AutoNode's source: dir, else $AUTONODE_SOURCE, else the one that the working
// directory is in.
func findSource(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("AUTONODE_SOURCE")
	}
	if dir != "" {
		ok, err := isSource(dir)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", fmt.Errorf("%s isn't AutoNode's source: its go.mod has to name module %s", dir, modulePath)
		}
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for AutoNode's source: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		ok, err := isSource(dir)
		if err != nil {
			return "", err
		}
		if ok {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errNoSource
		}
	}
}

func isSource(dir string) (bool, error) {
	file, err := os.Open(filepath.Join(dir, "go.mod"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for AutoNode's source: %w", err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if module, ok := strings.CutPrefix(lines.Text(), "module "); ok {
			return strings.TrimSpace(module) == modulePath, nil
		}
	}
	return false, nil
}
