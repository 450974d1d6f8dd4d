// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/autonode-io/autonode/test/world/programs"
)

// The packages of Helm's programs, at the versions that tools/helm pins.
const (
	Helm3 = "helm.sh/helm/v3/cmd/helm"
	Helm4 = "helm.sh/helm/v4/cmd/helm"
)

// KubeVersion is a flag for Helm where it queries no API server: what it takes for its version is set by Helm's own build alone.
const KubeVersion = "--kube-version=1.36.3"

// Helm is a program.
type Helm struct {
	// Path of the program.
	Path string
	// Env are variables beside the process's own, such as KUBECONFIG.
	Env []string
}

// NewHelm builds Helm3 or Helm4, unless the build cache has it. The repository is at root. Helm keeps its files in home.
func NewHelm(ctx context.Context, root, program, home string) (*Helm, error) {
	path, err := programs.Tool(ctx, root, "helm", program)
	if err != nil {
		return nil, err
	}
	return &Helm{Path: path, Env: []string{
		"HELM_CACHE_HOME=" + filepath.Join(home, "cache"), "HELM_CONFIG_HOME=" + filepath.Join(home, "config"), "HELM_DATA_HOME=" + filepath.Join(home, "data"),
	}}, nil
}

// Run returns what Helm prints. An error has what it prints as a problem.
func (h *Helm) Run(ctx context.Context, args ...string) (string, error) {
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, h.Path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &problems, append(os.Environ(), h.Env...)
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s%s", args[0], err, out.String(), problems.String())
	}
	return out.String(), nil
}
