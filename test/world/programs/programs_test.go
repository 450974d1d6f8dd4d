// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/lock"
)

func TestKey(t *testing.T) {
	tc := toolchain{GOVERSION: "go1.27.3", GOOS: "linux", GOARCH: "amd64"}
	before, err := world.key(tc)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("When nothing changes, it should stay the same", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(world.key(tc)).To(Equal(before))
	})
	for name, change := range map[string]func(*toolchain, []program){
		"the Go version":     func(tc *toolchain, _ []program) { tc.GOVERSION = "go1.27.0" },
		"the architecture":   func(tc *toolchain, _ []program) { tc.GOARCH = "arm64" },
		"a linker flag":      func(_ *toolchain, l []program) { l[1].ldflags = kubernetesStamp("v1.99.0") },
		"a program's source": func(_ *toolchain, l []program) { l[0].pkg = "example.com/etcd" },
	} {
		t.Run("When "+name+" changes, it should change", func(t *testing.T) {
			g := NewWithT(t)
			changed, programs := tc, world
			programs.list = slices.Clone(world.list)
			change(&changed, programs.list)
			g.Expect(programs.key(changed)).NotTo(Equal(before))
		})
	}
}

func TestGo(t *testing.T) {
	t.Run("When make doesn't start the program, it should build with the Go that built it", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv("GOTOOLCHAIN", "local")
		t.Setenv("GOFLAGS", "-mod=vendor")
		t.Setenv("CGO_ENABLED", "1")
		version, _, _ := strings.Cut(goruntime.Version(), " ")
		g.Expect(Go(t.Context(), t.TempDir(), "env", "GOTOOLCHAIN", "GOVERSION", "GOFLAGS", "CGO_ENABLED")).
			To(Equal(strings.Join([]string{version, version, "-buildvcs=false", "0"}, "\n")))
	})
}

func TestCollections(t *testing.T) {
	t.Run("When a program is only for a world with AWS, it should be in a set of its own", func(t *testing.T) {
		g := NewWithT(t)
		tc := toolchain{GOVERSION: "go1.27.3", GOOS: "linux", GOARCH: "amd64"}
		of, err := aws.key(tc)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(world.key(tc)).NotTo(Equal(of))
		pinned, err := modules.ReadFile(aws.module + ".mod")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(pinned)).To(ContainSubstring("sigs.k8s.io/cluster-api-provider-aws/v2 " + ClusterAPIProviderAWSVersion))
	})
}

func TestVersions(t *testing.T) {
	for module, version := range map[string]string{world.module: KubernetesUpgradedVersion, nextMinor.module: KubernetesNextMinorVersion} {
		t.Run("When "+module+".mod pins Kubernetes, its libraries should be of that version", func(t *testing.T) {
			g := NewWithT(t)
			pinned, err := modules.ReadFile(module + ".mod")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(pinned)).To(ContainSubstring("\tk8s.io/kubernetes " + version))
			libraries := regexp.MustCompile(`=> k8s\.io/\S+ (\S+)`).FindAllSubmatch(pinned, -1)
			g.Expect(libraries).NotTo(BeEmpty())
			for _, library := range libraries {
				g.Expect(string(library[1])).To(Equal(strings.Replace(version, "v1.", "v0.", 1)), string(library[0]))
			}
		})
	}
	t.Run("When a program is stamped, it should report the minor version as well", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(kubernetesStamp(KubernetesVersion)).To(ContainSubstring("gitVersion=v1.36.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36 "))
		g.Expect(kubernetesStamp(KubernetesNextMinorVersion)).To(ContainSubstring("gitMinor=37 "))
	})
}

func TestTool(t *testing.T) {
	t.Run("When another process builds a tool, it should wait until that one has it", func(t *testing.T) {
		g := NewWithT(t)
		cache := t.TempDir()
		t.Setenv("AUTONODE_CACHE", cache)
		release, err := lock.Try(filepath.Join(cache, "tools.lock"))
		g.Expect(err).NotTo(HaveOccurred())
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = Tool(impatient, filepath.Join("..", "..", ".."), "helm", "helm.sh/helm/v3/cmd/helm")
		g.Expect(err).To(MatchError(lock.ErrHeld))

		release()
		g.Expect(Tool(t.Context(), filepath.Join("..", "..", ".."), "helm", "helm.sh/helm/v3/cmd/helm")).To(BeAnExistingFile())
	})
}

