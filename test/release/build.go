// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/autonode-io/autonode/test/world/progress"
)

// environment overrides variables that change what a build gives. The flags are the Makefile's.
var environment = []string{
	"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -mod=readonly", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off",
}

func (r *release) linkerFlags() string {
	flags := "-s -w"
	for _, variable := range []string{"main.version", "github.com/prometheus/common/version.Version", "sigs.k8s.io/karpenter/pkg/operator.Version"} {
		flags += " -X " + variable + "=" + r.Version
	}
	return flags
}

// operatorLinkerFlags are those of the operator, whose default release has Karpenter's image by digest.
func (r *release) operatorLinkerFlags() string {
	return r.linkerFlags() + " -X main.karpenterImage=" + r.image(karpenterProgram)
}

// toolLinkerFlags are those of the command-line tool, which has the operator's image by digest.
func (r *release) toolLinkerFlags() string {
	return r.linkerFlags() + " -X main.operatorImage=" + r.image(operatorProgram)
}

// program returns the path of a program that was built.
func (r *release) program(p Platform, program string) string {
	if p.OS == "windows" {
		program += ".exe"
	}
	return filepath.Join(r.bin, p.OS+"-"+p.Arch, program)
}

// buildKarpenter builds Karpenter, and packs its image.
func (r *release) buildKarpenter(ctx context.Context) error {
	if err := r.build(ctx, r.Platforms.Images, r.linkerFlags(), "./cmd/"+karpenterProgram); err != nil {
		return err
	}
	return r.packImage(karpenterProgram)
}

// buildOperator builds the operator, and packs its image.
func (r *release) buildOperator(ctx context.Context) error {
	if err := r.build(ctx, r.Platforms.Images, r.operatorLinkerFlags(), "./cmd/"+operatorProgram); err != nil {
		return err
	}
	return r.packImage(operatorProgram)
}

// buildTools builds the command-line tool.
func (r *release) buildTools(ctx context.Context) error {
	return r.build(ctx, r.Platforms.Tools, r.toolLinkerFlags(), "./cmd/"+toolProgram)
}

func (r *release) build(ctx context.Context, platforms []Platform, linkerFlags string, packages ...string) error {
	for _, p := range platforms {
		began := time.Now()
		to := filepath.Dir(r.program(p, toolProgram)) + string(os.PathSeparator)
		args := append([]string{"build", "-ldflags", linkerFlags, "-o", to}, packages...)
		if _, err := run(ctx, r.Source, slices.Concat(environment, []string{"GOOS=" + p.OS, "GOARCH=" + p.Arch}), "go", args...); err != nil {
			return fmt.Errorf("building for %s: %w", p, err)
		}
		fmt.Fprintf(r.Out, "  %-40s %s\n", p, progress.Duration(time.Since(began)))
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
