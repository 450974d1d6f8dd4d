// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

// sick is the guest behind a proxy that passes a request on when admit returns.
func sick(t *testing.T, admit func(*http.Request)) *rest.Config {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse(clusters.Guest.Config.Host)
	g.Expect(err).NotTo(HaveOccurred())
	if target.Scheme == "" {
		target = &url.URL{Scheme: "https", Host: clusters.Guest.Config.Host}
	}
	transport, err := rest.TransportFor(clusters.Guest.Config)
	g.Expect(err).NotTo(HaveOccurred())
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		admit(request)
		if request.Context().Err() == nil {
			proxy.ServeHTTP(w, request)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
}

// deaf is a guest that accepts connections and says nothing.
func deaf(t *testing.T) *rest.Config {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = connection.Close() })
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return &rest.Config{Host: "https://" + listener.Addr().String()}
}

// machine makes a Machine of Karpenter's that has the cluster's name.
func machine(t *testing.T, cluster string) {
	t.Helper()
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters-" + cluster, Name: cluster, Labels: map[string]string{
			clusterv1.ClusterNameLabel: cluster, v1alpha1.NodeClaimLabel: cluster, v1alpha1.NodeClaimUIDLabel: "any",
		},
	}})).To(Succeed())
}

// ask makes a certificate request for the node of that Machine, as an administrator: it is to be denied, once everything was read again.
func ask(t *testing.T, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: content, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	g.Expect(clusters.Guest.Client.Create(t.Context(), request)).To(Succeed())
	t.Cleanup(func() { g.Expect(clusters.Guest.Client.Delete(context.Background(), request)).To(Succeed()) })
	return request
}

// isDiscovery is true for what a connection begins with.
func isDiscovery(request *http.Request) bool {
	return !strings.HasPrefix(request.URL.Path, "/api/v1/") && strings.Count(request.URL.Path, "/") < 4
}

