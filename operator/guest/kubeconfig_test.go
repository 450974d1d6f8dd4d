// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/scope"
)

func (c *connection) connects(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	clusters.NewScope(t, "blue")
	g.Eventually(c.message("blue")).Should(Equal("Connecting: waiting for kubeconfig Secret clusters-blue/blue-kubeconfig with the label cluster.x-k8s.io/cluster-name=blue"))
	g.Expect(c.status("blue")()).To(Equal(metav1.ConditionUnknown))
	g.Expect(management.Create(ctx, kubeconfig(g, "blue", nil))).To(Succeed())
	g.Eventually(c.status("blue")).Should(Equal(metav1.ConditionTrue))
	_, given := c.reachable("blue")
	g.Expect(given.Config.Host).To(ContainSubstring(hostOf(clusters.Guest.Config.Host)))
	g.Expect(given.Live.Get(ctx, client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})).To(Succeed())
}

func (c *connection) turnsOn(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	s := clusters.NewScope(t, "green")
	off := client.MergeFrom(s.HostedCluster.DeepCopy())
	s.HostedCluster.Spec.AutoNode, s.HostedCluster.Finalizers = nil, nil
	g.Expect(management.Patch(ctx, s.HostedCluster, off)).To(Succeed())
	g.Eventually(func() *v1beta1.AutoNode { return c.spec("green") }).Should(BeNil())
	g.Expect(management.Create(ctx, kubeconfig(g, "green", nil))).To(Succeed())
	g.Consistently(func() *scope.Guest { _, given := c.reachable("green"); return given }, time.Second).Should(BeNil())

	on := client.MergeFrom(s.HostedCluster.DeepCopy())
	s.HostedCluster.Spec.AutoNode = scopetest.AutoNode()
	g.Expect(management.Patch(ctx, s.HostedCluster, on)).To(Succeed())
	g.Eventually(c.status("green")).Should(Equal(metav1.ConditionTrue))
}

func (c *connection) recovers(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	secret := kubeconfig(g, "red", func(s string) string { return strings.ReplaceAll(s, hostOf(clusters.Guest.Config.Host), "127.0.0.1:1") })
	clusters.NewScope(t, "red")
	g.Expect(management.Create(ctx, secret)).To(Succeed())
	g.Eventually(c.message("red")).Should(Equal("Unreachable: https://127.0.0.1:1 doesn't answer as an API server; check the server and the certificate authority " +
		"in kubeconfig Secret clusters-red/red-kubeconfig, and the control plane's pods"))
	g.Expect(c.status("red")()).To(Equal(metav1.ConditionFalse))

	made := counter(g, "autonode_guest_connections_total")
	secret.Data = kubeconfig(g, "red", nil).Data
	g.Expect(management.Update(ctx, secret)).To(Succeed())
	g.Eventually(c.status("red")).Should(Equal(metav1.ConditionTrue))
	g.Expect(counter(g, "autonode_guest_connections_total")).To(Equal(made + 1))
}

func (c *connection) renewsCertificate(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	user, err := clusters.Guest.Environment.AddUser(envtest.User{Name: "renewed", Groups: []string{"system:masters"}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	renewed, err := user.KubeConfig()
	g.Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{}
	g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "clusters-red", Name: "red-kubeconfig"}, secret)).To(Succeed())
	made := counter(g, "autonode_guest_connections_total")
	secret.Data["value"] = renewed
	g.Expect(management.Update(ctx, secret)).To(Succeed())
	g.Eventually(func(g Gomega) {
		_, guest := c.reachable("red")
		g.Expect(guest).NotTo(BeNil())
		g.Expect(guest.Config.CertData).To(Equal(user.Config().CertData))
		g.Expect(guest.Live.List(ctx, &corev1.NodeList{})).To(Succeed())
	}).Should(Succeed())
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, "touched", "true")
	g.Expect(management.Update(ctx, secret)).To(Succeed())
	g.Consistently(func() float64 { return counter(g, "autonode_guest_connections_total") }, time.Second).Should(Equal(made + 1))
}

