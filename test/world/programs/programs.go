// SPDX-License-Identifier: Apache-2.0

// Package programs builds the programs that the local world runs, from pinned Go modules, into a cache folder.
//
// The versions are pinned by programs.mod and programs.sum, a module file of their own because Kubernetes needs
// replace directives. They are embedded, so that an installed autonode needs no source tree. To change a version:
//
//	cd test/world/programs
//	go get -modfile=programs.mod -tool k8s.io/kubernetes/cmd/kube-apiserver@v1.36.4
//
// and change the versions in this file and the replace directives to match; `autonode-dev world build` then proves it.
package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/autonode-io/autonode/test/world/lock"
	"github.com/autonode-io/autonode/test/world/progress"
)

//go:embed programs.mod programs.sum
var module embed.FS

// Versions of what is built. Both Kubernetes versions are made from one source and differ in the version that they
// report: that is all an upgrade in the world needs, and it costs one more link instead of one more build.
const (
	KubernetesVersion         = "v1.36.2"
	KubernetesUpgradedVersion = "v1.36.3"
	ClusterAPIVersion         = "v1.14.2"
	EtcdVersion               = "v3.6.8"
)

const (
	apiServer = "k8s.io/kubernetes/cmd/kube-apiserver"

	// completedMarker marks a complete cache folder.
	completedMarker = "completed"
)

// program is one binary in the cache.
type program struct {
	name    string
	pkg     string
	ldflags string
}

