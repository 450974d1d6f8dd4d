// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	. "github.com/onsi/gomega"
)

func start(t *testing.T) *Registry {
	t.Helper()
	r, err := Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRegistry(t *testing.T) {
	t.Run("When the password is wrong or missing, it should answer 401", func(t *testing.T) {
		g := NewWithT(t)
		r := start(t)
		ref, err := r.Push(t.Context(), "autonode/operator:dev", empty.Image)
		g.Expect(err).NotTo(HaveOccurred())
		reference, err := name.ParseReference(ref)
		g.Expect(err).NotTo(HaveOccurred())
		for _, auth := range []authn.Authenticator{authn.Anonymous, &authn.Basic{Username: "world", Password: "wrong"}} {
			_, err := remote.Image(reference, remote.WithAuth(auth), remote.WithContext(t.Context()))
			var status *transport.Error
			g.Expect(errors.As(err, &status)).To(BeTrue(), "%v", err)
			g.Expect(status.StatusCode).To(Equal(http.StatusUnauthorized))
		}
	})

	t.Run("When there is an outage, it should refuse everything until that ends", func(t *testing.T) {
		g := NewWithT(t)
		r := start(t)
		get := func() int {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Host()+"/v2/", nil)
			g.Expect(err).NotTo(HaveOccurred())
			req.SetBasicAuth(r.Credentials())
			resp, err := http.DefaultClient.Do(req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(resp.Body.Close()).To(Succeed())
			return resp.StatusCode
		}
		r.SetOutage(true)
		g.Expect(get()).To(Equal(http.StatusServiceUnavailable))
		g.Expect(r.SetOutage(false)).To(Equal(1), "refused")
		g.Expect(get()).To(Equal(http.StatusOK))
	})

	t.Run("When its context ends, it should free its port", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := Start(ctx, t.TempDir())
		g.Expect(err).NotTo(HaveOccurred())
		cancel()
		g.Expect(r.Close()).To(Succeed())
		g.Expect(r.Close()).To(Succeed())
		listener, err := net.Listen("tcp", r.Host())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(listener.Close()).To(Succeed())
	})
}

// program builds a small static program.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

func TestPackProgram(t *testing.T) {
	binary := program(t)

	t.Run("When it is packed twice, it should have one digest", func(t *testing.T) {
		g := NewWithT(t)
		digests := map[v1.Hash]bool{}
		for range 2 {
			img, err := PackProgram(binary, "autonode-operator", nil)
			g.Expect(err).NotTo(HaveOccurred())
			digest, err := img.Digest()
			g.Expect(err).NotTo(HaveOccurred())
			digests[digest] = true
		}
		g.Expect(digests).To(HaveLen(1))
	})

	t.Run("When the binary changes before the push, it should refuse to push it", func(t *testing.T) {
		g := NewWithT(t)
		r := start(t)
		changing := filepath.Join(t.TempDir(), "changing")
		content, err := os.ReadFile(binary)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(changing, content, 0o700)).To(Succeed())
		img, err := PackProgram(changing, "autonode-operator", nil)
		g.Expect(err).NotTo(HaveOccurred())
		content[len(content)-1]++
		g.Expect(os.WriteFile(changing, content, 0o700)).To(Succeed())
		_, err = r.Push(t.Context(), "autonode/operator:dev", img)
		g.Expect(err).To(MatchError(ContainSubstring("its content has changed")))
	})

	for name, c := range map[string]struct{ binary, entrypoint, want string }{
		"When there is no such file, it should say so":                        {"/nowhere/at-all", "operator", "no such file"},
		"When the file is no program, it should say so":                       {"registry_test.go", "operator", "bad magic number"},
		"When the entrypoint is a path, it should say that it must be a name": {binary, "bin/operator", "must be a file's name"},
		"When there is no entrypoint, it should say so":                       {binary, "", "must be a file's name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := PackProgram(c.binary, c.entrypoint, nil)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}
