// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

var (
	from = upgradeplan.Release{Image: "release@sha256:36", Version: "1.36.2"}
	to   = upgradeplan.Release{Image: "release@sha256:37", Version: "1.37.1"}
)

// indexer indexes a fake client.
type indexer struct{ *fake.ClientBuilder }

// IndexField implements client.FieldIndexer.
func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

// fixture is a guest, its Machines and the file of the plan.
type fixture struct {
	*WithT
	t       *testing.T
	config  Config
	guest   client.Client
	clock   *clocktesting.FakePassiveClock
	tooOld  bool
	upgrade *Upgrade
}

// newFixture follows a plan, unless it is the zero value.
func newFixture(t *testing.T, plan upgradeplan.Plan) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(now)}
	scheme := runtime.NewScheme()
	f.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	f.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	builder := fake.NewClientBuilder().WithScheme(scheme)
	f.Expect(machine.Index(t.Context(), indexer{builder})).To(Succeed())
	f.guest = builder.Build()
	f.config = Config{
		Path: filepath.Join(t.TempDir(), upgradeplan.Key), Version: "v" + to.Version, Guest: f.guest, Clock: f.clock,
		Machines: machine.New(machine.Config{Management: f.guest, Namespace: "clusters-blue", ClusterName: "blue"}),
		TooOld:   func(version string) bool { return f.tooOld && version == from.Version },
	}
	if plan.To.Image != "" {
		f.write(plan)
	}
	f.upgrade = New(f.config)
	return f
}

// upgrade is a plan from one release to the other.
func upgrade(p upgradeplan.Plan) upgradeplan.Plan {
	p.From, p.To = from, to
	return p
}

func (f *fixture) write(plan upgradeplan.Plan) {
	f.t.Helper()
	raw, err := json.Marshal(plan)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(os.WriteFile(f.config.Path, raw, 0o600)).To(Succeed())
}

// reconcile returns the phase afterwards; empty without a plan.
func (f *fixture) reconcile() v1alpha1.NodeUpgradePhase {
	f.t.Helper()
	_, err := f.upgrade.Reconcile(f.t.Context())
	f.Expect(err).NotTo(HaveOccurred())
	if status := f.upgrade.Status(); status != nil {
		return status.Phase
	}
	return ""
}

// claim makes a NodeClaim of a node that is Ready once it is initialized, with a Machine of a release unless that is empty.
func (f *fixture) claim(name, release, drifted string, initialized bool) *karpv1.NodeClaim {
	f.t.Helper()
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Finalizers: []string{karpv1.TerminationFinalizer}}}
	if initialized {
		c.Status.NodeName = name
		c.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		f.Expect(f.guest.Create(f.t.Context(), node)).To(Succeed())
	}
	if drifted != "" {
		c.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, drifted, drifted)
	}
	f.Expect(f.guest.Create(f.t.Context(), c)).To(Succeed())
	if release != "" {
		f.machine(name, release)
	}
	return c
}

// machine makes a Machine of a release, with another annotation.
func (f *fixture) machine(name, release string, annotation ...string) {
	f.t.Helper()
	annotations := map[string]string{v1alpha1.ReleaseAnnotation: release}
	for i := 0; i < len(annotation); i += 2 {
		annotations[annotation[i]] = annotation[i+1]
	}
	f.Expect(f.guest.Create(f.t.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters-blue", Name: name, Annotations: annotations,
		Labels: map[string]string{clusterv1.ClusterNameLabel: "blue", v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: name},
	}})).To(Succeed())
}

// disruptable is how many nodes may be replaced; -1 for all.
func (f *fixture) disruptable() int {
	if n, ok := f.upgrade.Disruptable(f.t.Context()); ok {
		return n
	}
	return -1
}