// list is in the order of building: what is built first compiles most of what the next ones share.
var list = []program{
	{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
	{name: apiServerName(KubernetesUpgradedVersion), pkg: apiServer, ldflags: kubernetesStamp(KubernetesUpgradedVersion)},
	{name: apiServerName(KubernetesVersion), pkg: apiServer, ldflags: kubernetesStamp(KubernetesVersion)},
	{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", ldflags: kubernetesStamp(KubernetesUpgradedVersion)},
	{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", ldflags: kubernetesStamp(KubernetesUpgradedVersion)},
	{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", ldflags: kubernetesStamp(KubernetesUpgradedVersion)},
	{name: "cluster-api-core", pkg: "sigs.k8s.io/cluster-api/core", ldflags: clusterAPIStamp},
	{name: "cluster-api-bootstrap-kubeadm", pkg: "sigs.k8s.io/cluster-api/bootstrap/kubeadm", ldflags: clusterAPIStamp},
}

// nodeList are the programs of a real machine, which most worlds don't need.
var nodeList = []program{
	{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", ldflags: kubernetesStamp(KubernetesVersion)},
	{name: "kubeadm", pkg: "k8s.io/kubernetes/cmd/kubeadm", ldflags: kubernetesStamp(KubernetesVersion)},
}

const clusterAPIStamp = "-X sigs.k8s.io/cluster-api/version.gitVersion=" + ClusterAPIVersion +
	" -X sigs.k8s.io/cluster-api/version.gitMajor=1 -X sigs.k8s.io/cluster-api/version.gitMinor=14"

func kubernetesStamp(version string) string {
	const pkg = "k8s.io/component-base/version"
	return fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=36 -X %[1]s.gitTreeState=clean", pkg, version)
}

func apiServerName(version string) string { return "kube-apiserver-" + version }

// manifests are copied out of Cluster API's module, so that a later cleaning of the module cache does no harm.
var manifests = map[string]string{
	"core/config/crd/bases":                           "core/crds",
	"core/config/webhook/manifests.yaml":              "core/webhooks.yaml",
	"bootstrap/kubeadm/config/crd/bases":              "bootstrap-kubeadm/crds",
	"bootstrap/kubeadm/config/webhook/manifests.yaml": "bootstrap-kubeadm/webhooks.yaml",
}

// Set is a folder with all programs.
type Set struct {
	// Dir is the folder in the cache.
	Dir string
}

func (s Set) bin(name string) string { return filepath.Join(s.Dir, "bin", name) }

// Etcd is the path of etcd.
func (s Set) Etcd() string { return s.bin("etcd") }

// ErrUnknownVersion means that the world can't run this version.
var ErrUnknownVersion = errors.New("unknown version")

// APIServer is the path of the kube-apiserver that reports version, such as v1.36.2. It wraps ErrUnknownVersion for
// one that isn't in the set.
func (s Set) APIServer(version string) (string, error) {
	for _, known := range []string{KubernetesVersion, KubernetesUpgradedVersion} {
		if version == known {
			return s.bin(apiServerName(version)), nil
		}
	}
	return "", fmt.Errorf("%w: no kube-apiserver %s; there are %s and %s", ErrUnknownVersion, version, KubernetesVersion, KubernetesUpgradedVersion)
}

// ControllerManager is the path of kube-controller-manager.
func (s Set) ControllerManager() string { return s.bin("kube-controller-manager") }

// Scheduler is the path of kube-scheduler.
func (s Set) Scheduler() string { return s.bin("kube-scheduler") }

// Kubectl is the path of kubectl.
func (s Set) Kubectl() string { return s.bin("kubectl") }

// ClusterAPI is the path of Cluster API's core manager.
func (s Set) ClusterAPI() string { return s.bin("cluster-api-core") }

// KubeadmBootstrap is the path of Cluster API's kubeadm bootstrap provider.
func (s Set) KubeadmBootstrap() string { return s.bin("cluster-api-bootstrap-kubeadm") }

// ClusterAPIManifests is a folder with crds/ and webhooks.yaml of Cluster API's core.
func (s Set) ClusterAPIManifests() string { return filepath.Join(s.Dir, "manifests", "core") }

// KubeadmBootstrapManifests is a folder with crds/ and webhooks.yaml of the kubeadm bootstrap provider.
func (s Set) KubeadmBootstrapManifests() string {
	return filepath.Join(s.Dir, "manifests", "bootstrap-kubeadm")
}

// EnvtestAssets is a folder for KUBEBUILDER_ASSETS: etcd, kube-apiserver and kubectl.
func (s Set) EnvtestAssets() string { return filepath.Join(s.Dir, "envtest") }

// Node is a folder with the programs of real machines, of version KubernetesVersion.
type Node struct {
	// Dir is the folder in the cache.
	Dir string
	// Version of Kubernetes, such as v1.36.2.
	Version string
}

// Kubelet is the path of the kubelet.
func (n Node) Kubelet() string { return Set{Dir: n.Dir}.bin("kubelet") }

// Kubeadm is the path of kubeadm.
func (n Node) Kubeadm() string { return Set{Dir: n.Dir}.bin("kubeadm") }

// Options for Ensure and EnsureNode.
type Options struct {
	// Progress reports what is being built; nil reports nothing.
	Progress *progress.Printer
	// CacheDir is the folder that holds one folder per set. Default: $AUTONODE_CACHE/programs, else autonode/programs
	// in the user's cache folder.
	CacheDir string
}

// Ensure builds what isn't in the cache yet and returns the set. It needs the go command, always: the platform and
// the Go version are part of the set's key. Two processes that call it at once build once.
func Ensure(ctx context.Context, opts Options) (Set, error) {
	return ensure(ctx, opts, list, "Building control planes", "first time only, about 10 min on 2 cores", func(source string, set Set) error {
		if err := copyManifests(ctx, source, set); err != nil {
			return err
		}
		return set.linkEnvtest()
	})
}

// EnsureNode does the same for the programs of real machines.
func EnsureNode(ctx context.Context, opts Options) (Node, error) {
	set, err := ensure(ctx, opts, nodeList, "Building kubelet and kubeadm", "first time only, about 3 min on 2 cores", nil)
	if err != nil {
		return Node{}, err
	}
	return Node{Dir: set.Dir, Version: KubernetesVersion}, nil
}

// ensure builds a list of programs, and then does what else makes the set complete.
func ensure(ctx context.Context, opts Options, list []program, title, about string, complete func(source string, set Set) error) (Set, error) {
	if opts.CacheDir == "" {
		cache, err := CacheDir()
		if err != nil {
			return Set{}, err
		}
		opts.CacheDir = filepath.Join(cache, "programs")
	}
	if opts.Progress == nil {
		opts.Progress = progress.New(io.Discard)
	}
	toolchain, err := readToolchain(ctx)
	if err != nil {
		return Set{}, err
	}
	key, err := key(toolchain, list)
	if err != nil {
		return Set{}, err
	}
	set := Set{Dir: filepath.Join(opts.CacheDir, key)}
	if set.complete() {
		return set, nil
	}
	if err := os.MkdirAll(set.Dir, 0o755); err != nil {
		return Set{}, fmt.Errorf("making the cache folder: %w", err)
	}
	release, err := lock.Wait(ctx, filepath.Join(set.Dir, "lock"), func() {
		opts.Progress.Println("Waiting for another process that builds the same programs")
	})
	if err != nil {
		return Set{}, err
	}
	defer release()
	if set.complete() {
		return set, nil
	}
	task := opts.Progress.Task(title, about+"; cached in "+set.Dir)
	source, err := build(ctx, set, list, task)
	if err == nil && complete != nil {
		err = complete(source, set)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(set.Dir, completedMarker), nil, 0o644)
	}
	if err != nil {
		task.Fail()
		return Set{}, err
	}
	task.End("built in " + progress.Duration(task.Elapsed()))
	return set, nil
}

// CacheDir is autonode's cache folder: $AUTONODE_CACHE, else autonode in $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("AUTONODE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "autonode"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder (set AUTONODE_CACHE): %w", err)
	}
	return filepath.Join(home, ".cache", "autonode"), nil
}

func (s Set) complete() bool {
	_, err := os.Stat(filepath.Join(s.Dir, completedMarker))
	return err == nil
}

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

// key names a set after everything that decides about its content.
func key(tc toolchain, list []program) (string, error) {
	h := sha256.New()
	for _, name := range []string{"programs.mod", "programs.sum"} {
		data, err := module.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", name, err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	fmt.Fprintf(h, "%+v\n%+v\n%v\n%v", tc, list, manifests, buildFlags)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

var buildFlags = []string{"-trimpath"}

// Go runs the go command in a folder and returns what it prints, and in an error what it complains about. Everything that changes
// what is built is set: the compile cache is shared with every other build that uses -trimpath and CGO_ENABLED=0.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GO111MODULE=on")
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, bytes.TrimSpace(failed.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}

// build builds a list of programs, and returns the folder of the module that they are built from.
func build(ctx context.Context, set Set, list []program, task *progress.Task) (source string, err error) {
	source = filepath.Join(set.Dir, "module")
	for _, dir := range []string{source, filepath.Join(set.Dir, "bin")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("making the cache folder: %w", err)
		}
	}
	for from, to := range map[string]string{"programs.mod": "go.mod", "programs.sum": "go.sum"} {
		data, err := module.ReadFile(from)
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", from, err)
		}
		if err := os.WriteFile(filepath.Join(source, to), data, 0o644); err != nil {
			return "", fmt.Errorf("writing the module of programs: %w", err)
		}
	}
	for _, p := range list {
		if _, err := os.Stat(set.bin(p.name)); err == nil {
			continue
		}
		if err := task.Run(p.name, func() error { return p.build(ctx, source, set.bin(p.name)) }); err != nil {
			return "", err
		}
	}
	return source, nil
}

// linkEnvtest makes the folder that envtest finds its programs in.
func (s Set) linkEnvtest() error {
	if err := os.MkdirAll(s.EnvtestAssets(), 0o755); err != nil {
		return fmt.Errorf("making the cache folder: %w", err)
	}
	for link, target := range map[string]string{
		"etcd":           "etcd",
		"kube-apiserver": apiServerName(KubernetesUpgradedVersion),
		"kubectl":        "kubectl",
	} {
		path := filepath.Join(s.EnvtestAssets(), link)
		if err := os.Symlink(filepath.Join("..", "bin", target), path); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("linking %s: %w", link, err)
		}
	}
	return nil
}

// build builds the program under another name first, so that an interrupted build leaves nothing half-made.
func (p program) build(ctx context.Context, source, path string) error {
	unfinished := path + ".unfinished"
	args := append([]string{"build"}, buildFlags...)
	args = append(args, "-ldflags", strings.TrimSpace("-s -w "+p.ldflags), "-o", unfinished, p.pkg)
	if _, err := Go(ctx, source, args...); err != nil {
		return fmt.Errorf("building %s: %w", p.name, err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("building %s: %w", p.name, err)
	}
	return nil
}

func copyManifests(ctx context.Context, source string, set Set) error {
	root, err := Go(ctx, source, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api")
	if err != nil {
		return fmt.Errorf("finding Cluster API's module: %w", err)
	}
	for from, to := range manifests {
		from, to := filepath.Join(root, from), filepath.Join(set.Dir, "manifests", to)
		err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			relative, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			target := filepath.Join(to, relative)
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			return os.WriteFile(target, data, 0o644)
		})
		if err != nil {
			return fmt.Errorf("copying Cluster API's manifests: %w", err)
		}
	}
	return nil
}
