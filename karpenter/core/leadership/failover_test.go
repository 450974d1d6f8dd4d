// SPDX-License-Identifier: Apache-2.0

package leadership_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
)

func TestFailover(t *testing.T) {
	t.Run("When a leader hangs while it holds the Lease, another should act in less than twenty seconds", func(t *testing.T) {
		// controller-runtime's, which it doesn't export. An elector sees the last renewal at one attempt and that it has expired at another.
		const retryPeriod = 2 * time.Second
		attempt := time.Duration(float64(retryPeriod) * (1 + leaderelection.JitterFactor))
		NewWithT(t).Expect(leadership.LeaseDuration + 2*attempt).To(BeNumerically("<", 20*time.Second))
	})

	t.Run("When the Lease reports for how long its holder may be silent, it should wait for that and not for its own time", func(t *testing.T) {
		g := NewWithT(t)
		box := environment.New(t)
		config := rest.CopyConfig(box.Management.GetConfig())
		config.Wrap(leadership.New(leadership.Config{Clock: clock.RealClock{}, Logger: logr.Discard()}).Wrap)
		clients, err := kubernetes.NewForConfig(config)
		g.Expect(err).NotTo(HaveOccurred())
		now := metav1.NowMicro()
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("they"), LeaseDurationSeconds: ptr.To[int32](2), AcquireTime: &now, RenewTime: &now,
		}}
		lease.Name = leaseName
		_, err = clients.CoordinationV1().Leases(box.Namespace).Create(t.Context(), lease, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())

		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, box.Namespace, leaseName,
			clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "we"})
		g.Expect(err).NotTo(HaveOccurred())
		leading, ended := make(chan time.Time, 1), make(chan struct{})
		// The durations are controller-runtime's.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, Name: leaseName, LeaseDuration: 15 * time.Second, RenewDeadline: leadership.RenewDeadline, RetryPeriod: 100 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leading <- time.Now() }, OnStoppedLeading: func() {}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		began := time.Now()
		go func() {
			defer close(ended)
			elector.Run(ctx)
		}()
		t.Cleanup(func() {
			stop()
			<-ended
		})
		var at time.Time
		g.Eventually(leading).Should(Receive(&at))
		g.Expect(at.Sub(began)).To(BeNumerically(">=", 2*time.Second))
	})

	t.Run("When an outage ends, a candidate should give the holder time to renew the Lease, and acquire it after that", func(t *testing.T) {
		g := NewWithT(t)
		c := afterOutage(t, "they")
		g.Expect(apierrors.IsConflict(c.acquire())).To(BeTrue())
		c.clock.SetTime(c.clock.Now().Add(leadership.LeaseDuration - time.Second))
		g.Expect(apierrors.IsConflict(c.acquire())).To(BeTrue())
		c.clock.SetTime(c.clock.Now().Add(time.Second))
		g.Expect(c.acquire()).To(Succeed())
	})

	t.Run("When an outage ends and the Lease has no holder, a candidate should acquire it at once", func(t *testing.T) {
		NewWithT(t).Expect(afterOutage(t, "").acquire()).To(Succeed())
	})
}

// candidate is what an elector does that doesn't hold the Lease.
type candidate struct {
	t      *testing.T
	clock  *clocktesting.FakeClock
	leases coordinationclient.LeaseInterface
}

// afterOutage is a candidate whose API server answers again after an outage, and has a Lease with that holder.
func afterOutage(t *testing.T, holder string) candidate {
	t.Helper()
	g := NewWithT(t)
	box, e := environment.New(t), &elector{}
	c := candidate{t: t, clock: clocktesting.NewFakeClock(time.Now())}
	config := rest.CopyConfig(box.Management.GetConfig())
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return leadership.New(leadership.Config{Clock: c.clock, Logger: logr.Discard()}).Wrap(outage{elector: e, inner: inner})
	})
	clients, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	c.leases = clients.CoordinationV1().Leases(box.Namespace)
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](1)}}
	if holder != "" {
		lease.Spec.HolderIdentity = &holder
	}
	lease.Name, lease.Namespace = leaseName, box.Namespace
	g.Expect(box.Admin.Create(t.Context(), lease)).To(Succeed())
	e.cut.Store(true)
	_, err = c.leases.Get(t.Context(), leaseName, metav1.GetOptions{})
	g.Expect(err).To(HaveOccurred())
	e.cut.Store(false)
	return c
}

// acquire tries it once.
func (c candidate) acquire() error {
	lease, err := c.leases.Get(c.t.Context(), leaseName, metav1.GetOptions{})
	NewWithT(c.t).Expect(err).NotTo(HaveOccurred())
	lease.Spec.HolderIdentity = ptr.To("we")
	_, err = c.leases.Update(c.t.Context(), lease, metav1.UpdateOptions{})
	return err
}
