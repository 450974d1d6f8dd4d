// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// rebooting has a machine, a provider whose kind of infrastructure reboots machines in place, and the reader of its health checks.
type rebooting struct {
	*fixture
	nodeClaim *karpv1.NodeClaim
	provider  *cloudprovider.CloudProvider
}

func newRebooting(t *testing.T, live client.Reader) *rebooting {
	t.Helper()
	f := newFixture(t)
	nodeClaim, created := f.launch("stuck", nil)
	r := &rebooting{fixture: f, nodeClaim: nodeClaim}
	f.Eventually(func() error { _, err := f.provider.Get(f.ctx, created.Status.ProviderID); return err }).Should(Succeed())
	path := filepath.Join(t.TempDir(), "profiles.yaml")
	f.Expect(os.WriteFile(path, fmt.Appendf(nil, "- {apiGroup: %s, kind: %s, rebootsBy: [TestRemediationTemplate]}\n", environment.TestMachine.Group, environment.TestMachine.Kind), 0o600)).To(Succeed())
	config := f.provider.Config
	if config.ManagementLive = live; live == nil {
		config.ManagementLive = f.Admin
	}
	var err error
	config.Profiles, err = profile.New(path)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(config.Profiles.Problem()).NotTo(HaveOccurred())
	r.provider = cloudprovider.New(config)
	return r
}

// checked makes a MachineHealthCheck.
func (r *rebooting) checked(name string, change func(*clusterv1.MachineHealthCheckSpec)) {
	r.t.Helper()
	check := &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: r.Cluster.Name,
			Selector:    metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.NodeClaimLabel, Operator: metav1.LabelSelectorOpExists}}},
			Checks:      clusterv1.MachineHealthCheckChecks{NodeStartupTimeoutSeconds: ptr.To[int32](0)},
			Remediation: clusterv1.MachineHealthCheckRemediation{TemplateRef: clusterv1.MachineHealthCheckRemediationTemplateReference{
				APIVersion: environment.TestMachine.GroupVersion().String(), Kind: "TestRemediationTemplate", Name: "reboot",
			}},
		},
	}
	if change != nil {
		change(&check.Spec)
	}
	NewWithT(r.t).Expect(r.Admin.Create(r.t.Context(), check)).To(Succeed())
}

func (r *rebooting) annotations() map[string]string { return r.machine(r.nodeClaim.Name).Annotations }

