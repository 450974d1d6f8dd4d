// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const storage = "example.com/storage"

// offerDisks offers small machines without a label for $0.01, with hard disks for $0.02 and with three solid state disks for $0.03.
func (f *fixture) offerDisks() {
	bare, hdd, ssd := f.Template("bare", 0.01), f.Template("hdd", 0.02), f.Template("ssd", 0.03)
	for _, tmpl := range []*template.Template{&bare, &hdd, &ssd} {
		tmpl.Source.Name = tmpl.InstanceType
	}
	hdd.Labels = map[string]string{storage: "hdd", "example.com/disks": "1"}
	ssd.Labels = map[string]string{storage: "ssd", "example.com/disks": "3"}
	f.selects([]template.Template{bare, hdd, ssd}, template.Cluster{FailureDomains: []string{"a", "b"}}, template.Gaps{})
}

// nodePool creates a NodePool, and returns it and what its NodeClaims have of it.
func (f *fixture) nodePool(labels map[string]string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) (*karpv1.NodePool, func(*karpv1.NodeClaim)) {
	f.t.Helper()
	nodePool := f.pool(f.Namespace, requirements...)
	nodePool.UID, nodePool.Spec.Template.Labels = "", labels
	f.Expect(f.Admin.Create(f.t.Context(), nodePool)).To(Succeed())
	f.t.Cleanup(func() {
		f.Expect(f.Admin.Delete(context.WithoutCancel(f.t.Context()), nodePool)).To(Succeed())
	})
	f.Eventually(func() error {
		return f.Guest.GetClient().Get(f.t.Context(), client.ObjectKeyFromObject(nodePool), &karpv1.NodePool{})
	}).Should(Succeed())
	return nodePool, func(n *karpv1.NodeClaim) {
		n.Labels[karpv1.NodePoolLabelKey] = nodePool.Name
		for key, value := range labels {
			n.Labels[key] = value
			n.Spec.Requirements = append(n.Spec.Requirements, requirement(key, value))
		}
		n.Spec.Requirements = append(n.Spec.Requirements, requirements...)
	}
}

func TestDeclaredLabels(t *testing.T) {
	operator := func(key, operator string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOperator(operator), Values: values}
	}
	names := func(its []*karpcloudprovider.InstanceType) (names []string) {
		for _, it := range its {
			names = append(names, it.Name)
		}
		return names
	}
	for name, tc := range map[string]struct {
		labels      map[string]string
		requirement []karpv1.NodeSelectorRequirementWithMinValues
		offered     []string
		machine     string
		value       any
	}{
		"When a NodePool allows several values, the node should have the machine's": {
			nil, []karpv1.NodeSelectorRequirementWithMinValues{requirement(storage, "ssd", "hdd")}, []string{"hdd", "ssd"}, "hdd", "hdd",
		},
		"When a NodePool requires more than a number, the machine should have more": {
			nil, []karpv1.NodeSelectorRequirementWithMinValues{operator("example.com/disks", "Gt", "2")}, []string{"ssd"}, "ssd", "ssd",
		},
		"When a NodePool doesn't want a value, a machine without one should do, and have none": {
			nil, []karpv1.NodeSelectorRequirementWithMinValues{operator(storage, "NotIn", "hdd")}, []string{"bare", "ssd"}, "bare", nil,
		},
		"When a NodePool requires no value, it should get the machine without one": {
			nil, []karpv1.NodeSelectorRequirementWithMinValues{operator(storage, "DoesNotExist")}, []string{"bare"}, "bare", nil,
		},
		"When a NodePool's template has the label, a machine that reports nothing about it should do": {
			map[string]string{storage: "ssd"}, nil, []string{"bare", "hdd", "ssd"}, "bare", "ssd",
		},
		"When no NodePool speaks of it, any machine should do, with its own": {
			nil, nil, []string{"bare", "hdd", "ssd"}, "bare", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.offerDisks()
			nodePool, of := f.nodePool(tc.labels, tc.requirement...)
			its, err := f.provider.GetInstanceTypes(f.ctx, nodePool)
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(names(its)).To(Equal(tc.offered))
			_, created := f.launch("one", of)
			f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, tc.machine))
			if tc.value == nil {
				f.Expect(created.Labels).NotTo(HaveKey(storage))
			} else {
				f.Expect(created.Labels).To(HaveKeyWithValue(storage, tc.value))
			}
		})
	}

	t.Run("When a template gets a label at run time, a NodePool should get its machines by it", func(t *testing.T) {
		f := newFixture(t)
		f.offerDisks()
		nodePool, of := f.nodePool(nil, operator("example.com/gpu", "Exists"))
		f.offer(func(templates []template.Template) { templates[1].Labels = map[string]string{"example.com/gpu": "t4"} })
		its, err := f.provider.GetInstanceTypes(f.ctx, nodePool)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(names(its)).To(Equal([]string{"c4-large"}))
		f.Expect(f.store.Declares(f.nodeClass.Name, "example.com/gpu")).To(BeTrue())
		_, created := f.launch("one", of)
		f.Expect(created.Labels).To(HaveKeyWithValue("example.com/gpu", "t4"))
	})

	// same has two templates of one instance type, with different disks.
	same := func(templates []template.Template) {
		for i, disk := range []string{"hdd", "ssd"} {
			tmpl := &templates[i]
			tmpl.InstanceType, tmpl.SpotPrice, tmpl.Labels, tmpl.Source.ResourceVersions = "same", nil, map[string]string{storage: disk}, disk
		}
	}
	t.Run("When templates of one type differ, a NodePool that requires the label should not get the type, and its admin should hear why", func(t *testing.T) {
		f := newFixture(t)
		f.offer(same)
		nodePool, of := f.nodePool(nil, requirement(storage, "ssd"))
		its, err := f.provider.GetInstanceTypes(f.ctx, nodePool)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(its).To(BeEmpty())
		f.Expect(f.recorder.Messages()).To(ConsistOf(And(
			ContainSubstring("instance type same isn't used"), ContainSubstring("c4-large-source"), ContainSubstring("differ in label "+storage))))
		f.refused("one", of)
	})

	t.Run("When templates of one type differ and a pod rules one out, it should get a machine of the other, though that is dearer", func(t *testing.T) {
		f := newFixture(t)
		f.offer(same)
		nodeClaim := f.claim("one", func(n *karpv1.NodeClaim) {
			n.Spec.Requirements = append(n.Spec.Requirements, operator(storage, "NotIn", "hdd"))
		})
		for range 2 { // the second one finds the first one's machine
			created, err := f.provider.Create(f.ctx, nodeClaim)
			f.Expect(err).NotTo(HaveOccurred())
			f.Expect(created.Labels).To(HaveKeyWithValue(storage, "ssd"))
			f.Expect(f.machine(nodeClaim.Name).Annotations[v1alpha1.TemplateSourceAnnotation]).To(HaveSuffix("/c4-large-source"))
			f.Expect(f.machine(nodeClaim.Name).Annotations).To(HaveKeyWithValue(v1alpha1.PriceAnnotation, "0.1"))
		}
	})
}
