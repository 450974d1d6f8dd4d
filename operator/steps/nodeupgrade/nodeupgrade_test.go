// SPDX-License-Identifier: Apache-2.0

package nodeupgrade_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeupgrade"
	"github.com/autonode-io/autonode/payload"
)

// fixture is a hosted cluster whose payload gives nodes version 1.37.1.
type fixture struct {
	*scope.Scope
	clock  *clocktesting.FakePassiveClock
	server string
	asked  int
	step   *nodeupgrade.NodeUpgrade
}

func at(t *testing.T, when string) time.Time {
	t.Helper()
	now, err := time.Parse(time.RFC3339, when)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// setUp begins on a Wednesday. Current is what nodes get by the status, empty where that isn't known.
func setUp(t *testing.T, upgrade *v1beta1.NodeUpgrade, current string, management ...client.Object) *fixture {
	t.Helper()
	f := &fixture{clock: clocktesting.NewFakePassiveClock(at(t, "2026-11-25T12:00:00Z")), server: "v1.37.1"}
	f.Scope = &scope.Scope{
		HostedCluster: &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue", UID: "uid"},
			Spec:       v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{NodeUpgrade: upgrade}},
		},
		ControlPlaneNamespace: "clusters-blue",
		Release:               &payload.Release{Version: "4.20.1"},
		Karpenter:             payload.Component{Versions: map[string]string{payload.KubernetesVersion: "1.37.1"}},
		Guest:                 &scope.Guest{Cached: fake.NewClientBuilder().Build()},
	}
	f.HostedCluster.Status.Version = &v1beta1.VersionStatus{NodeVersion: current, Desired: &v1beta1.DesiredVersion{NodeVersion: "1.37.1"}}
	f.step = nodeupgrade.New(nodeupgrade.Config{
		Management: fake.NewClientBuilder().WithObjects(management...).Build(),
		Clock:      f.clock,
		Versions: guest.NewVersions(f.clock, func(context.Context, *rest.Config) (string, error) {
			f.asked++
			if f.server == "" {
				return "", errors.New("connection reset")
			}
			return f.server, nil
		}),
	})
	return f
}

func (f *fixture) reconcile(t *testing.T) scope.Result {
	t.Helper()
	result, err := f.step.Reconcile(t.Context(), f.Scope)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// gives are the version that new nodes get, and the one that is remembered.
func (f *fixture) gives(version string) func(Gomega) {
	return func(g Gomega) {
		g.Expect(f.NodeUpgrade.Version).To(Equal(version))
		g.Expect(f.HostedCluster.Status.Version.NodeVersion).To(Equal(version))
	}
}

func window() *v1beta1.NodeUpgrade {
	return &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeMaintenanceWindow, MaintenanceWindow: &v1beta1.MaintenanceWindow{
		Schedule: "0 2 * * 6", Duration: scalar.Duration{Duration: 4 * time.Hour}, TimeZone: "Europe/Zurich",
	}}
}

func manual() *v1beta1.NodeUpgrade { return &v1beta1.NodeUpgrade{Policy: v1beta1.NodeUpgradeManual} }

func (f *fixture) approve(version string) {
	metav1.SetMetaDataAnnotation(&f.HostedCluster.ObjectMeta, v1beta1.ApproveNodeVersionAnnotation, version)
}

const (
	approve = "approve with: kubectl annotate --overwrite -n clusters hostedcluster blue autonode.io/approve-node-version="
	command = approve + "1.37.1"
)

