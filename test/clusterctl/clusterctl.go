// SPDX-License-Identifier: Apache-2.0

// Package clusterctl runs clusterctl, at the version that tools/clusterctl pins.
package clusterctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Run runs clusterctl, which is built first where it isn't yet. source is the root of AutoNode's source; dir is an empty folder, in place of the
// user's own configuration. The error has what clusterctl printed.
func Run(ctx context.Context, source, dir string, args ...string) error {
	find := exec.CommandContext(ctx, "go", "tool", "-modfile="+filepath.Join("tools", "clusterctl", "go.mod"), "-n", "sigs.k8s.io/cluster-api/cmd/clusterctl")
	find.Dir = source
	find.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off")
	program, err := find.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return fmt.Errorf("building clusterctl: %w", err)
	}
	cmd := exec.CommandContext(ctx, strings.TrimSpace(string(program)), args...)
	cmd.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("clusterctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
