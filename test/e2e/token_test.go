// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Story 8: Karpenter's token for the guest is renewed before it expires, and Karpenter doesn't restart for it.
func TestTokenRenewal(t *testing.T) {
	t.Run("When the token is near its expiry, it should be renewed, and Karpenter should not restart", func(t *testing.T) {
		c := take(t, blue)
		g := NewWithT(t)
		before := c.incarnations(g, t.Context())
		old := c.ageToken(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			secret := c.guestAccess(g, ctx)
			g.Expect(secret.Data["token"]).NotTo(Equal(old))
			expires, err := time.Parse(time.RFC3339, secret.Annotations[v1beta1.TokenExpiresAtAnnotation])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(time.Until(expires)).To(BeNumerically(">", 20*time.Minute))
		}).WithContext(t.Context()).WithTimeout(soon).WithPolling(interval).Should(Succeed())
		c.nodePool(t, "general")
		c.workload(t, "web", 1, "100m")
		c.waitRunning(t, "web")
		g.Expect(c.incarnations(g, t.Context())).To(Equal(before))
	})
}

func (c *cluster) guestAccess(g Gomega, ctx context.Context) *corev1.Secret { //nolint:revive // see hostedCluster
	secret := &corev1.Secret{}
	g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
	return secret
}

// ageToken puts a real token into the Secret that has only ten minutes left, the shortest that an API server gives, as
// if the operator hadn't run for most of an hour. It returns that token.
func (c *cluster) ageToken(t *testing.T) []byte {
	t.Helper()
	g := NewWithT(t)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: v1beta1.KarpenterComponent}}
	g.Expect(c.guest.SubResource("token").Create(t.Context(), account, request)).To(Succeed())
	secret := c.guestAccess(g, t.Context())
	original := secret.DeepCopy()
	secret.Data["token"] = []byte(request.Status.Token)
	secret.Annotations[v1beta1.TokenExpiresAtAnnotation] = request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339)
	g.Expect(c.management.Patch(t.Context(), secret, client.MergeFrom(original))).To(Succeed())
	return []byte(request.Status.Token)
}

// incarnation is one start of one pod.
type incarnation struct {
	pod      string
	restarts int32
}

func (c *cluster) incarnations(g Gomega, ctx context.Context) []incarnation { //nolint:revive // see hostedCluster
	var all []incarnation
	for _, pod := range c.karpenterPods(g, ctx) {
		g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
		all = append(all, incarnation{string(pod.UID), pod.Status.ContainerStatuses[0].RestartCount})
	}
	g.Expect(all).NotTo(BeEmpty())
	return all
}
