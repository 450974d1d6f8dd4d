// SPDX-License-Identifier: Apache-2.0

package clusterapi_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

func TestDefaultNodeClass(t *testing.T) {
	full := scopetest.AutoNode()
	full.ProvisionerConfig.Karpenter.ClusterAPI.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	full.ProvisionerConfig.Karpenter.ClusterAPI.Kubelet = &v1alpha1.KubeletConfiguration{
		MaxPods:      ptr.To(int32(50)),
		KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "100m"},
		EvictionHard: map[string]v1alpha1.EvictionThreshold{"memory.available": "5%"},
		// Beside an admin's low threshold it has to be valid, too.
		ImageGCHighThresholdPercent: ptr.To(int32(90)),
	}
	for name, autoNode := range map[string]*v1beta1.AutoNode{"minimal": scopetest.AutoNode(), "full": full} {
		t.Run("When the configuration is "+name+", it should render what the golden file holds", func(t *testing.T) {
			g := NewWithT(t)
			class, ok := clusterapi.New(clusterapi.DefaultGroups).DefaultNodeClass(autoNode.ProvisionerConfig.Karpenter).(*v1alpha1.ClusterAPINodeClass)
			g.Expect(ok).To(BeTrue())
			rendered, err := yaml.Marshal(map[string]any{"metadata": map[string]any{"name": class.Name}, "spec": class.Spec})
			g.Expect(err).NotTo(HaveOccurred())
			golden, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cmp.Diff(string(golden), string(rendered))).To(BeEmpty())
		})
	}
}

func TestKubeletBounds(t *testing.T) {
	for name, tc := range map[string]struct {
		kubelet v1alpha1.KubeletConfiguration
		want    string
	}{
		"keeps to its own bounds": {v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(100))}, ""},
		"exceeds its own bounds": {v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(101)), CPUCFSQuota: ptr.To(false)},
			"clusterAPI.kubelet exceeds clusterAPI.kubeletBounds: cpuCFSQuota is set, and the platform forbids it; maxPods is 101, and the platform allows at most 100"},
		"sets a field that its own bounds don't allow": {v1alpha1.KubeletConfiguration{Other: map[string]apiextensionsv1.JSON{"registryBurst": {Raw: []byte("5")}}},
			"clusterAPI.kubelet exceeds clusterAPI.kubeletBounds: registryBurst is set, and the platform's kubeletBounds don't allow it"},
	} {
		t.Run("When a HostedCluster "+name+", it should say so", func(t *testing.T) {
			config := scopetest.AutoNode().ProvisionerConfig.Karpenter
			config.ClusterAPI.Kubelet = &tc.kubelet
			config.ClusterAPI.KubeletBounds = &v1alpha1.KubeletBounds{
				Forbidden: []v1alpha1.KubeletField{"cpuCFSQuota"}, Max: &v1alpha1.KubeletMaximums{MaxPods: ptr.To(int32(100))},
			}
			err := clusterapi.New(clusterapi.DefaultGroups).CheckSpec(config)
			if tc.want == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
			} else {
				NewWithT(t).Expect(err).To(MatchError(tc.want))
			}
		})
	}
}

func TestSelectors(t *testing.T) {
	endless := metav1.LabelSelector{MatchExpressions: slices.Repeat([]metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists}}, 51)}
	for field, set := range map[string]func(*v1beta1.ClusterAPI){
		"scalableResourceSelector": func(c *v1beta1.ClusterAPI) { c.ScalableResourceSelector = &endless },
		"infrastructureTemplateSelectors[0].selector": func(c *v1beta1.ClusterAPI) {
			c.InfrastructureTemplateSelectors = []v1alpha1.InfrastructureTemplateSelector{{Selector: endless}}
		},
		"catalogSelectors[0].selector": func(c *v1beta1.ClusterAPI) {
			c.CatalogSelectors = []v1alpha1.CatalogSelector{{Selector: endless}}
		},
	} {
		t.Run("When "+field+" has requirements without end, it should be rejected", func(t *testing.T) {
			config := scopetest.AutoNode().ProvisionerConfig.Karpenter
			set(config.ClusterAPI)
			NewWithT(t).Expect(clusterapi.New(clusterapi.DefaultGroups).CheckSpec(config)).To(
				MatchError("clusterAPI." + field + ": a selector has more than 50 requirements or 4 KiB"))
		})
	}
}

func TestNodeClasses(t *testing.T) {
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	for name, tc := range map[string]struct {
		reported status.Condition
		want     string
	}{
		"When some offerings can be launched, it should report that": {
			status.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.QuotaExhaustedReason}, "True ",
		},
		"When none can be launched, it should report why": {status.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.NoCapacityReason}, "False NoCapacity"},
		"When some can be launched and every launch fails, it should report that": {
			status.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.LaunchesFailReason}, "False LaunchesFail",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
			tc.reported.Type = v1alpha1.ConditionOfferingsAvailable
			class.Status.Conditions = []status.Condition{tc.reported}
			guest := fake.NewClientBuilder().WithScheme(scheme).WithObjects(class).Build()
			reports, err := clusterapi.New(clusterapi.DefaultGroups).NodeClasses(t.Context(), guest)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(reports).To(HaveLen(1))
			g.Expect(string(reports[0].Offerings.Status) + " " + reports[0].Offerings.Reason).To(Equal(tc.want))
		})
	}

	t.Run("When the operator has reported that Karpenter doesn't run, there should be no report of Karpenter's", func(t *testing.T) {
		g := NewWithT(t)
		profile := clusterapi.New(clusterapi.DefaultGroups)
		class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
		g.Expect(profile.NodeClass.StopLaunches(class, time.Now(), v1alpha1.PausedReason, "paused")).To(BeTrue())
		reports, err := profile.NodeClasses(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(class).Build())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reports).To(HaveExactElements(HaveField("Ready", BeNil())))
	})
}
