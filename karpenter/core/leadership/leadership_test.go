// SPDX-License-Identifier: Apache-2.0

package leadership_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
)

const leaseName = "karpenter-leader-election"

// renewDeadline is so long that no machine is too slow to renew the Lease in it.
const renewDeadline = 10 * time.Second

// elector is a real one with a real Lease, whose API server can be cut off.
type elector struct {
	*environment.Environment
	keeper  *leadership.Keeper
	clock   *clocktesting.FakeClock
	outage  atomic.Pointer[http.Response]
	cut     atomic.Bool
	mute    atomic.Bool  // while cut: updates are stored, but no answer comes back
	late    atomic.Bool  // while cut: all is done, and answered after the client has given up
	attempt atomic.Int64 // writes of the Lease that met the outage
	leading atomic.Bool
	ended   chan struct{}
}

type outage struct {
	*elector
	inner http.RoundTripper
}

func (o outage) RoundTrip(request *http.Request) (*http.Response, error) {
	if !o.cut.Load() {
		return o.inner.RoundTrip(request)
	}
	if request.Method == http.MethodPut {
		o.attempt.Add(1)
	}
	if response := o.outage.Load(); response != nil && (request.Method != http.MethodGet || !o.late.Load()) {
		return &http.Response{StatusCode: response.StatusCode, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: request}, nil
	}
	if o.late.Load() {
		if response, err := o.inner.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	if request.Method == http.MethodPut {
		if o.mute.Load() {
			if response, err := o.inner.RoundTrip(request); err == nil {
				if response.StatusCode == http.StatusConflict {
					return response, nil
				}
				_ = response.Body.Close()
			}
		}
	}
	return nil, errors.New("connection refused")
}

func elect(t *testing.T) *elector {
	t.Helper()
	g := NewWithT(t)
	e := &elector{Environment: environment.New(t), clock: clocktesting.NewFakeClock(time.Now()), ended: make(chan struct{})}
	e.keeper = leadership.New(leadership.Config{Clock: e.clock, Logger: logr.Discard()})
	config := rest.CopyConfig(e.Management.GetConfig())
	config.Timeout = renewDeadline / 2 // as controller-runtime has it
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return e.keeper.Wrap(outage{elector: e, inner: inner})
	})
	clients, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, e.Namespace, leaseName,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "we"})
	g.Expect(err).NotTo(HaveOccurred())
	run, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: leaseName,
		LeaseDuration: renewDeadline * 3 / 2, RenewDeadline: renewDeadline, RetryPeriod: renewDeadline / 20,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { e.leading.Store(true) },
			OnStoppedLeading: func() { e.leading.Store(false) },
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(e.ended)
		run.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-e.ended
	})
	g.Eventually(e.leading.Load).Should(BeTrue())
	return e
}

func (e *elector) lease(g Gomega, ctx context.Context) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	g.Expect(e.Admin.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: leaseName}, lease)).To(Succeed())
	return lease
}

// cutOff begins an outage.
func (e *elector) cutOff() {
	e.attempt.Store(0)
	e.cut.Store(true)
}

// outlast returns once the elector has met the outage for longer than its renew deadline allows for.
func (e *elector) outlast(g Gomega) {
	attempts := int64(30)
	if e.late.Load() && e.outage.Load() == nil { //nolint:bodyclose // it has none
		attempts = 3 // of half the renew deadline each
	}
	g.Eventually(e.attempt.Load).Should(BeNumerically(">", attempts))
}

