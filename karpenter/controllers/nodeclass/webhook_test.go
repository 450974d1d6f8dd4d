// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// defaulting is a mutating webhook as infrastructure providers have one: it adds a default to templates that lack it.
func (f *fixture) defaulting() {
	f.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
			Patch: []byte(`[{"op": "add", "path": "/spec/template/spec/disk", "value": "20Gi"}]`),
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	f.t.Cleanup(server.Close)
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "default.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"infrastructure.cluster.x-k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": f.Namespace}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	f.Expect(f.Admin.Create(f.t.Context(), webhook)).To(Succeed())
	f.t.Cleanup(func() {
		NewWithT(f.t).Expect(f.Admin.Delete(context.WithoutCancel(f.t.Context()), webhook)).To(Succeed())
	})
}

func TestDefaultingWebhook(t *testing.T) {
	t.Run("When a webhook has learned a new default and a person writes a label, the template should be what people have written before", func(t *testing.T) {
		f := start(t, "")
		object := f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		now := func() *template.Template {
			snapshot, err := f.store.Cached(f.name)
			f.Expect(err).NotTo(HaveOccurred())
			for tmpl := range snapshot.Templates() {
				return tmpl
			}
			return &template.Template{}
		}
		before := now()
		f.Expect(before.OwnedHash).NotTo(BeEmpty())

		f.defaulting()
		f.Eventually(func() int64 {
			// The API server learns of the webhook a moment later.
			f.patch(object, func() {
				labels := object.GetLabels()
				labels["touched"] = labels["touched"] + "x"
				object.SetLabels(labels)
			})
			return object.GetGeneration()
		}).Should(BeNumerically(">", before.Infrastructure.GetGeneration()))
		f.Eventually(func() string { return now().ContentHash }).ShouldNot(Equal(before.ContentHash))
		f.Expect(now().OwnedHash).To(Equal(before.OwnedHash))

		f.Expect(f.Admin.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"spec":{"size":"c4"}}}}`)))).To(Succeed())
		f.Eventually(func() string { return now().OwnedHash }).ShouldNot(Equal(before.OwnedHash))
	})
}
