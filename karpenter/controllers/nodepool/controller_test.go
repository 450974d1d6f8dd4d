// SPDX-License-Identifier: Apache-2.0

package nodepool_test

import (
	"errors"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodepool"
	_ "github.com/autonode-io/autonode/karpenter/core/wellknown"
)

// fixture is a NodePool whose node class has templates with the labels example.com/gpu-model and node.cluster.x-k8s.io/rack.
type fixture struct {
	*WithT
	t        *testing.T
	guest    client.Client
	recorder *environment.Recorder
	// unknown is why the templates' labels aren't known.
	unknown error
}

func newFixture(t *testing.T, ref karpv1.NodeClassReference, requirements ...karpv1.NodeSelectorRequirementWithMinValues) *fixture {
	t.Helper()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general", UID: "general"}}
	pool.Spec.Template.Spec.NodeClassRef = &ref
	pool.Spec.Template.Spec.Requirements = requirements
	return &fixture{
		WithT: NewWithT(t), t: t, recorder: &environment.Recorder{},
		guest: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(pool).WithStatusSubresource(&karpv1.NodePool{}).Build(),
	}
}

func (f *fixture) reconcile() *karpv1.NodePool {
	f.t.Helper()
	controller := nodepool.New(f.guest, func(nodeClass string) (sets.Set[string], error) {
		f.Expect(nodeClass).To(Equal("default"))
		return sets.New("example.com/gpu-model", "node.cluster.x-k8s.io/rack"), f.unknown
	}, f.recorder)
	pool := &karpv1.NodePool{}
	f.Expect(f.guest.Get(f.t.Context(), client.ObjectKey{Name: "general"}, pool)).To(Succeed())
	_, err := controller.Reconcile(f.t.Context(), pool)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.guest.Get(f.t.Context(), client.ObjectKey{Name: "general"}, pool)).To(Succeed())
	return pool
}

// condition is the message of the condition, if the NodePool has it.
func (f *fixture) condition(pool *karpv1.NodePool) string {
	f.t.Helper()
	is := pool.StatusConditions().Get(nodepool.UndeclaredKeys)
	if is == nil {
		return ""
	}
	f.Expect(is.IsTrue()).To(BeTrue())
	return is.Message
}

func requirement(key, operator string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOperator(operator), Values: values}
}

var ours = karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}