// TestPolicies has payloads for nodes with 1.37.1 and control planes at that version, if a case has no others.
func TestPolicies(t *testing.T) {
	const down = "down"
	for _, c := range []struct {
		name                       string
		policy                     *v1beta1.NodeUpgrade
		current, payload, approved string
		server                     string
		want                       string // the version that new nodes get
		waits                      string // the beginning of what nodes wait for
	}{
		{name: "When the payload is older than what nodes have, it should not call that an upgrade", policy: window(), current: "1.37.2", want: "1.37.2", waits: "to be taken back from Sat 28 Nov 02:00 CET on, in the maintenance window"},
		{name: "When it becomes Manual in the middle, what was replaced should stay and the rest wait", policy: manual(), current: "1.37.1", want: "1.37.1", waits: command},
		{
			name: "When another build of the same version comes, it should need its own approval, too", policy: manual(),
			current: "1.37.1+k3s1", payload: "1.37.1+k3s2", approved: "1.37.1+k3s1", want: "1.37.1+k3s1", waits: "approved is 1.37.1+k3s1; " + approve,
		},
		{name: "When the control plane doesn't support what nodes have, new nodes should get the payload's, and running ones wait for approval", policy: manual(), current: "1.33.9", want: "1.37.1", waits: command},
		{name: "When the control plane doesn't support what nodes have, running ones should still wait for the window", policy: window(), current: "1.33.9", want: "1.37.1", waits: "to be upgraded from"},
		{name: "When the control plane doesn't report its version, it should hold all the same", policy: manual(), current: "1.33.9", server: down, want: "1.33.9", waits: command},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, f := NewWithT(t), setUp(t, c.policy, c.current)
			if c.payload != "" {
				f.Karpenter.Versions = map[string]string{payload.KubernetesVersion: c.payload}
			}
			if c.approved != "" {
				f.approve(c.approved)
			}
			if c.server == down {
				f.server = ""
			}
			for range 2 { // it isn't forgotten
				f.reconcile(t)
				f.gives(c.want)(g)
				g.Expect(f.NodeUpgrade.Waits).To(HavePrefix(c.waits))
				g.Expect(f.NodeUpgrade.Hold).To(Equal(c.policy.Policy == v1beta1.NodeUpgradeManual), "none of these versions is approved")
			}
		})
	}
}

func TestImmediate(t *testing.T) {
	for name, policy := range map[string]*v1beta1.NodeUpgrade{
		"nothing is said": nil, "the policy is Immediate": {Policy: v1beta1.NodeUpgradeImmediate}, "the policy is empty": {},
	} {
		t.Run("When "+name+", nodes should follow the payload at once", func(t *testing.T) {
			g, f := NewWithT(t), setUp(t, policy, "1.36.3")
			g.Expect(f.reconcile(t)).To(Equal(scope.Result{}))
			f.gives("1.37.1")(g)
			g.Expect(f.NodeUpgrade).To(Equal(scope.NodeUpgrade{Version: "1.37.1"}))
			g.Expect(f.asked).To(BeZero())
		})
	}
}

func TestMaintenanceWindow(t *testing.T) {
	f := setUp(t, window(), "1.36.3")

	t.Run("When the window is closed, new nodes should get what nodes have, and it should say when it opens", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(f.reconcile(t).RequeueAfter).To(Equal(10*time.Minute), "the control plane may be upgraded meanwhile")
		f.gives("1.36.3")(g)
		g.Expect(f.NodeUpgrade.Waits).To(Equal("to be upgraded from Sat 28 Nov 02:00 CET on, in the maintenance window"))
		g.Expect(f.NodeUpgrade.Window).To(Equal(window().MaintenanceWindow))
		g.Expect(f.NodeUpgrade.Hold).To(BeFalse())
	})

	t.Run("When the window is about to open, it should wake then", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.SetTime(at(t, "2026-11-28T00:59:00Z"))
		g.Expect(f.reconcile(t).RequeueAfter).To(Equal(time.Minute))
		f.gives("1.36.3")(g)
	})

	t.Run("When the window opens, nodes should get the payload's, until it closes", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.SetTime(at(t, "2026-11-28T01:00:00Z"))
		g.Expect(f.reconcile(t).RequeueAfter).To(Equal(4 * time.Hour))
		f.gives("1.37.1")(g)
		g.Expect(f.NodeUpgrade.Waits).To(BeEmpty())
		g.Expect(f.NodeUpgrade.Window).NotTo(BeNil())
	})

	t.Run("When the window closes in the middle, new nodes should still get the payload's, and the rest wait for the next", func(t *testing.T) {
		g := NewWithT(t)
		f.clock.SetTime(at(t, "2026-11-28T05:00:00Z"))
		f.reconcile(t)
		f.gives("1.37.1")(g)
		g.Expect(f.NodeUpgrade.Waits).To(ContainSubstring("Sat 5 Dec 02:00 CET"))
	})

	t.Run("When another payload comes, it should wait again", func(t *testing.T) {
		g := NewWithT(t)
		f.Karpenter.Versions = map[string]string{payload.KubernetesVersion: "1.37.2"}
		f.reconcile(t)
		f.gives("1.37.1")(g)
	})

	t.Run("When the policy becomes Immediate, it should wait no longer", func(t *testing.T) {
		g := NewWithT(t)
		f.HostedCluster.Spec.AutoNode.NodeUpgrade = nil
		f.reconcile(t)
		f.gives("1.37.2")(g)
	})

	t.Run("When the window can't be read, it should leave all as it is and say which field is wrong", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(t, window(), "1.36.3")
		f.HostedCluster.Spec.AutoNode.NodeUpgrade.MaintenanceWindow.Schedule = "0 25 * * *"
		result := f.reconcile(t)
		g.Expect(result.Wait).To(BeTrue())
		g.Expect(result.Message).To(HavePrefix("spec.autoNode.nodeUpgrade.maintenanceWindow.schedule: "))
		g.Expect(f.HostedCluster.Status.Version.NodeVersion).To(Equal("1.36.3"))
	})
}

