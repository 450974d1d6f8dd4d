// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestMachineDeployment(t *testing.T) {
	t.Run("When MachineDeployments match, it should read template, bootstrap, labels, taints, version and zone, and leave their replicas alone", func(t *testing.T) {
		f := start(t, "")
		f.machineDeployment("workers", "c4-large-sized", "blue")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		f.machineDeployment("dangling", "gone", "blue")
		f.machineDeployment("green-workers", "c4-large-sized", "green")
		f.nodeClass(deployments)
		f.ready()
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, Equal(fmt.Sprintf(
			"MachineDeployment %s/dangling: TestMachineTemplate gone, which it refers to, doesn't exist; the other 1 template is in use", f.Namespace)))
		choice := f.resolve("workers")
		tmpl := choice.Template
		f.Expect(tmpl.Infrastructure.GetName()).To(Equal("c4-large-sized"))
		f.Expect(tmpl.Bootstrap.ConfigTemplate.GetName()).To(Equal("default"))
		f.Expect(tmpl.Version()).To(Equal("v1.36.1"))
		f.Expect(tmpl.Labels).To(Equal(map[string]string{"node.cluster.x-k8s.io/rack": "1"}))
		f.Expect(tmpl.Taints).To(Equal([]corev1.Taint{{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}}))
		f.Expect(tmpl.Capacity.Memory().String()).To(Equal("6Gi"))
		f.Expect(choice.Offering.Price).To(Equal(0.05))
		f.Expect(choice.FailureDomain).To(Equal("b"))
		f.Expect(f.instanceTypes()).To(Equal([]string{"workers"}))
	})
	t.Run("When a MachineDeployment has a version of its own, its nodes should get that, and none if it isn't possible", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := f.machineDeployment("workers", "c4-large-sized", "blue")
		f.nodeClass(andDeployments)
		f.ready()
		nodeClass := f.stored()
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		versions := map[string]string{}
		for _, s := range nodeClass.Status.Templates {
			versions[s.InstanceType] = s.Version
		}
		f.Expect(versions).To(Equal(map[string]string{"workers": "1.36.1", "c4-large-sized": ""}))
		choice := f.resolve("workers")
		f.Expect(choice.Template.NodeVersion).To(Equal("1.36.1"))

		version := func(v string) {
			f.patch(md, func() { md.Spec.Template.Spec.Version = v })
		}
		version("v1.32.9")
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, Equal(fmt.Sprintf("MachineDeployment %s/workers: "+
			"the MachineDeployment's version 1.32.9 is more than 3 minor versions behind the API server's version 1.36.2; raise it; the other 1 template is in use", f.Namespace)))
		f.Expect(f.available("workers")).To(BeFalse())
		f.Expect(f.available("c4-large-sized")).To(BeTrue())
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.36.0" })
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.Expect(f.available("workers")).To(BeTrue())
	})
	t.Run("When a node class has no selector, as the upstream experiment's, it should choose the members, once there are some", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := f.machineDeployment("workers", "c4-large-sized", "blue")
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec = v1alpha1.ClusterAPINodeClassSpec{} })
		f.condition(v1alpha1.ConditionSourcesFound, "False", v1alpha1.NoSelectorReason)
		f.patch(md, func() { md.Labels[v1alpha1.MemberLabel] = "" })
		f.ready()
		f.Expect(f.instanceTypes()).To(Equal([]string{"workers"}))
	})
	t.Run("When it has a max size, its own replicas should count, and its node class should have nothing to say of the rest", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := f.machineDeployment("workers", "c4-large-sized", "blue")
		f.nodeClass(deployments)
		f.ready()
		f.patch(md, func() {
			md.Spec.Replicas = ptr.To[int32](2)
			md.Annotations[clusterv1.AutoscalerMaxSizeAnnotation] = "5"
		})
		maximum := func() int {
			limit, _ := f.resolve("workers").Template.Maximum()
			return limit
		}
		f.Eventually(maximum).Should(Equal(3))
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
	})
	t.Run("When it is paused, it should offer nothing from it", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		md := f.machineDeployment("workers", "c4-large-sized", "blue")
		f.nodeClass(andDeployments)
		available := func() bool { return f.available("workers") }
		f.Eventually(available).Should(BeTrue())
		f.patch(md, func() { md.Spec.Paused = ptr.To(true) })
		f.Eventually(available).Should(BeFalse())
	})
}
