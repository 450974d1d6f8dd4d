// SPDX-License-Identifier: Apache-2.0

package v1beta1_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestNames(t *testing.T) {
	for name, test := range map[string]struct {
		spec v1beta1.HostedClusterSpec
		want v1beta1.Names
	}{
		"When the mode isn't set, it should be the names that existing installations have": {
			want: v1beta1.Names{
				Karpenter: "karpenter", GuestAccess: "karpenter-guest-access", PullSecret: "karpenter-pull-secret",
				NodeImages: "karpenter-node-images", Abandoned: "autonode-abandoned", LeaderElection: "karpenter-leader-election",
			},
		},
		"When the namespace is dedicated, it should be the same names": {
			spec: v1beta1.HostedClusterSpec{ControlPlaneNamespaceMode: v1beta1.ControlPlaneNamespaceDedicated, InfraID: "blue-7"},
			want: v1beta1.DedicatedNames(),
		},
		"When the namespace is shared, every name should end in the Cluster's": {
			spec: v1beta1.HostedClusterSpec{ControlPlaneNamespaceMode: v1beta1.ControlPlaneNamespaceShared, ControlPlaneNamespace: "team"},
			want: v1beta1.Names{
				Cluster: "blue", Karpenter: "karpenter-blue", GuestAccess: "karpenter-guest-access-blue", PullSecret: "karpenter-pull-secret-blue",
				NodeImages: "karpenter-node-images-blue", Abandoned: "autonode-abandoned-blue", LeaderElection: "karpenter-leader-election-blue",
			},
		},
		"When infraID names the Cluster, it should be that name": {
			spec: v1beta1.HostedClusterSpec{ControlPlaneNamespaceMode: v1beta1.ControlPlaneNamespaceShared, ControlPlaneNamespace: "team", InfraID: "blue-7"},
			want: v1beta1.SharedNames("blue-7"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}, Spec: test.spec}
			NewWithT(t).Expect(hostedCluster.Names()).To(Equal(test.want))
		})
	}
	t.Run("When a CapacityLease is made in a dedicated namespace, it should have the component's name", func(t *testing.T) {
		NewWithT(t).Expect(v1beta1.DedicatedNames().Karpenter).To(Equal(autonodev1alpha1.LeaseName))
	})
	t.Run("When the Clusters of a namespace are called like purposes, no two objects of a kind should have one name", func(t *testing.T) {
		g := NewWithT(t)
		kinds := map[string]map[string]string{"Secret": {}, "ConfigMap": {}, "Lease": {}, "Karpenter": {}}
		clusters := []string{"blue", "guest-access", "pull-secret", "node-images", "leader-election", "guest-access-blue", "prices", "profiles"}
		for _, cluster := range clusters {
			names := v1beta1.SharedNames(cluster)
			for kind, used := range map[string][]string{
				"Secret": {names.GuestAccess, names.PullSecret}, "ConfigMap": {names.NodeImages, names.Abandoned}, "Lease": {names.LeaderElection}, "Karpenter": {names.Karpenter},
			} {
				for _, name := range used {
					g.Expect(kinds[kind]).NotTo(HaveKey(name), "%s of Cluster %s", kind, cluster)
					kinds[kind][name] = cluster
				}
			}
		}
		g.Expect(kinds["ConfigMap"]).NotTo(HaveKey("karpenter-prices"), "the platform team writes it")
	})
}

func TestNamesOf(t *testing.T) {
	shared := map[string]string{v1beta1.ControlPlaneNamespaceModeLabel: "Shared", v1beta1.ClusterNameLabel: "blue"}
	for name, test := range map[string]struct {
		component metav1.ObjectMeta
		want      v1beta1.Names
		ok        bool
	}{
		"When a component is of a dedicated namespace, it should be the dedicated names": {metav1.ObjectMeta{Name: "karpenter"}, v1beta1.DedicatedNames(), true},
		"When a component is of a shared namespace, it should be those of its Cluster":   {metav1.ObjectMeta{Name: "karpenter-blue", Labels: shared}, v1beta1.SharedNames("blue"), true},
		"When a component has another Cluster's name, it should be refused":              {metav1.ObjectMeta{Name: "karpenter-green", Labels: shared}, v1beta1.SharedNames("blue"), false},
		"When a component is called like a shared one without its label, it should be refused": {
			metav1.ObjectMeta{Name: "karpenter-blue"}, v1beta1.DedicatedNames(), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			names, ok := v1beta1.NamesOf(&test.component)
			NewWithT(t).Expect(ok).To(Equal(test.ok))
			NewWithT(t).Expect(names).To(Equal(test.want))
		})
	}
}

