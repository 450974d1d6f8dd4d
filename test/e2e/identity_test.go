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
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
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
	one, other := nodes[0].Name, nodes[1].Name
	address := func(i int) net.IP { return net.ParseIP(nodes[i].Status.Addresses[0].Address) }

	t.Run("When a node has joined, it should have done so by its own token and certificates, serving included", func(t *testing.T) {
		g := NewWithT(t)
		for i := range nodes {
			name := nodes[i].Name
			g.Expect(nodes[i].ManagedFields).To(ContainElement(HaveField("Manager", "kubelet")), "who has made Node %s", name)
			first := c.decided(t, "system:bootstrap:"+c.tokenID(t, name), clientSigner, name)
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

	asNode := c.asUser(t, "system:node:"+one, "system:nodes")
	asToken := c.asToken(t, one)
	serving := csr{signer: servingSigner, as: asNode, name: one, ips: []net.IP{address(0)}}
	renewal := csr{signer: clientSigner, as: asNode, name: one}

	t.Run("When a node renews its certificates, kube-controller-manager should approve the client's, and the operator the other", func(t *testing.T) {
		for reason, request := range map[string]csr{"AutoApproved": renewal, v1beta1.NodeIdentityConfirmedReason: serving} {
			got := c.decision(t, c.send(t, request))
			NewWithT(t).Expect(got.Reason).To(Equal(reason), got.Message)
		}
	})

	c.ghost(t, "ghost")
	// operator/csr has a forged request for each of its rules. These are about tokens, and what the API server itself refuses.
	for name, test := range map[string]struct {
		request csr
		reason  string // of the denial; empty where the API server itself refuses the request
	}{
		"When a node requests another name (wrong CN), it should be refused": {
			renewal.but(func(r *csr) { r.name = "nobody" }), "",
		},
		"When a node requests another node's name (wrong CN), it should be refused": {
			serving.but(func(r *csr) { r.name = other }), "",
		},
		"When a machine's token is used again (replay), it should be refused": {
			csr{signer: clientSigner, as: asToken, name: one}, v1beta1.AlreadyJoinedReason,
		},
		"When a machine's token is used for another machine, it should be refused": {
			csr{signer: clientSigner, as: asToken, name: other}, v1beta1.RequesterMismatchReason,
		},
		"When a NodeClaim has no Machine, it should be refused": {
			csr{signer: clientSigner, as: asToken, name: "ghost"}, v1beta1.MachineMissingReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if test.reason == "" {
				object, user := c.build(t, test.request)
				g.Expect(apierrors.IsForbidden(user.Create(t.Context(), object))).To(BeTrue(), "the API server should refuse it")
				return
			}
			object := c.send(t, test.request)
			got := c.decision(t, object)
			g.Expect(got.Type).To(Equal(certificatesv1.CertificateDenied))
			g.Expect(got.Reason).To(Equal(test.reason), got.Message)
			g.Expect(object.Status.Certificate).To(BeEmpty())
		})
	}

	t.Run("When requests were denied, the platform team should see events", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			events := &eventsv1.EventList{}
			g.Expect(c.management.List(ctx, events, client.InNamespace(c.key().Namespace))).To(Succeed())
			for _, reason := range []string{v1beta1.RequesterMismatchReason, v1beta1.AlreadyJoinedReason, v1beta1.MachineMissingReason} {
				g.Expect(events.Items).To(ContainElement(And(
					HaveField("Regarding.Name", c.name), HaveField("Type", corev1.EventTypeWarning), HaveField("Reason", reason))))
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When a request is about no node of AutoNode's, it should be left to others", func(t *testing.T) {
		g := NewWithT(t)
		theirs := c.send(t, csr{signer: clientSigner, as: c.asUser(t, "system:bootstrap:theirs", "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"), name: "theirs"})
		t.Cleanup(func() { g.Expect(c.guest.Delete(context.Background(), theirs)).To(Succeed()) })
		c.decision(t, c.send(t, serving)) // came later, and its turn is over
		g.Expect(c.guest.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs)).To(Succeed())
		g.Expect(theirs.Status.Conditions).To(BeEmpty())
	})
}

// csr is a certificate request of a node.
type csr struct {
	signer string
	as     *rest.Config
	name   string
	ips    []net.IP
}

func (r csr) but(change func(*csr)) csr {
	change(&r)
	return r
}

// build makes the object, and a client for the requester.
func (c *cluster) build(t *testing.T, r csr) (*certificatesv1.CertificateSigningRequest, client.Client) {
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
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: r.signer, Usages: usages},
	}, user
}

func (c *cluster) send(t *testing.T, r csr) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	object, user := c.build(t, r)
	NewWithT(t).Expect(user.Create(t.Context(), object)).To(Succeed())
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

func (c *cluster) asUser(t *testing.T, user string, groups ...string) *rest.Config {
	t.Helper()
	config, err := world.Guest(c.name).RESTConfigFor(user, groups...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return config
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

func (c *cluster) tokenID(t *testing.T, machine string) string {
	t.Helper()
	id, _, _ := strings.Cut(c.token(t, machine), ".")
	return id
}

// asToken is whoever has read a machine's bootstrap data.
func (c *cluster) asToken(t *testing.T, machine string) *rest.Config {
	t.Helper()
	config := rest.AnonymousClientConfig(world.Guest(c.name).RESTConfig())
	config.BearerToken = c.token(t, machine)
	return config
}

// ghost makes a NodeClaim that never gets a Machine: of a node class that doesn't exist. Karpenter removes it; a finalizer keeps it
// until the test ends.
func (c *cluster) ghost(t *testing.T, name string) {
	t.Helper()
	const finalizer = "test.autonode.io/hold"
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{finalizer}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "nowhere"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		},
	}
	NewWithT(t).Expect(c.guest.Create(t.Context(), claim)).To(Succeed())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventually)
		defer cancel()
		g := NewWithT(t)
		g.Expect(client.IgnoreNotFound(c.guest.Delete(ctx, claim))).To(Succeed())
		g.Eventually(func() error {
			if err := c.guest.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil || !controllerutil.RemoveFinalizer(claim, finalizer) {
				return err
			}
			return c.guest.Update(ctx, claim) // Karpenter's own finalizer is the platform's: only Karpenter may remove it
		}).WithTimeout(eventually).WithPolling(time.Second).Should(Satisfy(apierrors.IsNotFound))
	})
}