func TestManual(t *testing.T) {
	f := setUp(t, manual(), "1.36.3")

	for _, c := range []struct {
		name, approved string
		want           string
	}{
		{name: "When nothing is approved, it should say how to", want: command},
		{name: "When another version is approved, it should say which", approved: "1.36.3", want: "approved is 1.36.3; " + command},
		{name: "When the approval isn't of a version, it should say so", approved: "yes", want: "the approval isn't of a version such as 1.37.1; " + command},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			if c.approved != "" {
				f.approve(c.approved)
			}
			f.reconcile(t)
			f.gives("1.36.3")(g)
			g.Expect(f.NodeUpgrade.Hold).To(BeTrue())
			g.Expect(f.NodeUpgrade.Waits).To(Equal(c.want))
		})
	}

	t.Run("When the version is approved, nodes should get it", func(t *testing.T) {
		g := NewWithT(t)
		f.approve("v1.37.1")
		g.Expect(f.reconcile(t)).To(Equal(scope.Result{}))
		f.gives("1.37.1")(g)
		g.Expect(f.NodeUpgrade.Hold).To(BeFalse())
		g.Expect(f.NodeUpgrade.Waits).To(BeEmpty())
	})

	t.Run("When the next version comes, it should need its own approval", func(t *testing.T) {
		g := NewWithT(t)
		f.Karpenter.Versions = map[string]string{payload.KubernetesVersion: "1.37.2"}
		f.reconcile(t)
		f.gives("1.37.1")(g)
		g.Expect(f.NodeUpgrade.Hold).To(BeTrue())
	})
}

func TestCurrent(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "karpenter"}}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "karpenter", Args: []string{"--cluster-name=blue", "--node-version=1.36.2"}}}
	node := func(name, version string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version}},
		}
	}

	t.Run("When there are no nodes yet, the first version should need no approval", func(t *testing.T) {
		g, f := NewWithT(t), setUp(t, manual(), "")
		f.reconcile(t)
		f.gives("1.37.1")(g)
	})

	t.Run("When the status was lost, Karpenter's Deployment should have the version", func(t *testing.T) {
		g, f := NewWithT(t), setUp(t, manual(), "", deployment)
		f.HostedCluster.Status.Version = nil
		f.reconcile(t)
		f.gives("1.36.2")(g)
	})

	t.Run("When the Deployment was lost, too, the newest node should have the version", func(t *testing.T) {
		g, f := NewWithT(t), setUp(t, manual(), "")
		f.Guest.Cached = fake.NewClientBuilder().WithObjects(node("a", "v1.36.1"), node("b", "v1.36.2"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another-clients"}}).Build()
		f.reconcile(t)
		f.gives("1.36.2")(g)
	})
}

func TestSkew(t *testing.T) {
	t.Run("When the control plane is upgraded while nodes are held, it should find out, and not ask all the time", func(t *testing.T) {
		g, f := NewWithT(t), setUp(t, manual(), "1.33.9")
		f.server = "v1.36.0"
		f.reconcile(t)
		f.reconcile(t)
		f.gives("1.33.9")(g)
		g.Expect(f.asked).To(Equal(1))
		f.server = "v1.37.1"
		f.clock.SetTime(f.clock.Now().Add(10 * time.Minute))
		f.reconcile(t)
		f.gives("1.37.1")(g)
	})
}

func TestObserve(t *testing.T) {
	t.Run("When the release isn't resolved, it should say what nodes wait for and change nothing, even in the window", func(t *testing.T) {
		g, f := NewWithT(t), setUp(t, manual(), "1.36.3")
		f.Release = nil
		g.Expect(f.reconcile(t).Wait).To(BeTrue())
		f.gives("1.36.3")(g)
		g.Expect(f.NodeUpgrade.Waits).NotTo(BeEmpty())
		f = setUp(t, window(), "1.36.3")
		f.clock.SetTime(at(t, "2026-11-28T01:00:00Z"))
		g.Expect(f.step.Observe(t.Context(), f.Scope)).To(Succeed())
		f.gives("1.36.3")(g)
	})
}
