// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestNextStep(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	response, untrusted := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}}}).Do(request)
	if untrusted == nil {
		response.Body.Close()
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"When credentials have expired, it should say to renew them": {apierrors.NewUnauthorized("Unauthorized"), "which may have expired: renew them"},
		"When a right is missing, it should say to ask for it": {
			apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no")), "ask for that permission, or choose another user with --context",
		},
		"When the program for credentials fails, it should say to log in": {errors.New("getting credentials: exec: executable aws failed with exit code 255"), "log in with it"},
		"When the server isn't trusted, it should name the field":         {fmt.Errorf("connecting: %w", untrusted), "correct certificate-authority-data"},
		"When the server's name isn't known, it should say how to check": {fmt.Errorf("connecting: %w", &net.DNSError{Name: "api.example"}),
			"check the cluster with `kubectl cluster-info`"},
		"When nothing answers in time, it should say how to check": {fmt.Errorf("connecting: %w", context.DeadlineExceeded), "check the cluster with `kubectl cluster-info`"},
		"When there is no route, it should say how to check":       {&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, "check the cluster with `kubectl cluster-info`"},
	} {
		t.Run(name, func(t *testing.T) {
			g, got := NewWithT(t), nextStep(test.err)
			g.Expect(got).To(MatchError(ContainSubstring(test.want)))
			g.Expect(got).To(MatchError(HavePrefix(test.err.Error())), "it still reports what happened")
		})
	}
	t.Run("When an error is another one, or none, it should stay as it is", func(t *testing.T) {
		g, other := NewWithT(t), errors.New("there is no pod")
		g.Expect(nextStep(other)).To(BeIdenticalTo(other))
		g.Expect(nextStep(nil)).To(Succeed())
	})
}
