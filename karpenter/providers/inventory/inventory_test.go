// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestCounted(t *testing.T) {
	t.Run("When the machines have been counted, it should remember that without asking again", func(t *testing.T) {
		counted, asked := false, 0
		machines := New(Config{Counted: func() bool { asked++; return counted }, Clock: clocktesting.NewFakeClock(time.Now())})
		NewWithT(t).Expect(machines.IsCounted()).To(BeFalse(), "it was counted before it was")
		counted = true
		for range 2 {
			NewWithT(t).Expect(machines.IsCounted()).To(BeTrue(), "it isn't counted after it was")
		}
		NewWithT(t).Expect(asked).To(BeEquivalentTo(2))
	})
}

func TestNodesAndMachines(t *testing.T) {
	revision := Revision{Source: "source", ContentHash: "1", BootstrapHash: "2", NodeClassHash: "3"}
	machine := Machine{Origin: origin("c4"), ContentHash: "1", BootstrapHash: "2", NodeClassHash: "3", ProviderID: "cloud://1"}
	node := Node{ProviderID: "cloud://1", Capacity: Amounts{Memory: 7 * gib}, Allocatable: Amounts{Memory: 6 * gib, Pods: 58}}
	for name, observe := range map[string]func(*Inventory){
		"When the Machine is seen first, it should learn from its node": func(i *Inventory) {
			i.ObserveMachine("1", machine)
			i.ObserveNode("a", node)
		},
		"When the node is seen first, as after a restart, it should learn from it once its Machine is": func(i *Inventory) {
			i.ObserveNode("a", node)
			i.ObserveMachine("1", machine)
		},
		"When the Machine gets its provider ID last, it should learn from the node then": func(i *Inventory) {
			i.ObserveMachine("1", Machine{Origin: origin("c4"), ContentHash: "1", BootstrapHash: "2", NodeClassHash: "3"})
			i.ObserveNode("a", node)
			i.ObserveMachine("1", machine)
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := New(Config{Clock: clocktesting.NewFakeClock(time.Now())})
			before := i.Sequence()
			observe(i)
			if report, known := i.Capacity(revision); !known || report.Memory != 7*gib {
				t.Errorf("capacity: %v, %t", report, known)
			}
			if report, known := i.Allocatable(revision); !known || report.Amounts != node.Allocatable {
				t.Errorf("allocatable: %v, %t", report, known)
			}
			if i.Sequence() == before {
				t.Error("the sequence is the same")
			}
			i.ForgetNode("a")
			i.ForgetMachine("1")
			NewWithT(t).Expect(len(i.machines.objects) + len(i.machines.keys) + len(i.nodes.objects) + len(i.nodes.keys)).To(BeZero())
		})
	}
}