func TestIsGuestAccess(t *testing.T) {
	of := func(name, cluster string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Name: name, Labels: map[string]string{v1beta1.ClusterNameLabel: cluster}}
	}
	g := NewWithT(t)
	g.Expect(v1beta1.IsGuestAccess(of("karpenter-guest-access", "blue"))).To(BeTrue())
	g.Expect(v1beta1.IsGuestAccess(of("karpenter-guest-access-blue", "blue"))).To(BeTrue())
	g.Expect(v1beta1.IsGuestAccess(of("karpenter-guest-access-blue", "green"))).To(BeFalse())
	g.Expect(v1beta1.IsGuestAccess(of("blue-kubeconfig", "blue"))).To(BeFalse())
}

// openshift/hypershift#998, #2906
func TestControlPlaneNamespace(t *testing.T) {
	long := strings.Repeat("n", 63)
	of := func(namespace, name string) string {
		return (&v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}).ControlPlaneNamespace()
	}
	for name, test := range map[string]struct{ namespace, name, want string }{
		"When the names join to a label, it should be both of them":          {"clusters", "blue", "clusters-blue"},
		"When the HostedCluster's name has dots, it should be HyperShift's":  {"clusters", "prod.eu.1", "clusters-prod-eu-1"},
		"When the names join to 63 characters, it should be both of them":    {"clusters", long[:54], "clusters-" + long[:54]},
		"When the names join to 64 characters, it should be shortened":       {"clusters", long[:55], "clusters-" + long[:45] + "-8a38bcad"},
		"When both names are as long as they can be, it should be shortened": {long, long, long[:54] + "-671a356f"},
		"When it is the example of docs/platform/install.md, it should be the one there": {
			"clusters", "europe-west-production-web-frontend-of-the-second-platform", "clusters-europe-west-production-web-frontend-of-the-se-31d1431d",
		},
		"When it is cut after a dash, it should have one dash there": {"clusters", long[:44] + "-" + long, "clusters-" + long[:44] + "-f239c517"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(of(test.namespace, test.name)).To(Equal(test.want))
			g.Expect(validation.IsDNS1123Label(test.want)).To(BeEmpty())
		})
	}
	t.Run("When long names differ in a dot only, each should have its own namespace", func(t *testing.T) {
		NewWithT(t).Expect(of("clusters", "a.b"+long)).NotTo(Equal(of("clusters", "a-b"+long)))
	})
	t.Run("When long names join to the same, each should have its own namespace", func(t *testing.T) {
		NewWithT(t).Expect(of("clusters-a", "b"+long)).NotTo(Equal(of("clusters", "a-b"+long)))
	})
	t.Run("When the spec names the namespace, it should be that one", func(t *testing.T) {
		hostedCluster := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "prod.eu"}, Spec: v1beta1.HostedClusterSpec{ControlPlaneNamespace: "clusters"},
		}
		NewWithT(t).Expect(hostedCluster.ControlPlaneNamespace()).To(Equal("clusters"))
	})
}

func TestLongestNames(t *testing.T) {
	t.Run("When a Cluster's name is as long as it can be, the API server should accept every name that ends in it", func(t *testing.T) {
		g := NewWithT(t)
		names := v1beta1.SharedNames(strings.Repeat("n", 63))
		for _, name := range []string{names.Karpenter, names.GuestAccess, names.PullSecret, names.NodeImages, names.Abandoned, names.LeaderElection} {
			g.Expect(validation.IsDNS1123Subdomain(name)).To(BeEmpty())
		}
	})
}
