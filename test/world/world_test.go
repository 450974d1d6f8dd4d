// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/autonode-io/autonode/test/world/controlplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConfig(t *testing.T) {
	source := newSource(t)
	for _, tc := range []struct {
		name   string
		guests []string
		want   string
	}{
		{"When a guest has the management cluster's name, it should be refused", []string{"management"}, "the name is taken"},
		{"When two guests have one name, it should be refused", []string{"blue", "blue"}, "the name is taken"},
		{"When a guest's name is no DNS label, it should be refused", []string{"Blue_1"}, `guest "Blue_1"`},
		{"When a guest's name is empty, it should be refused", []string{""}, `guest ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			cfg := Config{Dir: t.TempDir(), Guests: tc.guests, Source: source}
			g.Expect(cfg.complete(t.Context())).To(MatchError(ContainSubstring(tc.want)))
		})
	}

	t.Run("When it isn't known how Cluster API is to run, it should say what is allowed", func(t *testing.T) {
		g := NewWithT(t)
		cfg := Config{Dir: t.TempDir(), Source: source, ClusterAPI: "slow"}
		g.Expect(cfg.complete(t.Context())).To(MatchError(And(ContainSubstring("slow"), ContainSubstring("tuned, unlimited, defaults"))))
	})

	t.Run("When no guest is named, it should have one", func(t *testing.T) {
		g := NewWithT(t)
		cfg := Config{Dir: t.TempDir(), Source: source}
		g.Expect(cfg.complete(t.Context())).To(Succeed())
		g.Expect(cfg.Guests).To(Equal([]string{DefaultGuest}))
		g.Expect(cfg.Source).To(Equal(source))
	})

	t.Run("When guests of another world are adopted, it should have none of its own, and none of their names", func(t *testing.T) {
		g := NewWithT(t)
		adopted := []*controlplane.Cluster{{Name: "blue"}}
		cfg := Config{Dir: t.TempDir(), Source: source, Adopted: adopted}
		g.Expect(cfg.complete(t.Context())).To(Succeed())
		g.Expect(cfg.Guests).To(BeEmpty())
		cfg = Config{Dir: t.TempDir(), Source: source, Adopted: adopted, Guests: []string{"blue"}}
		g.Expect(cfg.complete(t.Context())).To(MatchError(ContainSubstring("the name is taken")))
	})
}

// newSource makes a folder that passes for AutoNode's source.
func newSource(t *testing.T) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindSource(t *testing.T) {
	t.Setenv("AUTONODE_SOURCE", "")

	t.Run("When the working directory is below the source, it should be found", func(t *testing.T) {
		g := NewWithT(t)
		source := newSource(t)
		below := filepath.Join(source, "test", "e2e")
		g.Expect(os.MkdirAll(below, 0o755)).To(Succeed())
		t.Chdir(below)
		g.Expect(findSource(t.Context(), "")).To(Equal(source))
	})

	t.Run("When the working directory is in the module of tests, the source should be the product's folder", func(t *testing.T) {
		g := NewWithT(t)
		source, err := filepath.Abs(filepath.Join("..", ".."))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(findSource(t.Context(), "")).To(Equal(source))
	})

	t.Run("When the working directory is elsewhere, AUTONODE_SOURCE should name the source", func(t *testing.T) {
		g := NewWithT(t)
		source := newSource(t)
		t.Chdir(t.TempDir())
		t.Setenv("AUTONODE_SOURCE", source)
		g.Expect(findSource(t.Context(), "")).To(Equal(source))
	})

	t.Run("When there is no source, it should say what to do, and a world without operator should start nevertheless", func(t *testing.T) {
		g := NewWithT(t)
		t.Chdir(t.TempDir())
		_, err := findSource(t.Context(), "")
		g.Expect(err).To(MatchError(errNoSource))
		cfg := Config{Dir: t.TempDir(), WithoutOperator: true}
		g.Expect(cfg.complete(t.Context())).To(Succeed())
		cfg.WithoutOperator = false
		g.Expect(cfg.complete(t.Context())).To(MatchError(ContainSubstring("--without-operator")))
	})

	t.Run("When AutoNode isn't to be there, a world should need no source, and take none", func(t *testing.T) {
		g := NewWithT(t)
		t.Chdir(t.TempDir())
		cfg := Config{Dir: t.TempDir(), WithoutAutoNode: true, Source: newSource(t)}
		g.Expect(cfg.complete(t.Context())).To(Succeed())
		g.Expect(cfg.Source).To(BeEmpty())
	})

	t.Run("When the folder named is another module's, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/other\n"), 0o600)).To(Succeed())
		_, err := findSource(t.Context(), dir)
		g.Expect(err).To(MatchError(ContainSubstring("isn't AutoNode's source")))
	})
}

func TestLayout(t *testing.T) {
	t.Run("When a world holds the folder, another should be refused until it has gone", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(Running(dir)).To(BeFalse())
		unlock, err := layout(dir).prepare()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(Running(dir)).To(BeTrue())
		_, err = layout(dir).prepare()
		g.Expect(err).To(MatchError(ContainSubstring("autonode-dev world down")))
		unlock()
		g.Expect(Running(dir)).To(BeFalse())
	})

	t.Run("When a world has gone, it should leave nothing but logs, those of pods included", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		l := layout(dir)
		podLog := filepath.Join(l.nodeAgent(), "logs", "pod", "0.log")
		for _, path := range []string{
			l.kubeconfig(Management), l.kubeconfig("blue"), l.state(), filepath.Join(l.clusters(), "blue", "ca.key"),
			filepath.Join(l.registry(), "blob"), podLog, l.log("etcd"),
		} {
			g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
			g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		}
		g.Expect(l.clean()).To(Succeed())
		var left []string
		g.Expect(filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				relative, _ := filepath.Rel(dir, path)
				left = append(left, relative)
			}
			return err
		})).To(Succeed())
		g.Expect(left).To(ConsistOf("logs/etcd.log", "logs/pods/pod/0.log"))
	})

	t.Run("When no world runs, stopping and reading it should say so", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(Down(context.Background(), dir)).To(MatchError(ErrNoWorld))
		_, err := ReadStatus(dir)
		g.Expect(err).To(MatchError(ErrNoWorld))
	})
}

func TestSummary(t *testing.T) {
	t.Run("When a world is shown, each cluster and the registry should have a line", func(t *testing.T) {
		g := NewWithT(t)
		state := State{PID: 1, Components: []Component{
			{Name: "blue-kube-apiserver", PID: 3, Address: "https://127.0.0.1:2", About: "Kubernetes v1.36.2"},
			{Name: "management-kube-apiserver", PID: 2, Address: "https://127.0.0.1:1", About: "Kubernetes v1.36.2"},
			{Name: "cluster-api", PID: 4, Address: "https://127.0.0.1:3", About: "Cluster API v1.14.2"},
			{Name: "bootstrap-kubeadm", PID: 5, Address: "https://127.0.0.1:4", About: "Cluster API v1.14.2"},
			{Name: "registry", PID: 1, Address: "127.0.0.1:5", About: "payloads"},
			{Name: "node agent", PID: 1},
		}}
		g.Expect(state.Summary()).To(Equal([]SummaryLine{
			{"management", "https://127.0.0.1:1", "Kubernetes v1.36.2, Cluster API v1.14.2, node agent"},
			{"blue", "https://127.0.0.1:2", "Kubernetes v1.36.2, no nodes"},
			{"registry", "127.0.0.1:5", "payloads"},
		}))
	})
}

func TestProcesses(t *testing.T) {
	t.Run("When a child's child runs, it should be found by its program's name", func(t *testing.T) {
		g := NewWithT(t)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "cat; true")
		input, err := cmd.StdinPipe()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmd.Start()).To(Succeed())
		defer func() { g.Expect(errors.Join(input.Close(), cmd.Wait())).To(Succeed()) }()
		g.Eventually(func() []string {
			var names []string
			for _, proc := range descendants(os.Getpid()) {
				names = append(names, programName(proc))
			}
			return names
		}).Should(ContainElements("sh", "cat"))
	})
	t.Run("When it is asked about itself, this process should be alive", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(alive(os.Getpid())).To(BeTrue())
	})
}
