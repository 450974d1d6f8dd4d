// SPDX-License-Identifier: Apache-2.0

// Package programs builds the programs that the local world runs, from pinned Go modules, into a cache folder.
//
// The versions are pinned by programs.mod and programs.sum, a module file of their own because Kubernetes needs
// replace directives, and by aws.mod and aws.sum for what only a world with AWS runs: it is built with the versions that it ships
// with. nextminor.mod and nextminor.sum pin the API server of Kubernetes' next minor version. They are embedded, so that an installed
// autonode needs no source tree. To change a version:
//
//	cd test/world/programs
//	go get -modfile=programs.mod -tool k8s.io/kubernetes/cmd/kube-apiserver@v1.36.4
//	go get -modfile=nextminor.mod -tool k8s.io/kubernetes/cmd/kube-apiserver@v1.37.3
//
// and change the versions in this folder and the replace directives to match; `autonode-dev world build` then proves it.
package programs

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/autonode-io/autonode/test/world/lock"
	"github.com/autonode-io/autonode/test/world/progress"
)

//go:embed *.mod *.sum
var modules embed.FS

// Versions of what is built. Both Kubernetes versions are made from one source and differ in the version that they
// report: that is all a patch upgrade in the world needs, and it costs one more link instead of one more build. See
// KubernetesNextMinorVersion for a minor upgrade.
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

	// The folders in a cache folder.
	binFolder, manifestsFolder, envtestFolder = "bin", "manifests", "envtest"
)

// program is one binary in the cache.
type program struct {
	name    string
	pkg     string
	ldflags string
}

// collection is what is built from one module.
type collection struct {
	// title and about show what is being built.
	title, about string
	// module is the name of the files that pin it, without .mod and .sum.
	module string
	// list is in the order of building: what is built first compiles most of what the next ones share.
	list []program
	// manifests are copied out of the module source, so that a later cleaning of the module cache does no harm. A set without any names no source.
	source    string
	manifests map[string]string
	// links are the programs in the folder EnvtestAssets.
	links map[string]string
}

// world is what every world runs.
var world = collection{
	title: "Building control planes", about: "first time only, about 10 min on 2 cores",
	module: "programs", list: list, source: "sigs.k8s.io/cluster-api", manifests: manifests,
	links: map[string]string{"etcd": "etcd", "kube-apiserver": apiServerName(KubernetesUpgradedVersion), "kubectl": "kubectl"},
}

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

const clusterAPIStamp = "-X sigs.k8s.io/cluster-api/version.gitVersion=" + ClusterAPIVersion +
	" -X sigs.k8s.io/cluster-api/version.gitMajor=1 -X sigs.k8s.io/cluster-api/version.gitMinor=14"

func kubernetesStamp(version string) string {
	const pkg = "k8s.io/component-base/version"
	_, minor, _ := strings.Cut(version, ".")
	minor, _, _ = strings.Cut(minor, ".")
	return fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", pkg, version, minor)
}

func apiServerName(version string) string { return "kube-apiserver-" + version }

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
	// nextMinor is the folder with the API server of KubernetesNextMinorVersion; empty without it. See WithNextMinor.
	nextMinor string
}

func (s Set) bin(name string) string { return filepath.Join(s.Dir, binFolder, name) }

// Etcd is the path of etcd.
func (s Set) Etcd() string { return s.bin("etcd") }

// ErrUnknownVersion means that the world can't run this version.
var ErrUnknownVersion = errors.New("unknown version")

