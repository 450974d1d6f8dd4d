// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
)

func TestWithKubeconfig(t *testing.T) {
	t.Run("When a shell has exported another KUBECONFIG, the world's should be the only one", func(t *testing.T) {
		g := NewWithT(t)
		environment := withKubeconfig([]string{"HOME=/root", "KUBECONFIG=/management", "KUBECONFIG_OTHER=x"}, "/blue")
		g.Expect(environment).To(Equal([]string{"HOME=/root", "KUBECONFIG_OTHER=x", "KUBECONFIG=/blue"}))
		// As a program sees it, which takes the first of two.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo $KUBECONFIG")
		cmd.Env = environment
		out, err := cmd.Output()
		g.Expect(string(out), err).To(Equal("/blue\n"))
	})
}

func TestAttachedArgs(t *testing.T) {
	t.Run("When a world is detached, its process should get every other flag", func(t *testing.T) {
		g := NewWithT(t)
		parse := func(args ...string) map[string]string {
			dir, values := "", map[string]string{}
			cmd := newWorldUpCommand(&dir)
			addDirFlag(cmd.Flags(), &dir)
			g.Expect(cmd.ParseFlags(args)).To(Succeed())
			cmd.Flags().VisitAll(func(flag *pflag.Flag) { values[flag.Name] = flag.Value.String() })
			return values
		}
		dir := ""
		cmd := newWorldUpCommand(&dir)
		addDirFlag(cmd.Flags(), &dir)
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			value := map[string]string{"bool": "true", "string": "other", "stringSlice": "blue,green"}[flag.Value.Type()]
			g.Expect(cmd.Flags().Set(flag.Name, value)).To(Succeed(), flag.Name)
		})
		want := map[string]string{}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { want[flag.Name] = flag.Value.String() })
		want["detach"] = "false"
		args := attachedArgs(cmd.Flags())
		g.Expect(args[:2]).To(Equal([]string{"world", "up"}))
		g.Expect(parse(args[2:]...)).To(Equal(want))
		g.Expect(want).To(HaveKeyWithValue("next-minor", "true"))
	})
}
