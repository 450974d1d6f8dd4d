// SPDX-License-Identifier: Apache-2.0

package nodeupgrade_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/operator/provider"
)

const (
	releaseA = "registry.example/release@sha256:aaaa"
	releaseB = "registry.example/release@sha256:bbbb"
	releaseC = "registry.example/release@sha256:cccc"
)

func completed(image, nodes string) v1beta1.UpdateHistory {
	return v1beta1.UpdateHistory{State: v1beta1.UpdateCompleted, Image: image, NodeVersion: nodes}
}

func partial(image string) v1beta1.UpdateHistory {
	return v1beta1.UpdateHistory{State: v1beta1.UpdatePartial, Image: image}
}

// proving upgrades nodes from release A, with 1.36.3, to release C, with 1.37.1, with one canary. B was halted in between.
func proving(t *testing.T) *fixture {
	t.Helper()
	f := setUp(t, &v1beta1.NodeUpgrade{Canary: &v1beta1.NodeUpgradeCanary{Nodes: 1}}, "1.36.3")
	f.Release.Image = releaseC
	f.Profile = &provider.Profile{}
	f.Guest.Complete = true
	f.HostedCluster.Status.Version.History = []v1beta1.UpdateHistory{
		partial(releaseC), partial(releaseB), completed(releaseA, "v1.36.3"), completed("older", "1.35.0"),
	}
	return f
}

// reports has the guest's node classes report.
func (f *fixture) reports(classes ...provider.NodeClassReport) {
	f.Profile.NodeClasses = func(context.Context, client.Reader) ([]provider.NodeClassReport, error) { return classes, nil }
}

func status(image string, phase v1alpha1.NodeUpgradePhase, failed ...string) *v1alpha1.NodeUpgradeStatus {
	return &v1alpha1.NodeUpgradeStatus{Image: image, Version: "1.37.1", Phase: phase, FailedNodes: failed}
}

// upgrade replaces the policy.
func upgrade(to *v1beta1.NodeUpgrade) func(*fixture) {
	return func(f *fixture) { f.HostedCluster.Spec.AutoNode.NodeUpgrade = to }
}

