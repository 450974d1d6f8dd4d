// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/operator/guest/store"
)

var blue = client.ObjectKey{Namespace: "clusters-blue", Name: "blue"}

const retry = 30 * time.Second

// world has one Cluster, whose guest answers probes as the test decides.
type world struct {
	*Manager
	management client.Client
	clock      *clocktesting.FakePassiveClock
	answer     atomic.Int32
	probes     atomic.Int32
	ready      atomic.Int32
	recovered  []bool // what /readyz said after each probe
	wanted     bool
	access     error
	changed    int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme))).To(Succeed())
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: blue.Namespace, Name: blue.Name}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	w := &world{
		management: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build(),
		clock:      clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0)), wanted: true,
	}
	w.answer.Store(http.StatusOK)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			out.WriteHeader(int(w.ready.Load()))
			return
		}
		if r.URL.Path == "/" {
			w.probes.Add(1)
			out.WriteHeader(int(w.answer.Load()))
			return
		}
		http.NotFound(out, r)
	}))
	t.Cleanup(server.Close)
	w.Manager = New(Config{
		Management: w.management, Scheme: scheme, Clock: w.clock, Retry: retry, Timeout: time.Minute, Backoff: backoff, UnresponsiveAfter: 25 * time.Second,
		Kinds:  func(schema.GroupVersionKind) store.Kind { return store.Kind{} },
		Charge: func(string, int) {}, Noticed: func(context.Context, client.ObjectKey) {},
		Wanted: func(context.Context, *clusterv1.Cluster) bool { return w.wanted },
		Access: func(context.Context, client.ObjectKey) (*rest.Config, error) {
			return &rest.Config{Host: server.URL}, w.access
		},
		Changed: func(context.Context, client.ObjectKey) { w.changed++ },
		Probed: func(_ context.Context, _ client.ObjectKey, ready func() error) {
			w.recovered = append(w.recovered, ready() == nil)
		},
	})
	return w
}

// reconcile lets time pass and reconciles the Cluster, and returns when that is to be repeated.
func (w *world) reconcile(ctx context.Context, g *WithT, after time.Duration) time.Duration {
	w.clock.SetTime(w.clock.Now().Add(after))
	result, err := w.Reconcile(ctx, reconcile.Request{NamespacedName: blue})
	g.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

// connected reconciles until there is a connection.
func (w *world) connected(ctx context.Context, g *WithT) *Guest {
	w.reconcile(ctx, g, 0)
	guest, err := w.Guest(blue)
	g.Expect(err).NotTo(HaveOccurred())
	return guest
}

// expectClosed expects that there is no connection, and that the watches of the one there was have ended.
func (w *world) expectClosed(g *WithT, was *Guest) {
	_, err := w.Guest(blue)
	g.Expect(err).To(MatchError(ErrNotConnected))
	g.Expect(was.Store.Handle(&corev1.Node{}, toolscache.ResourceEventHandlerFuncs{})).To(MatchError(store.ErrClosed))
}

func TestManager(t *testing.T) {
	ctx := t.Context()

	t.Run("When a guest answers, it should connect, say so once, and probe every ten seconds", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		guest := w.connected(ctx, g)
		g.Expect(w.changed).To(Equal(1))
		g.Expect(w.Health(blue)).To(Equal(Health{LastProbe: w.clock.Now(), LastSuccess: w.clock.Now()}))
		g.Expect(w.reconcile(ctx, g, 4*time.Second)).To(Equal(6 * time.Second))
		g.Expect(w.probes.Load()).To(BeEquivalentTo(1))
		g.Expect(w.reconcile(ctx, g, 6*time.Second)).To(Equal(probeInterval))
		g.Expect(w.probes.Load()).To(BeEquivalentTo(2))
		g.Expect(w.changed).To(Equal(1))
		g.Expect(w.Guest(blue)).To(BeIdenticalTo(guest))
	})

	t.Run("When the infrastructure isn't provisioned, it should not connect", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		cluster := &clusterv1.Cluster{}
		g.Expect(w.management.Get(ctx, blue, cluster)).To(Succeed())
		cluster.Status.Initialization.InfrastructureProvisioned = nil
		g.Expect(w.management.Update(ctx, cluster)).To(Succeed())
		g.Expect(w.reconcile(ctx, g, 0)).To(BeZero())
		g.Expect(w.probes.Load()).To(BeZero())
	})

	t.Run("When a guest doesn't answer at first, it should count that, and try again after the back-off", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		w.answer.Store(http.StatusInternalServerError)
		g.Expect(w.reconcile(ctx, g, 0)).To(Equal(retry))
		g.Expect(w.Health(blue).Failures).To(Equal(1))
		tried := w.probes.Load()
		w.answer.Store(http.StatusOK)
		g.Expect(w.reconcile(ctx, g, retry-time.Second)).To(Equal(time.Second))
		g.Expect(w.probes.Load()).To(Equal(tried))
		w.reconcile(ctx, g, time.Second)
		g.Expect(w.Guest(blue)).NotTo(BeNil())
		g.Expect(w.Health(blue).Failures).To(BeZero())
	})

	t.Run("When there is no access, it should count that as a failure", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		w.access = errors.New("no kubeconfig")
		g.Expect(w.reconcile(ctx, g, 0)).To(Equal(retry))
		g.Expect(w.Health(blue).Failures).To(Equal(1))
	})

	t.Run("When a guest is probed, its readiness should be offered, too, whose failure closes no connection", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		w.connected(ctx, g)
		for range maxFailures {
			w.ready.Store(http.StatusInternalServerError)
			w.reconcile(ctx, g, probeInterval)
			w.ready.Store(http.StatusOK)
			w.reconcile(ctx, g, probeInterval)
		}
		g.Expect(w.recovered).To(Equal([]bool{false, true, false, true, false, true, false, true, false, true}))
		_, err := w.Guest(blue)
		g.Expect(err).NotTo(HaveOccurred())
	})

	t.Run("When probes fail, it should say so once after a while, and close the connection after the fifth", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		guest := w.connected(ctx, g)
		w.answer.Store(http.StatusInternalServerError)
		for failures := 1; failures < maxFailures; failures++ {
			g.Expect(w.reconcile(ctx, g, probeInterval)).To(Equal(probeInterval))
			g.Expect(w.Health(blue).Failures).To(Equal(failures))
		}
		g.Expect(w.Guest(blue)).To(BeIdenticalTo(guest))
		g.Expect(w.changed).To(Equal(2))
		g.Expect(w.reconcile(ctx, g, probeInterval)).To(Equal(retry))
		w.expectClosed(g, guest)
		g.Expect(w.changed).To(Equal(3))
		g.Expect(w.Health(blue).LastSuccess).To(Equal(w.clock.Now().Add(-maxFailures * probeInterval)))
	})

	t.Run("When a guest refuses the credentials, it should connect again at once", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		guest := w.connected(ctx, g)
		w.answer.Store(http.StatusUnauthorized)
		g.Expect(w.reconcile(ctx, g, probeInterval)).To(Equal(time.Millisecond))
		w.expectClosed(g, guest)
		w.answer.Store(http.StatusOK)
		w.connected(ctx, g)
	})

	t.Run("When a Cluster isn't wanted any more or is deleted, it should close the connection and forget", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		guest := w.connected(ctx, g)
		w.wanted = false
		g.Expect(w.reconcile(ctx, g, time.Second)).To(BeZero())
		w.expectClosed(g, guest)
		g.Expect(w.Health(blue)).To(BeZero())

		w.wanted = true
		guest = w.connected(ctx, g)
		g.Expect(w.management.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: blue.Namespace, Name: blue.Name}})).To(Succeed())
		w.reconcile(ctx, g, time.Second)
		w.expectClosed(g, guest)
	})

	t.Run("When the manager ends, it should close all connections, and make none", func(t *testing.T) {
		g, w := NewWithT(t), newWorld(t)
		guest := w.connected(ctx, g)
		ended, end := context.WithCancel(ctx)
		end()
		g.Expect(w.Start(ended)).To(Succeed())
		w.expectClosed(g, guest)
		w.reconcile(ctx, g, time.Second)
		w.expectClosed(g, guest)
	})
}