func TestPlan(t *testing.T) {
	t.Run("When there is no plan, it should hold nothing", func(t *testing.T) {
		f := newFixture(t, upgradeplan.Plan{})
		f.Expect(f.reconcile()).To(BeEmpty())
		f.Expect(f.upgrade.Launch(f.claim("a", "", "", false))).To(BeZero())
		f.Expect(f.disruptable()).To(Equal(-1))
		f.Expect(New(Config{}).Status()).To(BeNil())
	})
	t.Run("When a plan is for the Karpenter that replaces this one, whose version is proved, it should hold nothing", func(t *testing.T) {
		p := upgrade(proving(1))
		p.To.Version, p.From.Version = "1.37.2", to.Version
		f := newFixture(t, p)
		f.Expect(f.reconcile()).To(BeEmpty())
		f.Expect(f.upgrade.Launch(nil)).To(BeZero())
		f.Expect(f.disruptable()).To(Equal(-1))
	})
	t.Run("When this Karpenter's version isn't proved, it should launch the proved one and replace no node", func(t *testing.T) {
		f := newFixture(t, upgrade(proving(1)))
		p := upgrade(proving(1))
		p.To.Image, p.To.Version = "release@sha256:38", "1.38.0"
		for _, p := range []upgradeplan.Plan{p, {To: p.From, From: p.From}} { // another payload, and back
			f.write(p)
			f.Expect(f.reconcile()).To(BeEmpty())
			f.Expect(f.upgrade.Launch(nil)).To(Equal(from))
			f.Expect(f.disruptable()).To(BeZero())
		}
	})
	t.Run("When the payload was completed before, it should hold nothing, and launch with its images", func(t *testing.T) {
		f := newFixture(t, upgradeplan.Plan{To: to, From: to, Canaries: 1})
		f.Expect(f.reconcile()).To(BeEmpty())
		f.Expect(f.upgrade.Launch(nil)).To(Equal(to))
	})
	t.Run("When the file changes, it should follow it, notify its readers, and keep the plan while the file is malformed", func(t *testing.T) {
		f, changes := newFixture(t, upgradeplan.Plan{}), 0
		f.upgrade.OnChange(func() { changes++ })
		f.write(upgrade(proving(1)))
		f.Expect(f.reconcile()).To(Equal(canary))
		f.Expect(changes).To(BeNumerically(">", 0))
		f.Expect(os.WriteFile(f.config.Path, []byte("{"), 0o600)).To(Succeed())
		f.Expect(f.reconcile()).To(Equal(canary))
		f.Expect(os.Remove(f.config.Path)).To(Succeed())
		f.Expect(f.reconcile()).To(BeEmpty())
	})
	t.Run("When another payload is planned, it should begin with the first status", func(t *testing.T) {
		f := newFixture(t, upgrade(proving(0)))
		f.upgrade.Fail(t.Context(), f.claim("a", to.Image, "", false), "LaunchTimeout")
		f.Expect(f.reconcile()).To(Equal(halted))
		p := upgrade(proving(0))
		p.To.Image = "release@sha256:38"
		f.write(p)
		f.Expect(f.reconcile()).To(Equal(rolling))
		f.Expect(f.upgrade.Status().FailedNodes).To(BeEmpty())
	})
	t.Run("When Karpenter restarts, it should go on with the operator's report and the Machines of the payload", func(t *testing.T) {
		for phase, want := range map[v1alpha1.NodeUpgradePhase]upgradeplan.Release{canary: from, halted: from, rolling: to} {
			p := upgrade(proving(1))
			p.Status = reported(phase, none)
			p.Status.Image = to.Image
			if phase == halted {
				p.Status.FailedNodes = []string{"b"}
			}
			f := newFixture(t, p)
			f.claim("a", to.Image, "", false)
			f.Expect(f.upgrade.Launch(f.claim("early", "", "", false))).To(Equal(want), "no canary before they are counted")
			f.Expect(f.reconcile()).To(Equal(phase))
			f.Expect(f.upgrade.Launch(f.claim("late", "", "", false))).To(Equal(want), "no second canary")
		}
	})
}

func TestStandby(t *testing.T) {
	t.Run("When a standby takes over, it should go on from the latest report, and not from the one of its start", func(t *testing.T) {
		f := newFixture(t, upgrade(proving(1)))
		p := upgrade(proving(1))
		p.Status = reported(halted, none, "b/LaunchTimeout")
		p.Status.Image = to.Image
		f.write(p)
		f.Expect(f.reconcile()).To(Equal(halted))
	})
}

func TestLaunch(t *testing.T) {
	f := newFixture(t, upgrade(proving(2)))
	f.claim("old", from.Image, string(drift.VersionDrifted), true)
	a, b, c := f.claim("a", "", "", false), f.claim("b", "", "", false), f.claim("c", "", "", false)
	t.Run("When nothing is counted yet, it should launch no canary", func(t *testing.T) {
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(a), f.upgrade.Launch(nil)}).To(HaveEach(from))
		f.Expect(f.disruptable()).To(BeZero())
	})
	t.Run("When canaries are missing, so many NodeClaims should get the payload, and each always the same", func(t *testing.T) {
		f.Expect(f.reconcile()).To(Equal(canary))
		f.Expect(f.disruptable()).To(Equal(2))
		f.Expect(f.upgrade.Launch(nil)).To(Equal(to), "to plan with")
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(a), f.upgrade.Launch(b), f.upgrade.Launch(c), f.upgrade.Launch(a), f.upgrade.Launch(nil)}).To(Equal([]upgradeplan.Release{to, to, from, to, from}))
		f.Expect(f.disruptable()).To(BeZero())
		f.Expect(f.reconcile()).To(Equal(canary))
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(a), f.upgrade.Launch(b), f.upgrade.Launch(c)}).To(Equal([]upgradeplan.Release{to, to, from}), "before the cache has their Machines")
		f.Expect(f.upgrade.Status().Canaries).To(ConsistOf("a", "b"))
	})
	t.Run("When a canary is gone, another NodeClaim should get the payload", func(t *testing.T) {
		f.machine("b", to.Image)
		f.Expect(f.guest.Delete(t.Context(), a)).To(Succeed())
		f.Expect(f.reconcile()).To(Equal(canary))
		f.Expect(f.disruptable()).To(Equal(1))
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(c), f.upgrade.Launch(nil)}).To(Equal([]upgradeplan.Release{to, from}))
	})
	t.Run("When the API server doesn't support the former version any more, all should get the payload", func(t *testing.T) {
		f.tooOld = true
		f.Expect(f.upgrade.Launch(f.claim("d", "", "", false))).To(Equal(to))
		f.tooOld = false
	})
	t.Run("When a node of the payload fails, it should halt, replace none, and launch the former release", func(t *testing.T) {
		f.upgrade.Fail(t.Context(), b, "LaunchTimeout")
		f.Expect(f.reconcile()).To(Equal(halted))
		f.Expect(f.disruptable()).To(BeZero())
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(f.claim("e", "", "", false)), f.upgrade.Launch(nil)}).To(HaveEach(from))
	})
	t.Run("When the soak is over, it should hold nothing", func(t *testing.T) {
		f := newFixture(t, upgrade(proving(1)))
		f.claim("a", to.Image, "", true)
		f.Expect(f.reconcile()).To(Equal(canary))
		f.clock.SetTime(now.Add(soak))
		f.Expect(f.reconcile()).To(Equal(rolling))
		f.Expect(f.disruptable()).To(Equal(-1))
		f.Expect([]upgradeplan.Release{f.upgrade.Launch(f.claim("b", "", "", false)), f.upgrade.Launch(nil)}).To(HaveEach(to))
	})
}

