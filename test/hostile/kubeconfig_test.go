// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/kubeconfig"
	"github.com/autonode-io/autonode/operator/guest/egress"
)

// Parts of a kubeconfig.
type (
	kubeConfig  = clientcmdapi.Config
	kubeCluster = clientcmdapi.Cluster
	kubeUser    = clientcmdapi.AuthInfo
)

// TestKubeconfig is an attacker who writes the kubeconfig Secret of a control plane, which the operator reads.
func TestKubeconfig(t *testing.T) {
	const label = "hostile-kubeconfig"
	g := NewWithT(t)
	serve(t, label)
	secret := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(secret, []byte("the-operators-own"), 0o600)).To(Succeed())
	ran := filepath.Join(t.TempDir(), "ran")
	internal := listen(t, false, nil)
	collector := listen(t, true, nil)
	redirector := listen(t, true, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, internal.URL+"/latest/meta-data", http.StatusTemporaryRedirect)
	})

	const forbidden = "the platform doesn't allow the operator to connect to this address"
	for name, test := range map[string]struct {
		has  string
		arm  func(*kubeConfig, *kubeCluster, *kubeUser)
		want string
	}{
		"token-file": {"a file beside a token", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) { u.TokenFile = secret }, "tokenFile names a file"},
		"cert-file": {"files as certificate and key", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) {
			u.ClientCertificate, u.ClientKey = "/dev/zero", "/dev/zero"
		}, "client-certificate and client-key name files"},
		"ca-file": {"a file as authority", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.CertificateAuthorityData, c.CertificateAuthority = nil, "/dev/zero"
		}, "certificate-authority names a file"},
		"exec": {"a program", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) {
			u.Token, u.Exec = "", &clientcmdapi.ExecConfig{
				APIVersion: "client.authentication.k8s.io/v1", Command: "touch", Args: []string{ran}, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}
		}, "exec runs a program"},
		"auth-provider": {"a plugin", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) {
			u.Token, u.AuthProvider = "", &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		}, "auth-provider runs a plugin"},
		"proxy": {"a proxy", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) { c.ProxyURL = internal.URL }, "proxy-url isn't allowed"},
		"insecure": {"trust in any server", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true
		}, "insecure-skip-tls-verify"},
		"plain": {"a server without TLS", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) { c.Server = internal.URL }, "server has to be a URL such as https://"},
		"socket": {"something else than a server", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.Server = "https://user:password@" + strings.TrimPrefix(collector.URL, "https://")
		}, "server has to be a URL such as https://"},
		"impersonation": {"another user", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) { u.Impersonate = "system:admin" }, "as, as-uid"},
		"crowd": {"a crowd of users", func(c *kubeConfig, _ *kubeCluster, u *kubeUser) {
			for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
				c.AuthInfos[name] = u.DeepCopy()
			}
		}, "it has more than 16 clusters, users or contexts"},
		"giant":  {"a giant token", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) { u.Token = strings.Repeat("x", kubeconfig.MaxSize) }, "it is larger than 128 KiB"},
		"header": {"a token that adds headers", func(_ *kubeConfig, _ *kubeCluster, u *kubeUser) { u.Token = "a\r\nImpersonate-User: b" }, "token has other characters"},
		"redirect": {"a server that redirects", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.Server, c.CertificateAuthorityData = redirector.URL, redirector.ca()
		}, "doesn't answer as an API server"},
		"metadata": {"a link-local address", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.Server = "https://169.254.169.254"
		}, forbidden + "; the platform team sets --guest-networks"},
		"management": {"the management cluster", func(_ *kubeConfig, c *kubeCluster, _ *kubeUser) {
			c.Server, c.CertificateAuthorityData = "https://"+hostOf(clusters.Management.Config.Host), clusters.Management.Config.CAData
		}, forbidden},
	} {
		config := collector.kubeconfig()
		test.arm(config, config.Clusters["c"], config.AuthInfos["u"])
		content, err := clientcmd.Write(*config)
		g.Expect(err).NotTo(HaveOccurred())
		controlPlane(t, client.ObjectKey{Namespace: "weapons-" + name, Name: name}, "weapons/"+name, content)
		reachable := condition(t, hosted(t, "weapons", name, label, nil), v1beta1.GuestReachable)
		t.Run("When a kubeconfig names "+test.has+", GuestReachable should report it, and nothing be read, run or asked", func(t *testing.T) {
			g := NewWithT(t)
			reason := v1beta1.GuestUnreachableReason
			if strings.HasPrefix(test.want, forbidden) {
				reason = v1beta1.GuestAddressForbiddenReason
			}
			g.Eventually(reachable).Should(And(HavePrefix("False/"+reason+": "), ContainSubstring(test.want)))
			g.Expect(collector.asked()).To(BeEmpty())
			g.Expect(internal.asked()).To(BeEmpty())
			g.Expect(ran).NotTo(BeAnExistingFile())
			g.Expect(reachable()).NotTo(ContainSubstring("password"))
		})
	}
	t.Run("When refused kubeconfigs are tried for another second, the operator should ask no server and run no program", func(t *testing.T) {
		g := NewWithT(t)
		g.Consistently(collector.asked, time.Second).Should(BeEmpty())
		g.Expect(internal.asked()).To(BeEmpty())
		g.Expect(ran).NotTo(BeAnExistingFile())
	})
}

