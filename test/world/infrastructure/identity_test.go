// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

const (
	tokenID     = "abcdef"
	tokenSecret = "0123456789abcdef"
)

// tokenConfig is a bootstrap data Secret's value with a token for the guest; pin is the hash of the CA that is to be trusted.
func tokenConfig(t *testing.T, secret, pin string) *string {
	t.Helper()
	host, err := url.Parse(guestConfig.Host)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	address := host.Host
	if address == "" {
		address = guestConfig.Host
	}
	registration := `        kubeletExtraArgs: [{name: rotate-server-certificates, value: "true"}, {name: node-labels, value: "team=web"}]`
	userData := strings.Replace(fmt.Sprintf(joinConfig, registration), "{file: {kubeConfigPath: /etc/kubernetes/bootstrap.conf}}",
		fmt.Sprintf(`{bootstrapToken: {apiServerEndpoint: %q, token: %s.%s, caCertHashes: [%q]}}`, address, tokenID, secret, pin), 1)
	return &userData
}

func guestPin(t *testing.T) string {
	t.Helper()
	certificates, err := certutil.ParseCertsPEM(guestConfig.CAData)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("sha256:%x", sha256.Sum256(certificates[0].RawSubjectPublicKeyInfo))
}

// admitNodes lets machines with the token ask for certificates, as the world's hosting platform does.
func admitNodes(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const group = "system:bootstrappers:kubeadm:default-node-token"
	g.Expect(guest.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + tokenID},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": tokenID, "token-secret": tokenSecret, "usage-bootstrap-authentication": "true", "auth-extra-groups": group,
		},
	})).To(Succeed())
	g.Expect(guest.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:kubelet-bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	})).To(Succeed())
}

// requestsOf lists the certificate requests for a node by a signer.
func requestsOf(g Gomega, t *testing.T, node, signer string) []certificatesv1.CertificateSigningRequest {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	g.Expect(guest.List(t.Context(), list)).To(Succeed())
	var found []certificatesv1.CertificateSigningRequest
	for _, request := range list.Items {
		block, _ := pem.Decode(request.Spec.Request)
		content, err := x509.ParseCertificateRequest(block.Bytes)
		g.Expect(err).NotTo(HaveOccurred())
		if content.Subject.CommonName == "system:node:"+node && request.Spec.SignerName == signer {
			found = append(found, request)
		}
	}
	return found
}

// pending waits for the undecided request for a node.
func pending(t *testing.T, node, signer string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	var found *certificatesv1.CertificateSigningRequest
	NewWithT(t).Eventually(func(g Gomega) {
		for _, request := range requestsOf(g, t, node, signer) {
			if len(request.Status.Conditions) == 0 {
				found = &request
			}
		}
		g.Expect(found).NotTo(BeNil())
	}, wait, poll).Should(Succeed())
	return found
}

// decide approves or denies a request.
func decide(t *testing.T, request *certificatesv1.CertificateSigningRequest, decision certificatesv1.RequestConditionType) {
	t.Helper()
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: decision, Status: corev1.ConditionTrue, Reason: "Test", Message: "the test reports it",
	}}
	NewWithT(t).Expect(guest.SubResource("approval").Update(t.Context(), request)).To(Succeed())
}

// sign issues the certificate that a request requests, as the guest's controller manager would.
func sign(t *testing.T, request *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	g := NewWithT(t)
	block, _ := pem.Decode(request.Spec.Request)
	content, err := x509.ParseCertificateRequest(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())
	authority, err := tls.X509KeyPair(guestNodes.Certificate, guestNodes.Key)
	g.Expect(err).NotTo(HaveOccurred())
	issuer, err := x509.ParseCertificate(authority.Certificate[0])
	g.Expect(err).NotTo(HaveOccurred())
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: content.Subject, DNSNames: content.DNSNames, IPAddresses: content.IPAddresses,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, issuer, content.PublicKey, authority.PrivateKey)
	g.Expect(err).NotTo(HaveOccurred())
	request.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	g.Expect(guest.Status().Update(t.Context(), request)).To(Succeed())
}

