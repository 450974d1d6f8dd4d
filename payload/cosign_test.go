// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"flag"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/payload/payloadtest"
)

var cosign = flag.String("cosign", "", "a cosign program, to rewrite what testdata/cosign has of it")

// tagName is the annotation of an OCI layout that has an image's tag.
const tagName = "org.opencontainers.image.ref.name"

// signings are the ways in which cosign signs with a key, each in a registry of its own.
var signings = []struct {
	name      string
	referrers bool // whether the registry has that API
	flags     []string
}{
	{"bundle", true, nil},
	{"bundle-without-referrers", false, nil},
	{"signature", false, []string{"--new-bundle-format=false"}},
}

// serve starts a registry.
func serve(t *testing.T, referrers bool) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(referrers)))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/release"
}

// TestCosign reads what a real cosign wrote.
func TestCosign(t *testing.T) {
	folder := filepath.Join("testdata", "cosign")
	key := filepath.Join(folder, "cosign.pub")
	if *cosign != "" {
		recordKey(t, folder)
	}
	for _, signing := range signings {
		path := filepath.Join(folder, signing.name)
		if *cosign != "" {
			record(t, folder, path, signing.referrers, signing.flags)
		}
		t.Run("When cosign signed a payload ("+signing.name+"), it should accept its key and no other", func(t *testing.T) {
			g := NewWithT(t)
			repository := serve(t, signing.referrers)
			digest := restore(t, path, repository)
			public, err := os.ReadFile(key)
			g.Expect(err).NotTo(HaveOccurred())
			trusted, err := NewVerifier(public, nil, true)
			g.Expect(err).NotTo(HaveOccurred())
			release, err := Read(t.Context(), repository+":1.36.3", Options{Verifier: trusted})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(release.Digest).To(Equal(digest))
			g.Expect(release.Unverified).To(BeEmpty())
			_, err = Read(t.Context(), repository+":1.36.3", Options{Verifier: verifier(t, true, payloadtest.Key(t))})
			expectError(t, err, ReasonPayloadUnsigned, untrustedBy)
		})
	}
}

// restore pushes an OCI layout, and returns the digest of the payload.
func restore(t *testing.T, path, repository string) string {
	t.Helper()
	g := NewWithT(t)
	index, err := layout.ImageIndexFromPath(path)
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := index.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	to, err := name.NewRepository(repository)
	g.Expect(err).NotTo(HaveOccurred())
	digest := ""
	for _, d := range manifest.Manifests {
		tag := d.Annotations[tagName]
		if tag == "1.36.3" {
			digest = d.Digest.String()
		}
		ref := name.Reference(to.Digest(d.Digest.String()))
		if tag != "" {
			ref = to.Tag(tag)
		}
		if d.MediaType.IsIndex() {
			list, err := index.ImageIndex(d.Digest)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(remote.WriteIndex(ref, list)).To(Succeed())
			continue
		}
		image, err := index.Image(d.Digest)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remote.Write(ref, image)).To(Succeed())
	}
	return digest
}

func runCosign(t *testing.T, folder string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), *cosign, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=")
	out, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// recordKey writes a new pair of keys.
func recordKey(t *testing.T, folder string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(os.RemoveAll(folder)).To(Succeed())
	g.Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
	runCosign(t, folder, "generate-key-pair")
	about, err := exec.CommandContext(t.Context(), *cosign, "version").Output()
	g.Expect(err).NotTo(HaveOccurred())
	_, version, found := strings.Cut(string(about), "GitVersion:")
	g.Expect(found).To(BeTrue(), "%s", about)
	version, _, _ = strings.Cut(version, "\n")
	g.Expect(os.WriteFile(filepath.Join(folder, "version.txt"), []byte("cosign "+strings.TrimSpace(version)+"\n"), 0o600)).To(Succeed())
	t.Cleanup(func() { g.Expect(os.Remove(filepath.Join(folder, "cosign.key"))).To(Succeed()) })
}

// record signs a payload and writes all that its repository has then into an OCI layout.
func record(t *testing.T, folder, path string, referrers bool, flags []string) {
	t.Helper()
	g := NewWithT(t)
	to, err := name.NewRepository(serve(t, referrers))
	g.Expect(err).NotTo(HaveOccurred())
	image := build(t, Spec{Version: "1.36.3", Components: []ComponentSpec{{
		Name: "karpenter-clusterapi", Image: "registry.example/karpenter-clusterapi@sha256:" + strings.Repeat("0", 64),
		Versions: map[string]string{KubernetesVersion: "1.36.3"},
	}}})
	g.Expect(remote.Write(to.Tag("1.36.3"), image)).To(Succeed())
	digest, err := image.Digest()
	g.Expect(err).NotTo(HaveOccurred())
	args := append([]string{"sign", "--yes", "--key=cosign.key", "--use-signing-config=false", "--tlog-upload=false"}, flags...)
	runCosign(t, folder, append(args, to.Digest(digest.String()).Name())...)

	written, err := layout.Write(path, empty.Index)
	g.Expect(err).NotTo(HaveOccurred())
	add := func(ref name.Reference, options ...layout.Option) {
		t.Helper()
		got, err := remote.Get(ref)
		g.Expect(err).NotTo(HaveOccurred())
		if got.MediaType.IsIndex() {
			index, err := got.ImageIndex()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(written.AppendIndex(index, options...)).To(Succeed())
			return
		}
		image, err := got.Image()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(written.AppendImage(image, options...)).To(Succeed())
	}
	tags, err := remote.List(to)
	g.Expect(err).NotTo(HaveOccurred())
	for _, tag := range tags {
		add(to.Tag(tag), layout.WithAnnotations(map[string]string{tagName: tag}))
	}
	list, err := remote.Referrers(to.Digest(digest.String()))
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := list.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	for _, d := range manifest.Manifests {
		if referrers {
			add(to.Digest(d.Digest.String()))
		}
	}
}
