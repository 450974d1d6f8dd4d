// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/scope"
)

// staged is an Approver in a world of fakes: no API server hangs, or is late, at the moment that a test chooses.
type staged struct {
	*Approver
	management, guest client.Client
	queue             workqueue.TypedRateLimitingInterface[Key]
	clock             *clocktesting.FakePassiveClock
	// asked counts the guest's live calls, and answer is their error.
	asked  int
	answer error
	// rest is how long others leave the guest alone.
	backoff time.Duration
	// listed is called after Machines were read, before they are validated.
	listed func()
}

func (s *staged) Guest(context.Context, *v1beta1.HostedCluster) (*scope.Guest, time.Duration, error) {
	if s.backoff > 0 {
		return nil, s.backoff, nil
	}
	live := interceptor.NewClient(s.guest.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if s.asked++; s.answer != nil {
				return s.answer
			}
			return c.Get(ctx, key, object, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, opts ...client.SubResourceUpdateOption) error {
			if s.asked++; s.answer != nil {
				return s.answer
			}
			return c.Status().Update(ctx, object) // the fake has no approvals
		},
	})
	return &scope.Guest{Cached: s.guest, Live: live, Config: &rest.Config{Host: "https://guest.example"}}, 0, nil
}

// indexed is a store with the indexes of the caches.
func indexed(scheme *runtime.Scheme) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&certificatesv1.CertificateSigningRequest{}, requestIndex, indexRequest).
		WithIndex(&clusterv1.Machine{}, nodeNameIndex, nodeNames(nil)).WithIndex(&clusterv1.Machine{}, addressIndex, addresses).WithIndex(&clusterv1.Machine{}, tokenIndex, tokens)
}

// stage has the requests for the node web-1, and its Machine, which has no address yet.
func stage(t *testing.T, requests ...*certificatesv1.CertificateSigningRequest) *staged {
	t.Helper()
	g := NewWithT(t)
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	machine := machineOf("web-1")
	s := &staged{clock: clocktesting.NewFakePassiveClock(now), listed: func() {}}
	s.management = indexed(scheme).WithStatusSubresource(&clusterv1.Machine{}).WithObjects(
		&v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}},
		&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}},
		&machine,
	).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if _, ok := list.(*clusterv1.MachineList); ok {
				s.listed()
			}
			return err
		},
	}).Build()
	inGuest := indexed(scheme).WithObjects(partyOf("web-1").claim)
	for _, request := range requests {
		inGuest = inGuest.WithObjects(request)
	}
	s.guest = inGuest.Build()
	s.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[Key]())
	t.Cleanup(s.queue.ShutDown)
	s.Approver = New(Config{Management: s.management, Live: s.management, Recorder: events.NewFakeRecorder(100), Profiles: profiles, Clock: s.clock})
	s.guests = s
	g.Expect(s.limiter.queue.Start(t.Context(), s.queue)).To(Succeed())
	g.Expect(s.ledger.Start(t.Context(), s.queue)).To(Succeed())
	return s
}

func blue(name string) Key {
	return Key{HostedCluster: client.ObjectKey{Namespace: "clusters", Name: "blue"}, Name: name}
}