func TestPlan(t *testing.T) {
	from, to := upgradeplan.Release{Image: releaseA, Version: "1.36.3"}, upgradeplan.Release{Image: releaseC, Version: "1.37.1"}
	canary := &v1beta1.NodeUpgradeCanary{Nodes: 1}
	tenMinutes := scalar.Duration{Duration: 10 * time.Minute}
	planned := &upgradeplan.Plan{To: to, From: from, Canaries: 1, Soak: tenMinutes, MaxFailures: 1}
	resumed, halting, held := *planned, *planned, *planned
	resumed.Resumed = true
	halting.Canaries, halting.MaxFailures = 0, 2
	held.To = from
	proved := held
	proved.To, proved.From = to, to
	resume := func(value string) func(*fixture) {
		return func(f *fixture) {
			metav1.SetMetaDataAnnotation(&f.HostedCluster.ObjectMeta, v1beta1.ResumeNodeUpgradeAnnotation, value)
		}
	}
	policy := func(to *v1beta1.NodeUpgrade) func(*fixture) {
		to.Canary = canary
		return upgrade(to)
	}
	history := func(entries ...v1beta1.UpdateHistory) func(*fixture) {
		return func(f *fixture) { f.HostedCluster.Status.Version.History = entries }
	}
	for _, c := range []struct {
		name   string
		change func(*fixture)
		want   *upgradeplan.Plan
	}{
		{name: "When a canary is set, it should plan from the last completed payload, past a halted one", change: func(*fixture) {}, want: planned},
		{name: "When only haltOn is set, it should plan without a canary", want: &halting, change: upgrade(&v1beta1.NodeUpgrade{HaltOn: &v1beta1.NodeUpgradeHaltOn{FailedNodes: 2}})},
		{name: "When neither is set, it should plan nothing", change: upgrade(&v1beta1.NodeUpgrade{})},
		{name: "When there is no nodeUpgrade, it should plan nothing", change: upgrade(nil)},
		{name: "When the window is closed, nodes should get the version that is proved", change: policy(window()), want: &held},
		{name: "When the window is open, it should plan", want: planned, change: func(f *fixture) {
			policy(window())(f)
			f.clock.SetTime(at(t, "2026-11-28T01:00:00Z"))
		}},
		{name: "When the version isn't approved, nodes should get the version that is proved", change: policy(manual()), want: &held},
		{name: "When the version is approved, it should plan", want: planned, change: func(f *fixture) {
			policy(manual())(f)
			f.approve("1.37.1")
		}},
		{name: "When it is the first payload, it should plan nothing", change: history(partial(releaseC))},
		{name: "When the payload is Completed, it should need no proof", want: &proved, change: history(completed(releaseC, "1.37.1"), completed(releaseA, "1.36.3"))},
		{
			name: "When the payload was Completed before, going back to it should need no proof", want: &proved,
			change: history(partial(releaseC), completed(releaseA, "1.36.3"), completed(releaseC, "1.37.1")),
		},
		{
			name:   "When an older operator completed the payloads, without their node version, it should plan nothing",
			change: history(partial(releaseC), completed(releaseA, ""), completed(releaseB, "")),
		},
		{name: "When the payload's version is in the annotation, it should be resumed", change: resume("4.20.1"), want: &resumed},
		{name: "When the version has a leading v, it should be resumed, too", change: resume("v4.20.1"), want: &resumed},
		{name: "When the payload's digest is in the annotation, it should be resumed", change: resume("sha256:cccc"), want: &resumed},
		{name: "When the annotation has another digest, it should not be resumed", change: resume("sha256:bbbb"), want: planned},
		{name: "When the annotation has a part of the digest, it should not be resumed", change: resume("cccc"), want: planned},
		{name: "When the annotation has another version, it should not be resumed", change: resume("4.20"), want: planned},
		{name: "When the annotation is empty, it should not be resumed", change: resume(""), want: planned},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, f := NewWithT(t), proving(t)
			f.HostedCluster.Status.Version.NodeUpgrade = status(releaseB, v1alpha1.NodeUpgradeHalted, "general-a")
			c.change(f)
			f.reconcile(t)
			got := f.NodeUpgrade.Plan
			if c.want == nil || c.want.To == c.want.From {
				g.Expect(cmp.Diff(c.want, got)).To(BeEmpty())
				g.Expect(f.NodeUpgrade.Progress).To(BeNil())
				g.Expect(f.HostedCluster.Status.Version.NodeUpgrade).To(BeNil(), "an upgrade that is over isn't in progress")
				if c.want != nil {
					g.Expect(f.NodeUpgrade.Version).To(Or(Equal(c.want.To.Version), Equal("v"+c.want.To.Version)))
				}
				return
			}
			g.Expect(got).NotTo(BeNil())
			g.Expect(got.Status.Image).To(Equal(releaseC), "a report of another payload's upgrade is none of this one")
			g.Expect(got.Status.FailedNodes).To(BeEmpty())
			without := *got
			without.Status = nil
			g.Expect(cmp.Diff(*c.want, without)).To(BeEmpty())
		})
	}
}