// waitTrusted waits until the guest's API server accepts the nodes' certificates.
func waitTrusted(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	pair, err := guestNodes.Client("system:node:probe", "system:nodes")
	g.Expect(err).NotTo(HaveOccurred())
	config := rest.CopyConfig(guestConfig)
	config.CertData, config.KeyData = pair.Certificate, pair.Key
	probe, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		return client.IgnoreNotFound(probe.Get(t.Context(), client.ObjectKey{Name: "probe"}, &corev1.Node{}))
	}, wait, poll).Should(Succeed())
}

func TestBootstrap(t *testing.T) {
	admitNodes(t)
	waitTrusted(t)
	ns := newCluster(t)
	const first, serving = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName

	t.Run("When the CA isn't the one that is pinned, it should not give its token away", func(t *testing.T) {
		machine := newMachine(t, ns, "pinned", machineOptions{userData: tokenConfig(t, tokenSecret, "sha256:"+strings.Repeat("0", 64))})
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonRegistrationFailed)
		NewWithT(t).Expect(condition.Message).To(ContainSubstring("caCertHashes"))
	})

	t.Run("When the token is wrong, it should say so, without the token", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "stranger", machineOptions{userData: tokenConfig(t, "fedcba9876543210", guestPin(t))})
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonRegistrationFailed)
		g.Expect(condition.Message).To(ContainSubstring("asking for the kubelet's client certificate"))
		g.Expect(condition.Message).NotTo(ContainSubstring("fedcba9876543210"))
		g.Expect(requestsOf(g, t, "stranger", first)).To(BeEmpty())
	})

	t.Run("When its request is denied, it should say why, and have no node", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "denied", machineOptions{userData: tokenConfig(t, tokenSecret, guestPin(t))})
		condition := eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonWaitingForCertificate)
		request := pending(t, "denied", first)
		g.Expect(condition.Message).To(ContainSubstring(request.Name))
		g.Expect(request.Spec.Username).To(Equal("system:bootstrap:" + tokenID))
		g.Expect(request.Spec.Usages).To(ConsistOf(certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth))
		decide(t, request, certificatesv1.CertificateDenied)
		condition = eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonRegistrationFailed)
		g.Expect(condition.Message).To(ContainSubstring("the test reports it"))
		g.Expect(client.IgnoreNotFound(guest.Get(t.Context(), client.ObjectKey{Name: "denied"}, &corev1.Node{}))).To(Succeed())
	})

	t.Run("When its request is approved and signed, it should join as its own node, and ask for a serving certificate", func(t *testing.T) {
		g := NewWithT(t)
		machine := newMachine(t, ns, "joiner", machineOptions{userData: tokenConfig(t, tokenSecret, guestPin(t)), edit: func(m *infrav1.KwokMachine) {
			m.Spec.NodeLabels = map[string]string{"node-restriction.kubernetes.io/rack": "7"} // which a node may not set
		}})
		request := pending(t, "joiner", first)
		decide(t, request, certificatesv1.CertificateApproved)
		sign(t, request)
		node := eventuallyReady(t, "joiner")
		g.Expect(node.Labels).To(HaveKeyWithValue("team", "web"))
		g.Expect(node.Labels).To(HaveKeyWithValue("node-restriction.kubernetes.io/rack", "7"))
		g.Expect(node.ManagedFields).To(ContainElement(HaveField("Manager", "kubelet")))

		request = pending(t, "joiner", serving)
		g.Expect(request.Spec.Username).To(Equal("system:node:joiner"))
		g.Expect(request.Spec.Groups).To(ConsistOf("system:nodes", "system:authenticated"))
		block, _ := pem.Decode(request.Spec.Request)
		content, err := x509.ParseCertificateRequest(block.Bytes)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(content.DNSNames).To(Equal([]string{"joiner"}))
		g.Expect(content.IPAddresses).To(HaveLen(1))
		g.Expect(content.IPAddresses[0].String()).To(Equal(node.Status.Addresses[0].Address))

		decide(t, request, certificatesv1.CertificateDenied)
		condition := eventuallyCondition(t, machine, infrav1.ConditionServing, infrav1.ReasonCertificateRefused)
		g.Expect(condition.Message).To(ContainSubstring("the test reports it"))
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)

		request = pending(t, "joiner", serving) // it tries again
		decide(t, request, certificatesv1.CertificateApproved)
		sign(t, request)
		eventuallyCondition(t, machine, infrav1.ConditionServing, infrav1.ReasonReady)
	})
}
