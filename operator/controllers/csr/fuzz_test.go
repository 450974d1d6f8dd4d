// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// FuzzRequest looks for a request that panics, whose decision floods a condition, or that is approved for another node than the one that a
// Machine was made for.
func FuzzRequest(f *testing.F) {
	add := func(a ask) {
		object := a.object(f)
		f.Add(object.Spec.Request, a.signer, a.user, strings.Join(a.groups, ","))
	}
	add(first("web-1"))
	add(renewal("web-1"))
	add(servingOf("web-1", "10.0.0.1", "web-1"))
	add(first("web-1").but(func(a *ask) { a.content.EmailAddresses = []string{"a@example.com"} }))
	add(servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.EmailAddresses = []string{strings.Repeat("x", 5000)} }))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"), servingSigner, "system:node:", "")
	f.Add(bytes.Repeat([]byte{'A'}, 2*maxRequestBytes), clientSigner, tokenUser, "system:bootstrappers")
	usages := map[string][]certificatesv1.KeyUsage{
		clientSigner:  {certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		servingSigner: {certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
	}
	f.Fuzz(func(t *testing.T, content []byte, signer, user, groups string) {
		object := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: content, SignerName: signer, Username: user, Groups: strings.Split(groups, ","), Usages: usages[signer],
		}}
		object.Name, object.CreationTimestamp.Time = "fuzzed", now
		shrunk, err := shrinkRequest(object)
		if err != nil {
			t.Fatal(err)
		}
		object = shrunk.(*certificatesv1.CertificateSigningRequest)
		indexRequest(object)
		if !kubelets(object.Spec.SignerName) {
			return
		}
		r := verifiedRequest(object)
		web1 := partyOf("web-1", "10.0.0.1")
		v := validate(r, inputs{requester: web1, subject: web1}, now)
		if len(v.message) > maxMessage || !utf8.ValidString(v.message) {
			t.Errorf("unfit for a condition: %q", v.message)
		}
		if v.action != approved {
			return
		}
		if len(r.Spec.Request) > maxRequestBytes || r.content.Subject.CommonName == "" || len(r.content.EmailAddresses)+len(r.content.URIs) > 0 {
			t.Errorf("approved %q, for %s", content, r.content.Subject)
		}
		for _, ip := range r.content.IPAddresses {
			if ip.String() != "10.0.0.1" {
				t.Errorf("approved for the address %s", ip)
			}
		}
	})
}
