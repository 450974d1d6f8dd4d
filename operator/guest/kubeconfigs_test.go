// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/http"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/watch"
)

func TestProxy(t *testing.T) {
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "c",
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://blue.example:6443"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "t"}},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}},
		Data:       map[string][]byte{"value": content},
	}
	platform, err := url.Parse("http://proxy.example:3128")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	setUp := func(t *testing.T, proxies map[string]*url.URL) *kubeconfigs {
		return &kubeconfigs{
			dialer: egress.NewDialer(&egress.Policy{}, egress.Budget{}), tokens: t.TempDir(),
			environment: func(r *http.Request) (*url.URL, error) { return proxies[r.URL.Host], nil },
		}
	}

	t.Run("When the environment names no proxy for a guest, it should be dialed directly, and a redirect should lead to no proxy", func(t *testing.T) {
		g := NewWithT(t)
		config, err := setUp(t, map[string]*url.URL{"red.example": platform}).config(secret)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Dial).NotTo(BeNil())
		g.Expect(config.Proxy).NotTo(BeNil())
		g.Expect(config.Proxy(&http.Request{URL: &url.URL{Scheme: "https", Host: "red.example"}})).To(BeNil())
		_, err = config.Dial(t.Context(), "tcp", "red.example:443")
		g.Expect(err).To(MatchError(ContainSubstring("the kubeconfig's server alone")))
	})

	t.Run("When the environment names a proxy for a guest, that should be asked", func(t *testing.T) {
		g := NewWithT(t)
		config, err := setUp(t, map[string]*url.URL{"blue.example:6443": platform}).config(secret)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Dial).To(BeNil())
		g.Expect(config.Proxy).To(BeNil(), "which is the environment's")
	})

	t.Run("When a guest is connected again, client-go should keep nothing of the connection before", func(t *testing.T) {
		g := NewWithT(t)
		k := setUp(t, nil)
		var transports []http.RoundTripper
		for range 2 {
			config, err := k.config(secret)
			g.Expect(err).NotTo(HaveOccurred())
			config.BearerToken, config.BearerTokenFile = "", "" // so that nothing wraps the transport
			transport, err := rest.TransportFor(config)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(transport).To(BeAssignableToTypeOf(&http.Transport{}), "client-go wraps what it caches")
			transports = append(transports, transport)
		}
		g.Expect(transports[0]).NotTo(BeIdenticalTo(transports[1]))
	})
}

// TestGuestAccess has the access of two tenants' Karpenters, both with the labels of one HostedCluster.
func TestGuestAccess(t *testing.T) {
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
	management := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1beta1.HostedCluster{}, clusterIndex, indexByCluster).
		WithObjects(&v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}).Build()
	for name, test := range map[string]struct {
		namespace string
		woken     int
	}{
		"When the access in its control-plane namespace changes, the HostedCluster should be reconciled": {"clusters-blue", 1},
		"When another tenant writes one with its labels elsewhere, it should not be":                     {"tenant-red", 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := &Connections{access: &access{management: management}, watches: watch.New(clock.RealClock{}, nil)}
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			g.Expect(c.watches.Source().Start(t.Context(), queue)).To(Succeed())
			c.onSecret(t.Context()).OnAdd(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: test.namespace, Name: v1beta1.GuestAccessSecret, Labels: map[string]string{
					clusterv1.ClusterNameLabel: "blue", v1beta1.HostedClusterNamespaceLabel: "clusters", v1beta1.HostedClusterLabel: "blue",
				},
			}}, false)
			g.Expect(queue.Len()).To(Equal(test.woken))
		})
	}
}