func TestUndeclaredKeys(t *testing.T) {
	for name, tc := range map[string]struct {
		requirement karpv1.NodeSelectorRequirementWithMinValues
		want        string
	}{
		"When a zone's key is misspelt, it should name the zone's":                      {requirement("topology.kubernetes.io/zon", "In", "a"), "topology.kubernetes.io/zon (nearest: topology.kubernetes.io/zone)"},
		"When a key is another provider's, it should name ours of that name":            {requirement("karpenter.k8s.aws/instance-cpu", "Gt", "3"), "karpenter.k8s.aws/instance-cpu (nearest: karpenter.cluster.x-k8s.io/instance-cpu)"},
		"When nothing here is like another provider's, it should name the nearest":      {requirement("karpenter.k8s.aws/instance-generation", "Gt", "2"), "karpenter.k8s.aws/instance-generation (nearest: karpenter.cluster.x-k8s.io/"},
		"When a template's key is misspelt, it should name the template's":              {requirement("example.com/gpu-modell", "In", "a100"), "example.com/gpu-modell (nearest: example.com/gpu-model)"},
		"When a key of a cloud's own nodes is excluded, it should say so, too":          {requirement("cloud.google.com/gke-spot", "NotIn", "true"), "cloud.google.com/gke-spot (nearest: "},
		"When a label that nothing declares is compared as a number, it should say so":  {requirement("example.org/disks", "Gte", "2"), "example.org/disks (nearest: "},
		"When a label is the user's own, with one value, it should say nothing":         {requirement("example.org/team", "In", "web"), ""},
		"When pods choose the value of the user's own label, it should say nothing":     {requirement("example.org/team", "Exists"), ""},
		"When a label is the user's own, in the domain for that, it should say nothing": {requirement("node-restriction.kubernetes.io/team", "In", "web"), ""},
		"When a short label is the user's own, it should say nothing":                   {requirement("disk", "In", "ssd"), ""},
		"When a template declares the label, it should say nothing":                     {requirement("node.cluster.x-k8s.io/rack", "Gt", "2"), ""},
		"When a label is well-known, it should say nothing":                             {requirement(corev1.LabelTopologyRegion, "In", "eu"), ""},
		"When a label is another name of a well-known one, it should say nothing":       {requirement("topology.ebs.csi.aws.com/zone", "In", "a"), ""},
		"When no node may have another provider's label, it should say nothing":         {requirement("karpenter.k8s.aws/instance-gpu-count", "DoesNotExist"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, ours, tc.requirement)
			pool := f.reconcile()
			if tc.want == "" {
				f.Expect(pool.Status.Conditions).To(BeEmpty(), "nothing is written")
				f.Expect(f.recorder.Reasons()).To(BeEmpty())
				return
			}
			f.Expect(f.condition(pool)).To(HavePrefix("no template, catalog or well-known label has " + tc.want))
			f.Expect(f.recorder.Messages()).To(ConsistOf(f.condition(pool)))
		})
	}
	t.Run("When nothing changes, it should write nothing more; when the NodePool is corrected, the condition should go", func(t *testing.T) {
		f := newFixture(t, ours, requirement("topology.kubernetes.io/zon", "In", "a"), requirement("topology.kubernetes.io/zon", "NotIn", "b"))
		reported := f.reconcile()
		f.Expect(f.reconcile().ResourceVersion).To(Equal(reported.ResourceVersion))
		f.Expect(f.recorder.Reasons()).To(ConsistOf(nodepool.UndeclaredKeys))
		reported.Spec.Template.Spec.Requirements[1].Key = "karpenter.k8s.aws/instance-cpu"
		f.Expect(f.guest.Update(t.Context(), reported)).To(Succeed())
		reported = f.reconcile()
		f.Expect(f.condition(reported)).To(And(ContainSubstring("karpenter.k8s.aws/instance-cpu"), ContainSubstring("topology.kubernetes.io/zon ")), "one more key")
		f.Expect(f.recorder.Reasons()).To(HaveLen(2))
		f.unknown = errors.New("not yet")
		f.Expect(f.reconcile().ResourceVersion).To(Equal(reported.ResourceVersion), "what its templates declare isn't known")
		f.unknown = nil
		reported.Spec.Template.Labels = map[string]string{"topology.kubernetes.io/zon": "a", "karpenter.k8s.aws/instance-cpu": "4"}
		f.Expect(f.guest.Update(t.Context(), reported)).To(Succeed())
		f.Expect(f.condition(f.reconcile())).To(BeEmpty())
		f.Expect(f.recorder.Reasons()).To(HaveLen(2))
	})
}

func TestNodeClassUnsupported(t *testing.T) {
	aws := karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
	t.Run("When the node class is another provider's, the NodePool should not be ready, and say once what to do", func(t *testing.T) {
		f := newFixture(t, aws)
		pool := f.reconcile()
		is := pool.StatusConditions().Get(karpv1.ConditionTypeNodeClassReady)
		f.Expect(is.IsFalse()).To(BeTrue())
		f.Expect(is.Reason).To(Equal("NodeClassUnsupported"))
		f.Expect(is.Message).To(And(ContainSubstring("EC2NodeClass default of group karpenter.k8s.aws"), ContainSubstring("{group: karpenter.cluster.x-k8s.io, kind: ClusterAPINodeClass, name: default}")))
		f.Expect(pool.StatusConditions().Get(status.ConditionReady).IsFalse()).To(BeTrue())
		f.Expect(f.reconcile().ResourceVersion).To(Equal(pool.ResourceVersion))
		f.Expect(f.recorder.Reasons()).To(ConsistOf("NodeClassUnsupported"))
	})
	t.Run("When another Karpenter serves the NodePool, it should leave it alone", func(t *testing.T) {
		f := newFixture(t, aws)
		pool := &karpv1.NodePool{}
		f.Expect(f.guest.Get(t.Context(), client.ObjectKey{Name: "general"}, pool)).To(Succeed())
		pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
		f.Expect(f.guest.Status().Update(t.Context(), pool)).To(Succeed())
		f.Expect(f.reconcile().ResourceVersion).To(Equal(pool.ResourceVersion))
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})
}
