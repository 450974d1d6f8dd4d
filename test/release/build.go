// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// build is one command that builds programs for one platform.
type build struct {
	source, version string
	platform        Platform
	// programs are folders of cmd.
	programs []string
	// folder gets the programs.
	folder string
	// operator is the image that the command-line tool installs by default; empty for other programs.
	operator string
}

// buildFlags are the Makefile's.
const buildFlags = "-trimpath -buildvcs=false -mod=readonly"

// environment overrides variables that change what a build gives.
func (b build) environment() []string {
	return []string{
		"CGO_ENABLED=0", "GOFLAGS=" + buildFlags, "GOWORK=off", "GOOS=" + b.platform.OS, "GOARCH=" + b.platform.Arch,
		"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off",
	}
}

func (b build) linkerFlags() string {
	flags := "-s -w -X main.version=" + b.version
	if b.operator != "" {
		flags += " -X main.operatorImage=" + b.operator
	}
	return flags
}

func (b build) run(ctx context.Context) error {
	args := []string{"build", "-ldflags", b.linkerFlags(), "-o", b.folder + string(os.PathSeparator)}
	for _, program := range b.programs {
		args = append(args, "./cmd/"+program)
	}
	if err := os.MkdirAll(b.folder, 0o755); err != nil {
		return fmt.Errorf("making a folder for the programs: %w", err)
	}
	if _, err := run(ctx, b.source, b.environment(), "go", args...); err != nil {
		return fmt.Errorf("building for %s: %w", b.platform, err)
	}
	return nil
}

// run returns what a command prints.
func run(ctx context.Context, folder string, environment []string, program string, args ...string) (string, error) {
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, &out, &problems
	cmd.Env = append(os.Environ(), environment...)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, args[0], err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}
