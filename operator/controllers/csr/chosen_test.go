// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/assets/infrastructure"
)

// madeAs makes a Machine one of a kind, whose addresses are of this type.
func madeAs(machine clusterv1.Machine, kind string, addressType clusterv1.MachineAddressType) clusterv1.Machine {
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: kind, Name: machine.Name}
	for i := range machine.Status.Addresses {
		machine.Status.Addresses[i].Type = addressType
	}
	return machine
}

// TestChosenAddresses has machines of AWS, whose addresses EC2 decides, and of vSphere, whose guest tools report IP addresses
// and host names, and vCenter the name of the virtual machine.
func TestChosenAddresses(t *testing.T) {
	kinds, err := infrastructure.Embedded()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	const aws, vsphere = "AWSMachine", "VSphereMachine"
	for name, tc := range map[string]struct {
		subject, other string
		addressType    clusterv1.MachineAddressType
		want           action
		message        string
	}{
		"When only the other machine decides its address itself, the address should be its own":     {aws, vsphere, clusterv1.MachineExternalIP, approved, ""},
		"When only this machine decides its address itself, the address should be the other's":      {vsphere, aws, clusterv1.MachineExternalIP, denied, "Machine web-2"},
		"When both decide it themselves, it should wait, because either may lie":                    {vsphere, vsphere, clusterv1.MachineExternalIP, waiting, "both report"},
		"When the infrastructure decides both, it should wait, because one of them may be outdated": {aws, aws, clusterv1.MachineExternalIP, waiting, "both report"},
		"When nothing is known of the kinds, it should wait":                                        {"UnheardOfMachine", "UnheardOfMachine", clusterv1.MachineExternalIP, waiting, "both report"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			subject := partyOf("web-1", "10.0.0.8")
			subject.machines[0] = *shrunk(kinds, new(madeAs(subject.machines[0], tc.subject, tc.addressType)))
			other := shrunk(kinds, new(madeAs(machineOf("web-2", "10.0.0.8"), tc.other, tc.addressType)))
			r := verifiedRequest(servingOf("web-1", "10.0.0.8").object(t))
			v := validate(r, inputs{requester: subject, subject: subject, holders: map[string]*clusterv1.Machine{"10.0.0.8": other}, kinds: kinds}, now)
			g.Expect(v.action).To(Equal(tc.want), "%s: %s", v.reason, v.message)
			g.Expect(v.message).To(ContainSubstring(tc.message))
		})
	}

	t.Run("When a machine decides a name itself, its node shouldn't be called so, nor its certificate be for it", func(t *testing.T) {
		g := NewWithT(t)
		machine := *shrunk(kinds, new(madeAs(machineOf("web-1", "victim"), vsphere, clusterv1.MachineHostName)))
		g.Expect(nodeNames(kinds)(&machine)).To(Equal([]string{"web-1"}))
		subject := partyOf("web-1")
		subject.machines[0] = machine
		v := validate(verifiedRequest(servingOf("web-1", "victim").object(t)), inputs{requester: subject, subject: subject, kinds: kinds}, now)
		g.Expect(v.action).To(Equal(denied))
		g.Expect(v.message).To(ContainSubstring(`DNS name "victim" isn't one of Machine web-1`))
	})

	t.Run("When the infrastructure decides a name, the node may be called so", func(t *testing.T) {
		g := NewWithT(t)
		machine := *shrunk(kinds, new(madeAs(machineOf("web-1", "web-1-vm"), vsphere, clusterv1.MachineInternalDNS)))
		g.Expect(nodeNames(kinds)(&machine)).To(Equal([]string{"web-1", "web-1-vm"}))
	})

	t.Run("When a kind's machines decide no address, the cache should hold no reference to it", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(shrunk(kinds, new(madeAs(machineOf("web-1"), aws, clusterv1.MachineExternalIP))).Spec.InfrastructureRef).To(BeZero())
		g.Expect(shrunk(kinds, new(madeAs(machineOf("web-1"), vsphere, clusterv1.MachineExternalIP))).Spec.InfrastructureRef).To(Equal(
			clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: vsphere}))
	})

	t.Run("When annotations are longer than Karpenter writes any, the cache should hold the beginning of each", func(t *testing.T) {
		machine := machineOf("web-1")
		for _, key := range retainedAnnotations {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, key, strings.Repeat("x", 40<<10))
		}
		NewWithT(t).Expect(shrunk(kinds, &machine).Annotations).To(And(HaveLen(len(retainedAnnotations)), HaveEach(HaveLen(512))))
	})
}