func TestFairness(t *testing.T) {
	g := NewWithT(t)
	ctx, management := t.Context(), clusters.Management.Client
	// A loaded machine is slow, but no healthy guest may have to wait until a call to another one ends.
	const timeout, each = 20 * time.Second, 15
	provide(t)
	image := push(t, serveRegistry(t), "1.36.2")

	recovered := make(chan struct{})
	silent, stalled := deaf(t), sick(t, func(request *http.Request) {
		if isDiscovery(request) {
			return
		}
		select {
		case <-request.Context().Done():
		case <-recovered:
		}
	})
	slow := sick(t, func(request *http.Request) {
		select {
		case <-request.Context().Done():
		case <-time.After(2 * time.Second):
		}
	})
	// deciding hangs, once it is to, where it is asked for the NodeClaim that a request names.
	var hanging atomic.Bool
	var refused atomic.Int64
	deciding := sick(t, func(request *http.Request) {
		if hanging.Load() && strings.HasPrefix(request.URL.Path, "/apis/karpenter.sh/v1/nodeclaims/") {
			refused.Add(1)
			<-request.Context().Done()
		}
	})
	sweep(t, "fairness")
	run(t, clusters.Management.Config, operator.Options{
		LeaderElection: true, LeaderElectionNamespace: "default", LeaseName: "fairness", HostedClusterSelector: "fairness", GuestTimeout: timeout,
	})

	enable := func(name string, config *rest.Config) string {
		platformOf(t, name, config)
		g.Expect(management.Create(ctx, &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Labels: map[string]string{"fairness": ""}},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, AutoNode: scopetest.AutoNode()},
		})).To(Succeed())
		return name
	}
	installed := func(g Gomega, name string) {
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "clusters-" + name, Name: "karpenter"}, &appsv1.Deployment{})).To(Succeed())
	}
	// converge returns how long some healthy clusters take together.
	converge := func(prefix string) time.Duration {
		began := time.Now()
		var names []string
		for i := range 6 {
			names = append(names, enable(fmt.Sprintf("%s-%d", prefix, i), clusters.Guest.Config))
		}
		for _, name := range names {
			g.Eventually(func(g Gomega) { installed(g, name) }).Should(Succeed())
		}
		return time.Since(began)
	}
	reachable := func(g Gomega, name string) (reason, message string) {
		hostedCluster := get(g, ctx, name)
		condition := meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.GuestReachable)
		g.Expect(condition).NotTo(BeNil())
		return string(condition.Status) + "/" + condition.Reason, condition.Message
	}

	converge("first") // the guest's definitions are made once
	alone := converge("alone")
	names := map[string][]string{}
	for i := range each {
		for kind, config := range map[string]*rest.Config{"silent": silent, "stalled": stalled, "slow": slow} {
			names[kind] = append(names[kind], enable(fmt.Sprintf("%s-%d", kind, i), config))
		}
	}

	t.Run("When many guests hang or answer slowly, the others should be served as fast as without them", func(t *testing.T) {
		g := NewWithT(t)
		beside := converge("beside")
		t.Logf("alone %s, beside them %s", alone, beside)
		g.Expect(beside).To(BeNumerically("<", timeout))
	})

	t.Run("When guests with many certificate requests hang, those of the others should be decided at once", func(t *testing.T) {
		g := NewWithT(t)
		// Two that were served until now, and hang where nothing but certificate requests are about. All guests here are one API server: each
		// operator's connection sees all requests, and leaves alone those that name no Machine of its cluster.
		hung := []string{enable("hung-0", deciding), enable("hung-1", deciding)}
		for _, name := range hung {
			g.Eventually(func(g Gomega) { installed(g, name) }).Should(Succeed())
			machine(t, name)
		}
		machine(t, "beside-0")
		hanging.Store(true)
		for _, name := range hung {
			for range 2 * 20 { // more than there were workers once
				ask(t, name)
			}
		}
		g.Eventually(refused.Load).Should(BeNumerically(">=", len(hung)), "they are asked about")
		began := time.Now()
		request := ask(t, "beside-0")
		g.Eventually(func(g Gomega) {
			g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(request), request)).To(Succeed())
			g.Expect(request.Status.Conditions).To(HaveLen(1))
			g.Expect(request.Status.Conditions[0].Reason).To(Equal(v1beta1.RequesterMismatchReason))
		}).Should(Succeed())
		t.Logf("decided after %s", time.Since(began))
		g.Expect(time.Since(began)).To(BeNumerically("<", timeout))
	})

	t.Run("When a guest doesn't answer, GuestReachable should say so, and no error should be shown to people", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range names["silent"] {
			g.Eventually(func(g Gomega) {
				reason, message := reachable(g, name)
				g.Expect(reason).To(Equal("False/Unreachable"))
				g.Expect(message).To(ContainSubstring(silent.Host + " doesn't answer"))
			}).Should(Succeed())
		}
		for _, name := range names["stalled"] {
			g.Eventually(func(g Gomega) {
				reason, message := reachable(g, name)
				g.Expect(reason).To(Equal("False/Unreachable"))
				g.Expect(message).To(ContainSubstring(stalled.Host + " doesn't answer within 20s"))
				g.Expect(get(g, ctx, name).Status.AutoNode.Message).To(Equal(message))
			}).Should(Succeed())
		}
	})

	t.Run("When a guest answers slowly, it should be reached all the same", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range names["slow"] {
			g.Eventually(func(g Gomega) {
				reason, _ := reachable(g, name)
				g.Expect(reason).To(Equal("True/AsExpected"))
			}).Should(Succeed())
		}
	})

	t.Run("When a guest answers again, it should be served", func(t *testing.T) {
		g := NewWithT(t)
		close(recovered)
		for _, name := range names["stalled"] {
			g.Eventually(func(g Gomega) { installed(g, name) }, 2*time.Minute).Should(Succeed())
			g.Eventually(func(g Gomega) {
				reason, _ := reachable(g, name)
				g.Expect(reason).To(Equal("True/AsExpected"))
			}).Should(Succeed())
		}
		list := &eventsv1.EventList{}
		g.Expect(management.List(ctx, list, client.InNamespace("clusters"))).To(Succeed())
		for _, event := range list.Items {
			kind, _, _ := strings.Cut(event.Regarding.Name, "-")
			if _, ok := names[kind]; ok {
				g.Expect(event.Reason).NotTo(Equal(v1beta1.AutoNodeEvaluationFailedReason), event.Note)
			}
		}
	})
}
