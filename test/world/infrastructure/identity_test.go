// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestBootstrap(t *testing.T) {
	admitNodes(t)
	ns := newCluster(t)
	const first = certificatesv1.KubeAPIServerClientKubeletSignerName

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
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Test", Message: "the test reports it",
		}}
		g.Expect(guest.SubResource("approval").Update(t.Context(), request)).To(Succeed())
		condition = eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonRegistrationFailed)
		g.Expect(condition.Message).To(ContainSubstring("the test reports it"))
		g.Expect(client.IgnoreNotFound(guest.Get(t.Context(), client.ObjectKey{Name: "denied"}, &corev1.Node{}))).To(Succeed())
	})
}
