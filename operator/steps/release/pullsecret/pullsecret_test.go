// SPDX-License-Identifier: Apache-2.0

package pullsecret

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestShrink(t *testing.T) {
	secretOf := func(config []byte) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "pull-secret", UID: "1", ResourceVersion: "2",
				Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: string(config)}},
			Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: config, "other": bytes.Repeat([]byte("x"), 900<<10)},
		}
	}

	t.Run("When a Secret has more than credentials, only those should be kept", func(t *testing.T) {
		g := NewWithT(t)
		config := bytes.Repeat([]byte("x"), maxBytes)
		kept, err := shrink(secretOf(config))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kept.Size()).To(BeNumerically("<", maxBytes+256))
		g.Expect(kept.Data).To(Equal(map[string][]byte{corev1.DockerConfigJsonKey: config}))
		g.Expect(kept.Namespace + "/" + kept.Name).To(Equal("clusters/pull-secret"))
	})

	t.Run("When a Secret has none, or too large ones, it should say what to do", func(t *testing.T) {
		g := NewWithT(t)
		_, err := shrink(secretOf(nil))
		g.Expect(IsInvalid(err).Error()).To(ContainSubstring("Secret clusters/pull-secret has no key .dockerconfigjson"))
		_, err = shrink(secretOf(bytes.Repeat([]byte("x"), maxBytes+1)))
		g.Expect(IsInvalid(err).Error()).To(ContainSubstring("has 65537 bytes, more than 65536; remove entries"))
	})
}
