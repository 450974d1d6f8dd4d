// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const preTerminateHook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/backup"

// ofMachineDeployment gives the first template a MachineDeployment with hooks, timeouts and taints.
func ofMachineDeployment(templates []template.Template) {
	tmpl := &templates[0]
	tmpl.Source.ResourceVersions = "2"
	tmpl.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	tmpl.Machine = &clusterv1.MachineTemplateSpec{
		ObjectMeta: clusterv1.ObjectMeta{Annotations: map[string]string{preTerminateHook: "velero"}, Labels: map[string]string{"team": "web"}},
		Spec: clusterv1.MachineSpec{
			Deletion: clusterv1.MachineDeletionSpec{
				NodeDrainTimeoutSeconds: ptr.To[int32](60), NodeVolumeDetachTimeoutSeconds: ptr.To[int32](120), NodeDeletionTimeoutSeconds: ptr.To[int32](30),
			},
			Taints:          []clusterv1.MachineTaint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways}},
			MinReadySeconds: ptr.To[int32](20),
			ReadinessGates:  []clusterv1.MachineReadinessGate{{ConditionType: "Licensed"}},
		},
	}
}

// withoutTaints is a management cluster whose feature gate for taints of Machines is off. The API server for tests has no webhooks.
type withoutTaints struct {
	client.Client
	refused int
}

// Create implements client.Client.
func (c *withoutTaints) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if m, ok := object.(*clusterv1.Machine); ok && len(m.Spec.Taints) > 0 {
		c.refused++
		return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), m.Name, field.ErrorList{
			field.Forbidden(field.NewPath("spec", "taints"), "taints are not allowed to be set when the feature gate MachineTaintPropagation is disabled"),
		})
	}
	return c.Client.Create(ctx, object, opts...)
}

func TestMachineDeployment(t *testing.T) {
	tolerating := func(n *karpv1.NodeClaim) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		n.Spec.StartupTaints = []corev1.Taint{{Key: "cni", Effect: corev1.TaintEffectNoSchedule}}
	}
	t.Run("When a template is a MachineDeployment's, it should pass on its deletion timeouts, its hooks, its labels and its taints", func(t *testing.T) {
		f := newFixture(t)
		f.offer(ofMachineDeployment)
		nodeClaim, _ := f.launch("passed-on", tolerating)
		m := f.machine(nodeClaim.Name)
		f.Expect(m.Spec.Deletion.NodeDrainTimeoutSeconds).To(HaveValue(BeEquivalentTo(60)))
		f.Expect(m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds).To(HaveValue(BeEquivalentTo(120)))
		f.Expect(m.Spec.Deletion.NodeDeletionTimeoutSeconds).To(HaveValue(BeEquivalentTo(30)))
		f.Expect(m.Spec.MinReadySeconds).To(HaveValue(BeEquivalentTo(20)))
		f.Expect(m.Spec.ReadinessGates).To(Equal([]clusterv1.MachineReadinessGate{{ConditionType: "Licensed"}}))
		f.Expect(m.Annotations).To(HaveKeyWithValue(preTerminateHook, "velero"))
		f.Expect(m.Labels).To(HaveKeyWithValue("team", "web"))
		f.Expect(m.Spec.Taints).To(Equal([]clusterv1.MachineTaint{
			{Key: "gpu", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways},
		}))
	})
	t.Run("When the management cluster refuses taints of Machines, it should make the Machine without, and the node with them", func(t *testing.T) {
		f := newFixture(t)
		f.offer(ofMachineDeployment)
		refusing := &withoutTaints{Client: f.Management.GetClient()}
		f.provider.Machines = f.Machines(refusing)
		nodeClaim, _ := f.launch("refused", tolerating)
		f.Expect(refusing.refused).To(Equal(1))
		m := f.machine(nodeClaim.Name)
		f.Expect(m.Spec.Taints).To(BeEmpty())
		f.Expect(f.registered(m)).To(ContainElement(HaveKeyWithValue("key", "gpu")))
	})
	t.Run("When a template has no MachineDeployment, it should send no taints in the Machine, which the management cluster may refuse", func(t *testing.T) {
		f := newFixture(t)
		f.offer(func(templates []template.Template) {
			templates[0].Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			templates[0].Source.ResourceVersions = "2"
		})
		nodeClaim, _ := f.launch("no-taints", tolerating)
		f.Expect(f.machine(nodeClaim.Name).Spec.Taints).To(BeEmpty())
	})
}