func TestDisruptable(t *testing.T) {
	for name, tc := range map[string]struct {
		drifted string
		want    int
	}{
		"When a node is being deleted for the payload, its canary should be about to come": {string(drift.VersionDrifted), 1},
		"When it is for the payload's image, that should count, too":                       {string(drift.NodeImageDrifted), 1},
		"When a node is being deleted for something else, it shouldn't count":              {string(drift.TemplateDrifted), 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, upgrade(proving(2)))
			f.claim("stays", from.Image, string(drift.VersionDrifted), true)
			f.Expect(f.guest.Delete(t.Context(), f.claim("goes", from.Image, tc.drifted, true))).To(Succeed())
			f.reconcile()
			f.Expect(f.disruptable()).To(Equal(tc.want))
		})
	}
}

func TestCounts(t *testing.T) {
	f := newFixture(t, upgrade(proving(1)))
	f.Expect(v1alpha1.AddToScheme(f.guest.Scheme())).To(Succeed())
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "pinned"}}
	class.Spec.Version = from.Version
	f.Expect(f.guest.Create(t.Context(), class)).To(Succeed())
	follows, pinned, deployed := f.claim("follows", from.Image, string(drift.VersionDrifted), true), f.claim("pinned", "", string(drift.VersionDrifted), true), f.claim("deployed", "", string(drift.VersionDrifted), true)
	follows.Spec.NodeClassRef, pinned.Spec.NodeClassRef = &karpv1.NodeClassReference{Name: "default"}, &karpv1.NodeClassReference{Name: "pinned"}
	f.machine("deployed", "", v1alpha1.TemplateSourceAnnotation, template.MachineDeploymentKind.String()+"/workers")
	for name, tc := range map[string]struct {
		nodeClaim *karpv1.NodeClaim
		want      bool
	}{
		"When a NodeClaim follows the payload, its drift should count":                      {follows, true},
		"When a node class pins the version, the drift of its NodeClaims should not count":  {pinned, false},
		"When a MachineDeployment pins the version, the drift of its NodeClaims should not": {deployed, false},
		"When a NodeClaim has drifted from something else, its drift should not count":      {f.claim("other", from.Image, string(drift.TemplateDrifted), true), false},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(f.upgrade.Counts(tc.nodeClaim)).To(Equal(tc.want)) })
	}
}

func TestFail(t *testing.T) {
	f := newFixture(t, upgrade(proving(0, v1beta1.NodeUpgradeHaltOn{FailedNodes: 2})))
	t.Run("When NodeClaims fail, each of the payload should count once, and no other", func(t *testing.T) {
		a, b := f.claim("a", to.Image, "", false), f.claim("b", to.Image, "", false)
		for _, failed := range []*karpv1.NodeClaim{a, a, f.claim("former", from.Image, "", false), f.claim("pinned", "", "", false)} {
			f.upgrade.Fail(t.Context(), failed, "LaunchTimeout")
		}
		f.Expect(f.reconcile()).To(Equal(rolling))
		f.Expect(f.upgrade.Status().FailedNodes).To(Equal([]string{"a/LaunchTimeout"}))
		f.upgrade.Fail(t.Context(), b, "LaunchTimeout")
		f.Expect(f.reconcile()).To(Equal(halted))
		f.Expect(f.upgrade.Status().Message).To(HavePrefix("failed: a/LaunchTimeout, b/LaunchTimeout"))
	})
	t.Run("When Karpenter reads NodeClaims, it should leave those of the cache as they are", func(t *testing.T) {
		unset := &karpv1.NodeClaim{}
		(&nodes{}).add(unset, false)
		f.Expect(IsUpgrade(unset)).To(BeFalse())
		f.Expect(unset).To(Equal(&karpv1.NodeClaim{}))
	})
}