func TestReboot(t *testing.T) {
	t.Run("When a health check has remediations that reboot, it should request one reboot for an operation", func(t *testing.T) {
		r := newRebooting(t, nil)
		r.checked("reboot", nil)
		r.Expect(r.provider.Reboot(r.ctx, r.nodeClaim, "first")).To(Succeed())
		r.Expect(r.annotations()).To(And(HaveKeyWithValue(v1alpha1.RebootAnnotation, "first"), HaveKeyWithValue(clusterv1.RemediateMachineAnnotation, "")))
		before := r.machine(r.nodeClaim.Name).ResourceVersion
		r.Eventually(func(g Gomega) {
			found, err := r.Machines(nil).ForNodeClaim(r.ctx, r.nodeClaim.UID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.ResourceVersion).To(Equal(before))
		}).Should(Succeed())
		r.Expect(r.provider.Reboot(r.ctx, r.nodeClaim, "first")).To(Succeed())
		r.Expect(r.machine(r.nodeClaim.Name).ResourceVersion).To(Equal(before), "a repeated call is the same reboot")
		r.Expect(r.provider.Reboot(r.ctx, r.nodeClaim, "second")).To(Succeed())
		r.Expect(r.annotations()).To(HaveKeyWithValue(v1alpha1.RebootAnnotation, "second"))
	})

	for name, test := range map[string]struct {
		checks map[string]func(*clusterv1.MachineHealthCheckSpec)
		want   string
	}{
		"no health check selects the machine": {map[string]func(*clusterv1.MachineHealthCheckSpec){
			"others": func(s *clusterv1.MachineHealthCheckSpec) {
				s.Selector = metav1.LabelSelector{MatchLabels: map[string]string{"pool": "other"}}
			},
			"green": func(s *clusterv1.MachineHealthCheckSpec) { s.ClusterName = "green" },
		}, "no MachineHealthCheck of Cluster blue selects Machine"},
		"a health check would replace the machine": {map[string]func(*clusterv1.MachineHealthCheckSpec){
			"reboot": nil, "replace": func(s *clusterv1.MachineHealthCheckSpec) { s.Remediation = clusterv1.MachineHealthCheckRemediation{} },
		}, "replace selects Machine"},
		"a health check has other remediations": {map[string]func(*clusterv1.MachineHealthCheckSpec){
			"reinstall": func(s *clusterv1.MachineHealthCheckSpec) { s.Remediation.TemplateRef.Kind = "ReinstallTemplate" },
		}, "its spec.remediation.templateRef is no template of reboots"},
	} {
		t.Run("When "+name+", it should fail for good and leave the machine alone", func(t *testing.T) {
			r := newRebooting(t, nil)
			for name, change := range test.checks {
				r.checked(name, change)
			}
			err := r.provider.Reboot(r.ctx, r.nodeClaim, "first")
			r.Expect(karpcloudprovider.IsNodeRebootFailedError(err)).To(BeTrue(), "%v", err)
			r.Expect(err).To(MatchError(ContainSubstring(test.want)))
			r.Expect(r.annotations()).NotTo(HaveKey(clusterv1.RemediateMachineAnnotation))
		})
	}

	t.Run("When the infrastructure can't reboot a machine, it should say so", func(t *testing.T) {
		r := newRebooting(t, nil)
		r.checked("reboot", nil)
		r.Expect(karpcloudprovider.IsNodeRebootNotImplementedError(r.fixture.provider.Reboot(r.ctx, r.nodeClaim, "first"))).To(BeTrue())
		r.Expect(r.annotations()).NotTo(HaveKey(clusterv1.RemediateMachineAnnotation))
	})
	t.Run("When a permission is missing, it should fail for good; when the API server doesn't answer, it should be retried", func(t *testing.T) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "machinehealthchecks"}, "", nil)
		r := newRebooting(t, failing{err: forbidden})
		r.Expect(karpcloudprovider.IsNodeRebootFailedError(r.provider.Reboot(r.ctx, r.nodeClaim, "first"))).To(BeTrue())
		r = newRebooting(t, failing{err: apierrors.NewServiceUnavailable("gone")})
		err := r.provider.Reboot(r.ctx, r.nodeClaim, "first")
		r.Expect(err).To(MatchError(ContainSubstring("gone")))
		r.Expect(karpcloudprovider.IsNodeRebootFailedError(err)).To(BeFalse())
	})
	t.Run("When the Cluster is paused, it should be retried", func(t *testing.T) {
		r := newRebooting(t, nil)
		r.checked("reboot", nil)
		paused := r.Cluster.DeepCopy()
		paused.Spec.Paused = ptr.To(true)
		r.Expect(r.Admin.Patch(t.Context(), paused, client.MergeFrom(r.Cluster))).To(Succeed())
		r.Eventually(func() (bool, error) { return r.Machines(nil).Paused(r.ctx) }).Should(BeTrue())
		err := r.provider.Reboot(r.ctx, r.nodeClaim, "first")
		r.Expect(err).To(MatchError(ContainSubstring("Cluster blue is paused")))
		r.Expect(karpcloudprovider.IsNodeRebootFailedError(err)).To(BeFalse())
		r.Expect(r.annotations()).NotTo(HaveKey(clusterv1.RemediateMachineAnnotation))
	})
	t.Run("When the machine is gone, it should say so", func(t *testing.T) {
		r := newRebooting(t, nil)
		gone := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: types.UID("gone")}}
		r.Expect(karpcloudprovider.IsNodeClaimNotFoundError(r.provider.Reboot(r.ctx, gone, "first"))).To(BeTrue())
	})
	t.Run("When no machine of the cluster can be rebooted, policies should replace nodes", func(t *testing.T) {
		g := NewWithT(t)
		policies := []v1alpha1.RepairPolicy{{ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, Action: v1alpha1.RepairReboot}}
		for _, reboots := range []bool{true, false} {
			action := karpcloudprovider.ReplaceNode
			if reboots {
				action = karpcloudprovider.RebootNode
			}
			provider := cloudprovider.New(cloudprovider.Config{RepairPolicies: policies, InPlaceReboot: reboots})
			g.Expect(provider.RepairPolicies()).To(ContainElement(And(HaveField("ConditionType", corev1.NodeConditionType("GPUHealthy")), HaveField("Action", action))))
		}
	})
}

// failing is a management cluster that answers with an error.
type failing struct {
	client.Reader
	err error
}

func (f failing) List(context.Context, client.ObjectList, ...client.ListOption) error { return f.err }
