// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/fault"
	"github.com/autonode-io/autonode/test/world/pki"
)

const (
	// slowness is added to every request.
	slowness = 2 * time.Second
	// clients are who finds the guest behind the proxy at least: the operator and both Karpenters.
	clients = 3
	// caReload bounds how long a client of a CA file trusts the old one: client-go reads it every five minutes.
	caReload = 5*time.Minute + eventually
)

// TestGuestFaults: a guest's API server is slow, then known by another certificate. Nothing is restarted or disrupted for it. Meanwhile everybody finds
// the guest behind a proxy.
func TestGuestFaults(t *testing.T) {
	t.Parallel()
	c := acquireClusters(t, green)[0]
	c.disable(t, t.Context())
	proxy := c.proxyGuest(t)
	t.Cleanup(func() { // before the proxy ends, which Karpenter finds the guest by
		c.clear(t)
		c.disable(t, context.WithoutCancel(t.Context()))
	})
	c.enable(t, initialRelease)
	g := NewWithT(t)
	was := c.takeInventory(g, t.Context())
	c.endsSettled(t, initialRelease, was)
	c.runWeb(t, 2)
	karpenter, disrupted := c.karpenterContainers(g, t.Context()), c.watchDisruptions(t)

	t.Run("When every request takes two seconds, it should heal and launch all the same", func(t *testing.T) {
		proxy.Use(fault.Delay(slowness))
		defer proxy.Use(nil)
		g := NewWithT(t)
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		g.Expect(c.guest.Get(t.Context(), client.ObjectKey{Name: "managed.autonode.io"}, binding)).To(Succeed())
		deleted := binding.UID
		g.Expect(c.guest.Delete(t.Context(), binding)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
			g.Expect(binding.UID).NotTo(Equal(deleted))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.scale(t, "web", 3)
		c.waitRunning(t, "web")
		g.Expect(c.condition(g, t.Context(), v1beta1.GuestReachable).Status).To(Equal(metav1.ConditionTrue))
		c.waitSettled(t, initialRelease, was)
		g.Expect(proxy.Use(nil)).To(BeNumerically(">", 10), "requests that were slow")
	})

	t.Run("When its certificate is renewed, everybody should go on", func(t *testing.T) {
		NewWithT(t).Expect(proxy.Rotate(c.world.Guest(c.name).CA)).To(Succeed())
		c.scale(t, "web", 4)
		c.waitRunning(t, "web")
		c.waitSettled(t, initialRelease, was)
		NewWithT(t).Expect(proxy.Greeted()).To(BeNumerically(">=", clients), "connections that met the new certificate")
	})

	t.Run("When its authority is replaced, the operator should follow at once and Karpenter when it reads the file again", func(t *testing.T) {
		g := NewWithT(t)
		fresh, err := pki.NewAuthority(c.name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(proxy.Rotate(fresh)).To(Succeed())
		// Kubelets, which don't come by the proxy, know the old one.
		c.writeKubeconfig(t, proxy.URL, fresh, c.world.Guest(c.name).CA)
		g.Eventually(func(g Gomega, ctx context.Context) {
			secret := &corev1.Secret{}
			g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
			g.Expect(string(secret.Data["ca.crt"])).To(ContainSubstring(string(fresh.Certificate)))
			g.Expect(c.condition(g, ctx, v1beta1.GuestReachable).Status).To(Equal(metav1.ConditionTrue))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.scale(t, "web", 5)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodes(g, ctx)).To(HaveLen(5))
		}).WithContext(t.Context()).WithTimeout(caReload).WithPolling(time.Second).Should(Succeed())
		c.waitRunning(t, "web")
		g.Expect(proxy.Greeted()).To(BeNumerically(">=", clients), "connections that met the new authority's certificate")
	})
	g.Expect(c.karpenterContainers(g, t.Context())).To(Equal(karpenter), "nothing was restarted")
	expectUndisturbed(t, disrupted)
}
