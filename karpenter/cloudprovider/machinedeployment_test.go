// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const preTerminateHook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/backup"

// ofMachineDeployment gives a template a MachineDeployment with hooks, timeouts and taints.
func ofMachineDeployment(tmpl *template.Template) {
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
		g := NewWithT(t)
		f := newFixture(t, nil)
		f.offer(func(templates []template.Template) {
			ofMachineDeployment(&templates[0])
			templates[0].Source.ResourceVersions = "2"
		})
		nodeClaim := f.claim("passed-on", tolerating)
		_, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		m := f.machine(nodeClaim.Name)
		g.Expect(m.Spec.Deletion.NodeDrainTimeoutSeconds).To(HaveValue(BeEquivalentTo(60)))
		g.Expect(m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds).To(HaveValue(BeEquivalentTo(120)))
		g.Expect(m.Spec.Deletion.NodeDeletionTimeoutSeconds).To(HaveValue(BeEquivalentTo(30)))
		g.Expect(m.Spec.MinReadySeconds).To(HaveValue(BeEquivalentTo(20)))
		g.Expect(m.Spec.ReadinessGates).To(Equal([]clusterv1.MachineReadinessGate{{ConditionType: "Licensed"}}))
		g.Expect(m.Annotations).To(HaveKeyWithValue(preTerminateHook, "velero"))
		g.Expect(m.Labels).To(HaveKeyWithValue("team", "web"))
		g.Expect(m.Spec.Taints).To(Equal([]clusterv1.MachineTaint{
			{Key: "gpu", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways},
		}))
	})
	t.Run("When the management cluster refuses taints of Machines, it should make the Machine without, and the node with them", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		f.offer(func(templates []template.Template) {
			ofMachineDeployment(&templates[0])
			templates[0].Source.ResourceVersions = "2"
		})
		refusing := &withoutTaints{Client: f.Management.GetClient()}
		config := f.provider.Config
		config.Machines = f.Machines(refusing)
		nodeClaim := f.claim("refused", tolerating)
		_, err := cloudprovider.New(config).Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(refusing.refused).To(Equal(1))
		m := f.machine(nodeClaim.Name)
		g.Expect(m.Spec.Taints).To(BeEmpty())
		bootstrap := &unstructured.Unstructured{}
		bootstrap.SetGroupVersionKind(environment.KubeadmConfig)
		g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), bootstrap)).To(Succeed())
		taints, _, _ := unstructured.NestedSlice(bootstrap.Object, "spec", "joinConfiguration", "nodeRegistration", "taints")
		g.Expect(taints).To(ContainElement(HaveKeyWithValue("key", "gpu")))
	})
	t.Run("When a template has no MachineDeployment, it should send no taints in the Machine, which the management cluster may refuse", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		f.offer(func(templates []template.Template) {
			templates[0].Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			templates[0].Source.ResourceVersions = "2"
		})
		nodeClaim := f.claim("no-taints", tolerating)
		_, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.machine(nodeClaim.Name).Spec.Taints).To(BeEmpty())
	})
}