func TestEnsure(t *testing.T) {
	t.Run("When the set is complete, it should build nothing", func(t *testing.T) {
		g := NewWithT(t)
		cache := t.TempDir()
		tc, err := readToolchain(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		name, err := world.key(tc)
		g.Expect(err).NotTo(HaveOccurred())
		dir := filepath.Join(cache, name)
		g.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, completedMarker), nil, 0o600)).To(Succeed())

		set, err := Ensure(t.Context(), Options{CacheDir: cache})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(set.Dir).To(Equal(dir))
		g.Expect(filepath.Join(dir, "bin")).NotTo(BeADirectory())
	})
}

func TestManifests(t *testing.T) {
	t.Run("When a set has no manifests, it should be complete with its programs", func(t *testing.T) {
		g := NewWithT(t)
		cache := t.TempDir()
		tc, err := readToolchain(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		name, err := node.key(tc)
		g.Expect(err).NotTo(HaveOccurred())
		bin := filepath.Join(cache, name, binFolder)
		g.Expect(os.MkdirAll(bin, 0o755)).To(Succeed())
		for _, program := range node.list { // as an interrupted build leaves them
			g.Expect(os.WriteFile(filepath.Join(bin, program.name), nil, 0o600)).To(Succeed())
		}

		set, err := EnsureNode(t.Context(), Options{CacheDir: cache})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(complete(set.Dir)).To(BeTrue())
	})
	t.Run("When a set has manifests, it should name the module that they are in", func(t *testing.T) {
		for _, c := range []collection{world, nextMinor, node, aws, karpenterAWS} {
			NewWithT(t).Expect(c.source != "").To(Equal(len(c.manifests) > 0), c.title)
		}
	})
}

func TestCacheDir(t *testing.T) {
	for _, tc := range []struct {
		name                string
		autonode, xdg, home string
		want                string
	}{
		{"When AUTONODE_CACHE is set, it should win", "/a", "/b", "/c", "/a"},
		{"When XDG_CACHE_HOME is set, it should be honoured", "", "/b", "/c", "/b/autonode"},
		{"When XDG_CACHE_HOME is relative, it should be ignored as its specification requires", "", "b", "/c", "/c/.cache/autonode"},
		{"When neither is set, it should be in the home folder", "", "", "/c", "/c/.cache/autonode"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv("AUTONODE_CACHE", tc.autonode)
			t.Setenv("XDG_CACHE_HOME", tc.xdg)
			t.Setenv("HOME", tc.home)
			g.Expect(CacheDir()).To(Equal(tc.want))
		})
	}
}

func TestAPIServer(t *testing.T) {
	patch := Set{Dir: "/cache"}
	minor := Set{Dir: "/cache", nextMinor: "/next"}
	t.Run("When a version isn't in the set, it should say which are", func(t *testing.T) {
		g := NewWithT(t)
		_, err := patch.APIServer(KubernetesNextMinorVersion)
		g.Expect(err).To(And(MatchError(ErrUnknownVersion), MatchError(HaveSuffix("known versions are v1.36.2, v1.36.3"))))
		_, err = minor.APIServer("v1.38.0")
		g.Expect(err).To(And(MatchError(ErrUnknownVersion), MatchError(HaveSuffix("known versions are v1.36.2, v1.36.3, v1.37.2"))))
	})
	t.Run("When a version is the next minor, its API server should be in a set of its own", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(minor.APIServer(KubernetesNextMinorVersion)).To(Equal("/next/kube-apiserver-v1.37.2"))
		g.Expect(minor.APIServer(KubernetesVersion)).To(Equal("/cache/bin/kube-apiserver-v1.36.2"))
	})
}
