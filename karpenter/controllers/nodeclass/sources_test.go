// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
)

// TestConditions: each condition on the way from selectors to templates reports its own failure, and Ready reports the same.
func TestConditions(t *testing.T) {
	const (
		found     = v1alpha1.ConditionSourcesFound
		resolved  = v1alpha1.ConditionReferencesResolved
		templates = v1alpha1.ConditionTemplatesReady
	)
	for _, tc := range []struct {
		name      string
		prepare   func(f *fixture)
		nodeClass func(n *v1alpha1.ClusterAPINodeClass)
		// want is a line for each condition, and message what the first that isn't True, and Ready, say.
		want    []string
		message string
	}{
		{
			"When nothing has the label, it should say that no source was found", func(f *fixture) { f.template("c2-small", nil) },
			func(n *v1alpha1.ClusterAPINodeClass) {
				n.Spec.InfrastructureTemplateSelectors[0].Selector.MatchLabels[pool] = "special"
			},
			[]string{found + " False NoTemplates", resolved + " True ReferencesResolved", templates + " False NoTemplates"},
			"matches spec.infrastructureTemplateSelectors[0] (autonode.io/template-pool=special): 2 exist, and none has the labels",
		},
		{
			"When it selects nothing, it should say that no source was found", func(*fixture) {},
			func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.InfrastructureTemplateSelectors = nil },
			[]string{found + " False NoSelector", resolved + " True ReferencesResolved", templates + " False NoSelector"},
			"set spec.infrastructureTemplateSelectors or spec.scalableResourceSelector",
		},
		{
			"When a MachineDeployment's template is missing, it should say that its reference isn't resolved",
			func(f *fixture) { f.machineDeployment("workers", "gone", "blue") }, deployments,
			[]string{found + " True SourcesFound", resolved + " False ReferenceNotFound", templates + " False AllInvalid"},
			"workers: TestMachineTemplate gone, which it refers to, doesn't exist",
		},
		{
			"When the capacity isn't known, it should say that there is no template", func(f *fixture) { f.template("c2-small", nil) }, nil,
			[]string{found + " True SourcesFound", resolved + " True ReferencesResolved", templates + " False AllInvalid"},
			"c2-small: has no cpu capacity",
		},
		{
			"When only one of them can be used, it should be ready and say so",
			func(f *fixture) {
				f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
				f.machineDeployment("dangling", "gone", "blue")
			},
			andDeployments,
			[]string{found + " True SourcesFound", resolved + " True ReferenceNotFound", templates + " True SomeInvalid"}, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, "")
			tc.prepare(f)
			f.nodeClass(tc.nodeClass)
			f.Eventually(f.lines).Should(Equal(tc.want))
			if tc.message == "" {
				f.ready()
				return
			}
			nodeClass := f.stored()
			conditions := nodeClass.StatusConditions()
			f.Expect(conditions.Get(status.ConditionReady).Message).To(ContainSubstring(tc.message))
			f.Expect(conditions.Get(templates).Message).To(ContainSubstring(tc.message))
		})
	}

	t.Run("When what a MachineDeployment refers to may not be read, it should say who may not read what, and how to allow it", func(t *testing.T) {
		const user = "karpenter"
		f := start(t, user)
		f.allow(user, "cluster", "cluster.x-k8s.io", "clusters", "machinedeployments")
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		f.machineDeployment("workers", "c4-large-sized", "blue")
		f.nodeClass(deployments)
		// Which of the two is asked first is client-go's affair.
		listed := func(message string) string { return strings.Replace(message, "cannot watch", "cannot list", 1) }
		f.condition(status.ConditionReady, "False", v1alpha1.SourceUnreadableReason, WithTransform(listed, Equal(fmt.Sprintf("reading TestMachineTemplate.%[1]s in namespace %[2]s: testmachinetemplates.%[1]s is forbidden: User %[3]q cannot list resource "+
			"%[4]q in API group %[1]q in the namespace %[2]q; name the kind in spec.autoNode of the HostedCluster, which allows it, or allow Karpenter to get, list and watch it by a Role of your own",
			environment.TestMachine.Group, f.Namespace, user, "testmachinetemplates"))))
		f.Expect(f.lines()).To(Equal([]string{found + " True SourcesFound", resolved + " False SourceUnreadable", templates + " False SourceUnreadable"}))

		f.allow(user, "templates", environment.TestMachine.Group, "testmachinetemplates")
		f.allow(user, "bootstrap", environment.KubeadmConfig.Group, "kubeadmconfigtemplates")
		f.ready()
	})

	t.Run("When it is asked what it can launch, it should answer in its columns", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.template("c4-large-sized", sized("4", "8Gi", "0.096"))
		f.nodeClass(nil)
		f.ready()
		f.condition(found, "True", found, Equal("2 TestMachineTemplates"))
		table, err := f.table()
		f.Expect(err).NotTo(HaveOccurred())
		var columns []string
		for _, column := range table.ColumnDefinitions {
			columns = append(columns, column.Name)
		}
		f.Expect(columns).To(Equal([]string{"Name", "Ready", "Version", "Templates", "Cheapest", "Age", "Message"}))
		f.Expect(table.Rows).To(HaveLen(1))
		f.Expect(table.Rows[0].Cells[1:5]).To(Equal([]any{"True", "1.36.2", float64(2), "c2-small $0.021"}))
	})
}

// lines are the conditions between selectors and templates, in that order.
func (f *fixture) lines() []string {
	nodeClass, err := f.get()
	if err != nil {
		return []string{err.Error()}
	}
	conditions := nodeClass.StatusConditions()
	var lines []string
	for _, name := range []string{v1alpha1.ConditionSourcesFound, v1alpha1.ConditionReferencesResolved, v1alpha1.ConditionTemplatesReady} {
		c := conditions.Get(name)
		lines = append(lines, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
	}
	return lines
}

// table is what kubectl get prints of the node class.
func (f *fixture) table() (*metav1.Table, error) {
	config := rest.CopyConfig(f.Guest.GetConfig())
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &v1alpha1.GroupVersion, clientgoscheme.Codecs.WithoutConversion()
	guest, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	raw, err := guest.Get().Resource("clusterapinodeclasses").Name(f.name).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(f.t.Context())
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	return table, json.Unmarshal(raw, table)
}
