// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"bytes"
	"compress/gzip"
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

const userData = `## template: jinja
#cloud-config
write_files:
- path: /run/kubeadm/kubeadm-join-config.yaml
  content: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: JoinConfiguration
    discovery:
      bootstrapToken: {apiServerEndpoint: "127.0.0.1:1", token: abcdef.0123456789abcdef, unsafeSkipCAVerification: true}
    nodeRegistration:
      name: '{{ ds.meta_data.local_hostname }}'
      kubeletExtraArgs:
      - {name: provider-id, value: 'aws:///{{ ds.meta_data.placement.availability_zone }}/{{ ds.meta_data.instance_id }}'}
`

func zipped(g Gomega, data string) []byte {
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	_, err := writer.Write([]byte(data))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(writer.Close()).To(Succeed())
	return buffer.Bytes()
}

func TestHypervisor(t *testing.T) {
	machine := func(userData []byte) Machine {
		return Machine{
			Instance: node.Instance{ID: "i-1", ProviderID: "aws:///a/i-1"},
			Metadata: bootstrap.Instance{ID: "i-1", Hostname: "ip-10-0-0-4.ec2.internal", ProviderID: "aws:///a/i-1", Zone: "a"},
			UserData: userData,
		}
	}
	hypervisor := func(t *testing.T, guest string) *Hypervisor {
		h := NewHypervisor(HypervisorConfig{Guests: map[string]*rest.Config{"blue": {Host: guest}}, Logger: logr.Discard()})
		t.Cleanup(h.Stop)
		return h
	}

	t.Run("When user data are zipped, they should be read, with what the cloud has recorded of the machine", func(t *testing.T) {
		g := NewWithT(t)
		b := &boot{Hypervisor: hypervisor(t, "https://127.0.0.1:1"), machine: machine(zipped(g, userData))}
		g.Expect(b.read(t.Context())).To(Succeed())
		g.Expect(b.cluster.Name).To(Equal("blue"))
		g.Expect(b.kubelet.NodeName).To(Equal("ip-10-0-0-4.ec2.internal"))
		g.Expect(b.own.node).To(Equal("ip-10-0-0-4.ec2.internal"))
	})

	for name, tc := range map[string]struct {
		guest    string
		userData []byte
		problem  string
	}{
		"When they name an API server that is no guest's, it should say so": {"https://127.0.0.1:2", []byte(userData), "no guest is at https://127.0.0.1:1"},
		"When they are no cloud-config, it should say so":                   {"https://127.0.0.1:1", []byte("#!/bin/sh\n"), "not a cloud-config"},
		"When they are cut off, it should say so":                           {"https://127.0.0.1:1", []byte{0x1f, 0x8b, 8}, "unpacking the user data"},
		"When they have no bootstrap token, it should say so": {"https://127.0.0.1:1", []byte(`#cloud-config
write_files:
- path: /run/kubeadm/kubeadm-join-config.yaml
  content: '{apiVersion: kubeadm.k8s.io/v1beta4, kind: JoinConfiguration}'
`), "no bootstrap token"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			b := &boot{Hypervisor: hypervisor(t, tc.guest), machine: machine(tc.userData)}
			g.Expect(b.read(t.Context())).To(MatchError(ContainSubstring(tc.problem)))
		})
	}

	t.Run("When the world stops, machines should end with it", func(t *testing.T) {
		g := NewWithT(t)
		h := NewHypervisor(HypervisorConfig{Logger: logr.Discard()})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.Run(context.WithoutCancel(t.Context()), machine(nil))
		}()
		g.Consistently(ended, 3*visit, visit).ShouldNot(BeClosed())
		h.Stop()
		g.Eventually(ended, 10*time.Minute).Should(BeClosed())
		h.Run(t.Context(), machine(nil))
	})
}
