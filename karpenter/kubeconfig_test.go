// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/karpenter/operator"
)

// mount writes a file as the kubelet mounts a Secret's: by links, of which it replaces one.
func mount(t *testing.T, dir, version, content string) (file string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(os.Mkdir(filepath.Join(dir, version), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, version, "kubeconfig"), []byte(content), 0o600)).To(Succeed())
	g.Expect(os.Symlink(version, filepath.Join(dir, "..data_tmp"))).To(Succeed())
	g.Expect(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))).To(Succeed())
	file = filepath.Join(dir, "kubeconfig")
	if _, err := os.Lstat(file); errors.Is(err, os.ErrNotExist) {
		g.Expect(os.Symlink(filepath.Join("..data", "kubeconfig"), file)).To(Succeed())
	}
	return file
}

func content(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(kubeconfigFile(t, name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(raw)
}

func TestKubeconfig(t *testing.T) {
	// follow starts what Run starts for the options, and returns what ends the program.
	follow := func(t *testing.T, opts operator.Options) <-chan error {
		t.Helper()
		g := NewWithT(t)
		ended := make(chan error, 10)
		files, err := kubeconfigs(opts, func(err error) { ended <- err })
		g.Expect(err).NotTo(HaveOccurred())
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, len(files))
		for _, file := range files {
			go func() { done <- file.Start(ctx) }()
		}
		t.Cleanup(func() {
			stop()
			for range files {
				g.Expect(<-done).To(Succeed())
			}
		})
		return ended
	}
	for name, tc := range map[string]struct {
		options func(file string) operator.Options
		env     bool
	}{
		"When the guest's kubeconfig is replaced, it should end to be started with the new one":            {func(file string) operator.Options { return operator.Options{GuestKubeconfig: file} }, false},
		"When management's kubeconfig is replaced, it should end to be started with the new one":           {func(file string) operator.Options { return operator.Options{ManagementKubeconfig: file} }, false},
		"When KUBECONFIG leads to a cluster and is replaced, it should end to be started with the new one": {func(string) operator.Options { return operator.Options{} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			file := mount(t, dir, "1", content(t, "before"))
			t.Setenv("KUBECONFIG", "")
			if tc.env {
				t.Setenv("KUBECONFIG", file)
			}
			ended := follow(t, tc.options(file))
			mount(t, dir, "2", content(t, "after"))
			g.Eventually(ended).Should(Receive(And(MatchError(ErrKubeconfigChanged), MatchError(ContainSubstring(file)))))
		})
	}
	t.Run("When the file is written again as it was, or can't be used, it should go on", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv("KUBECONFIG", "")
		dir := t.TempDir()
		before := content(t, "before")
		file := mount(t, dir, "1", before)
		ended := follow(t, operator.Options{GuestKubeconfig: file})
		mount(t, dir, "2", before)
		mount(t, dir, "3", "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n")
		mount(t, dir, "4", "")
		g.Consistently(ended).WithTimeout(500 * time.Millisecond).ShouldNot(Receive())
		mount(t, dir, "5", content(t, "after"))
		g.Eventually(ended).Should(Receive(MatchError(ErrKubeconfigChanged)))
	})
	t.Run("When it changed after it was read and before it was followed, it should end all the same", func(t *testing.T) {
		g := NewWithT(t)
		t.Setenv("KUBECONFIG", "")
		dir := t.TempDir()
		file := mount(t, dir, "1", content(t, "before"))
		ended := make(chan error, 10)
		files, err := kubeconfigs(operator.Options{GuestKubeconfig: file}, func(err error) { ended <- err })
		g.Expect(err).NotTo(HaveOccurred())
		mount(t, dir, "2", content(t, "after"))
		ctx, stop := context.WithCancel(t.Context())
		stop()
		g.Expect(files).To(HaveLen(1))
		g.Expect(files[0].Start(ctx)).To(Succeed())
		g.Expect(ended).To(Receive(MatchError(ErrKubeconfigChanged)))
	})
}

func TestForeignKubeconfig(t *testing.T) {
	const head = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"%s}}],"users":[{"name":"u","user":{%s}}]}`
	for name, tc := range map[string]struct{ cluster, user, want string }{
		"When the guest's kubeconfig names files beside it, it should be used":             {`,"certificate-authority":"ca.crt"`, `"tokenFile":"token"`, ""},
		"When it names the program's own token, it should be refused":                      {"", `"tokenFile":"/var/run/secrets/kubernetes.io/serviceaccount/token"`, "names a file outside of"},
		"When it names a file in a directory above, it should be refused":                  {"", `"tokenFile":"../token"`, "names a file outside of"},
		"When it names a device as key, it should be refused":                              {"", `"client-certificate":"/dev/zero","client-key":"/dev/zero"`, "names a file outside of"},
		"When it names an authority elsewhere, it should be refused":                       {`,"certificate-authority":"/dev/zero"`, "", "names a file outside of"},
		"When it names a program, it should be refused, and the program should not be run": {"", `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/false","interactiveMode":"Never"}`, "exec and auth-provider"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			file := filepath.Join(t.TempDir(), "kubeconfig")
			g.Expect(os.WriteFile(file, fmt.Appendf(nil, head, tc.cluster, tc.user), 0o600)).To(Succeed())
			_, err := kubeconfigs(operator.Options{GuestKubeconfig: file, ManagementKubeconfig: file}, func(error) {})
			if tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
			}
		})
	}
}