func (s *staged) reconcile(t *testing.T, name string) time.Duration {
	t.Helper()
	result, err := s.Reconcile(t.Context(), blue(name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(result).To(Equal(reconcile.Result{RequeueAfter: result.RequeueAfter}))
	return result.RequeueAfter
}

func named(t *testing.T, name string, a ask) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	request := a.object(t)
	request.Name, request.UID = name, types.UID("uid-of-"+name)
	return request
}

func TestSilence(t *testing.T) {
	t.Run("When a guest doesn't answer, its requests should wait without asking it, and go on when it answers", func(t *testing.T) {
		g := NewWithT(t)
		var requests []*certificatesv1.CertificateSigningRequest
		for i := range 20 {
			requests = append(requests, named(t, fmt.Sprint(i), first("web-1").but(func(a *ask) { a.usages = nil }))) // to be denied
		}
		s := stage(t, requests...)
		s.answer = &url.Error{Op: "Get", URL: "https://guest.example/x", Err: context.DeadlineExceeded}
		g.Expect(s.reconcile(t, "0")).To(Equal(outage.MinBackoff))
		asked := s.asked
		for i := range 19 {
			g.Expect(s.reconcile(t, fmt.Sprint(i+1))).To(BeZero())
		}
		g.Expect(s.asked).To(Equal(asked))

		s.answer = nil
		s.clock.SetTime(now.Add(outage.MinBackoff))
		g.Expect(s.reconcile(t, "0")).To(BeZero())
		for range 19 {
			key, _ := s.queue.Get()
			g.Expect(s.reconcile(t, key.Name)).To(BeZero())
			s.queue.Done(key)
		}
		list := &certificatesv1.CertificateSigningRequestList{}
		g.Expect(s.guest.List(t.Context(), list)).To(Succeed())
		for i := range list.Items {
			g.Expect(hasCondition(&list.Items[i], certificatesv1.CertificateDenied)).To(BeTrue(), list.Items[i].Name)
		}
	})

	t.Run("When a guest is known not to answer, it should be asked nothing", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", first("web-1")), named(t, "two", first("web-1")))
		s.backoff = time.Minute
		g.Expect(s.reconcile(t, "one")).To(Equal(time.Minute))
		g.Expect(s.reconcile(t, "two")).To(BeZero())
		g.Expect(s.asked).To(BeZero())
	})

	t.Run("When the management cluster doesn't answer, the guest should not be blamed", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", first("web-1")))
		s.answer = &url.Error{Op: "Get", URL: "https://management.example/x", Err: context.DeadlineExceeded}
		_, err := s.Reconcile(t.Context(), blue("one"))
		g.Expect(err).To(MatchError(ContainSubstring("management.example")))
		ok, _ := s.limiter.acquire(blue("two"))
		g.Expect(ok).To(BeTrue())
	})
}

func TestWaking(t *testing.T) {
	t.Run("When a Machine gets its address while a request is validated, the request should be validated again", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", servingOf("web-1", "10.0.0.1")))
		handler := s.onMachine()
		s.listed = func() {
			s.listed = func() {}
			before, after := machineOf("web-1"), machineOf("web-1", "10.0.0.1")
			handler.Update(t.Context(), event.TypedUpdateEvent[*clusterv1.Machine]{ObjectOld: &before, ObjectNew: &after}, s.queue)
		}
		s.reconcile(t, "one")
		g.Expect(s.queue.Len()).To(Equal(1))
	})

	t.Run("When something is new about a Machine, only requests that name its node should be validated again", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "one", servingOf("web-1", "10.0.0.1")), named(t, "theirs", first("theirs")), named(t, "also-theirs", first("others")))
		for _, name := range []string{"one", "theirs", "also-theirs"} {
			s.reconcile(t, name)
		}
		handler := s.onMachine()
		machine := machineOf("web-1", "10.0.0.1")
		handler.Create(t.Context(), event.TypedCreateEvent[*clusterv1.Machine]{Object: &machine}, s.queue)
		g.Expect(s.queue.Len()).To(Equal(1))
		key, _ := s.queue.Get()
		g.Expect(key).To(Equal(blue("one")))
		s.queue.Done(key)

		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}}
		s.onCluster().Create(t.Context(), event.TypedCreateEvent[*clusterv1.Cluster]{Object: cluster}, s.queue)
		g.Expect(s.queue.Len()).To(Equal(3))
	})

	t.Run("When nothing is left of a HostedCluster, its requests should be forgotten", func(t *testing.T) {
		g := NewWithT(t)
		s := stage(t, named(t, "theirs", first("theirs")))
		s.reconcile(t, "theirs")
		g.Expect(s.ledger.undecided).To(HaveLen(1))
		hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}}
		g.Expect(s.management.Delete(t.Context(), hostedCluster)).To(Succeed())
		s.onHostedCluster().Delete(t.Context(), event.TypedDeleteEvent[*v1beta1.HostedCluster]{Object: hostedCluster}, s.queue)
		key, _ := s.queue.Get()
		s.reconcile(t, key.Name)
		g.Expect(s.ledger.undecided).To(BeEmpty())
		g.Expect(s.limiter.guests).To(BeEmpty())
	})
}
