// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// approver is an API server that has certificate requests only. The watch brings what it has decided at once.
type approver struct {
	server   *httptest.Server
	guest    *guest
	asked    int // requests that were made
	read     int // requests that were read
	decision certificatesv1.RequestConditionType
}

func newApprover(t *testing.T) *approver {
	t.Helper()
	g := NewWithT(t)
	a := &approver{}
	var informer toolscache.SharedIndexInformer
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPost {
			a.read++
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		a.asked++
		request := &certificatesv1.CertificateSigningRequest{}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, request)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request.UID = types.UID(request.Name)
		if a.decision != "" {
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: a.decision, Status: corev1.ConditionTrue, Reason: "RequesterMismatch", Message: "the test reports it",
			}}
		}
		if err := informer.GetStore().Add(request); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		request.SetGroupVersionKind(certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"))
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(request)
	}))
	t.Cleanup(a.server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	config := &rest.Config{Host: a.server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	client, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	informer = certificatesinformers.NewCertificateSigningRequestInformer(client, 0, toolscache.Indexers{})
	a.guest = &guest{config: config, client: client, requests: informer}
	return a
}

func (a *approver) kubelet(t *testing.T) *identity {
	t.Helper()
	own := &identity{
		node: "denied", server: a.server.URL, ca: a.guest.config.CAData, client: application{backOff: newBackOff()}, serving: application{backOff: newBackOff()},
	}
	NewWithT(t).Expect(own.newKey()).To(Succeed())
	return own
}

func TestBackOff(t *testing.T) {
	const minutes = 10

	// passTime reconciles a machine every 100 ms for ten minutes, as a busy cluster does.
	passTime := func(clock *clocktesting.FakePassiveClock, do func(*instance)) {
		for range minutes * 60 * 10 {
			do(&instance{KwokMachine: &infrav1.KwokMachine{}, now: clock.Now()})
			clock.SetTime(clock.Now().Add(100 * time.Millisecond))
		}
	}

	t.Run("When its requests are denied, a kubelet should ask as often as a real one does, and keep reporting why", func(t *testing.T) {
		g := NewWithT(t)
		a := newApprover(t)
		a.decision = certificatesv1.CertificateDenied
		r, own, clock := &machineReconciler{identities: newIdentities()}, a.kubelet(t), clocktesting.NewFakePassiveClock(time.Now())
		passTime(clock, func(i *instance) {
			problem := own.certify(t.Context(), r.errand(i, a.guest), "abcdef.0123456789abcdef")
			g.Expect(problem.reason).To(Equal(infrav1.ReasonRegistrationFailed))
			g.Expect(problem.message).To(ContainSubstring("the test reports it"))
			g.Expect(problem.retry).To(BeNumerically(">", 0))
		})
		// At once, and then after 2, 4, 8, 16 seconds and again and again 32, each up to a tenth longer.
		g.Expect(a.asked).To(And(BeNumerically(">=", 20), BeNumerically("<=", 23)))
		g.Expect(a.read).To(BeZero())
	})

	t.Run("When its serving certificate is denied, a kubelet should ask as often as a real one does", func(t *testing.T) {
		g := NewWithT(t)
		a := newApprover(t)
		a.decision = certificatesv1.CertificateFailed
		r, own, clock := &machineReconciler{identities: newIdentities()}, a.kubelet(t), clocktesting.NewFakePassiveClock(time.Now())
		r.identities.set("", own)
		passTime(clock, func(i *instance) { r.serve(t.Context(), i, a.guest) })
		g.Expect(a.asked).To(And(BeNumerically(">=", 20), BeNumerically("<=", 23)))
	})

	t.Run("When no one decides on its request, a kubelet should ask once and wait", func(t *testing.T) {
		g := NewWithT(t)
		a := newApprover(t)
		r, own, clock := &machineReconciler{identities: newIdentities()}, a.kubelet(t), clocktesting.NewFakePassiveClock(time.Now())
		passTime(clock, func(i *instance) {
			g.Expect(own.certify(t.Context(), r.errand(i, a.guest), "abcdef.0123456789abcdef").reason).To(Equal(infrav1.ReasonWaitingForCertificate))
		})
		g.Expect(a.asked).To(Equal(1))
		g.Expect(a.read).To(BeZero())
	})

	t.Run("When its request was deleted, a kubelet should make another one", func(t *testing.T) {
		g := NewWithT(t)
		a := newApprover(t)
		r, own := &machineReconciler{identities: newIdentities()}, a.kubelet(t)
		now := time.Now()
		certify := func() *obstacle {
			return own.certify(t.Context(), r.errand(&instance{KwokMachine: &infrav1.KwokMachine{}, now: now}, a.guest), "abcdef.0123456789abcdef")
		}
		g.Expect(certify().reason).To(Equal(infrav1.ReasonWaitingForCertificate))
		g.Expect(a.guest.requests.GetStore().Replace(nil, "")).To(Succeed())
		problem := certify()
		g.Expect(problem.message).To(ContainSubstring("was deleted"))
		now = now.Add(problem.retry)
		g.Expect(certify().reason).To(Equal(infrav1.ReasonWaitingForCertificate))
		g.Expect(a.asked).To(Equal(2))
	})
}
