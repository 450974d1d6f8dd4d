// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/cli/install"
	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/operator"
)

// newCommand returns the command line of a build for development.
func newCommand(path string) *cobra.Command {
	return NewCommand(path, "", "", install.Operator{CheckArguments: operator.CheckArguments, CheckSettings: operator.CheckSettings})
}

// run calls the program by a path.
func run(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand(path)
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestName(t *testing.T) {
	for name, test := range map[string]struct{ path, shown string }{
		"When it is called by its name, it should show that name":            {"autonode", "autonode"},
		"When it is called by a path, it should show its name":               {"/usr/local/bin/autonode", "autonode"},
		"When kubectl calls it, it should show kubectl's command":            {"/usr/local/bin/kubectl-autonode", "kubectl autonode"},
		"When kubectl calls it on Windows, it should show kubectl's command": {"kubectl-autonode.exe", "kubectl autonode"},
		"When it was renamed, it should show the new name":                   {"autonode-v0.1.0", "autonode-v0.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out, err := run(t, test.path, "release", "inspect", "--help")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("\n  " + test.shown + " release inspect IMAGE [flags]\n"))
			g.Expect(out).To(ContainSubstring("\n  " + test.shown + " release inspect registry.example/release:1.36.3\n"))
			_, err = run(t, test.path, "release", "inspect")
			g.Expect(err).To(MatchError(ContainSubstring("see `" + test.shown + " release inspect --help`")))
		})
	}
}

func TestVersion(t *testing.T) {
	want := about.New("autonode", "")
	t.Run("When its version is requested, the command and the flag should print the same", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(run(t, "autonode", "version")).To(Equal(want.String()))
		g.Expect(run(t, "autonode", "--version")).To(Equal(want.String()))
		g.Expect(run(t, "kubectl-autonode", "version")).To(Equal(want.String()))
	})
	t.Run("When a script needs it, it should print JSON or YAML", func(t *testing.T) {
		g := NewWithT(t)
		for _, format := range []string{"json", "yaml"} {
			out, err := run(t, "autonode", "version", "-o", format)
			g.Expect(err).NotTo(HaveOccurred())
			var got about.Info
			g.Expect(yaml.UnmarshalStrict([]byte(out), &got)).To(Succeed())
			g.Expect(got).To(Equal(want))
			g.Expect(json.Valid([]byte(out))).To(Equal(format == "json"))
		}
	})
}

func TestCompletion(t *testing.T) {
	t.Run("When a shell completes a command line, it should complete commands and values", func(t *testing.T) {
		g := NewWithT(t)
		for _, path := range []string{"autonode", "kubectl-autonode"} {
			g.Expect(run(t, path, "__complete", "rel")).To(HavePrefix("release\t"))
			g.Expect(run(t, path, "__complete", "release", "inspect", "-o", "")).To(HavePrefix("json\nyaml\nname\n"))
		}
	})
	t.Run("When a shell is set up, it should print the script for it", func(t *testing.T) {
		g := NewWithT(t)
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			g.Expect(run(t, "autonode", "completion", shell)).To(ContainSubstring("__complete"), shell)
		}
	})
}

// commands returns each command that runs something.
func commands(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var all []*cobra.Command
	for _, child := range cmd.Commands() {
		all = append(all, commands(child)...)
	}
	return all
}

func TestClusterFlags(t *testing.T) {
	for _, cmd := range commands(newCommand("autonode")) {
		if cmd.Flags().Lookup("kubeconfig") == nil {
			continue
		}
		t.Run("When "+cmd.CommandPath()+" reads a cluster, its flags should name which", func(t *testing.T) {
			g, named := NewWithT(t), 0
			for _, cluster := range []string{"management", "guest"} {
				if context := cmd.Flags().Lookup(cluster + "-context"); context != nil {
					named++
					g.Expect(context.Usage).To(HavePrefix("context of the " + cluster + " cluster; "))
					g.Expect(cmd.Flags().Lookup(cluster + "-kubeconfig")).NotTo(BeNil())
				}
			}
			g.Expect(named).To(BeNumerically(">", 0))
		})
	}
}

func TestOutputs(t *testing.T) {
	g, root := NewWithT(t), newCommand("autonode")
	for _, name := range []string{
		"check", "cost", "describe cluster", "history", "hosted-cluster create", "nodes", "offerings", "release inspect", "release new", "version", "why node", "why pod",
	} {
		t.Run("When autonode "+name+" prints what it has read, it should have the formats of all commands, and kubectl's error", func(t *testing.T) {
			g, args := NewWithT(t), strings.Fields(name)
			out, err := run(t, "autonode", append(append([]string{"__complete"}, args...), "--output", "")...)
			g.Expect(out, err).To(HavePrefix("json\nyaml\nname\nwide\n"))
			_, err = run(t, "autonode", append(args, "-o", "table")...)
			g.Expect(err).To(MatchError(HavePrefix(`unable to match a printer suitable for the output format "table", allowed formats are: json,yaml,name,wide`)))
		})
	}
	for _, cmd := range commands(root) {
		if parent := cmd.Parent(); parent.GroupID == "look" || cmd.GroupID == "look" {
			g.Expect(cmd.Flags().Lookup("output") != nil).To(Equal(cmd.Name() != "dump"), cmd.CommandPath())
		}
	}
}