// APIServer is the path of the kube-apiserver that reports version, such as v1.36.2. It wraps ErrUnknownVersion for
// one that isn't in the set.
func (s Set) APIServer(version string) (string, error) {
	known := []string{KubernetesVersion, KubernetesUpgradedVersion}
	if slices.Contains(known, version) {
		return s.bin(apiServerName(version)), nil
	}
	if s.nextMinor != "" {
		if version == KubernetesNextMinorVersion {
			return filepath.Join(s.nextMinor, apiServerName(version)), nil
		}
		known = append(known, KubernetesNextMinorVersion)
	}
	return "", fmt.Errorf("%w: no kube-apiserver %s; known versions are %s", ErrUnknownVersion, version, strings.Join(known, ", "))
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
func (s Set) ClusterAPIManifests() string { return filepath.Join(s.Dir, manifestsFolder, "core") }

// KubeadmBootstrapManifests is a folder with crds/ and webhooks.yaml of the kubeadm bootstrap provider.
func (s Set) KubeadmBootstrapManifests() string {
	return filepath.Join(s.Dir, manifestsFolder, "bootstrap-kubeadm")
}

// EnvtestAssets is a folder for KUBEBUILDER_ASSETS: etcd, kube-apiserver and kubectl.
func (s Set) EnvtestAssets() string { return filepath.Join(s.Dir, envtestFolder) }

// Options for Ensure.
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
	dir, err := world.ensure(ctx, opts)
	return Set{Dir: dir}, err
}

// ensure returns the folder of a collection, complete.
func (c collection) ensure(ctx context.Context, opts Options) (dir string, err error) {
	if opts.CacheDir == "" {
		cache, err := CacheDir()
		if err != nil {
			return "", err
		}
		opts.CacheDir = filepath.Join(cache, "programs")
	}
	if opts.Progress == nil {
		opts.Progress = progress.New(io.Discard)
	}
	toolchain, err := readToolchain(ctx)
	if err != nil {
		return "", err
	}
	key, err := c.key(toolchain)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(opts.CacheDir, key)
	if complete(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	release, err := lock.Wait(ctx, filepath.Join(dir, "lock"), func() {
		opts.Progress.Println("Waiting for another process: " + c.title)
	})
	if err != nil {
		return "", err
	}
	defer release()
	if complete(dir) {
		return dir, nil
	}
	task := opts.Progress.Task(c.title, c.about+"; cached in "+dir)
	if err := c.build(ctx, dir, task); err != nil {
		task.Fail()
		return "", err
	}
	task.End("built in " + progress.Duration(task.Elapsed()))
	return dir, nil
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

func complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, completedMarker))
	return err == nil
}

// key names a set after everything that decides about its content.
func (c collection) key(tc toolchain) (string, error) {
	h := sha256.New()
	for _, name := range []string{c.module + ".mod", c.module + ".sum"} {
		data, err := modules.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", name, err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	fmt.Fprintf(h, "%+v\n%+v\n%v\n%v", tc, c.list, c.manifests, buildFlags)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

var buildFlags = []string{"-trimpath"}

func (c collection) build(ctx context.Context, dir string, task *progress.Task) error {
	source, envtest := filepath.Join(dir, "module"), filepath.Join(dir, envtestFolder)
	for _, folder := range []string{source, filepath.Join(dir, binFolder), filepath.Join(dir, manifestsFolder), envtest} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("making the cache folder: %w", err)
		}
	}
	for from, to := range map[string]string{c.module + ".mod": "go.mod", c.module + ".sum": "go.sum"} {
		data, err := modules.ReadFile(from)
		if err != nil {
			return fmt.Errorf("reading %s: %w", from, err)
		}
		if err := os.WriteFile(filepath.Join(source, to), data, 0o644); err != nil {
			return fmt.Errorf("writing the module of programs: %w", err)
		}
	}
	for _, p := range c.list {
		path := filepath.Join(dir, binFolder, p.name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := task.Run(p.name, func() error { return p.build(ctx, source, path) }); err != nil {
			return err
		}
	}
	if err := c.copyManifests(ctx, source, filepath.Join(dir, manifestsFolder)); err != nil {
		return err
	}
	for link, target := range c.links {
		if err := os.Symlink(filepath.Join("..", binFolder, target), filepath.Join(envtest, link)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("linking %s: %w", link, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, completedMarker), nil, 0o644)
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

func (c collection) copyManifests(ctx context.Context, source, dir string) error {
	if len(c.manifests) == 0 {
		return nil
	}
	root, err := Go(ctx, source, "list", "-m", "-f", "{{.Dir}}", c.source)
	if err != nil {
		return fmt.Errorf("finding the module %s: %w", c.source, err)
	}
	for from, to := range c.manifests {
		from, to := filepath.Join(root, from), filepath.Join(dir, to)
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
			return fmt.Errorf("copying the manifests of %s: %w", c.source, err)
		}
	}
	return nil
}
