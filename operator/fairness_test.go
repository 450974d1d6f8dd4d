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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// sick is the guest behind a proxy that passes a request on when admit returns. The context of what admit sees ends with the test too, before the
// operator is waited for: not every request for a guest's API can be interrupted.
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
		ctx, end := context.WithCancel(request.Context())
		defer end()
		defer context.AfterFunc(t.Context(), end)()
		admit(request.WithContext(ctx))
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

// deaf is a guest that accepts connections and answers nothing, until the test ends.
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
			context.AfterFunc(t.Context(), func() { _ = connection.Close() })
		}
	}()
	context.AfterFunc(t.Context(), func() { _ = listener.Close() })
	return &rest.Config{Host: "https://" + listener.Addr().String()}
}

// frozen is a guest that can be connected to, and answers nothing else until it has recovered.
func frozen(t *testing.T, recovered <-chan struct{}) *rest.Config {
	t.Helper()
	return sick(t, func(request *http.Request) {
		if discovers := !strings.HasPrefix(request.URL.Path, "/api/v1/") && strings.Count(request.URL.Path, "/") < 4; discovers {
			return
		}
		select {
		case <-request.Context().Done():
		case <-recovered:
		}
	})
}

// machine makes a Machine of Karpenter's that has the cluster's name.
func machine(t *testing.T, cluster string) {
	t.Helper()
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), newMachine("clusters-"+cluster, cluster, cluster))).To(Succeed())
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

// hosted makes a HostedCluster with that label, and what a platform has of it; config reaches its guest. It returns the name.
func hosted(t *testing.T, label, name, image string, config *rest.Config) string {
	t.Helper()
	return hostedIn(t, "clusters", label, name, image, config)
}

// hostedIn is hosted for a HostedCluster of any namespace.
func hostedIn(t *testing.T, namespace, label, name, image string, config *rest.Config) string {
	t.Helper()
	platformIn(t, namespace, name, config)
	NewWithT(t).Expect(clusters.Management.Client.Create(t.Context(), newHosted(namespace, name, image, label))).To(Succeed())
	return name
}

// reachable is what GuestReachable reports, once it reports anything.
func reachable(g Gomega, ctx context.Context, name string) (reason, message string) {
	condition := meta.FindStatusCondition(get(g, ctx, name).Status.Conditions, v1beta1.GuestReachable)
	g.Expect(condition).NotTo(BeNil())
	return string(condition.Status) + "/" + condition.Reason, condition.Message
}

func TestFairness(t *testing.T) {
	t.Parallel()
	const label = "fairness"
	ctx := t.Context()
	const (
		each = 15
		// No call to a guest that hangs ends before the test does, so that whoever has to wait for one waits for ever; anyone else may take
		// as long as a loaded machine needs.
		never, timeout = time.Hour, 5 * time.Minute
	)
	provide(t)
	image := push(t, serveRegistry(t), "1.36.2")

	recovered := make(chan struct{})
	silent, stalled := deaf(t), frozen(t, recovered)
	slow := sick(t, func(request *http.Request) {
		select {
		case <-request.Context().Done():
		case <-time.After(2 * time.Second):
		}
	})
	// deciding hangs, if told to, at the read of a request's NodeClaim.
	var hanging atomic.Bool
	var refused atomic.Int64
	deciding := sick(t, func(request *http.Request) {
		if hanging.Load() && strings.HasPrefix(request.URL.Path, "/apis/karpenter.sh/v1/nodeclaims/") {
			refused.Add(1)
			<-request.Context().Done()
		}
	})
	removeAll(t, label)
	options := selecting(label)
	options.GuestTimeout = never
	run(t, clusters.Management.Config, options)
	enable := func(name string, config *rest.Config) string { return hosted(t, label, name, image, config) }
	names := map[string][]string{}
	for i := range each {
		for kind, config := range map[string]*rest.Config{"silent": silent, "stalled": stalled, "slow": slow} {
			names[kind] = append(names[kind], enable(fmt.Sprintf("%s-%d", kind, i), config))
		}
	}

	t.Run("When many guests hang or answer slowly, the others should be served all the same", func(t *testing.T) {
		g := NewWithT(t)
		for i := range 6 {
			enable(fmt.Sprintf("beside-%d", i), clusters.Guest.Config)
		}
		for i := range 6 {
			g.Eventually(func(g Gomega) { deploymentOf(g, ctx, "clusters-"+fmt.Sprintf("beside-%d", i)) }, timeout).Should(Succeed())
		}
	})

	t.Run("When guests with many certificate requests hang, those of the others should be decided", func(t *testing.T) {
		g := NewWithT(t)
		// Two that were served until now, and hang where nothing but certificate requests are about. All guests here are one API server: each
		// operator's connection sees all requests, and leaves alone those that name no Machine of its cluster.
		hung := []string{enable("hung-0", deciding), enable("hung-1", deciding)}
		for _, name := range hung {
			g.Eventually(func(g Gomega) { deploymentOf(g, ctx, "clusters-"+name) }, timeout).Should(Succeed())
			machine(t, name)
		}
		machine(t, "beside-0")
		hanging.Store(true)
		for _, name := range hung {
			for range 2 * 20 { // more than there were workers once
				ask(t, name)
			}
		}
		g.Eventually(refused.Load, timeout).Should(BeNumerically(">=", len(hung)), "they are asked about")
		request := ask(t, "beside-0")
		g.Eventually(func(g Gomega) {
			g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(request), request)).To(Succeed())
			g.Expect(request.Status.Conditions).To(HaveLen(1))
			g.Expect(request.Status.Conditions[0].Reason).To(Equal(v1beta1.RequesterMismatchReason))
		}, timeout).Should(Succeed())
	})

	t.Run("When a guest answers slowly, it should be reached all the same", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range names["slow"] {
			g.Eventually(func(g Gomega) {
				reason, _ := reachable(g, ctx, name)
				g.Expect(reason).To(Equal("True/AsExpected"))
			}, timeout).Should(Succeed())
		}
	})

	t.Run("When guests answer at last, they should be served, and no error should have been shown to people", func(t *testing.T) {
		g := NewWithT(t)
		close(recovered)
		for _, name := range names["stalled"] {
			g.Eventually(func(g Gomega) { deploymentOf(g, ctx, "clusters-"+name) }, timeout).Should(Succeed())
		}
		withoutErrors(g, ctx, "silent", "stalled", "slow")
	})
}

