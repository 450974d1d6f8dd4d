// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
)

func TestSharedNamespace(t *testing.T) {
	f := newFixture(t, "shared")
	component := func(cluster string) *v1beta1.ControlPlaneComponent {
		return &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: "karpenter-" + cluster, Labels: map[string]string{
				v1beta1.HostedClusterNamespaceLabel: f.namespace, v1beta1.HostedClusterLabel: cluster, v1beta1.PlatformLabel: string(v1beta1.PlatformClusterAPI),
				v1beta1.ControlPlaneNamespaceModeLabel: string(v1beta1.ControlPlaneNamespaceShared), v1beta1.ClusterNameLabel: cluster,
			},
		}}
	}
	machine := func(cluster, name string) *clusterv1.Machine {
		made := (&karpenter{namespace: f.namespace}).machine(name, "cr-1", capacity.Machine{VCPUs: 2000})
		made.Labels[clusterv1.ClusterNameLabel] = cluster
		return made
	}
	lease := func(g Gomega, cluster string) *autonodev1alpha1.CapacityLease {
		found := &autonodev1alpha1.CapacityLease{}
		g.Expect(clusters.Management.Client.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "karpenter-" + cluster}, found)).To(Succeed())
		return found
	}
	for _, cluster := range []string{"blue", "green"} {
		f.create(component(cluster))
	}
	f.reconcile()
	f.reconcile()

	t.Run("When two clusters share a namespace, each should have a lease that its component owns", func(t *testing.T) {
		g := NewWithT(t)
		for _, cluster := range []string{"blue", "green"} {
			g.Expect(lease(g, cluster).OwnerReferences).To(ConsistOf(HaveField("Name", "karpenter-"+cluster)))
			g.Expect(lease(g, cluster).Spec.Account).To(HaveValue(HaveField("Name", f.account.Name)))
			g.Expect(f.Controller.ofLease(t.Context(), lease(g, cluster))).To(HaveLen(1), "its report enqueues the account")
		}
		f.read()
		g.Expect(f.account.Status.Clusters).To(ConsistOf(
			And(HaveField("Name", "blue"), HaveField("Cluster", "blue"), HaveField("ControlPlaneNamespace", f.namespace)),
			And(HaveField("Name", "green"), HaveField("Cluster", "green"), HaveField("ControlPlaneNamespace", f.namespace))))
	})

	t.Run("When the one has machines, they should not count for the other", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range []string{"a", "b", "c"} {
			f.Controller.counter.set(machine("blue", name))
		}
		f.Controller.counter.set(machine("green", "d"))
		count := func(at home) int64 {
			_, machines := f.Controller.counter.count(at, nil, func(capacity.Priced, int64) {})
			return machines
		}
		g.Expect(count(home{f.namespace, "blue"})).To(Equal(int64(3)))
		g.Expect(count(home{f.namespace, "green"})).To(Equal(int64(1)))
		g.Expect(count(home{namespace: f.namespace})).To(Equal(int64(4)), "in a dedicated namespace all count")
		for _, name := range []string{"a", "b", "c"} {
			f.Controller.counter.remove(client.ObjectKey{Namespace: f.namespace, Name: name})
		}
		g.Expect(count(home{f.namespace, "blue"})).To(BeZero())
		g.Expect(count(home{f.namespace, "green"})).To(Equal(int64(1)))
	})

	t.Run("When a component has lost its labels, what is recorded should say whose it is", func(t *testing.T) {
		g := NewWithT(t)
		blue := component("blue")
		g.Expect(clusters.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(blue), blue)).To(Succeed())
		blue.Labels = nil
		f.read()
		for i := range f.account.Status.Clusters {
			found, ok := limited(blue, &f.account.Status.Clusters[i])
			g.Expect(ok).To(BeTrue())
			g.Expect(found.cluster).To(Equal(f.account.Status.Clusters[i].Cluster))
		}
		_, ok := limited(blue, nil)
		g.Expect(ok).To(BeFalse())
	})

	t.Run("When a HostedCluster's name has dots, its component should count in the namespace that it has", func(t *testing.T) {
		g := NewWithT(t)
		dotted := component("prod.eu")
		dotted.Name, dotted.Labels[v1beta1.ControlPlaneNamespaceModeLabel] = v1beta1.KarpenterComponent, string(v1beta1.ControlPlaneNamespaceDedicated)
		for namespace, want := range map[string]bool{f.namespace + "-prod-eu": true, f.namespace + "-prod.eu": false, f.namespace + "-prod": false} {
			dotted.Namespace = namespace
			_, ok := limited(dotted, nil)
			g.Expect(ok).To(Equal(want), namespace)
		}
	})

	t.Run("When the one cluster goes, the other should keep its lease", func(t *testing.T) {
		g := NewWithT(t)
		before := lease(g, "green")
		g.Expect(clusters.Management.Client.Delete(t.Context(), component("blue"))).To(Succeed())
		f.reconcile()
		g.Expect(lease(g, "green").UID).To(Equal(before.UID))
		g.Expect(lease(g, "green").Spec.Account).To(Equal(before.Spec.Account))
	})
}
