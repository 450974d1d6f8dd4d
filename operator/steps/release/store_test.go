// SPDX-License-Identifier: Apache-2.0

package release

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/payload"
)

// large is a release that is hard to compress, of about that many bytes.
func large(g Gomega, bytes int) *payload.Release {
	content := make([]byte, bytes/2)
	_, err := rand.Read(content)
	g.Expect(err).NotTo(HaveOccurred())
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "a.b", Annotations: map[string]string{"x": hex.EncodeToString(content)}}}
	return &payload.Release{Version: "1.36.3", Image: "registry.example/release@sha256:1", Components: map[string]payload.Component{
		"karpenter": {Name: "karpenter", CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}},
	}}
}

func key(i int) cacheKey {
	return cacheKey{digest: fmt.Sprintf("sha256:%d", i), component: "karpenter"}
}

func TestStore(t *testing.T) {
	t.Run("When two hundred payloads are in use, none should be pulled again", func(t *testing.T) {
		g := NewWithT(t)
		s, release := newStore(), large(g, 50<<10)
		for i := range 200 {
			g.Expect(s.add(key(i), "clusters", release)).To(Succeed())
		}
		for i := range 200 {
			found := s.get(key(i))
			g.Expect(found).NotTo(BeNil(), "%d", i)
			g.Expect(found.Components["karpenter"].CRDs).To(HaveLen(1))
		}
	})

	t.Run("When a payload was packed, what comes back should say the same", func(t *testing.T) {
		g := NewWithT(t)
		release := large(g, 1000)
		packed, err := release.Pack()
		g.Expect(err).NotTo(HaveOccurred())
		unpacked, err := packed.Release()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(unpacked.Components["karpenter"].CRDs).To(Equal(release.Components["karpenter"].CRDs))
		_, err = unpacked.Components["karpenter"].NodeVersion()
		g.Expect(err).To(MatchError(ContainSubstring(release.Image)))
	})

	t.Run("When a namespace has ever more payloads, it should lose its own, and all of them stay within its share", func(t *testing.T) {
		g := NewWithT(t)
		s := newShares(100, 20)
		s.add(key(-1), "victim", "x", 1)
		for i := range 30 {
			s.add(key(i), "hostile", i, 7)
		}
		g.Expect(s.by).To(Equal(map[string]int64{"victim": 1, "hostile": 14}))
		for i, want := range map[int]bool{-1: true, 29: true, 28: true, 27: false, 0: false} {
			_, found := s.get(key(i))
			g.Expect(found).To(Equal(want), "%d", i)
		}
		s.add(key(30), "hostile", 30, 21)
		_, found := s.get(key(30))
		g.Expect(found).To(BeFalse(), "it is larger than the share")
	})

	t.Run("When many namespaces have much, those with the most should lose something, and the whole stay within its bound", func(t *testing.T) {
		g := NewWithT(t)
		s := newShares(100, 20)
		s.add(key(-1), "victim", "x", 1)
		for i := range 60 {
			s.add(key(i), fmt.Sprintf("hostile-%d", i%15), i, 7)
		}
		_, found := s.get(key(-1))
		g.Expect(found).To(BeTrue())
		g.Expect(s.used).To(BeNumerically("<=", 100))
		g.Expect(s.byKey).To(HaveLen(s.order.Len()))
	})

	t.Run("When a payload is decoded no more, it should be unpacked and not pulled", func(t *testing.T) {
		g := NewWithT(t)
		s := newStore()
		g.Expect(s.add(key(0), "clusters", large(g, 1000))).To(Succeed())
		s.decoded = newShares(decodedBytes, decodedShare)
		g.Expect(s.get(key(0))).NotTo(BeNil())
		g.Expect(s.decoded.order.Len()).To(Equal(1))
	})

	t.Run("When a payload is larger than is worth keeping, it should be refused as too large", func(t *testing.T) {
		g := NewWithT(t)
		err := newStore().add(key(0), "hostile", large(g, 10<<20))
		g.Expect(payload.ReasonFor(err)).To(Equal(payload.ReasonPayloadTooLarge))
		err = newStore().add(key(0), "hostile", large(g, 17<<20))
		g.Expect(payload.ReasonFor(err)).To(Equal(payload.ReasonPayloadTooLarge))
	})
}