// TestAddresses is an attacker who has the operator dial for them.
func TestAddresses(t *testing.T) {
	g := NewWithT(t)

	t.Run("When the platform declares nothing, it should allow public addresses alone", func(t *testing.T) {
		g := NewWithT(t)
		policy, err := egress.NewPolicy("")
		g.Expect(err).NotTo(HaveOccurred())
		check(g, policy, map[string]bool{
			"93.184.216.34:443": true, "[2606:2800:220:1:248:1893:25c8:1946]:443": true,
			"10.0.0.1:443": false, "172.31.0.1:443": false, "192.168.1.1:443": false, "100.64.0.1:443": false, "127.0.0.1:443": false,
			"169.254.169.254:80": false, "0.0.0.0:443": false, "255.255.255.255:443": false, "224.0.0.1:443": false, "192.0.0.192:80": false,
			"[::1]:443": false, "[::]:443": false, "[fe80::1]:443": false, "[fd00:ec2::254]:443": false, "[ff02::1]:443": false,
			"[::ffff:127.0.0.1]:443": false, "[::ffff:10.0.0.1]:443": false, "[64:ff9b::a00:1]:443": false, "[2002:a00:1::]:443": false, "[::7f00:1]:443": false,
		})
	})

	t.Run("When the default holds, it should allow private addresses, and neither loopback nor link-local ones", func(t *testing.T) {
		g := NewWithT(t)
		policy, err := egress.NewPolicy(egress.Private)
		g.Expect(err).NotTo(HaveOccurred())
		check(g, policy, map[string]bool{
			"10.0.0.1:6443": true, "192.168.1.1:6443": true, "[fd00::1]:6443": true, "93.184.216.34:443": true, "[::ffff:10.0.0.1]:443": true,
			"127.0.0.1:6443": false, "169.254.169.254:80": false, "[fe80::1]:443": false, "[::ffff:169.254.169.254]:80": false,
		})
	})

	t.Run("When an address is the management cluster's, it should be allowed only where it has an entry of its own", func(t *testing.T) {
		g := NewWithT(t)
		for networks, want := range map[string]bool{"10.0.0.0/8": false, "10.0.0.0/8,10.96.0.1/32": true} {
			policy, err := egress.NewPolicy(networks)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(policy.Deny(t.Context(), "https://10.96.0.1:443")).To(Succeed())
			check(g, policy, map[string]bool{"10.96.0.1:443": want, "[::ffff:10.96.0.1]:443": want, "10.96.0.1:6443": true})
		}
	})

	_, err := egress.NewPolicy("10.0.0.0")
	g.Expect(err).To(MatchError(ContainSubstring("is no network")))
}

func check(g Gomega, policy *egress.Policy, addresses map[string]bool) {
	for address, allowed := range addresses {
		err := policy.Check(netip.MustParseAddrPort(address))
		if allowed {
			g.Expect(err).NotTo(HaveOccurred(), address)
		} else {
			g.Expect(err).To(MatchError(egress.ErrForbidden), address)
		}
	}
}

func hostOf(url string) string { return strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/") }
