// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

func (c *connection) reconcilesForGuest(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	guestClient := clusters.Guest.Client
	quiet := func(g Gomega) { // no reconciliation in a while
		before := c.reconciled("blue")()
		g.Consistently(c.reconciled("blue"), 1500*time.Millisecond).Should(Equal(before))
	}
	g.Eventually(func(g Gomega) {
		for _, name := range []string{watch.NodeClaimDefinition, watch.NodePoolDefinition, clusterapi.New(clusterapi.DefaultGroups).NodeClass.Definition()} {
			established, err := watch.IsEstablished(ctx, guestClient, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(established).To(BeTrue())
		}
	}).Should(Succeed())
	g.Eventually(quiet).Should(Succeed())
	reconciles := func(change func() error) {
		before := c.reconciled("blue")()
		t.Helper()
		g.Expect(change()).To(Succeed())
		g.Eventually(c.reconciled("blue")).Should(BeNumerically(">", before))
		g.Eventually(quiet).Should(Succeed())
	}

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
	reconciles(func() error { return guestClient.Create(ctx, node) })
	node.Status.NodeInfo.KubeletVersion = "v1.36.2"
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	reconciles(func() error { return guestClient.Status().Update(ctx, node) })

	_, given := c.reachable("blue")
	cached := &corev1.Node{}
	g.Expect(given.Cached.Get(ctx, client.ObjectKey{Name: "n1"}, cached)).To(Succeed())
	g.Expect(cached.Status.NodeInfo.KubeletVersion).To(Equal("v1.36.2"))
	g.Expect(cached.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(4))

	before := c.reconciled("blue")()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	g.Expect(guestClient.Status().Update(ctx, node)).To(Succeed())
	g.Consistently(c.reconciled("blue"), time.Second).Should(Equal(before))

	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
	}}
	reconciles(func() error { return guestClient.Create(ctx, claim) })
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
	reconciles(func() error { return guestClient.Status().Update(ctx, claim) })
	reconciles(func() error { return guestClient.Delete(ctx, claim) })
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	reconciles(func() error { return guestClient.Create(ctx, class) })
	reconciles(func() error { return guestClient.Delete(ctx, node) })
}

func (c *connection) watches(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	g.Consistently(c.seen, 300*time.Millisecond).ShouldNot(Receive())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "x"}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(clusters.Guest.Client.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: content, SignerName: "example.com/x", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	})).To(Succeed())
	g.Eventually(c.seen).Should(Receive(Equal("clusters/blue x")))

	blue := &v1beta1.HostedCluster{}
	g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: "blue"}, blue)).To(Succeed())
	of, again, err := c.connections.Guest(ctx, blue)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(BeZero())
	list := &certificatesv1.CertificateSigningRequestList{}
	g.Expect(of.Cached.List(ctx, list, client.MatchingFields{"signer": "example.com/x"})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	of, again, err = c.connections.Guest(ctx, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "nowhere"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(of).To(BeNil())
	g.Expect(again).To(BeZero())
}