// Each outage takes longer than the renew deadline, so they are begun together.
func TestKeeper(t *testing.T) {
	outages := map[string]struct {
		status int
		late   bool
	}{
		"When nothing answers, it should keep the lease, decide nothing, and go on when it is back":                                      {},
		"When the API server has lost its store, it should keep the lease, decide nothing, and go on when it is back":                    {status: http.StatusServiceUnavailable},
		"When the API server doesn't know our rights yet, it should keep the lease, decide nothing, and go on when it does":              {status: http.StatusForbidden},
		"When every answer comes too late, it should keep the lease, decide nothing, and go on when they come in time":                   {late: true},
		"When updates are rejected and reads are answered too late, it should keep the lease, decide nothing, and go on when it is back": {status: http.StatusForbidden, late: true},
	}
	electors := map[string]*elector{"conflicts": elect(t), "another's": elect(t)}
	for name, tc := range outages {
		e := elect(t)
		e.late.Store(tc.late)
		if tc.status != 0 {
			e.outage.Store(&http.Response{StatusCode: tc.status})
		}
		electors[name] = e
	}
	electors["conflicts"].mute.Store(true)
	for _, e := range electors {
		NewWithT(t).Expect(e.keeper.Suspended()).To(BeFalse())
		e.cutOff()
	}
	for name := range outages {
		t.Run(name, func(t *testing.T) {
			g, e := NewWithT(t), electors[name]
			e.outlast(g)
			g.Expect(e.keeper.Suspended()).To(BeFalse(), "the Lease still is ours for sure")
			g.Expect(testutil.ToFloat64(e.keeper.Metric())).To(BeZero())
			e.clock.SetTime(e.clock.Now().Add(leadership.RenewDeadline))
			g.Expect(e.keeper.Suspended()).To(BeTrue())
			g.Expect(testutil.ToFloat64(e.keeper.Metric())).To(Equal(1.0))
			g.Expect(e.leading.Load()).To(BeTrue())

			before := e.lease(g, t.Context())
			e.cut.Store(false)
			g.Eventually(e.keeper.Suspended).Should(BeFalse())
			g.Eventually(func(g Gomega, ctx context.Context) {
				after := e.lease(g, ctx)
				g.Expect(after.Spec.RenewTime.After(before.Spec.RenewTime.Time)).To(BeTrue())
				g.Expect(after.Spec.HolderIdentity).To(HaveValue(Equal("we")))
			}).WithContext(t.Context()).Should(Succeed())
			g.Expect(e.leading.Load()).To(BeTrue())
		})
	}

	t.Run("When updates are stored but only conflicts are answered, it should keep the lease, decide nothing, and go on when all is answered", func(t *testing.T) {
		g, e := NewWithT(t), electors["conflicts"]
		e.outlast(g)
		e.clock.SetTime(e.clock.Now().Add(leadership.RenewDeadline))
		g.Expect(e.keeper.Suspended()).To(BeTrue())
		g.Expect(e.leading.Load()).To(BeTrue())
		e.cut.Store(false)
		g.Eventually(e.keeper.Suspended).Should(BeFalse())
		g.Expect(e.leading.Load()).To(BeTrue())
		g.Expect(e.lease(g, t.Context()).Spec.HolderIdentity).To(HaveValue(Equal("we")))
	})

	t.Run("When another candidate has acquired the Lease meanwhile, it should stay suspended and stop leading", func(t *testing.T) {
		g, e := NewWithT(t), electors["another's"]
		e.outlast(g)
		e.clock.SetTime(e.clock.Now().Add(leadership.RenewDeadline))
		lease := e.lease(g, t.Context())
		lease.Spec.HolderIdentity = ptr.To("they")
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(3600))
		g.Expect(e.Admin.Update(t.Context(), lease)).To(Succeed())
		e.cut.Store(false)
		g.Eventually(e.ended).Should(BeClosed())
		g.Expect(e.leading.Load()).To(BeFalse())
		g.Expect(e.keeper.Suspended()).To(BeTrue())
	})

	t.Run("When a read of our lease gets no answer, it should answer with the Lease as we wrote it", func(t *testing.T) {
		g := NewWithT(t)
		e := elect(t)
		e.cut.Store(true)
		client := http.Client{Transport: e.keeper.Wrap(outage{elector: e})}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://management/apis/coordination.k8s.io/v1/namespaces/a/leases/b", http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		response, err := client.Do(request)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = response.Body.Close() })
		body, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(HaveOccurred())
		object, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(object).To(HaveField("Spec.HolderIdentity", HaveValue(Equal("we"))))
	})

	t.Run("When the lease never was ours, it should not answer in the API server's place", func(t *testing.T) {
		g := NewWithT(t)
		keeper := leadership.New(leadership.Config{Clock: clocktesting.NewFakeClock(time.Now()), Logger: logr.Discard()})
		e := &elector{}
		e.cut.Store(true)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://management/apis/coordination.k8s.io/v1/namespaces/a/leases/b", strings.NewReader("{}"))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = keeper.Wrap(outage{elector: e}).RoundTrip(request) //nolint:bodyclose // there is none
		g.Expect(err).To(MatchError("connection refused"))
		g.Expect(keeper.Suspended()).To(BeFalse())
	})
}

func TestLeaseDuration(t *testing.T) {
	for name, tc := range map[string]struct{ asked, stored int32 }{
		"When the elector makes others wait longer than it may act, it should have them wait a second longer than that": {15, 11},
		"When the elector gives the lease up, it should make no candidate wait":                                         {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			box := environment.New(t)
			config := rest.CopyConfig(box.Management.GetConfig())
			config.Wrap(leadership.New(leadership.Config{Clock: clocktesting.NewFakeClock(time.Now()), Logger: logr.Discard()}).Wrap)
			clients, err := kubernetes.NewForConfig(config)
			g.Expect(err).NotTo(HaveOccurred())
			leases := clients.CoordinationV1().Leases(box.Namespace)
			lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("we"), LeaseDurationSeconds: &tc.asked}}
			lease.Name = leaseName
			stored, err := leases.Create(t.Context(), lease, metav1.CreateOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stored.Spec).To(And(HaveField("LeaseDurationSeconds", HaveValue(Equal(tc.stored))), HaveField("HolderIdentity", HaveValue(Equal("we")))))
		})
	}
}

func TestRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		holder, leader, pod string
		released            bool
	}{
		"When the pod's former container held the lease, it should make it free":     {"it", "a-1", "a-1", true},
		"When another pod holds the lease, it should leave it":                       {"they", "a-2", "a-1", false},
		"When the Lease has no holder, it should leave it":                           {"", "a-1", "a-1", false},
		"When the program doesn't know its pod, it should leave the lease to others": {"it", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			box := environment.New(t)
			clients, err := kubernetes.NewForConfig(box.Management.GetConfig())
			g.Expect(err).NotTo(HaveOccurred())
			leases := clients.CoordinationV1().Leases(box.Namespace)
			lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](3600), LeaseTransitions: ptr.To[int32](7)}}
			lease.Name, lease.Labels = leaseName, map[string]string{v1alpha1.LeaderPodLabel: tc.leader}
			if tc.holder != "" {
				lease.Spec.HolderIdentity = &tc.holder
			}
			_, err = leases.Create(t.Context(), lease, metav1.CreateOptions{})
			g.Expect(err).NotTo(HaveOccurred())

			released, err := leadership.Release(t.Context(), leases, leaseName, tc.pod, clocktesting.NewFakeClock(time.Now()))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(released).To(Equal(tc.released))
			stored, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stored.Spec.LeaseTransitions).To(HaveValue(BeEquivalentTo(7)))
			if tc.released {
				g.Expect(ptr.Deref(stored.Spec.HolderIdentity, "")).To(BeEmpty())
			} else {
				g.Expect(ptr.Deref(stored.Spec.HolderIdentity, "")).To(Equal(tc.holder))
			}
		})
	}

	t.Run("When there is no lease yet, it should have nothing to do", func(t *testing.T) {
		g := NewWithT(t)
		box := environment.New(t)
		clients, err := kubernetes.NewForConfig(box.Management.GetConfig())
		g.Expect(err).NotTo(HaveOccurred())
		released, err := leadership.Release(t.Context(), clients.CoordinationV1().Leases(box.Namespace), leaseName, "a-1", clocktesting.NewFakeClock(time.Now()))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(released).To(BeFalse())
	})
}

// answering is a provider that answers everything.
type answering struct {
	karpcloudprovider.CloudProvider
}

func (answering) Create(context.Context, *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nil, nil
}
func (answering) Delete(context.Context, *karpv1.NodeClaim) error        { return nil }
func (answering) Get(context.Context, string) (*karpv1.NodeClaim, error) { return nil, nil }
func (answering) List(context.Context) ([]*karpv1.NodeClaim, error)      { return nil, nil }
func (answering) GetInstanceTypes(context.Context, *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	return nil, nil
}
func (answering) IsDrifted(context.Context, *karpv1.NodeClaim) (karpcloudprovider.DriftReason, error) {
	return "", nil
}

func TestGate(t *testing.T) {
	for name, tc := range map[string]struct {
		suspended bool
		matcher   gomegatypes.GomegaMatcher
	}{
		"When suspended, it should decide nothing":                           {true, MatchError(leadership.ErrSuspended)},
		"When not suspended, it should leave every decision to the provider": {false, Succeed()},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			provider := leadership.Gate(answering{}, func() bool { return tc.suspended })
			_, err := provider.Create(t.Context(), &karpv1.NodeClaim{})
			g.Expect(err).To(tc.matcher)
			g.Expect(provider.Delete(t.Context(), &karpv1.NodeClaim{})).To(tc.matcher)
			_, err = provider.Get(t.Context(), "id")
			g.Expect(err).To(tc.matcher)
			_, err = provider.List(t.Context())
			g.Expect(err).To(tc.matcher)
			_, err = provider.GetInstanceTypes(t.Context(), &karpv1.NodePool{})
			g.Expect(err).To(tc.matcher)
			_, err = provider.IsDrifted(t.Context(), &karpv1.NodeClaim{})
			g.Expect(err).To(tc.matcher)
		})
	}

	t.Run("When suspended, every method of the interface that may fail should fail, those of a newer Karpenter as well", func(t *testing.T) {
		g := NewWithT(t)
		gate := reflect.ValueOf(leadership.Gate(nil, func() bool { return true }))
		for method := range reflect.TypeFor[karpcloudprovider.CloudProvider]().Methods() {
			results := method.Type.NumOut()
			if results == 0 || method.Type.Out(results-1) != reflect.TypeFor[error]() {
				continue
			}
			var arguments []reflect.Value
			for argument := range method.Type.Ins() {
				arguments = append(arguments, reflect.Zero(argument))
			}
			g.Expect(func() {
				g.Expect(gate.MethodByName(method.Name).Call(arguments)[results-1].Interface()).To(MatchError(leadership.ErrSuspended), method.Name)
			}).NotTo(Panic(), "%s isn't gated", method.Name)
		}
	})
}
