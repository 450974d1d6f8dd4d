// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestNormal(t *testing.T) {
	for name, tc := range map[string]struct {
		form string
		same []string
	}{
		"When a name is written in another case or with the root's dot, it should be the same name": {
			"ip-10-0-0-1.corp.example", []string{"IP-10-0-0-1.Corp.Example", "ip-10-0-0-1.corp.example."},
		},
		"When an IPv6 address isn't compressed, has a zone or capital letters, it should be the same address": {
			"2001:db8::1", []string{"2001:DB8:0:0:0:0:0:1", "2001:0db8::0001", "2001:db8::1%eth0"},
		},
		"When an IPv4 address is mapped into IPv6, it should be the same address": {
			"10.0.0.1", []string{"::ffff:10.0.0.1", "::FFFF:a00:1", "10.0.0.1."},
		},
		"When an address is only the root's dot, it should be none": {"", []string{"."}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for _, text := range append(tc.same, tc.form) {
				g.Expect(normal(text)).To(Equal(tc.form), text)
			}
		})
	}
}

// inputsOf returns the inputs of a node's own request, whose Machine reports these addresses, all of them as names.
func inputsOf(name string, reported ...string) inputs {
	p := partyOf(name, "10.0.0.1")
	for _, address := range reported {
		p.machines[0].Status.Addresses = append(p.machines[0].Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: address})
	}
	return inputs{requester: p, subject: p}
}

// TestNormalForms has what infrastructure providers report and kubelets ask for.
func TestNormalForms(t *testing.T) {
	validateAll(t, map[string]validation{
		// https://github.com/openshift/cluster-machine-approver/issues/248
		"When the infrastructure reports a name with a trailing dot, the serving certificate should be approved": {
			ask: servingOf("web-1", "10.0.0.1", "ip-10-0-0-1.corp.example"), inputs: inputsOf("web-1", "ip-10-0-0-1.corp.example."), want: approved,
		},
		"When the kubelet requests a name with a trailing dot, the serving certificate should be approved": {
			ask: servingOf("web-1", "ip-10-0-0-1.corp.example."), inputs: inputsOf("web-1", "ip-10-0-0-1.corp.example"), want: approved,
		},
		// https://github.com/gardener/gardener/issues/10876
		"When the infrastructure doesn't compress an IPv6 address, the serving certificate should be approved": {
			ask: servingOf("web-1", "2001:db8::1"), inputs: inputsOf("web-1", "2001:DB8:0:0:0:0:0:1"), want: approved,
		},
		"When a DNS name in the request is an address as text, it should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.DNSNames = []string{"10.0.0.1."} }),
			inputs: inputsOf("web-1"), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When the infrastructure reports an empty name, an empty DNS name should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.content.DNSNames = []string{"."} }),
			inputs: inputsOf("web-1", "."), want: denied, reason: v1beta1.AddressMismatchReason,
		},
		"When another Machine reports the name in another form, the request should wait, because either may lie": {
			ask: servingOf("web-1", "shared.example"), inputs: inputsOf("web-1", "shared.example.").but(func(i *inputs) {
				other := machineOf("web-2", "Shared.Example")
				i.holders = map[string]*clusterv1.Machine{addresses(&other)[0]: &other}
			}), want: waiting, reason: "AddressShared", requeueAfter: recheckClaims,
		},
		"When a dual-stack node's infrastructure reports one family, the denial should say what to do": {
			ask: servingOf("web-1", "10.0.0.1", "fd00::1").but(old), inputs: inputsOf("web-1"),
			want: denied, reason: v1beta1.AddressMismatchReason, message: "the infrastructure reports no IPv6 address: it has to report both families, or the kubelet's node-ip has to be of one",
		},
		"When the infrastructure reports both families, a foreign address should only be denied": {
			ask: servingOf("web-1", "fd00::2").but(old), inputs: inputsOf("web-1", "fd00::1"),
			want: denied, reason: v1beta1.AddressMismatchReason, message: "IP address fd00::2 isn't one of Machine web-1: 10.0.0.1, fd00::1",
		},
	})

	t.Run("When a name of the node has another form, the node should be called by its normal form", func(t *testing.T) {
		g := NewWithT(t)
		for reported, want := range map[string][]string{
			"ip-10-0-0-1.corp.example.": {"ip-10-0-0-1.corp.example", "web-1"},
			"IP-10-0-0-1.Corp.Example":  {"ip-10-0-0-1.corp.example", "web-1"},
			"fe80::1%eth0":              {"web-1"},
			"10.0.0.9.":                 {"web-1"},
			".":                         {"web-1"},
		} {
			e := inputsOf("web-1", reported)
			g.Expect(nodeNames(nil)(&e.subject.machines[0])).To(Equal(want), reported)
		}
	})
}
