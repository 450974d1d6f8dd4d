// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/connection"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
)

// connected has connections that stand; the test decides how the probes went.
type connected struct{ health connection.Health }

func (connected) Guest(client.ObjectKey) (*connection.Guest, error) {
	return &connection.Guest{Config: &rest.Config{Host: "https://guest.example"}}, nil
}
func (c connected) Health(client.ObjectKey) connection.Health { return c.health }

// newManagement has the Cluster of HostedCluster clusters/blue.
func newManagement(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(errors.Join(corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1beta1.AddToScheme(scheme))).To(Succeed())
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters-blue", Name: "blue", Annotations: map[string]string{v1beta1.ConsentAnnotation: "clusters/blue"},
	}}).Build()
}

func TestBackoff(t *testing.T) {
	blue := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}
	management := newManagement(t)
	setUp := func() (*Connections, *clocktesting.FakePassiveClock, func(g Gomega) time.Duration) {
		clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
		c := &Connections{
			access:      &access{management: management, dialer: &egress.Dialer{}},
			connections: connected{}, outages: outage.NewTracker(clock, DefaultTimeout), timeout: DefaultTimeout, watches: watch.New(clock, nil),
		}
		return c, clock, func(g Gomega) time.Duration {
			guest, again, err := c.Guest(t.Context(), blue)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(guest == nil).To(Equal(again > 0))
			return again
		}
	}
	lose := func(g Gomega, c *Connections) {
		s := &scope.Scope{HostedCluster: blue.DeepCopy(), ControlPlaneNamespace: "clusters-blue", Guest: &scope.Guest{Config: &rest.Config{Host: "https://guest.example"}}}
		_, lost := c.Lost(s, &url.Error{Op: "Get", URL: "https://guest.example/x", Err: context.DeadlineExceeded})
		g.Expect(lost).To(BeTrue())
	}

	t.Run("When a guest doesn't answer the HostedCluster's reconciliation, other controllers should leave it alone until that has asked again", func(t *testing.T) {
		g := NewWithT(t)
		c, clock, of := setUp()
		g.Expect(of(g)).To(BeZero())
		lose(g, c)
		lose(g, c)
		g.Expect(of(g)).To(Equal(2 * outage.Recheck))
		clock.SetTime(clock.Now().Add(2 * outage.Recheck))
		g.Expect(of(g)).To(Equal(outage.Recheck), "it isn't theirs to find out")
		g.Expect(of(g)).To(Equal(outage.Recheck))

		_, _, unresponsive := c.outages.Unresponsive(client.ObjectKey{Namespace: "clusters-blue", Name: "blue"}, connection.Health{})
		g.Expect(unresponsive).To(BeFalse())
		g.Expect(of(g)).To(BeZero())
		lose(g, c)
		g.Expect(of(g)).To(Equal(4*outage.Recheck), "that others looked has changed nothing")
	})

	t.Run("When a guest becomes ready during its back-off, it should be asked at once; one that was ready all the time should not", func(t *testing.T) {
		g := NewWithT(t)
		c, clock, of := setUp()
		cluster := client.ObjectKey{Namespace: "clusters-blue", Name: "blue"}
		asked := 0
		probe := func(err error) {
			c.probed(t.Context(), cluster, func() error { asked++; return err })
		}
		probe(errors.New("etcd failed"))
		g.Expect(asked).To(BeZero(), "there is no outage")
		for range 7 {
			lose(g, c)
		}
		probe(nil)
		g.Expect(of(g)).To(Equal(outage.MaxBackoff), "it was ready")
		probe(errors.New("etcd failed"))
		g.Expect(of(g)).To(Equal(outage.MaxBackoff))
		probe(nil)
		_, _, unresponsive := c.outages.Unresponsive(cluster, connection.Health{})
		g.Expect(unresponsive).To(BeFalse(), "this reconciliation asks it")
		lose(g, c)
		probe(nil)
		g.Expect(of(g)).To(Equal(outage.MaxBackoff))
		g.Expect(asked).To(Equal(4))
		clock.SetTime(clock.Now().Add(outage.MaxBackoff))
		_, _, unresponsive = c.outages.Unresponsive(cluster, connection.Health{})
		g.Expect(unresponsive).To(BeFalse())
	})

	t.Run("When a guest misses probes, other controllers should leave it alone", func(t *testing.T) {
		g := NewWithT(t)
		c, _, of := setUp()
		c.connections = connected{health: connection.Health{Failures: 2}}
		g.Expect(of(g)).To(Equal(outage.Recheck))
		c.connections = connected{health: connection.Health{Failures: 1}}
		g.Expect(of(g)).To(BeZero())
	})
}

