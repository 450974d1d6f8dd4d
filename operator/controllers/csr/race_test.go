// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/scope"
)

// lagging is an Approver whose caches show what a test puts into them and nothing else, as if watches were late. Real caches are late for
// milliseconds, and no test can be sure to hit them.
type lagging struct {
	*Approver
	management, guest           client.Client
	managementCache, guestCache client.Client
	recorder                    *events.FakeRecorder
}

func newLagging(t *testing.T) *lagging {
	t.Helper()
	g := NewWithT(t)
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	store := func() client.Client {
		return indexed(scheme).WithStatusSubresource(&certificatesv1.CertificateSigningRequest{}).Build()
	}
	l := &lagging{management: store(), guest: store(), managementCache: store(), guestCache: store(), recorder: events.NewFakeRecorder(100)}
	l.Approver = New(Config{
		Management: l.managementCache, Live: l.management, Recorder: l.recorder, Profiles: profiles, Clock: clocktesting.NewFakePassiveClock(now),
	})
	l.guests = oneGuest{&scope.Guest{Cached: l.guestCache, Live: l.guest, Config: &rest.Config{Host: "https://guest.example"}}}
	blue := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}
	blue.Spec.ControlPlaneNamespace, blue.Spec.InfraID = "clusters-blue", "blue"
	l.show(t, l.managementCache, blue, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}})
	return l
}

// show puts objects into a store.
func (l *lagging) show(t *testing.T, store client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		object := object.DeepCopyObject().(client.Object)
		object.SetResourceVersion("")
		NewWithT(t).Expect(store.Create(t.Context(), object)).To(Succeed())
	}
}

// known shows a Machine and its NodeClaim to the API servers and to the caches.
func (l *lagging) known(t *testing.T, machine *clusterv1.Machine, claim *karpv1.NodeClaim) {
	t.Helper()
	l.show(t, l.management, machine)
	l.show(t, l.managementCache, machine)
	l.show(t, l.guest, claim)
	l.show(t, l.guestCache, claim)
}

// node makes the Machine and the NodeClaim of a node.
func node(name, address string) (*clusterv1.Machine, *karpv1.NodeClaim) {
	machine := machineOf(name, address)
	return &machine, partyOf(name).claim
}

// sends makes a request, which the cache shows.
func (l *lagging) sends(t *testing.T, name string, age time.Duration, a ask) Key {
	t.Helper()
	object := a.but(func(a *ask) { a.name, a.age = name, age }).object(t)
	object.UID = types.UID("uid-of-" + name)
	l.show(t, l.guest, object)
	l.show(t, l.guestCache, object)
	return Key{HostedCluster: types.NamespacedName{Namespace: "clusters", Name: "blue"}, Name: name}
}

// decides has its turn with a request and returns what it decided: nothing, or a condition's type and reason.
func (l *lagging) decides(t *testing.T, key Key) string {
	t.Helper()
	g := NewWithT(t)
	_, err := l.reconcile(t.Context(), key, &observed{})
	g.Expect(err).NotTo(HaveOccurred())
	object := scopetest.Get(t.Context(), g, l.guest, "", key.Name, &certificatesv1.CertificateSigningRequest{})
	if len(object.Status.Conditions) == 0 {
		return ""
	}
	g.Expect(object.Status.Conditions).To(HaveLen(1))
	return string(object.Status.Conditions[0].Type) + " " + object.Status.Conditions[0].Reason
}

func TestLaggingCaches(t *testing.T) {
	const yes = "Approved " + v1beta1.NodeIdentityConfirmedReason

	t.Run("When a node tries again before the cache shows that its request was approved, it should wait for that one's certificate", func(t *testing.T) {
		l := newLagging(t)
		machine, claim := node("web-1", "10.0.0.1")
		l.known(t, machine, claim)
		g := NewWithT(t)
		one := l.sends(t, "one", time.Minute, servingOf("web-1", "10.0.0.1"))
		g.Expect(l.decides(t, one)).To(Equal(yes))
		two := l.sends(t, "two", time.Second, servingOf("web-1", "10.0.0.1"))
		g.Expect(l.decides(t, two)).To(BeEmpty(), "a second certificate while the first may still come")
		g.Expect(l.decides(t, two)).To(BeEmpty())
		other := l.sends(t, "other", time.Second, renewal("web-1"))
		g.Expect(l.decides(t, other)).To(BeEmpty(), "a renewal is kube-controller-manager's")

		g.Expect(l.guest.Delete(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: one.Name}})).To(Succeed())
		g.Expect(l.guestCache.Delete(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: one.Name}})).To(Succeed())
		_, err := l.reconcile(t.Context(), one, &observed{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(l.decides(t, two)).To(Equal(yes), "the watch has shown that the first one has gone")
	})

	for _, tc := range []struct {
		name string
		// cached is what the caches show already of what is there.
		machine, claim bool
	}{
		{name: "When the cache doesn't show the Machine yet, it should not deny by that", claim: true},
		{name: "When the cache doesn't show the NodeClaim yet, it should not deny by that", machine: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLagging(t)
			machine, claim := node("web-3", "10.0.0.3")
			l.show(t, l.management, machine)
			l.show(t, l.guest, claim)
			if tc.machine {
				l.show(t, l.managementCache, machine)
			}
			if tc.claim {
				l.show(t, l.guestCache, claim)
			}
			NewWithT(t).Expect(l.decides(t, l.sends(t, "one", time.Second, servingOf("web-3", "10.0.0.3")))).To(Equal(yes))
		})
	}

	t.Run("When the cache shows an address that the Machine doesn't have any more, it should deny by the fresh one", func(t *testing.T) {
		l := newLagging(t)
		old, claim := node("web-4", "10.0.0.4")
		moved, _ := node("web-4", "10.0.0.44")
		l.show(t, l.managementCache, old)
		l.show(t, l.management, moved)
		l.show(t, l.guestCache, claim)
		l.show(t, l.guest, claim)
		g := NewWithT(t)
		g.Expect(l.decides(t, l.sends(t, "new", nameGrace, servingOf("web-4", "10.0.0.44")))).To(Equal(yes), "denied by the cache, and not by the API server")
		g.Expect(l.decides(t, l.sends(t, "foreign", nameGrace, servingOf("web-4", "10.0.0.5")))).To(Equal("Denied " + v1beta1.AddressMismatchReason))
	})
}
