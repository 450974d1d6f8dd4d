// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// output of a command in the repository's root. The Makefile's own variables, which a surrounding make exports, must not decide.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "MAKE") || strings.HasPrefix(variable, "MFLAGS=") || strings.HasPrefix(variable, "TESTFLAGS=")
	})
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s %s", name, strings.Join(args, " "))
	return string(out)
}

// runsTests matches a command that runs tests: the folder of the module that it runs in, by cd or by -C, and what it gets.
var runsTests = regexp.MustCompile(`(?:\(cd (\S+) && [^()]*?)?(?:go test|--packages)(?: -C (\S+))? ([^)\n]+)`)

// folders of the packages whose tests a make target would run.
func folders(t *testing.T, target string, args ...string) []string {
	t.Helper()
	packages := map[string][]string{} // by the folder of their module
	commands := strings.ReplaceAll(output(t, "make", append([]string{"--dry-run", target}, args...)...), "\\\n", " ")
	for _, match := range runsTests.FindAllStringSubmatch(commands, -1) {
		module := cmp.Or(match[1], match[2], ".")
		for _, word := range strings.Fields(match[3]) {
			if strings.HasPrefix(word, "./") {
				packages[module] = append(packages[module], word)
			}
		}
	}
	g := NewWithT(t)
	g.Expect(packages).NotTo(BeEmpty(), "make %s names no package", target)
	var all []string
	for module, names := range packages {
		all = append(all, strings.Fields(output(t, "go", append([]string{"list", "-C", module, "-f", "{{.Dir}}"}, names...)...))...)
	}
	return all
}

// testFiles are the repository's files with tests, by their paths from this folder.
func testFiles(t *testing.T) (paths []string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir // which the go command doesn't look into either
		case strings.HasSuffix(path, "_test.go"):
			paths = append(paths, path)
		}
		return nil
	})).To(Succeed())
	g.Expect(len(paths)).To(BeNumerically(">", 100), "files with tests")
	return paths
}

// folderOf is the absolute path of a file's folder.
func folderOf(t *testing.T, path string) string {
	t.Helper()
	folder, err := filepath.Abs(filepath.Dir(path))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return folder
}

var (
	benchmark = regexp.MustCompile(`(?m)^func Benchmark\w+`)
	// chosen is how a target names a test and a part of it.
	chosen = regexp.MustCompile(`-run '\^(\w+)\$/\(([^)]+)\)'`)
	part   = regexp.MustCompile(`t\.Run\("([^"]+)"`)
)

func TestBenchmarks(t *testing.T) {
	t.Run("When a folder has benchmarks, make bench should run them", func(t *testing.T) {
		g := NewWithT(t)
		benched, benchmarks := folders(t, "bench"), 0
		for _, path := range testFiles(t) {
			content, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			if found := benchmark.FindAllString(string(content), -1); len(found) > 0 {
				benchmarks += len(found)
				g.Expect(benched).To(ContainElement(folderOf(t, path)), "%s has %v", path, found)
			}
		}
		g.Expect(benchmarks).To(BeNumerically(">", 10))
	})
	t.Run("When PKG names a folder, make unit should test that one alone", func(t *testing.T) {
		for _, folder := range []string{"operator/guest", "api/v1beta1", "test/docs"} {
			NewWithT(t).Expect(folders(t, "unit", "PKG=./"+folder)).To(HaveExactElements(HaveSuffix("/" + folder)))
		}
	})
	t.Run("When make bench-fleet names parts of a test, the test should have exactly those", func(t *testing.T) {
		g := NewWithT(t)
		found := chosen.FindStringSubmatch(output(t, "make", "--dry-run", "bench-fleet"))
		g.Expect(found).To(HaveLen(3), "the tests that make bench-fleet runs")
		content, err := os.ReadFile(filepath.Join(root, "test/e2e/fleet_test.go"))
		g.Expect(err).NotTo(HaveOccurred())
		_, body, isThere := strings.Cut(string(content), "func "+found[1]+"(t *testing.T)")
		g.Expect(isThere).To(BeTrue(), found[1])
		parts := part.FindAllStringSubmatch(body, -1)
		for name := range strings.SplitSeq(found[2], "|") {
			g.Expect(slices.DeleteFunc(slices.Clone(parts), func(each []string) bool {
				return !strings.Contains(strings.ReplaceAll(each[1], " ", "_"), name)
			})).To(HaveLen(1), name)
		}
	})
}

func TestTargets(t *testing.T) {
	t.Run("When a folder has tests, one of make unit, e2e, e2e-aws, e2e-real and e2e-release should run them", func(t *testing.T) {
		targets := slices.Concat(folders(t, "unit"), folders(t, "e2e"), folders(t, "e2e-aws"), folders(t, "e2e-real"), folders(t, "e2e-release"))
		for _, path := range testFiles(t) {
			if !slices.Contains(targets, folderOf(t, path)) {
				t.Errorf("no target runs %s", path)
			}
		}
	})
}

