// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"encoding/json"
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
)

func TestUpgrade(t *testing.T) {
	f := startSmall(t, nil)
	f.ready()
	f.Expect(f.stored().Status.NodeUpgrade).To(BeNil())
	// follow has the plan's file followed.
	follow := func() {
		t.Helper()
		_, err := f.upgrade.Reconcile(t.Context())
		f.Expect(err).NotTo(HaveOccurred())
	}
	for _, tc := range []struct {
		phase            v1alpha1.NodeUpgradePhase
		state, message   string
		version, release string
	}{
		{v1alpha1.NodeUpgradeCanary, "False", "1 canary isn't launched yet", "1.36.2", "release@sha256:1"},
		{v1alpha1.NodeUpgradeHalted, "False", "failed: general-1/LaunchTimeout", "1.36.1", "release@sha256:2"},
		{v1alpha1.NodeUpgradeRolling, "True", "", "1.36.2", "release@sha256:3"},
	} {
		t.Run("When the phase of the upgrade is "+string(tc.phase)+", it should report that, and the version of the next node", func(t *testing.T) {
			report := &v1alpha1.NodeUpgradeStatus{Image: tc.release, Version: "1.36.2", Phase: tc.phase}
			if tc.phase == v1alpha1.NodeUpgradeHalted {
				report.FailedNodes = []string{"general-1/LaunchTimeout"}
			}
			raw, err := json.Marshal(upgradeplan.Plan{
				To: upgradeplan.Release{Image: tc.release, Version: "1.36.2"}, From: upgradeplan.Release{Image: "release@sha256:0", Version: "1.36.1"},
				Canaries: 1, MaxFailures: 1, Status: report,
			})
			f.Expect(err).NotTo(HaveOccurred())
			f.write(f.plan, string(raw))
			follow()
			report.Message = tc.message
			f.condition(v1alpha1.ConditionUpgradeAllowed, tc.state, string(tc.phase), Equal(tc.message))
			f.Eventually(func() v1alpha1.ClusterAPINodeClassStatus { return f.stored().Status }).Should(And(
				HaveField("NodeUpgrade", Equal(report)), HaveField("Version", tc.version)))
			f.ready()
		})
	}
	t.Run("When there is no upgrade any more, it should report none", func(t *testing.T) {
		f.Expect(os.Remove(f.plan)).To(Succeed())
		follow()
		f.Eventually(func() v1alpha1.ClusterAPINodeClassStatus { return f.stored().Status }).Should(And(
			HaveField("NodeUpgrade", BeNil()), HaveField("Conditions", Not(ContainElement(HaveField("Type", v1alpha1.ConditionUpgradeAllowed))))))
	})
}
