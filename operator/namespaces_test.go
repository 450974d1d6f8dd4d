// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func ownNamespaces(t *testing.T, release string) {
	ctx, management := t.Context(), clusters.Management.Client
	for _, test := range []struct{ namespace, name string }{{"kube", "system"}, {"kube-node", "lease"}, {"autonode", "system"}} {
		g := NewWithT(t)
		g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: test.namespace}})).To(Succeed())
		hostedCluster := newHosted(test.namespace, test.name, release)
		g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(hostedCluster), hostedCluster)).To(Succeed())
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/ControlPlaneNamespaceForbidden"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed(), "%s-%s", test.namespace, test.name)
		g.Expect(management.Delete(ctx, hostedCluster)).To(Succeed())
	}
}

// openshift/hypershift#998, #2906
func unusualNames(t *testing.T, release string) {
	ctx, management := t.Context(), clusters.Management.Client
	for _, name := range []string{"prod.eu", "europe-west-production-" + strings.Repeat("n", 40)} {
		g := NewWithT(t)
		g.Expect(management.Create(ctx, newHosted("clusters", name, release))).To(Succeed())
		asked := regexp.MustCompile(`^neither Namespace (\S+) nor Cluster `)
		namespace := ""
		g.Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(get(g, ctx, name).Status.Conditions, v1beta1.ValidConfiguration)
			g.Expect(condition).NotTo(BeNil())
			found := asked.FindStringSubmatch(condition.Message)
			g.Expect(found).To(HaveLen(2))
			namespace = found[1]
		}).Should(Succeed())
		consent(t, namespace, "clusters/"+name)
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		g.Expect(management.Create(ctx, cluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(reasonOf(get(g, ctx, name), v1beta1.ValidConfiguration)).To(Equal("True/AsExpected"))
			componentOf(g, ctx, namespace)
		}).Should(Succeed())
	}
}

func takenName(t *testing.T, release string) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	consent(t, "team-red-web", "team/red-web")
	for _, ns := range []string{"team", "team-red"} {
		g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
	}
	g.Expect(management.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-red-web", Name: "web"}})).To(Succeed())
	victim, thief := newHosted("team-red", "web", release), newHosted("team", "red-web", release)
	victim.Spec.AutoNode, thief.Spec.InfraID = nil, "web"
	g.Expect(management.Create(ctx, victim)).To(Succeed())
	g.Expect(management.Create(ctx, thief)).To(Succeed())
	decided := func(g Gomega) string {
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
		return reasonOf(thief, v1beta1.ValidConfiguration)
	}
	g.Eventually(func(g Gomega) {
		g.Expect(decided(g)).To(Equal("False/InvalidSpec"))
		g.Expect(thief.Status.AutoNode.Message).To(ContainSubstring("HostedCluster team-red/web"))
		g.Expect(thief.Finalizers).To(BeEmpty())
	}).Should(Succeed())
	g.Expect(management.Delete(ctx, victim)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(decided(g)).To(Equal("True/AsExpected")) }).Should(Succeed())
}