func TestRelease(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When a registry is named, as in getting started, it should push there": {
			[]string{"VERSION=v0.1.0", "REGISTRY=registry.example/autonode"}, "release --version='v0.1.0' --push='registry.example/autonode'",
		},
		"When PUSH is named too, it should win": {
			[]string{"VERSION=v0.1.0", "REGISTRY=registry.example/autonode", "PUSH=other.example/autonode"}, "release --version='v0.1.0' --push='other.example/autonode'",
		},
		"When none is named, it should push nothing": {[]string{"VERSION=v0.1.0"}, "release --version='v0.1.0'"},
	} {
		t.Run(name, func(t *testing.T) {
			out := strings.TrimSpace(output(t, "make", append([]string{"--dry-run", "release"}, test.args...)...))
			NewWithT(t).Expect(out).To(HaveSuffix(test.want))
		})
	}
	t.Run("When a page of getting started installs a release, its first command should make it", func(t *testing.T) {
		g := NewWithT(t)
		pages, err := filepath.Glob(filepath.Join(root, "docs/start/*.md"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, page := range pages {
			content, err := os.ReadFile(page)
			g.Expect(err).NotTo(HaveOccurred())
			makes, installs := strings.Index(string(content), "make release VERSION=v0.1.0 REGISTRY="), strings.Index(string(content), "-f dist/v0.1.0/install.yaml")
			if installs >= 0 {
				g.Expect(makes).To(And(BeNumerically(">", 0), BeNumerically("<", installs)), page)
			}
		}
	})
}

// dryRun runs a script in a folder, with a make that only prints what it would run here.
func dryRun(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	g := NewWithT(t)
	here, err := filepath.Abs(root)
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", `make() { command make --no-print-directory -C "$here" --dry-run "$@"; }`+"\n"+script)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "MAKE") || strings.HasPrefix(variable, "MFLAGS=")
	})
	cmd.Env = append(cmd.Env, append(env, "here="+here, "HOME="+dir)...)
	out, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	return string(out)
}

func TestFirstRelease(t *testing.T) {
	t.Run("When the first commands of docs/internals/releasing.md are run, they should tag the commit and make its release", func(t *testing.T) {
		g, dir := NewWithT(t), t.TempDir()
		_, commands, _ := strings.Cut(read(t, "docs", "internals", "releasing.md"), "\n```\n")
		commands, _, _ = strings.Cut(commands, "\n```\n")
		out := dryRun(t, dir, "git init -q && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m a\n"+commands+"\necho tags: $(git tag)\n")
		g.Expect(out).To(ContainSubstring("release --version='v0.1.0' --push='registry.example/autonode' --key='cosign.key'"))
		g.Expect(out).To(HaveSuffix("tags: api/v0.1.0 v0.1.0\n"))
	})

	var workflow struct {
		On   struct{ Push struct{ Tags []string } } `json:"true"` // as YAML 1.1 reads "on"
		Jobs map[string]struct {
			Environment string
			Steps       []struct{ Name, Run string }
		}
	}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(read(t, ".github", "workflows", "release.yaml")), &workflow)).To(Succeed())
	scripts := map[string]string{}
	for _, step := range workflow.Jobs["release"].Steps {
		scripts[step.Name] = step.Run
	}
	ofTag := func(dir string) []string { return []string{"GITHUB_REF_NAME=v0.1.0", "RUNNER_TEMP=" + dir} }

	t.Run("When a version is tagged, the workflow should make its release with the settings that docs/internals/releasing.md names", func(t *testing.T) {
		g, dir := NewWithT(t), t.TempDir()
		g.Expect(workflow.On.Push.Tags).To(Equal([]string{"v*"}))
		page := read(t, "docs", "internals", "releasing.md")
		g.Expect(page).To(ContainSubstring("environment `" + workflow.Jobs["release"].Environment + "`"))
		settings := regexp.MustCompile(`(?:vars|secrets)\.(\w+)`).FindAllStringSubmatch(read(t, ".github", "workflows", "release.yaml"), -1)
		g.Expect(settings).NotTo(BeEmpty())
		for _, setting := range settings {
			g.Expect(page).To(ContainSubstring("`" + setting[1] + "`"))
		}
		out := dryRun(t, dir, scripts["make the release"], append(ofTag(dir), "REGISTRY=registry.example/autonode", "COSIGN_KEY=key",
			"GITHUB_SERVER_URL=https://git.example", "GITHUB_REPOSITORY=a/b", "GITHUB_REF=refs/tags/v0.1.0")...)
		g.Expect(out).To(HaveSuffix("release --version='v0.1.0' --push='registry.example/autonode' --key='" + dir +
			"/cosign.key' --builder=https://git.example/a/b/.github/workflows/release.yaml@refs/tags/v0.1.0\n"))
	})

	for name, test := range map[string]struct{ changelog, want string }{
		"When the changelog has a section for the version, it should be the notes": {"# Changelog\n\n## Unreleased\n\na\n\n## 0.1.0 (2026-12-01)\n\nb\n\n## 0.0.9\n\nc\n", "\nb\n\n"},
		"When the changelog has none, it should fail and say so":                   {"# Changelog\n\n## 0.1.01\n\na\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := NewWithT(t), t.TempDir()
			g.Expect(os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(test.changelog), 0o600)).To(Succeed())
			out := dryRun(t, dir, "( "+scripts["take the notes from the changelog"]+") || echo failed\n", ofTag(dir)...)
			if test.want == "" {
				g.Expect(out).To(ContainSubstring("CHANGELOG.md has no section for 0.1.0"))
				return
			}
			notes, err := os.ReadFile(filepath.Join(dir, "notes.md"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(notes)).To(Equal(test.want))
		})
	}
}
