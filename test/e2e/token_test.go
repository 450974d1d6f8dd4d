// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Story 8: Karpenter's token for the guest is renewed before it expires, and Karpenter doesn't restart for it.
func TestTokenRenewal(t *testing.T) {
	t.Parallel()
	t.Run("When the token is near its expiry, it should be renewed, and Karpenter should not restart", func(t *testing.T) {
		c := take(t, amber)
		g := NewWithT(t)
		before := c.incarnations(g, t.Context())
		old := c.ageToken(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			secret := c.guestAccess(g, ctx)
			g.Expect(secret.Data["token"]).NotTo(Equal(old))
			expires, err := time.Parse(time.RFC3339, secret.Annotations[v1beta1.TokenExpiresAtAnnotation])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(time.Until(expires)).To(BeNumerically(">", 20*time.Minute))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.nodePool(t, "general")
		c.workload(t, "web", 1, "100m")
		c.waitRunning(t, "web")
		g.Expect(c.incarnations(g, t.Context())).To(Equal(before))
	})
}

func (c *cluster) guestAccess(g Gomega, ctx context.Context) *corev1.Secret {
	secret := &corev1.Secret{}
	g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
	return secret
}

// ageToken puts a token into the Secret that is the old one but for its age: issued 50 minutes ago, with ten left, as if the
// operator hadn't run meanwhile. It is signed with the guest's own key, so Karpenter can use it. It returns that token.
func (c *cluster) ageToken(t *testing.T) []byte {
	t.Helper()
	g := NewWithT(t)
	secret := c.guestAccess(g, t.Context())
	original := secret.DeepCopy()
	expires := time.Now().Add(10 * time.Minute)
	aged := c.sign(t, secret.Data["token"], map[string]int64{
		"iat": expires.Add(-time.Hour).Unix(), "nbf": expires.Add(-time.Hour).Unix(), "exp": expires.Unix(),
	})
	secret.Data["token"] = aged
	secret.Annotations[v1beta1.TokenExpiresAtAnnotation] = expires.UTC().Format(time.RFC3339)
	g.Expect(c.management.Patch(t.Context(), secret, client.MergeFrom(original))).To(Succeed())

	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(aged)}}
	g.Expect(c.guest.Create(t.Context(), review)).To(Succeed())
	g.Expect(review.Status.Authenticated).To(BeTrue(), "the guest has to accept the aged token: %s", review.Status.Error)
	return aged
}

// sign returns a token with other claims, signed with the guest's key (ES256, RFC 7518).
func (c *cluster) sign(t *testing.T, token []byte, change map[string]int64) []byte {
	t.Helper()
	g := NewWithT(t)
	parts := strings.Split(string(token), ".")
	g.Expect(parts).To(HaveLen(3))
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	g.Expect(err).NotTo(HaveOccurred())
	claims := map[string]any{}
	g.Expect(json.Unmarshal(payload, &claims)).To(Succeed())
	for name, value := range change {
		claims[name] = value
	}
	payload, err = json.Marshal(claims)
	g.Expect(err).NotTo(HaveOccurred())

	encoded, err := world.Guest(c.name).SigningKey()
	g.Expect(err).NotTo(HaveOccurred())
	key, err := keyutil.ParsePrivateKeyPEM(encoded)
	g.Expect(err).NotTo(HaveOccurred())
	signing, ok := key.(*ecdsa.PrivateKey)
	g.Expect(ok).To(BeTrue(), "%T", key)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, signing, digest[:])
	g.Expect(err).NotTo(HaveOccurred())
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return []byte(signed + "." + base64.RawURLEncoding.EncodeToString(signature))
}

// incarnation is one start of one pod.
type incarnation struct {
	pod      string
	restarts int32
}

func (c *cluster) incarnations(g Gomega, ctx context.Context) []incarnation {
	var all []incarnation
	for _, pod := range c.karpenterPods(g, ctx) {
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		all = append(all, incarnation{string(pod.UID), pod.Status.ContainerStatuses[0].RestartCount})
	}
	g.Expect(all).NotTo(BeEmpty())
	return all
}
