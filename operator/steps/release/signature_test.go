// SPDX-License-Identifier: Apache-2.0

package release

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/payload"
	"github.com/autonode-io/autonode/payload/payloadtest"
)

// withoutSignatures answers 503 where signatures are, while it is broken.
type withoutSignatures struct{ broken bool }

func (w *withoutSignatures) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.broken && strings.HasSuffix(req.URL.Path, ".sig") {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody, Header: http.Header{}, Request: req}, nil
	}
	return http.DefaultTransport.RoundTrip(req)
}

func TestUnsigned(t *testing.T) {
	key := payloadtest.Key(t)
	setup := func(t *testing.T, enforce bool) (*Resolver, *origin, *withoutSignatures, *clocktesting.FakePassiveClock) {
		t.Helper()
		verifier, err := payload.NewVerifier(payloadtest.PublicPEM(t, key), nil, enforce)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		clock, transport := clocktesting.NewFakePassiveClock(time.Now()), &withoutSignatures{}
		return New(Config{PullSecrets: &secrets{}, Clock: clock, Options: payload.Options{Verifier: verifier, Transport: transport}}), newOrigin(t), transport, clock
	}
	// warned resolves a payload of which the platform only warns, and returns the requests that it took.
	warned := func(t *testing.T, broken bool, want string, heal func(ref string, w *withoutSignatures)) {
		t.Helper()
		g := NewWithT(t)
		r, source, transport, clock := setup(t, false)
		transport.broken = broken
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		g.Expect(r.Source().Start(t.Context(), queue)).To(Succeed())
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		for range 2 {
			result := reconciled(t, r, s)
			g.Expect(resolvedReason(s)).To(Equal(want))
			g.Expect(s.Release).NotTo(BeNil(), "a warning doesn't keep a payload from being used")
			g.Expect(result.Wait).To(BeFalse())
			g.Expect(result.RequeueAfter).To(Equal(verifyInterval))
		}
		heal(s.HostedCluster.Status.Version.Desired.Image, transport)
		source.requests.Store(0)
		reconciled(t, r, s)
		g.Expect(source.requests.Load()).To(BeZero(), "it isn't verified with each reconciliation")

		clock.SetTime(clock.Now().Add(verifyInterval))
		reconciled(t, r, s)
		g.Expect(s.Release).NotTo(BeNil())
		who, _ := queue.Get()
		g.Expect(who.Name).To(Equal("blue"))
		result := reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
		g.Expect(result.RequeueAfter).To(BeZero())
		g.Expect(source.manifests.Load()).To(BeNumerically("<=", 2), "the payload isn't pulled again: its layer, and a statement")
	}

	t.Run("When the platform warns of an unsigned payload, it should use it, and notice later that it was signed", func(t *testing.T) {
		warned(t, false, "True/PayloadUnsigned", func(ref string, _ *withoutSignatures) { payloadtest.SignWith(t, ref, key) })
	})

	t.Run("When the registry has an error for signatures, it should not call the payload unsigned, and retry", func(t *testing.T) {
		warned(t, true, "True/SignatureUnknown", func(ref string, w *withoutSignatures) {
			payloadtest.SignWith(t, ref, key)
			w.broken = false
		})
	})

	t.Run("When the platform enforces signatures, it should reject an unsigned payload and keep the signed one", func(t *testing.T) {
		g := NewWithT(t)
		r, source, transport, clock := setup(t, true)
		tag := source.push(t, "3", karpenter("1.36.3"))
		signed, err := payload.Resolve(t.Context(), tag, payload.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		payloadtest.SignWith(t, signed, key)
		s := scopeOf(tag)
		resolve(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))

		s.HostedCluster.Spec.Release.Image = source.push(t, "4", karpenter("1.36.4"))
		s.Release = nil
		reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("False/PayloadUnsigned"))
		g.Expect(s.Release.Image).To(Equal(signed))

		transport.broken = true
		clock.SetTime(clock.Now().Add(minBackoff))
		reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("False/RegistryUnreachable"))
		g.Expect(s.Release.Image).To(Equal(signed))
	})
}
