// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/assets/manifest"
)

func TestDecode(t *testing.T) {
	t.Run("When a caller changes what it got, others should get what is embedded", func(t *testing.T) {
		g := NewWithT(t)
		data := []byte("metadata: {name: one, labels: {a: b}}")
		first, err := manifest.Decode(data, &corev1.ServiceAccount{})
		g.Expect(err).NotTo(HaveOccurred())
		var others sync.WaitGroup
		for range 4 {
			others.Go(func() {
				other, err := manifest.Decode(data, &corev1.ServiceAccount{})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(other.Labels).To(Equal(map[string]string{"a": "b"}))
				other.Labels["a"] = "mine"
			})
		}
		first.Labels["a"] = "mine"
		others.Wait()
		again, err := manifest.Decode(data, &corev1.ServiceAccount{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.Labels).To(Equal(map[string]string{"a": "b"}))
	})

	t.Run("When the same text is decoded as two kinds, it should be both", func(t *testing.T) {
		g := NewWithT(t)
		data := []byte("metadata: {name: two}")
		_, err := manifest.Decode(data, &corev1.ServiceAccount{})
		g.Expect(err).NotTo(HaveOccurred())
		secret, err := manifest.Decode(data, &corev1.Secret{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(secret.Name).To(Equal("two"))
	})

	t.Run("When a field doesn't exist, it should say so each time", func(t *testing.T) {
		g := NewWithT(t)
		for range 2 {
			_, err := manifest.Decode([]byte("metadata: {nam: one}"), &corev1.ServiceAccount{})
			g.Expect(err).To(MatchError(ContainSubstring("nam")))
		}
	})
}
