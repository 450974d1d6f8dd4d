// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestValidateNames(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a serving certificate is for another machine's address, it should be denied": {
			ask: servingOf("web-1", "10.0.0.1", "10.0.0.2").but(old), inputs: both(),
			want: denied, reason: v1beta1.AddressMismatchReason, message: "IP address 10.0.0.2 isn't one of Machine web-1: 10.0.0.1, fd00::1",
		},
		"When a serving certificate is for another name too (extra SAN), it should be denied": {
			ask: servingOf("web-1", "web-1", "10.0.0.1", "kubernetes.default.svc"), inputs: both(),
			want: denied, reason: v1beta1.AddressMismatchReason, message: `DNS name "kubernetes.default.svc" isn't one of Machine web-1`,
		},
		"When a serving certificate is for a wildcard, it should be denied": {
			ask: servingOf("web-1", "*.internal"), inputs: both(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When a serving certificate is for nothing, it should be denied": {
			ask: servingOf("web-1"), inputs: both(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When a serving certificate is for a mail address (extra SAN), it should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.EmailAddresses = []string{"root@web-1"} }),
			inputs: both(), want: denied, reason: v1beta1.AddressMismatchReason, message: "root@web-1",
		},
		"When a client certificate is for a URI (extra SAN), it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.content.URIs = []*url.URL{{Scheme: "spiffe", Host: "web"}} }),
			inputs: only(), want: denied, reason: v1beta1.AddressMismatchReason, message: "spiffe://web",
		},
		"When a client certificate is for the machine's own address (extra SAN), it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.content.IPAddresses = []net.IP{net.ParseIP("10.0.0.1")} }),
			inputs: only(), want: denied, reason: v1beta1.AddressMismatchReason,
		},
	})
}

func TestValidateMalformed(t *testing.T) {
	extension := func(id asn1.ObjectIdentifier, value []byte) func(*ask) {
		return func(a *ask) { a.content.ExtraExtensions = []pkix.Extension{{Id: id, Value: value}} }
	}
	// otherName is a name of a kind that the x509 package leaves out, beside one of the machine's own.
	otherName, err := asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("web-1")},
		{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42, 3}},
	})
	if err != nil {
		t.Fatal(err)
	}

	validateAll(t, map[string]validation{
		"When a name is of an unchecked kind (extra SAN), it should be denied": {
			ask: servingOf("web-1").but(extension(subjectAltName, otherName)), inputs: both(),
			want: denied, reason: v1beta1.RequestMalformedReason, message: "unknown kind 8",
		},
		"When the request has another extension, such as that of a certificate authority, it should be denied": {
			ask: first("web-1").but(extension(asn1.ObjectIdentifier{2, 5, 29, 19}, []byte{0x30, 3, 1, 1, 0xff})), inputs: only(),
			want: denied, reason: v1beta1.RequestMalformedReason, message: "2.5.29.19",
		},
		"When a node of ours sends nonsense, it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.raw = []byte("nonsense") }), inputs: inputs{requester: web1()},
			want: denied, reason: v1beta1.RequestMalformedReason,
		},
	})

	t.Run("When the content was changed after it was signed, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").object(t)
		block, _ := pem.Decode(object.Spec.Request)
		block.Bytes[len(block.Bytes)-1] ^= 1
		object.Spec.Request = pem.EncodeToMemory(block)
		got := validate(verifiedRequest(object), only(), now)
		g.Expect(got.action).To(Equal(denied))
		g.Expect(got.reason).To(Equal(v1beta1.RequestMalformedReason))
	})

	t.Run("When a request has a second block, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		object := first("web-1").object(t)
		object.Spec.Request = append(object.Spec.Request, object.Spec.Request...)
		g.Expect(validate(verifiedRequest(object), only(), now).reason).To(Equal(v1beta1.RequestMalformedReason))
	})
}

func TestValidateUsages(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a client certificate is to serve as well (usages), it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.usages = append(a.usages, certificatesv1.UsageServerAuth) }),
			inputs: only(), want: denied, reason: v1beta1.UsageMismatchReason, message: "server auth",
		},
		"When a serving certificate is to be a client's (usages), it should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.usages = first("web-1").usages }),
			inputs: both(), want: denied, reason: v1beta1.UsageMismatchReason,
		},
	})
}
