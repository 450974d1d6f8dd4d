// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
)

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func TestOmitDefaultNodeClass(t *testing.T) {
	for _, tc := range []struct{ name, method, target, want string }{
		{"When node classes are listed, it should leave out the default one",
			http.MethodGet, nodeClassesPath + "?limit=1", "fieldSelector=metadata.name%21%3Ddefault&limit=1"},
		{"When they are watched with a field selector, it should keep that",
			http.MethodGet, nodeClassesPath + "?fieldSelector=metadata.name%3Da&watch=true",
			"fieldSelector=metadata.name%3Da%2Cmetadata.name%21%3Ddefault&watch=true"},
		{"When one is read, it should change nothing", http.MethodGet, nodeClassesPath + "/default", ""},
		{"When one is created, it should change nothing", http.MethodPost, nodeClassesPath, ""},
		{"When nodes are listed, it should change nothing", http.MethodGet, "/api/v1/nodes?limit=1", "limit=1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			request := httptest.NewRequestWithContext(t.Context(), tc.method, tc.target, nil)
			before := request.URL.RawQuery
			var sent string
			response, err := omitDefaultNodeClass(request, transport(func(r *http.Request) (*http.Response, error) {
				sent = r.URL.RawQuery
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			}))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(response.Body.Close()).To(Succeed())
			g.Expect(sent).To(Equal(tc.want))
			g.Expect(request.URL.RawQuery).To(Equal(before))
		})
	}
}

func TestSettings(t *testing.T) {
	t.Run("When Karpenter's feature gates are shown to the suite, they should be those that it has", func(t *testing.T) {
		g := NewWithT(t)
		shown := settingsDeployment(gatesValue())
		g.Expect(gatesOf(shown)).To(Equal("CapacityBuffer=true,NodeRepair=true,StaticCapacity=true,TerminateFirstDrift=true,TerminateFirstRepair=true"))
		g.Expect(shown.Spec.Replicas).To(HaveValue(BeZero()))
	})
}