func TestMapper(t *testing.T) {
	nodePool := schema.GroupKind{Group: "karpenter.sh", Kind: "NodePool"}
	setUp := func(served map[string]*metav1.APIResourceList) (*mapper, *int) {
		asked := 0
		return newMapper(func(groupVersion string) (*metav1.APIResourceList, error) {
			asked++
			if list, ok := served[groupVersion]; ok {
				return list, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{}, groupVersion)
		}), &asked
	}
	karpenter := &metav1.APIResourceList{APIResources: []metav1.APIResource{
		{Name: "nodepools/status", Kind: "NodePool"}, {Name: "nodepools", Kind: "NodePool"}, {Name: "things", Kind: "Thing", Namespaced: true},
	}}

	t.Run("When every guest serves a kind, it should not ask", func(t *testing.T) {
		g := NewWithT(t)
		m, asked := setUp(nil)
		for kind, resource := range map[schema.GroupVersionKind]string{
			{Version: "v1", Kind: "Node"}: "nodes",
			{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"}: "validatingadmissionpolicies",
			{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}:          "customresourcedefinitions",
			{Group: "certificates.k8s.io", Version: "v1", Kind: "CertificateSigningRequest"}:          "certificatesigningrequests",
			{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}:                             "poddisruptionbudgets",
			{Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview"}:           "selfsubjectaccessreviews",
		} {
			mapping, err := m.RESTMapping(kind.GroupKind(), kind.Version)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(mapping.Resource.Resource).To(Equal(resource))
		}
		g.Expect(*asked).To(BeZero())
	})

	t.Run("When a kind is of a group that the guest may serve, it should ask until it is served, and then no more", func(t *testing.T) {
		g := NewWithT(t)
		served := map[string]*metav1.APIResourceList{}
		m, asked := setUp(served)
		_, err := m.RESTMapping(nodePool, "v1")
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
		served["karpenter.sh/v1"] = &metav1.APIResourceList{}
		_, err = m.RESTMapping(nodePool, "v1")
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
		served["karpenter.sh/v1"] = karpenter
		for range 2 {
			mapping, err := m.RESTMapping(nodePool, "v1")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(mapping.Resource).To(Equal(schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}))
			g.Expect(mapping.Scope).To(Equal(meta.RESTScopeRoot))
		}
		g.Expect(*asked).To(Equal(3))
		mapping, err := m.RESTMapping(schema.GroupKind{Group: "karpenter.sh", Kind: "Thing"}, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mapping.Scope).To(Equal(meta.RESTScopeNamespace))
	})

	t.Run("When the guest doesn't answer, it should not say that a kind is missing", func(t *testing.T) {
		g := NewWithT(t)
		m := newMapper(func(string) (*metav1.APIResourceList, error) { return nil, context.DeadlineExceeded })
		_, err := m.RESTMapping(nodePool, "v1")
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(meta.IsNoMatchError(err)).To(BeFalse())
	})
}
