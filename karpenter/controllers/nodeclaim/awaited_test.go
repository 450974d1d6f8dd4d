// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// one infrastructure machine, whatever its name.
type one struct{ object *unstructured.Unstructured }

func (o one) Get(context.Context, schema.GroupKind, string) (*unstructured.Unstructured, error) {
	return o.object, nil
}

func (one) OnObject(func(schema.GroupKind, *unstructured.Unstructured)) {}

// vsphere is a VSphereMachine with the conditions of the contract v1beta1 where newer releases keep them.
func vsphere(conditions ...any) one {
	return one{&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "VSphereMachine", "metadata": map[string]any{"name": "blue-1"},
		"status": map[string]any{
			"conditions": []any{map[string]any{"type": "VirtualMachineProvisioned", "status": "False", "reason": "NotProvisioned", "message": ""}},
			"deprecated": map[string]any{"v1beta1": map[string]any{"conditions": conditions}},
		},
	}}}
}

func waiting(reason, message string) *clusterv1.Machine {
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue-1"}}
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "VSphereMachine", Name: "blue-1"}
	m.Status.Conditions = []metav1.Condition{
		{Type: clusterv1.MachineBootstrapConfigReadyCondition, Status: metav1.ConditionTrue},
		{Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message},
	}
	return m
}

//nolint:staticcheck // deprecated together with the contract v1beta1, which many providers still follow.
func formerly(m *clusterv1.Machine, message string) *clusterv1.Machine {
	m.Status.Deprecated = &clusterv1.MachineDeprecatedStatus{V1Beta1: &clusterv1.MachineV1Beta1DeprecatedStatus{Conditions: clusterv1.Conditions{
		{Type: clusterv1.InfrastructureReadyV1Beta1Condition, Status: corev1.ConditionFalse, Reason: "TaskFailure", Message: message},
	}}}
	return m
}

const (
	denied      = "Permission to perform this operation was denied."
	unexplained = "the infrastructure provider gives no reason; check the conditions and events of VSphereMachine clusters-blue/blue-1 and of the objects that it creates, and the provider's log"
)

func TestAwaited(t *testing.T) {
	for name, tc := range map[string]struct {
		machine        *clusterv1.Machine
		infrastructure Infrastructure
		want           string
	}{
		"When the Machine has a sentence, it should be that": {waiting("NotProvisioned", denied), vsphere(), "NotProvisioned: " + denied},
		"When only the infrastructure machine's deprecated conditions have it, it should be theirs": {
			waiting("NotProvisioned", ""), vsphere(map[string]any{"type": "VMProvisioned", "status": "False", "reason": "TaskFailure", "message": denied}), "TaskFailure: " + denied,
		},
		"When only the Machine's deprecated conditions have it, it should be theirs": {formerly(waiting("NotProvisioned", ""), denied), nil, "TaskFailure: " + denied},
		"When nothing has a sentence, it should say where to look":                   {waiting("NotProvisioned", ""), vsphere(), "NotProvisioned: " + unexplained},
		"When the provider hasn't reported anything, it should say where to look": {
			waiting("NotReady", "Condition Ready not yet reported"), vsphere(), "NotReady: Condition Ready not yet reported; " + unexplained,
		},
		"When Cluster API repeats only the reason, it should say where to look": {
			waiting("NotReady", "* VirtualMachineProvisioned: WaitingForClone"), vsphere(), "NotReady: * VirtualMachineProvisioned: WaitingForClone; " + unexplained,
		},
		"When Cluster API repeats a sentence among reasons, it should be that": {
			waiting("NotReady", "* VirtualMachineProvisioned: WaitingForClone\n* Ready: "+denied), vsphere(), "NotReady: * VirtualMachineProvisioned: WaitingForClone\n* Ready: " + denied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := detail(Config{Infrastructure: tc.infrastructure}.awaited(t.Context(), tc.machine)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFormerConditions(t *testing.T) {
	t.Run("When only the Machine's deprecated conditions have the sentence of a failed task, it should mean what that reports", func(t *testing.T) {
		m := formerly(waiting("NotProvisioned", ""), denied)
		in := inputs{kind: profile.Embedded().For(m.Spec.InfrastructureRef.GroupKind()), infrastructure: conditionsOfMachine(m)}
		if found, ok := interpret(in, infrastructure.Misconfigured); !ok || found.condition.Message != denied {
			t.Errorf("found %v, %t", found, ok)
		}
	})
}
