// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
)

func TestReadFlags(t *testing.T) {
	for name, test := range map[string]struct {
		content, problem string
		want             []string
	}{
		"kubeadm has written flags, it should split them":      {`KUBELET_KUBEADM_ARGS="--a=b,c --register-with-taints=x=y:NoSchedule"` + "\n", "", []string{"--a=b,c", "--register-with-taints=x=y:NoSchedule"}},
		"flags aren't quoted, it should take them as they are": {"OTHER=1\nKUBELET_KUBEADM_ARGS=--a\n", "", []string{"--a"}},
		"there are none, it should have none":                  {"KUBELET_KUBEADM_ARGS=\n", "", []string{}},
		"the file is half written, it should say so":           {`KUBELET_KUBEADM_ARGS="--a`, "invalid syntax", nil},
		"the variable is missing, it should say so":            {"", "has no KUBELET_KUBEADM_ARGS", nil},
	} {
		t.Run("When "+name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "flags.env")
			g.Expect(os.WriteFile(path, []byte(test.content), 0o600)).To(Succeed())
			flags, err := readFlags(path, "KUBELET_KUBEADM_ARGS")
			if test.problem != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.problem)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(flags).To(Equal(test.want))
		})
	}
}

func TestWrite(t *testing.T) {
	t.Run("When a file is to be written and appended to, it should have both contents and the permissions", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "folder", "file")
		g.Expect(write(bootstrap.File{Path: path, Content: "a\n", Permissions: "0640"})).To(Succeed())
		g.Expect(write(bootstrap.File{Path: path, Content: "b\n", Permissions: "0600", Append: true})).To(Succeed())
		g.Expect(os.ReadFile(path)).To(BeEquivalentTo("a\nb\n"))
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	})
	for name, test := range map[string]struct {
		file bootstrap.File
		want string
	}{
		"an encoding isn't known":         {bootstrap.File{Encoding: "gzip"}, `encoding "gzip" isn't known`},
		"permissions are no number":       {bootstrap.File{Permissions: "rw"}, `permissions "rw" are no octal number`},
		"the owner doesn't exist":         {bootstrap.File{Owner: "nobody-of-that-name:root"}, "nobody-of-that-name"},
		"the owner's group doesn't exist": {bootstrap.File{Owner: "root:nobody-of-that-name"}, "nobody-of-that-name"},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			test.file.Path = filepath.Join(t.TempDir(), "file")
			NewWithT(t).Expect(write(test.file)).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestScript(t *testing.T) {
	t.Run("When commands are words and lines, it should quote the words only", func(t *testing.T) {
		NewWithT(t).Expect(shell([][]string{{"kubeadm join && echo 'done' > /x"}, {"echo", "it's", "$HOME"}})).To(Equal(
			"#!/bin/sh\nkubeadm join && echo 'done' > /x\n'echo' 'it'\\''s' '$HOME'\n"))
	})
}