func TestProgress(t *testing.T) {
	halted, canary := status(releaseC, v1alpha1.NodeUpgradeHalted, "general-a"), status(releaseC, v1alpha1.NodeUpgradeCanary)
	const command = "kubectl annotate --overwrite -n clusters hostedcluster blue autonode.io/resume-node-upgrade=4.20.1"
	class := func(isDefault bool, upgrade *v1alpha1.NodeUpgradeStatus) provider.NodeClassReport {
		return provider.NodeClassReport{Default: isDefault, Upgrade: upgrade}
	}
	for _, c := range []struct {
		name   string
		change func(*fixture)
		want   *v1alpha1.NodeUpgradeStatus
		resume string
		over   bool // no node waits
	}{
		{name: "When Karpenter hasn't reported yet, it should begin with the canaries", change: func(*fixture) {}, want: canary},
		{
			name: "When there are no canaries, it should begin with all nodes", want: status(releaseC, v1alpha1.NodeUpgradeRolling), over: true,
			change: upgrade(&v1beta1.NodeUpgrade{HaltOn: &v1beta1.NodeUpgradeHaltOn{}}),
		},
		{name: "When the default node class reports a halt, it should copy it, with the command that resumes", want: halted, resume: command, change: func(f *fixture) {
			f.reports(class(false, nil), class(true, halted))
		}},
		{name: "When another node class reports, it should ignore that", want: canary, change: func(f *fixture) { f.reports(class(false, halted), class(true, nil)) }},
		{name: "When the report is about another payload, it should ignore that", want: canary, change: func(f *fixture) {
			f.reports(class(true, status(releaseB, v1alpha1.NodeUpgradeHalted, "general-a")))
		}},
		{name: "When the soak is over, no node should wait", want: status(releaseC, v1alpha1.NodeUpgradeRolling), over: true, change: func(f *fixture) {
			f.reports(class(true, status(releaseC, v1alpha1.NodeUpgradeRolling)))
		}},
		{
			name: "When no failed node halts it, it should resume by itself", want: status(releaseC, v1alpha1.NodeUpgradeHalted),
			change: func(f *fixture) { f.reports(class(true, status(releaseC, v1alpha1.NodeUpgradeHalted))) },
		},
		{name: "When it is resumed, it should not ask for that again", want: halted, change: func(f *fixture) {
			f.reports(class(true, halted))
			metav1.SetMetaDataAnnotation(&f.HostedCluster.ObjectMeta, v1beta1.ResumeNodeUpgradeAnnotation, "4.20.1")
		}},
		{name: "When the guest can't be reached, it should keep the last report", want: halted, resume: command, change: func(f *fixture) {
			f.HostedCluster.Status.Version.NodeUpgrade, f.Guest = halted, nil
		}},
		{name: "When the guest doesn't serve node classes yet, it should keep the last report", want: halted, resume: command, change: func(f *fixture) {
			f.HostedCluster.Status.Version.NodeUpgrade, f.Guest.Complete = halted, false
			f.reports(class(true, canary))
		}},
		{name: "When the node class was deleted, it should keep the last report", want: halted, resume: command, change: func(f *fixture) {
			f.HostedCluster.Status.Version.NodeUpgrade = halted
			f.reports()
		}},
		{name: "When the node class reports another payload meanwhile, it should keep the last report", want: halted, resume: command, change: func(f *fixture) {
			f.HostedCluster.Status.Version.NodeUpgrade = halted
			f.reports(class(true, status(releaseB, v1alpha1.NodeUpgradeRolling)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, f := NewWithT(t), proving(t)
			c.change(f)
			f.reconcile(t)
			g.Expect(cmp.Diff(c.want, f.NodeUpgrade.Plan.Status)).To(BeEmpty())
			g.Expect(f.HostedCluster.Status.Version.NodeUpgrade).To(Equal(c.want), "a Karpenter that restarts begins there")
			g.Expect(f.NodeUpgrade.Progress == nil).To(Equal(c.over))
			g.Expect(f.NodeUpgrade.Resume).To(Equal(c.resume))
		})
	}

	t.Run("When node classes can't be read, it should be an error, and no plan", func(t *testing.T) {
		g, f := NewWithT(t), proving(t)
		f.Profile.NodeClasses = func(context.Context, client.Reader) ([]provider.NodeClassReport, error) {
			return nil, errors.New("no cache")
		}
		_, err := f.step.Reconcile(t.Context(), f.Scope)
		g.Expect(err).To(MatchError("no cache"))
		g.Expect(f.NodeUpgrade.Plan).To(BeNil())
	})

	t.Run("When the release can't be resolved meanwhile, the halt should still be reported", func(t *testing.T) {
		for phase, waits := range map[v1alpha1.NodeUpgradePhase]bool{v1alpha1.NodeUpgradeHalted: true, v1alpha1.NodeUpgradeRolling: false} {
			g, f := NewWithT(t), proving(t)
			f.HostedCluster.Status.Version.NodeUpgrade, f.Release = status(releaseC, phase), nil
			g.Expect(f.step.Observe(t.Context(), f.Scope)).To(Succeed())
			g.Expect(f.NodeUpgrade.Progress != nil).To(Equal(waits))
		}
	})
}