func TestSlowGuest(t *testing.T) {
	t.Run("When a guest answers each call just in time, a reconciliation should make few, and the next should follow without the guest called unreachable", func(t *testing.T) {
		g := NewWithT(t)
		clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
		calls := 0
		slow := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				calls++
				clock.SetTime(clock.Now().Add(DefaultTimeout - time.Second))
				return nil
			},
		})
		blue := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}
		c := &Connections{connections: connected{}, outages: outage.NewTracker(clock, DefaultTimeout), timeout: DefaultTimeout}
		key := client.ObjectKeyFromObject(blue)
		guest := c.outages.Guest(&connection.Guest{Config: &rest.Config{Host: "https://guest.example"}, Live: slow}, key)
		g.Expect(guest.Live.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.Node{})).To(Succeed())
		g.Expect(c.Slow(key)).To(BeFalse(), "one call may take long")
		var err error
		for range 400 {
			err = errors.Join(err, guest.Live.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.Node{}))
		}
		g.Expect(calls).To(Equal(4))

		s := &scope.Scope{HostedCluster: blue, ControlPlaneNamespace: "clusters-blue", Guest: guest}
		result, lost := c.Lost(s, err)
		g.Expect(lost).To(BeTrue())
		g.Expect(result.Wait).To(BeTrue())
		g.Expect(result.RequeueAfter).To(Equal(outage.MinBackoff))
		g.Expect(result.Message).To(Equal("https://guest.example: the guest's API server answers slowly: it took 30s of one reconciliation, and the rest waits for the next"))
		g.Expect(s.Guest).To(BeNil())
		g.Expect(blue.Status.Conditions).To(BeEmpty())
		g.Expect(c.outages.Backoff(s.ClusterKey(), connection.Health{})).To(BeZero())
		g.Expect(c.Slow(key)).To(BeTrue())
		clock.SetTime(clock.Now().Add(5 * time.Minute))
		g.Expect(c.Slow(key)).To(BeFalse())
	})
}

func TestQuoting(t *testing.T) {
	t.Run("When a guest reports much instead of its version, no more than the beginning of it should be passed on, escaped", func(t *testing.T) {
		flood := "\x1b[2J" + strings.Repeat("x", 1<<20)
		for what, answer := range map[string]func() (string, error){
			"an error":          func() (string, error) { return "", errors.New(flood) },
			"a long version":    func() (string, error) { return "v1.36.3-" + flood, nil },
			"control sequences": func() (string, error) { return "v1.36.3-\x1b[2J", nil },
		} {
			g := NewWithT(t)
			versions := NewVersions(nil, func(context.Context, *rest.Config) (string, error) { return answer() })
			_, err := versions.Server(t.Context(), &scope.Scope{HostedCluster: &v1beta1.HostedCluster{}, Guest: &scope.Guest{}}, nil)
			g.Expect(err).To(MatchError(ContainSubstring(`\x1b[2J`)), what)
			g.Expect(strings.Count(err.Error(), "x")).To(BeNumerically("<=", 200), what)
			g.Expect(err.Error()).NotTo(ContainSubstring("\x1b"), what)
		}
	})
}
