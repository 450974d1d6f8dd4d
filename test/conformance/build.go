// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"

	"github.com/autonode-io/autonode/test/world/programs"
)

// The suite has dependencies that AutoNode doesn't, so it has its own module file. It pins the versions of go.mod, so
// that common packages are compiled once. To change Karpenter's version:
//
//	cp ../../go.mod suite.mod; cp ../../go.sum suite.sum
//	go get -modfile=suite.mod -tool sigs.k8s.io/karpenter/kwok sigs.k8s.io/karpenter/dra-kwok-driver \
//		sigs.k8s.io/karpenter/test/pkg/environment/common
//	go mod tidy -modfile=suite.mod
var (
	//go:embed suite.mod
	suiteMod []byte
	//go:embed suite.sum
	suiteSum []byte
)

// binary is a program of Karpenter's module.
type binary struct {
	name string
	test bool // a test binary
	pkg  string
}

var (
	regressionSuite = binary{name: "regression.test", test: true, pkg: "sigs.k8s.io/karpenter/test/suites/regression"}
	disruptionSuite = binary{name: "disruption.test", test: true, pkg: "sigs.k8s.io/karpenter/test/suites/disruption"}
	draSuite        = binary{name: "dra.test", test: true, pkg: "sigs.k8s.io/karpenter/test/suites/dra"}
	draDriver       = binary{name: "dra-kwok-driver", pkg: "sigs.k8s.io/karpenter/dra-kwok-driver"}
	kwokProgram     = binary{name: "karpenter-kwok", pkg: "sigs.k8s.io/karpenter/kwok"}
)

// draDefinitions is the path of the CustomResourceDefinition of draDriver's configuration in Karpenter's module.
const draDefinitions = "dra-kwok-driver/pkg/apis/crds"

// build builds binaries into a cache folder that is named after all inputs of the build, and returns it.
func build(ctx context.Context, binaries ...binary) (string, error) {
	cache, err := programs.CacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s %s\n%s\n%s", goruntime.Version(), goruntime.GOOS, goruntime.GOARCH, suiteMod, suiteSum)
	dir := filepath.Join(cache, "conformance", hex.EncodeToString(hash.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	for name, data := range map[string][]byte{"go.mod": suiteMod, "go.sum": suiteSum} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return "", fmt.Errorf("writing the suite's module file: %w", err)
		}
	}
	for _, b := range binaries {
		if err := b.build(ctx, dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// karpenterModule is the folder of Karpenter's module in the version of dir.
func karpenterModule(ctx context.Context, dir string) (string, error) {
	module, err := programs.Go(ctx, dir, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter")
	if err != nil {
		return "", fmt.Errorf("finding Karpenter's module: %w", err)
	}
	return module, nil
}

func (b binary) build(ctx context.Context, dir string) error {
	path := filepath.Join(dir, b.name)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	args := []string{"build"}
	if b.test {
		args = []string{"test", "-c"}
	}
	// Under a temporary name first, so that an interrupted or concurrent build leaves no partial result.
	unfinished := fmt.Sprintf("%s.%d", path, os.Getpid())
	if _, err := programs.Go(ctx, dir, append(args, "-trimpath", "-o", unfinished, b.pkg)...); err != nil {
		return fmt.Errorf("building %s: %w", b.pkg, err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("building %s: %w", b.pkg, err)
	}
	return nil
}
