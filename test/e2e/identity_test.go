// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/hosting"
)

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

// TestNodeIdentity: nodes join by certificates that the operator has validated, and no other client gets one of theirs.
func TestNodeIdentity(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, indigo)
	c.nodePool(t, "general")
	c.workload(t, "web", 2, "500m", apart)
	c.waitRunning(t, "web")
	nodes := c.nodes(NewWithT(t), t.Context())
	NewWithT(t).Expect(nodes).To(HaveLen(2))
	one := nodes[0].Name
	address := func(i int) net.IP { return net.ParseIP(nodes[i].Status.Addresses[0].Address) }

	t.Run("When a node has joined, it should have done so by its own token and certificates, serving included", func(t *testing.T) {
		g := NewWithT(t)
		for i := range nodes {
			name := nodes[i].Name
			g.Expect(nodes[i].ManagedFields).To(ContainElement(HaveField("Manager", "kubelet")), "who has made Node %s", name)
			first := c.decided(t, "system:bootstrap:"+strings.Split(c.token(t, name), ".")[0], clientSigner, name)
			g.Expect(first.Reason).To(Equal(v1beta1.NodeIdentityConfirmedReason), first.Message)
			serving := c.decided(t, "system:node:"+name, servingSigner, name)
			g.Expect(serving.Reason).To(Equal(v1beta1.NodeIdentityConfirmedReason), serving.Message)
			g.Eventually(func(g Gomega) {
				issued, err := certutil.ParseCertsPEM(c.request(g, t.Context(), "system:node:"+name, servingSigner, name).Status.Certificate)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(issued[0].DNSNames).To(Equal([]string{name}))
				g.Expect(issued[0].IPAddresses[0].Equal(address(i))).To(BeTrue(), "%v", issued[0].IPAddresses)
			}).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		}
	})

	t.Run("When a node renews its certificates, kube-controller-manager should approve the client's, and the operator the other", func(t *testing.T) {
		asNode, err := world.Guest(c.name).RESTConfigFor("system:node:"+one, "system:nodes")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for reason, request := range map[string]csr{
			"AutoApproved": {signer: clientSigner, as: asNode, name: one}, v1beta1.NodeIdentityConfirmedReason: {signer: servingSigner, as: asNode, name: one, ips: []net.IP{address(0)}},
		} {
			got := c.decision(t, c.send(t, request))
			NewWithT(t).Expect(got.Reason).To(Equal(reason), got.Message)
		}
	})

	// operator/controllers/csr has a forged request for each of its rules.
	t.Run("When a machine's token is used again (replay), it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		reader := rest.AnonymousClientConfig(world.Guest(c.name).RESTConfig()) // of the machine's bootstrap data
		reader.BearerToken = c.token(t, one)
		object := c.send(t, csr{signer: clientSigner, as: reader, name: one})
		g.Expect(c.decision(t, object)).To(And(HaveField("Type", certificatesv1.CertificateDenied), HaveField("Reason", v1beta1.AlreadyJoinedReason)))
		g.Expect(object.Status.Certificate).To(BeEmpty())
	})

	t.Run("When a MachineDeployment makes a machine, it should join by itself, with certificates that the operator approved", c.joinsWithoutKarpenter)
}

// joinsWithoutKarpenter makes a MachineDeployment of one, in a guest without kubeadm's automatic approval.
func (c *cluster) joinsWithoutKarpenter(t *testing.T) {
	g := NewWithT(t)
	deployment := hosting.Workers(world.Guest(c.name), 1)
	g.Expect(c.management.Create(t.Context(), deployment)).To(Succeed())
	t.Cleanup(func() {
		g.Expect(c.management.Delete(context.WithoutCancel(t.Context()), deployment)).To(Succeed())
	})
	machines := &clusterv1.MachineList{}
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.management.List(ctx, machines, client.InNamespace(c.namespace()), client.MatchingLabels(deployment.Spec.Selector.MatchLabels))).To(Succeed())
		g.Expect(machines.Items).To(ConsistOf(HaveField("Status.Phase", string(clusterv1.MachinePhaseRunning))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	name := machines.Items[0].Status.NodeRef.Name
	first := c.decided(t, "system:bootstrap:"+strings.Split(c.token(t, machines.Items[0].Name), ".")[0], clientSigner, name)
	g.Expect(first.Reason).To(Equal(v1beta1.NodeIdentityConfirmedReason), first.Message)
	serving := c.decided(t, "system:node:"+name, servingSigner, name)
	g.Expect(serving.Reason).To(Equal(v1beta1.NodeIdentityConfirmedReason), serving.Message)
}

// csr is a certificate request of a node.
type csr struct {
	signer string
	as     *rest.Config
	name   string
	ips    []net.IP
}

func (c *cluster) send(t *testing.T, r csr) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + r.name, Organization: []string{"system:nodes"}}, nil, r.ips)
	g.Expect(err).NotTo(HaveOccurred())
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	if r.signer == clientSigner {
		usages[1] = certificatesv1.UsageClientAuth
	}
	user, err := newClient(r.as)
	g.Expect(err).NotTo(HaveOccurred())
	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: r.signer, Usages: usages},
	}
	g.Expect(user.Create(t.Context(), object)).To(Succeed())
	return object
}

// decision waits for the decision on a request.
func (c *cluster) decision(t *testing.T, object *certificatesv1.CertificateSigningRequest) certificatesv1.CertificateSigningRequestCondition {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		g.Expect(object.Status.Conditions).To(HaveLen(1))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	return object.Status.Conditions[0]
}

// request finds the first request that a user has made of a signer for a node.
func (c *cluster) request(g Gomega, ctx context.Context, user, signer, node string) *certificatesv1.CertificateSigningRequest {
	list := &certificatesv1.CertificateSigningRequestList{}
	g.Expect(c.guest.List(ctx, list)).To(Succeed())
	for i := range list.Items {
		if spec := list.Items[i].Spec; spec.Username == user && spec.SignerName == signer {
			return &list.Items[i]
		}
	}
	g.Expect(list.Items).To(BeNil(), "%s has asked nothing of %s for node %s", user, signer, node)
	return nil
}

func (c *cluster) decided(t *testing.T, user, signer, node string) certificatesv1.CertificateSigningRequestCondition {
	t.Helper()
	var object *certificatesv1.CertificateSigningRequest
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		object = c.request(g, ctx, user, signer, node)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	return c.decision(t, object)
}

// token is the bootstrap token that a machine got.
func (c *cluster) token(t *testing.T, machine string) string {
	t.Helper()
	g := NewWithT(t)
	object := &clusterv1.Machine{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: machine}, object)).To(Succeed())
	g.Expect(object.Spec.Bootstrap.DataSecretName).NotTo(BeNil())
	data := &corev1.Secret{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: *object.Spec.Bootstrap.DataSecretName}, data)).To(Succeed())
	tokens := bootstrapToken.FindAllString(string(data.Data["value"]), -1)
	g.Expect(slices.Compact(tokens)).To(HaveLen(1))
	return tokens[0]
}

// bootstrapToken has the form of kubeadm's.
var bootstrapToken = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)
