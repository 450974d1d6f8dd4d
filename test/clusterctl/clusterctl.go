// SPDX-License-Identifier: Apache-2.0

// Package clusterctl runs clusterctl, at the version that tools/clusterctl pins.
package clusterctl

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/autonode-io/autonode/test/world/programs"
)

// Run runs clusterctl, which is built first where it isn't yet. source is the root of AutoNode's source; dir is an empty folder, in place of the
// user's own configuration. The error has what clusterctl printed.
func Run(ctx context.Context, source, dir string, args ...string) error {
	program, err := programs.Tool(ctx, source, "clusterctl", "sigs.k8s.io/cluster-api/cmd/clusterctl")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("clusterctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
