// SPDX-License-Identifier: Apache-2.0

package nodeimage

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const twoReleases = `[
	{"version": "1.36.3", "images": {"amd64": {"aws": {"us-east-1": "ami-36"}}}},
	{"version": "1.37.1", "images": {"amd64": {"aws": {"us-east-1": "ami-37", "eu-west-1": "ami-37e"}, "kwok": {"raw": "kwok-37"}}}}
]`

func write(t *testing.T, path, content string) {
	t.Helper()
	// At once, as the kubelet does.
	NewWithT(t).Expect(os.WriteFile(path+".new", []byte(content), 0o600)).To(Succeed())
	NewWithT(t).Expect(os.Rename(path+".new", path)).To(Succeed())
}

func TestFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.json")
	write(t, path, twoReleases)
	f := NewFile(path)
	for name, test := range map[string]struct {
		version, arch, infrastructure, variant, want string
	}{
		"When the version is the newest payload's, it should be that one's":             {"1.37.1", "amd64", "aws", "us-east-1", "ami-37"},
		"When nodes still run the former version, it should be the former one's":        {"v1.36.3", "amd64", "aws", "us-east-1", "ami-36"},
		"When nodes run another patch, it should be that of their minor version":        {"1.36.2", "amd64", "aws", "us-east-1", "ami-36"},
		"When nodes run a newer version than any, it should be the newest":              {"1.38.0", "amd64", "aws", "eu-west-1", "ami-37e"},
		"When every image is of a newer minor version, there should be none":            {"1.35.0", "amd64", "aws", "us-east-1", ""},
		"When there is one variant, it shouldn't have to be named":                      {"1.37.1", "amd64", "kwok", "", "kwok-37"},
		"When there are two variants, one has to be named":                              {"1.37.1", "amd64", "aws", "", ""},
		"When the architecture has none, there should be none":                          {"1.37.1", "arm64", "aws", "us-east-1", ""},
		"When the former release has none for the infrastructure, there should be none": {"1.36.3", "amd64", "kwok", "raw", ""},
		"When the version is none, there should be none":                                {"latest", "amd64", "aws", "us-east-1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := f.For(test.version, test.arch).Get(test.infrastructure, test.variant); got != test.want || ok != (test.want != "") {
				t.Errorf("got %q, %t; want %q", got, ok, test.want)
			}
		})
	}

	t.Run("When there is no file at all, there should be none", func(t *testing.T) {
		for _, f := range []*File{NewFile(""), NewFile(filepath.Join(t.TempDir(), "none.json"))} {
			if got, ok := f.For("1.36.3", "amd64").Get("aws", "us-east-1"); ok {
				t.Errorf("got %q", got)
			}
		}
	})
}

func TestForRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.json")
	write(t, path, `[
		{"version": "1.36.3", "release": "r@sha256:b", "images": {"amd64": {"aws": {"us-east-1": "ami-b"}}}},
		{"version": "1.36.3", "release": "r@sha256:a", "images": {"amd64": {"aws": {"us-east-1": "ami-a"}}}},
		{"version": "1.35.1", "images": {"amd64": {"aws": {"us-east-1": "ami-35"}}}}
	]`)
	f := NewFile(path)
	for name, test := range map[string]struct{ release, version, want string }{
		"When two releases have the version, it should be the named one's":                  {"r@sha256:a", "1.36.3", "ami-a"},
		"When the newer one is named, it should be that one's":                              {"r@sha256:b", "1.36.3", "ami-b"},
		"When no release is named, it should be the first one's":                            {"", "1.36.3", "ami-b"},
		"When the named release has none, it should be the first one's":                     {"r@sha256:c", "1.36.3", "ami-b"},
		"When the version's release isn't recorded, it should be that version's":            {"r@sha256:c", "1.35.1", "ami-35"},
		"When nodes of the release run another patch, it should be that of a minor version": {"r@sha256:a", "1.36.2", "ami-b"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := f.ForRelease(test.release, test.version, "amd64").Get("aws", "us-east-1")
			NewWithT(t).Expect(got).To(Equal(test.want))
		})
	}
}

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.json")
	f := NewFile(path)
	changed := make(chan struct{}, 10)
	f.OnChange(func() { changed <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	defer func() {
		cancel()
		NewWithT(t).Expect(<-done).To(Succeed())
	}()
	image := func() string { name, _ := f.For("1.36.3", "amd64").Get("aws", "us-east-1"); return name }
	wait := func() {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatal("no change was reported")
		}
	}

	t.Run("When the file appears, it should be read, and its readers be notified", func(t *testing.T) {
		write(t, path, twoReleases)
		wait()
		NewWithT(t).Expect(image()).To(Equal("ami-36"))
	})

	t.Run("When it becomes malformed, the images read before should stay until it is good again", func(t *testing.T) {
		for _, content := range []string{`{`, `[{"version": "new"}]`} {
			write(t, path, content)
			stopped, stop := context.WithCancel(ctx)
			stop()
			NewWithT(t).Expect(f.Start(stopped)).To(Succeed()) // it reads at once
			NewWithT(t).Expect(image()).To(Equal("ami-36"))
		}
		write(t, path, `[{"version": "1.36.3", "images": {"amd64": {"aws": {"us-east-1": "ami-36b"}}}}]`)
		wait()
		NewWithT(t).Expect(image()).To(Equal("ami-36b"))
	})
}
