// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"fmt"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
)

func TestNoTemplates(t *testing.T) {
	t.Run("When nothing matches, it should say what exists", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(andDeployments)
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.NoTemplatesReason, Equal(fmt.Sprintf("no TestMachineTemplate in namespace %[1]s of the management cluster matches spec.infrastructureTemplateSelectors[0] "+
			"(autonode.io/template-pool=general): 1 exists, and it doesn't have the labels; no MachineDeployment in namespace %[1]s of the management cluster "+
			"matches spec.scalableResourceSelector (team=web): none exists", f.Namespace)))
		f.condition(status.ConditionReady, "False", v1alpha1.NoTemplatesReason)
	})
}

func TestSomeUnusable(t *testing.T) {
	t.Run("When a selector can't be parsed, it should name the field and use the others", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}
		})
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, ContainSubstring("spec.scalableResourceSelector: "))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.InfrastructureTemplateSelectors = nil })
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.InvalidSelectorReason)
	})

	t.Run("When a kind isn't served, it should name it and use the others", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		missing := general()
		missing.Kind = "NoSuchMachineTemplate"
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.InfrastructureTemplateSelectors = append(n.Spec.InfrastructureTemplateSelectors, missing)
		})
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, ContainSubstring("NoSuchMachineTemplate"))
		f.ready()
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.InfrastructureTemplateSelectors = []v1alpha1.InfrastructureTemplateSelector{missing}
		})
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.SourceUnreadableReason, ContainSubstring("NoSuchMachineTemplate"))
	})

	t.Run("When a kind may not be read, it should say so, and follow once it may", func(t *testing.T) {
		const user = "karpenter"
		f := start(t, user)
		f.allow(user, "cluster", "cluster.x-k8s.io", "clusters")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.SourceUnreadableReason, And(ContainSubstring("testmachinetemplates"), ContainSubstring("forbidden"), ContainSubstring(user)))
		f.condition(v1alpha1.ConditionLaunchAllowed, "True", v1alpha1.ConditionLaunchAllowed)

		f.allow(user, "templates", environment.TestMachine.Group, "testmachinetemplates")
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.SourceUnreadableReason, ContainSubstring("kubeadmconfigtemplates"))
		f.allow(user, "bootstrap", environment.KubeadmConfig.Group, "kubeadmconfigtemplates")
		f.ready()
	})
}