// TestSlowTenant: the HostedClusters of one namespace have more guests that are slow than there are workers.
func TestSlowTenant(t *testing.T) {
	t.Parallel()
	const (
		label          = "slow-tenant"
		workers, share = 4, 3
		never          = time.Hour
	)
	ctx := t.Context()
	provide(t)
	image := push(t, serveRegistry(t), "1.36.2")
	var held atomic.Int64
	slow := sick(t, func(request *http.Request) {
		if strings.HasPrefix(request.URL.Path, "/api/v1/") || strings.Count(request.URL.Path, "/") >= 4 {
			held.Add(1)
			<-request.Context().Done()
			held.Add(-1)
		}
	})
	removeAll(t, label)
	options := selecting(label)
	options.GuestTimeout, options.Workers = never, workers
	run(t, clusters.Management.Config, options)
	for i := range workers + 1 {
		hostedIn(t, "tenant", label, fmt.Sprintf("held-%d", i), image, slow)
	}

	t.Run("When a namespace's guests hold its workers, they should hold no more than its share, and another namespace's HostedCluster should be served", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(held.Load).Should(BeNumerically(">=", share))
		hosted(t, label, "beside-tenant", image, clusters.Guest.Config)
		g.Eventually(func(g Gomega) { deploymentOf(g, ctx, "clusters-"+"beside-tenant") }).Should(Succeed())
		g.Expect(held.Load()).To(BeNumerically(">=", share), "the requests of the others are still open")
	})
}

// withoutErrors is about the events of HostedClusters whose names begin so.
func withoutErrors(g Gomega, ctx context.Context, kinds ...string) {
	list := &eventsv1.EventList{}
	g.Expect(clusters.Management.Client.List(ctx, list, client.InNamespace("clusters"))).To(Succeed())
	for _, event := range list.Items {
		if kind, _, _ := strings.Cut(event.Regarding.Name, "-"); slices.Contains(kinds, kind) {
			g.Expect(event.Reason).NotTo(Equal(v1beta1.AutoNodeEvaluationFailedReason), event.Note)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	const label = "unreachable"
	ctx, recovered := t.Context(), make(chan struct{})
	provide(t)
	image := push(t, serveRegistry(t), "1.36.2")
	mute, still := deaf(t), frozen(t, recovered)
	removeAll(t, label)
	options := selecting(label)
	options.GuestTimeout = 3 * time.Second
	run(t, clusters.Management.Config, options)
	hosted(t, label, "mute-guest", image, mute)
	hosted(t, label, "frozen-guest", image, still)

	for name, message := range map[string]string{
		"mute-guest":   mute.Host + " doesn't answer",
		"frozen-guest": still.Host + " doesn't answer within 3s",
	} {
		t.Run("When a guest doesn't answer, GuestReachable should say so, and no error should be shown to people: "+name, func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func(g Gomega) {
				reason, said := reachable(g, ctx, name)
				g.Expect(reason).To(Equal("False/Unreachable"))
				g.Expect(said).To(ContainSubstring(message))
				g.Expect(get(g, ctx, name).Status.AutoNode.Message).To(Equal(said))
			}).Should(Succeed())
			withoutErrors(g, ctx, "mute", "frozen")
		})
	}

	t.Run("When a guest that was called unreachable answers again, it should be served", func(t *testing.T) {
		g := NewWithT(t)
		close(recovered)
		g.Eventually(func(g Gomega) {
			deploymentOf(g, ctx, "clusters-frozen-guest")
			reason, _ := reachable(g, ctx, "frozen-guest")
			g.Expect(reason).To(Equal("True/AsExpected"))
		}).Should(Succeed())
	})
}
