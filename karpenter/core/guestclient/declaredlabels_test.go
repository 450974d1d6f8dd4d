// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

// created returns the labels of the NodeClaim that Karpenter core creates for a NodePool with a requirement on a label.
func created(t *testing.T, own map[string]string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) map[string]string {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{})
	guest := ruled(fake.NewClientBuilder().WithScheme(scheme).Build(), func(c *guestclient.Config) {
		c.Declares = func(nodeClass, key string) bool { return nodeClass == "default" && key == "storage" }
	})
	nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
	nodePool.Spec.Template.Labels = own
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.cluster.x-k8s.io", Kind: "ClusterAPINodeClass", Name: "default"}
	nodePool.Spec.Template.Spec.Requirements = requirements
	nodeClaim := scheduling.NewNodeClaimTemplate(nodePool).ToNodeClaim()
	nodeClaim.Name = "general-1"
	g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
	stored := &karpv1.NodeClaim{}
	g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), stored)).To(Succeed())
	g.Expect(nodeClaim.Labels).To(Equal(stored.Labels), "what Karpenter core goes on with")
	return stored.Labels
}

func TestDeclaredLabels(t *testing.T) {
	requirement := func(key, operator string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOperator(operator), Values: values}
	}
	for name, open := range map[string][]karpv1.NodeSelectorRequirementWithMinValues{
		"In":        {requirement("storage", "In", "ssd", "hdd")},
		"Exists":    {requirement("storage", "Exists")},
		"NotIn":     {requirement("storage", "NotIn", "tape")},
		"Gt":        {requirement("storage", "Gt", "5")},
		"Gt and Lt": {requirement("storage", "Gt", "5"), requirement("storage", "Lt", "9")},
	} {
		t.Run("When a NodePool's requirement on a template's label is "+name+", it should leave the value to the machine", func(t *testing.T) {
			NewWithT(t).Expect(created(t, nil, open...)).NotTo(HaveKey("storage"))
		})
		t.Run("When a NodePool's requirement on a label that no template has is "+name+", it should leave it to Karpenter core", func(t *testing.T) {
			for i := range open {
				open[i].Key = "team"
			}
			NewWithT(t).Expect(created(t, nil, open...)).To(HaveKey("team"))
		})
	}
	t.Run("When a requirement allows one value, the NodeClaim should have it", func(t *testing.T) {
		NewWithT(t).Expect(created(t, nil, requirement("storage", "In", "ssd"))).To(HaveKeyWithValue("storage", "ssd"))
	})
	t.Run("When the NodePool's template has the label itself, the NodeClaim should have it", func(t *testing.T) {
		NewWithT(t).Expect(created(t, map[string]string{"storage": "ssd"}, requirement("storage", "Exists"))).To(HaveKeyWithValue("storage", "ssd"))
	})
	t.Run("When a requirement is on a well-known label, everything else should stay", func(t *testing.T) {
		NewWithT(t).Expect(created(t, map[string]string{"team": "web"}, requirement(corev1.LabelTopologyZone, "In", "a", "b"))).
			To(And(HaveKeyWithValue("team", "web"), HaveKeyWithValue(karpv1.NodePoolLabelKey, "general"), Not(HaveKey(corev1.LabelTopologyZone))))
	})
}
