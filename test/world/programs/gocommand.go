// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	"github.com/autonode-io/autonode/test/world/lock"
)

// toolchain has the settings of the go command that affect a binary.
type toolchain struct {
	GOVERSION, GOOS, GOARCH string
}

func readToolchain(ctx context.Context) (toolchain, error) {
	out, err := Go(ctx, os.TempDir(), "env", "-json", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return toolchain{}, fmt.Errorf("asking the go command for its version: %w", err)
	}
	var tc toolchain
	if err := json.Unmarshal([]byte(out), &tc); err != nil {
		return toolchain{}, fmt.Errorf("reading the go command's version: %w", err)
	}
	return tc, nil
}

// Go runs the go command in a folder and returns what it prints, and in an error what it complains about. Everything that changes
// what is built is set: the compile cache is shared with every other build that uses -trimpath and CGO_ENABLED=0.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	return runGo(ctx, dir, "-buildvcs=false", args...) // not empty, which would mean those of `go env -w`
}

// Tool returns the path of a program of tools/<module>, which it builds unless the build cache has it. The repository is at root.
//
// One process at a time builds: of two, the go command of the second would write the file again that the first one already starts, which
// fails with "text file busy".
func Tool(ctx context.Context, root, module, program string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	release, err := lock.Wait(ctx, filepath.Join(cache, "tools.lock"), nil)
	if err != nil {
		return "", err
	}
	defer release()
	path, err := runGo(ctx, root, "-trimpath -buildvcs=false", "tool", "-modfile="+filepath.Join("tools", module, "go.mod"), "-n", program)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	return path, nil
}

func runGo(ctx context.Context, dir, flags string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+flags, "GOWORK=off", "GO111MODULE=on")
	// The Go that built this program, which is the Makefile's: a program that make doesn't start builds the same again.
	if version, _, _ := strings.Cut(goruntime.Version(), " "); strings.HasPrefix(version, "go1.") {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+version)
	}
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, bytes.TrimSpace(failed.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}
