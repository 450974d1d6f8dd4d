// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// TestBootstrap: who renders a machine's bootstrap data. Karpenter does by default, with the library of Cluster API's bootstrap provider; a platform
// can leave it to the provider. A node is the same either way.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, violet)
	g := NewWithT(t)
	c.nodePool(t, "boot", require(corev1.LabelInstanceTypeStable, "c2-small"), require(corev1.LabelTopologyZone, "a"))

	c.workload(t, "web", 1, "500m", apart, onPool("boot"))
	c.waitRunning(t, "web")
	rendered := c.onlyMachine(t, "boot", nil)
	t.Run("When Karpenter renders, a machine should have a Secret and no bootstrap config", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(rendered.Spec.Bootstrap.ConfigRef.IsDefined()).To(BeFalse())
		g.Expect(*rendered.Spec.Bootstrap.DataSecretName).To(HavePrefix(v1alpha1.BootstrapSecretPrefix))
	})

	template := &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: hosting.BootstrapTemplate}}
	c.annotate(g, t.Context(), template, v1alpha1.BootstrapDataAnnotation, v1alpha1.BootstrapDataFromProvider)
	t.Cleanup(func() {
		c.unannotate(NewWithT(t), context.WithoutCancel(t.Context()), template, v1alpha1.BootstrapDataAnnotation)
	})

	t.Run("When the platform leaves it to the provider, a machine should have a bootstrap config, and the same data", func(t *testing.T) {
		g := NewWithT(t)
		c.scale(t, "web", 2)
		c.waitRunning(t, "web")
		provided := c.onlyMachine(t, "boot", rendered)
		g.Expect(provided.Spec.Bootstrap.ConfigRef.Kind).To(Equal("KubeadmConfig"))
		g.Expect(c.bootstrapData(t, provided)).To(Equal(c.bootstrapData(t, rendered)))
	})

	t.Run("When a machine goes whose data Karpenter rendered, its Secret should go with it", func(t *testing.T) {
		g := NewWithT(t)
		c.scale(t, "web", 0)
		g.Eventually(func(g Gomega, ctx context.Context) {
			secret := &metav1.PartialObjectMetadata{}
			secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
			err := c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: *rendered.Spec.Bootstrap.DataSecretName}, secret)
			g.Expect(client.IgnoreNotFound(err)).To(Succeed())
			g.Expect(err).To(HaveOccurred(), "the Secret is still there")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}

// onlyMachine is a NodePool's Machine beside another.
func (c *cluster) onlyMachine(t *testing.T, pool string, other *clusterv1.Machine) *clusterv1.Machine {
	t.Helper()
	g := NewWithT(t)
	var found []*clusterv1.Machine
	for _, name := range c.machinesOf(g, t.Context(), pool) {
		m := &clusterv1.Machine{}
		g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: name}, m)).To(Succeed())
		if other == nil || m.UID != other.UID {
			found = append(found, m)
		}
	}
	g.Expect(found).To(HaveLen(1))
	return found[0]
}

// bootstrapData is what a machine boots with, but for the token that it joins with.
func (c *cluster) bootstrapData(t *testing.T, m *clusterv1.Machine) map[string]string {
	t.Helper()
	g := NewWithT(t)
	secret := &corev1.Secret{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: *m.Spec.Bootstrap.DataSecretName}, secret)).To(Succeed())
	id := m.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
	_, after, found := strings.Cut(string(secret.Data["value"]), id+".")
	g.Expect(found).To(BeTrue(), "Secret %s has no token %s", secret.Name, id)
	token := id + "." + after[:16]
	data := map[string]string{}
	for key, value := range secret.Data {
		data[key] = strings.ReplaceAll(string(value), token, "TOKEN")
	}
	return data
}
