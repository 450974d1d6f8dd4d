// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	. "github.com/onsi/gomega"
)

func TestBuild(t *testing.T) {
	t.Run("When a release is built twice, in any order, it should have one digest", func(t *testing.T) {
		g := NewWithT(t)
		first, err := build(t, goodSpec()).Digest()
		g.Expect(err).NotTo(HaveOccurred())
		spec := goodSpec()
		spec.Components[0], spec.Components[1] = spec.Components[1], spec.Components[0]
		spec.Previous[0], spec.Previous[1] = spec.Previous[1], spec.Previous[0]
		second, err := build(t, spec).Digest()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).To(Equal(first))
	})

	t.Run("When a release is built, its unpacked content should be what it has always been", func(t *testing.T) {
		// The compressed digest may vary with Go's compressor; this one changes only when we change what a release holds.
		const golden = "sha256:727f15f3daded4578a7f5c2794bec0c6c9afe6dbcbe49e913a66e349ef9d11c7"
		g := NewWithT(t)
		layers, err := build(t, goodSpec()).Layers()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(layers).To(HaveLen(1))
		got, err := layers[0].DiffID()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.String()).To(Equal(golden))
	})

	t.Run("When a release is built, it should have no timestamps and say its version in a label", func(t *testing.T) {
		g := NewWithT(t)
		config, err := build(t, goodSpec()).ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Created.IsZero()).To(BeTrue())
		g.Expect(config.Config.Labels).To(Equal(map[string]string{LabelRelease: "1.36.3"}))
		g.Expect(config.OS + "/" + config.Architecture).To(Equal("linux/amd64"))
	})

	for name, c := range map[string]struct {
		change func(*Spec)
		want   string
	}{
		"When the version is none, it should say so":          {func(s *Spec) { s.Version = "latest" }, `building release latest: `},
		"When a previous version is none, it should say so":   {func(s *Spec) { s.Previous = []string{"x"} }, `previous version "x"`},
		"When a name has an underscore, it should say which":  {func(s *Spec) { s.Components[0].Name = "a_b" }, `component "a_b"`},
		"When a CRD is no YAML, it should name the component": {func(s *Spec) { s.Components[0].CRDs = [][]byte{[]byte("a: ]")} }, "component karpenter-clusterapi: "},
		"When a CRD is given twice, it should say which":      {func(s *Spec) { s.Components[0].CRDs = [][]byte{crd("as"), crd("as")} }, "as.karpenter.sh is given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := goodSpec()
			c.change(&spec)
			_, err := Build(spec)
			expectError(t, err, ReasonPayloadMalformed, c.want)
		})
	}
}

func TestPush(t *testing.T) {
	t.Run("When the credentials are missing, it should say so", func(t *testing.T) {
		s := newServer(t, &authn.Basic{Username: "a", Password: "b"})
		_, err := Push(t.Context(), s.host+"/release:1", build(t, goodSpec()), Options{})
		expectError(t, err, ReasonImagePullUnauthorized, "pushing "+s.host+"/release:1: 401")
	})
	t.Run("When the target is a digest of something else, it should say what the image's is", func(t *testing.T) {
		_, err := Push(t.Context(), other, build(t, goodSpec()), Options{})
		expectError(t, err, ReasonInvalidReference, "the image's digest is sha256:")
	})
	t.Run("When the target is no reference, it should say so", func(t *testing.T) {
		_, err := Push(t.Context(), "???", build(t, goodSpec()), Options{})
		expectError(t, err, ReasonInvalidReference, "pushing ???: ")
	})
}