func (c *connection) renewsToken(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "tokens"}}
	g.Expect(clusters.Guest.Client.Create(ctx, account)).To(Succeed())
	g.Expect(clusters.Guest.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tokens"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "tokens"}},
	})).To(Succeed())
	token := func() string {
		request := &authenticationv1.TokenRequest{}
		g.Expect(clusters.Guest.Client.SubResource("token").Create(ctx, account, request)).To(Succeed())
		return request.Status.Token
	}
	config := func(token string) []byte {
		config := clusters.Guest.Config
		content, err := clientcmd.Write(clientcmdapi.Config{
			CurrentContext: "guest",
			Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "operator"}},
			Clusters:       map[string]*clientcmdapi.Cluster{"guest": {Server: "https://" + hostOf(config.Host), CertificateAuthorityData: config.CAData}},
			AuthInfos:      map[string]*clientcmdapi.AuthInfo{"operator": {Token: token}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		return content
	}
	clusters.NewScope(t, "eks")
	secret := kubeconfig(g, "eks", nil)
	secret.Data["value"] = config(token())
	g.Expect(management.Create(ctx, secret)).To(Succeed())
	g.Eventually(c.status("eks")).Should(Equal(metav1.ConditionTrue))
	made := counter(g, "autonode_guest_connections_total")
	reconciled := c.reconciled("eks")()

	renewed := token()
	secret.Data["value"] = config(renewed)
	g.Expect(management.Update(ctx, secret)).To(Succeed())
	other := kubeconfig(g, "eks", func(s string) string { return strings.ReplaceAll(s, hostOf(clusters.Guest.Config.Host), "127.0.0.1:1") })
	other.Name = "eks-user-kubeconfig"
	g.Expect(management.Create(ctx, other)).To(Succeed())
	g.Eventually(c.reconciled("eks")).Should(BeNumerically(">", reconciled))
	_, given := c.reachable("eks")
	g.Eventually(func() (string, error) {
		content, err := os.ReadFile(given.Config.BearerTokenFile)
		return string(content), err
	}).Should(Equal(renewed))
	g.Expect(given.Live.List(ctx, &corev1.NodeList{})).To(Succeed())
	g.Consistently(func() float64 { return counter(g, "autonode_guest_connections_total") }, time.Second).Should(Equal(made))
}

func (c *connection) reportsMalformed(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	clusters.NewScope(t, "broken")
	g.Expect(management.Create(ctx, kubeconfig(g, "broken", func(string) string { return "nonsense" }))).To(Succeed())
	g.Eventually(c.message("broken")).Should(Equal("Unreachable: kubeconfig Secret clusters-broken/broken-kubeconfig can't be used: it is no kubeconfig"))
}

// reportsRefused has a kubeconfig Secret whose credentials have expired, and which lacks its label at first.
func (c *connection) reportsRefused(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	clusters.NewScope(t, "expired")
	secret := kubeconfig(g, "expired", nil)
	config, err := clientcmd.Load(secret.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "expired"}
	}
	secret.Data["value"], err = clientcmd.Write(*config)
	g.Expect(err).NotTo(HaveOccurred())
	secret.Labels = nil
	g.Expect(management.Create(ctx, secret)).To(Succeed())
	g.Eventually(c.message("expired")).Should(Equal("Connecting: waiting for kubeconfig Secret clusters-expired/expired-kubeconfig with the label cluster.x-k8s.io/cluster-name=expired"))

	secret.Labels = map[string]string{clusterv1.ClusterNameLabel: "expired"}
	g.Expect(management.Update(ctx, secret)).To(Succeed())
	g.Eventually(c.message("expired")).Should(Equal("Unreachable: " + strings.TrimSuffix(clusters.Guest.Config.Host, "/") +
		" refuses the credentials of kubeconfig Secret clusters-expired/expired-kubeconfig (401 Unauthorized); renew them"))
}

func (c *connection) dropsSecrets(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	for name, kept := range map[string]bool{"blue-ca": false, "machine-1": false, v1beta1.GuestAccessSecret: true} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}},
			Data:       map[string][]byte{"key": []byte("secret")},
		}
		g.Expect(management.Create(ctx, secret)).To(Succeed())
		read := &corev1.Secret{}
		g.Eventually(func() error {
			return c.connections.Secrets().Get(ctx, client.ObjectKeyFromObject(secret), read)
		}).Should(Succeed())
		g.Expect(len(read.Data) > 0).To(Equal(kept), name)
	}
}
