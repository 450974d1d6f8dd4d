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
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
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

	t.Run("When a node class sets every field of kubelets, its nodes should have them, and what Karpenter planned with", c.kubeletSettings)

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

// kubeletSettings sets each field of a node class's spec.kubelet, and then changes one.
func (c *cluster) kubeletSettings(t *testing.T) {
	g := NewWithT(t)
	const name = "kubelets"
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: c.defaultClass(g, t.Context()).Spec}
	class.Spec.Kubelet = &v1alpha1.KubeletConfiguration{
		ClusterDNS: []string{"10.96.0.10", "fd00::a"}, MaxPods: new(int32(60)), PodsPerCore: new(int32(10)),
		KubeReserved:            map[string]v1alpha1.ReservedQuantity{"cpu": "100m", "memory": "128Mi"},
		SystemReserved:          map[string]v1alpha1.ReservedQuantity{"cpu": "50m", "ephemeral-storage": "1Gi", "pid": "1000"},
		EvictionHard:            map[string]v1alpha1.EvictionThreshold{"memory.available": "200Mi", "nodefs.available": "10%"},
		EvictionSoft:            map[string]v1alpha1.EvictionThreshold{"memory.available": "500Mi", "nodefs.available": "15%"},
		EvictionSoftGracePeriod: map[string]v1alpha1.EvictionGracePeriod{"memory.available": "1m30s", "nodefs.available": "2m"}, EvictionMaxPodGracePeriod: new(int32(60)),
		ImageGCHighThresholdPercent: new(int32(75)), ImageGCLowThresholdPercent: new(int32(65)), CPUCFSQuota: new(false), PodPidsLimit: new(int64(4096)),
	}
	g.Expect(class.Spec.Kubelet.Fields()).To(Equal(v1alpha1.KubeletFields))
	g.Expect(c.guest.Create(t.Context(), class)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), class))).To(Succeed())
	})
	c.nodePool(t, name, require(corev1.LabelInstanceTypeStable, "c2-small"), require(corev1.LabelTopologyZone, "a"), func(pool *karpv1.NodePool) {
		pool.Spec.Template.Spec.NodeClassRef.Name = name
	})
	c.workload(t, name, 1, "500m", onPool(name))
	c.waitRunning(t, name)

	settings := func(podMaxPids string) string {
		return "cluster-dns=10.96.0.10,fd00::a cpu-cfs-quota=false eviction-max-pod-grace-period=60" +
			" eviction-soft=memory.available<500Mi,nodefs.available<15% eviction-soft-grace-period=memory.available=1m30s,nodefs.available=2m" +
			" image-gc-high-threshold=75 image-gc-low-threshold=65 pod-max-pids=" + podMaxPids
	}
	nodes := c.nodesOf(g, t.Context(), name)
	g.Expect(nodes).To(ConsistOf(HaveField("Annotations", HaveKeyWithValue(node.SettingsAnnotation, settings("4096")))))
	g.Expect(nodes[0].Status.Capacity.Pods().Value()).To(BeEquivalentTo(20), "two cores with ten pods each")
	for _, claim := range c.nodeClaims(g, t.Context()) {
		if claim.Labels[karpv1.NodePoolLabelKey] != name {
			continue
		}
		for resource, planned := range claim.Status.Allocatable {
			if resource == resources.Node {
				continue // Karpenter core counts nodes by it; no kubelet reports it
			}
			got := nodes[0].Status.Allocatable[resource]
			g.Expect(got.Cmp(planned)).To(BeZero(), "%s: the node can allocate %s, and Karpenter planned with %s", resource, &got, &planned)
		}
	}

	before := class.DeepCopy()
	class.Spec.Kubelet.PodPidsLimit = new(int64(8192))
	g.Expect(c.guest.Patch(t.Context(), class, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.nodesOf(g, ctx, name)).To(ConsistOf(HaveField("Annotations", HaveKeyWithValue(node.SettingsAnnotation, settings("8192")))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	c.scale(t, name, 0)
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
