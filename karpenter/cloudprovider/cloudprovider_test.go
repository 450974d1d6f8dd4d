// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

type fixture struct {
	*environment.Environment
	*WithT
	t           *testing.T
	ctx         context.Context
	provider    *cloudprovider.CloudProvider
	templates   *environment.Templates
	store       *instancetype.Provider
	unavailable *offering.Unavailable
	nodeClass   *v1alpha1.ClusterAPINodeClass
	recorder    *environment.Recorder
	// clock of what is unavailable.
	clock *clocktesting.FakeClock
}

// newFixture is a ready node class that offers c2-small for $0.02, and c4-large for $0.1 or $0.03 as spot, in zones a and b.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	s := environment.New(t)
	f := &fixture{Environment: s, WithT: NewWithT(t), t: t, recorder: &environment.Recorder{}}
	f.ctx = options.ToContext(t.Context(), &options.Options{})
	f.clock = clocktesting.NewFakeClock(time.Now())
	f.unavailable = offering.NewUnavailable(f.clock)
	f.templates = &environment.Templates{}
	none, unleased := environment.NoMachines(), capacityprovider.Unlimited{}
	f.store = instancetype.New(instancetype.Config{
		Templates: f.templates, Pricing: pricing.New(pricing.NewFile("")), Unavailable: f.unavailable, Inventory: none, Capacity: unleased,
	})
	f.nodeClass = s.NodeClass(t.Context())
	f.Settle(f.Guest, f.nodeClass)
	f.offer()
	f.provider = cloudprovider.New(cloudprovider.Config{
		Guest:         s.Guest.GetClient(),
		Management:    s.Management.GetClient(),
		Recorder:      f.recorder,
		Machines:      s.Machines(nil),
		Images:        nodeimage.NewFile(""),
		Profiles:      profile.Embedded(),
		InstanceTypes: f.store,
		Inventory:     none,
		Capacity:      unleased,
		Vacancies:     vacancy.New(vacancy.Config{Clock: f.clock, Capacity: unleased, Inventory: none}),
		Rejections:    offering.NewRejections(f.clock),
		Version: func(_ string, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
			return resolved(nodeClass, tmpl)
		},
		Drift: drift.New(drift.Config{InstanceTypes: f.store, Images: nodeimage.NewFile(""), Version: resolved}),
	})
	return f
}

// resolved returns the version of the payload, or of the MachineDeployment.
func resolved(_ *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
	if tmpl != nil && tmpl.NodeVersion != "" {
		return version.Result{Version: tmpl.NodeVersion, Outcome: version.Desired}, true
	}
	return version.Result{Version: "1.36.2", Outcome: version.Desired}, true
}

func (f *fixture) offer(changes ...func(templates []template.Template)) {
	small, large := f.Template("c2-small", 0.02), f.Template("c4-large", 0.1)
	small.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	large.Source.Name = "c4-large-source"
	large.SpotPrice = ptr.To(0.03)
	templates := []template.Template{small, large}
	for _, change := range changes {
		change(templates)
	}
	f.selects(templates, template.Cluster{FailureDomains: []string{"a", "b"}}, template.Gaps{})
}

// selects sets what the node class selects, and has that read.
func (f *fixture) selects(templates []template.Template, cluster template.Cluster, gaps template.Gaps) {
	f.t.Helper()
	f.templates.Offer(f.nodeClass.Name, templates, cluster, gaps)
	_, err := f.store.Refresh(f.ctx, f.nodeClass)
	f.Expect(err).NotTo(HaveOccurred())
}

func (f *fixture) claim(name string, change func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	f.t.Helper()
	nodeClaim := f.NodeClaim(f.t.Context(), name)
	if change != nil {
		change(nodeClaim)
	}
	return nodeClaim
}

// launch makes a NodeClaim and its machine.
func (f *fixture) launch(name string, change func(*karpv1.NodeClaim)) (nodeClaim, created *karpv1.NodeClaim) {
	f.t.Helper()
	nodeClaim = f.claim(name, change)
	created, err := f.provider.Create(f.ctx, nodeClaim)
	f.Expect(err).NotTo(HaveOccurred())
	return nodeClaim, created
}

// refused makes a NodeClaim that gets no machine, and returns why.
func (f *fixture) refused(name string, change func(*karpv1.NodeClaim)) error {
	f.t.Helper()
	_, err := f.provider.Create(f.ctx, f.claim(name, change))
	f.Expect(karpcloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	return err
}

// update changes the node class and waits until the cache has it.
func (f *fixture) update(change func(*v1alpha1.ClusterAPINodeClass)) {
	f.t.Helper()
	change(f.nodeClass)
	f.Expect(f.Admin.Update(f.t.Context(), f.nodeClass)).To(Succeed())
	f.Settle(f.Guest, f.nodeClass)
}

// updateStatus changes the node class's status and waits until the cache has it.
func (f *fixture) updateStatus(change func(*v1alpha1.ClusterAPINodeClass)) {
	f.t.Helper()
	change(f.nodeClass)
	f.Expect(f.Admin.Status().Update(f.t.Context(), f.nodeClass)).To(Succeed())
	f.Settle(f.Guest, f.nodeClass)
}

// turnOff has AutoNode turned off.
func turnOff(f *fixture) {
	f.update(func(nc *v1alpha1.ClusterAPINodeClass) {
		nc.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
	})
}

func (f *fixture) machine(name string) *clusterv1.Machine {
	f.t.Helper()
	m := &clusterv1.Machine{}
	f.Expect(f.Admin.Get(f.t.Context(), types.NamespacedName{Namespace: f.Namespace, Name: f.MachineName(name)}, m)).To(Succeed())
	return m
}

// hold keeps a NodeClaim's Machine while it is being deleted.
func (f *fixture) hold(nodeClaim *karpv1.NodeClaim) *clusterv1.Machine {
	f.t.Helper()
	held := f.machine(nodeClaim.Name)
	before := held.DeepCopy()
	held.Finalizers = []string{environment.HoldFinalizer}
	f.Expect(f.Admin.Patch(f.t.Context(), held, client.MergeFrom(before))).To(Succeed())
	return held
}

// registered are the taints that a Machine's bootstrap config registers its node with.
func (f *fixture) registered(m *clusterv1.Machine) []any {
	f.t.Helper()
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(environment.KubeadmConfig)
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.Bootstrap.ConfigRef.Name}, config)).To(Succeed())
	taints, _, err := unstructured.NestedSlice(config.Object, "spec", "joinConfiguration", "nodeRegistration", "taints")
	f.Expect(err).NotTo(HaveOccurred())
	return taints
}

// pool returns a NodePool of the fixture's node class.
func (f *fixture) pool(name string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) *karpv1.NodePool {
	nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: f.nodeClass.Name}
	nodePool.Spec.Template.Spec.Requirements = append([]karpv1.NodeSelectorRequirementWithMinValues{}, requirements...)
	return nodePool
}

// instanceTypes are those that a NodePool without requirements gets.
func (f *fixture) instanceTypes(ctx context.Context, nodePool string) []*karpcloudprovider.InstanceType {
	f.t.Helper()
	instanceTypes, err := f.provider.GetInstanceTypes(ctx, f.pool(nodePool))
	f.Expect(err).NotTo(HaveOccurred())
	return instanceTypes
}

// launchable returns the instance types that a NodePool can launch in a context.
func (f *fixture) launchable(ctx context.Context, nodePool string) (names []string) {
	f.t.Helper()
	for _, it := range f.instanceTypes(ctx, nodePool) {
		if len(it.Offerings.Launchable()) > 0 {
			names = append(names, it.Name)
		}
	}
	return names
}

// unbuildable offers a c2-small whose template can't be cloned.
func unbuildable(templates []template.Template) {
	broken := templates[0].Infrastructure.DeepCopy()
	unstructured.RemoveNestedField(broken.Object, "spec")
	templates[0].Infrastructure, templates[0].Source.ResourceVersions = broken, "2"
}

func requirement(key string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func TestCreate(t *testing.T) {
	t.Run("When a template has a version of its own, it should make the machine with that and not the node class's", func(t *testing.T) {
		f := newFixture(t)
		f.offer(func(templates []template.Template) { templates[0].NodeVersion = "1.35.9" })
		nodeClaim, _ := f.launch("versioned", nil)
		f.Expect(f.machine(nodeClaim.Name).Spec.Version).To(Equal("v1.35.9"))
	})

	t.Run("When an upgrade proves itself, it should make the machine of the payload that the NodeClaim gets", func(t *testing.T) {
		for name, tc := range map[string]struct {
			pinned, deployment, want string
		}{
			"follows": {"", "", "1.35.1"}, "pinned": {"1.36.0", "", "1.36.2"}, "deployment": {"", "1.36.0", "1.36.0"},
		} {
			f, asked := newFixture(t), []string{}
			if tc.pinned != "" {
				f.update(func(nodeClass *v1alpha1.ClusterAPINodeClass) { nodeClass.Spec.Version = tc.pinned })
				f.updateStatus(func(nodeClass *v1alpha1.ClusterAPINodeClass) {
					for _, condition := range v1alpha1.ReadyConditions() {
						nodeClass.StatusConditions().SetTrue(condition)
					}
				})
			}
			f.offer(func(templates []template.Template) {
				if tc.deployment != "" {
					templates[0].Source.ResourceVersions, templates[0].NodeVersion = "2", tc.deployment
					templates[0].Machine = &clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{Version: tc.deployment}}
				}
			})
			f.provider.Release = func(nodeClaim *karpv1.NodeClaim) upgradeplan.Release {
				asked = append(asked, nodeClaim.Name)
				return upgradeplan.Release{Image: "release@sha256:35", Version: "1.35.1"}
			}
			f.provider.Version = func(payload string, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
				if payload != "" {
					return version.Result{Version: payload, Outcome: version.Desired}, true
				}
				return resolved(nodeClass, tmpl)
			}
			nodeClaim, _ := f.launch(name, nil)
			m := f.machine(nodeClaim.Name)
			f.Expect(m.Spec.Version).To(Equal("v"+tc.want), name)
			if name == "follows" {
				f.Expect(asked).To(HaveEach(nodeClaim.Name))
				f.Expect(m.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "release@sha256:35"))
				continue
			}
			f.Expect(asked).To(BeEmpty(), name)
			f.Expect(m.Annotations).NotTo(HaveKey(v1alpha1.ReleaseAnnotation), name)
		}
	})

	t.Run("When several offerings fit, it should take the cheapest and return at once what was resolved", func(t *testing.T) {
		f := newFixture(t)
		nodeClaim, created := f.launch("cheap", func(n *karpv1.NodeClaim) { n.Labels["example.com/team"] = "web" })
		f.Expect(created.Status.ProviderID).To(Equal("capi://" + f.Namespace + "/" + f.MachineName(nodeClaim.Name)))
		f.Expect(created.Labels).To(And(
			HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"),
			HaveKeyWithValue(karpv1.CapacityTypeLabelKey, "on-demand"),
			HaveKeyWithValue(corev1.LabelTopologyZone, BeElementOf("a", "b")),
			HaveKeyWithValue(corev1.LabelArchStable, "amd64"),
			HaveKeyWithValue(corev1.LabelOSStable, "linux"),
			HaveKeyWithValue(v1alpha1.NodePriceLabel, "0.02"),
			HaveKeyWithValue("example.com/team", "web"),
		))
		f.Expect(created.Status.Capacity.Cpu().String()).To(Equal("2"))
		f.Expect(created.Status.Allocatable.Cpu().Cmp(resource.MustParse("1"))).To(BeNumerically(">", 0))
		f.Expect(created.Annotations).To(And(HaveKey(v1alpha1.NodeClassHashAnnotation), HaveKey(v1alpha1.NodeClassHashVersionAnnotation)))

		m := f.machine(nodeClaim.Name)
		f.Expect(m.Spec.Version).To(Equal("v1.36.2"))
		f.Expect(m.Spec.FailureDomain).To(Equal(created.Labels[corev1.LabelTopologyZone]))
		f.Expect(m.Annotations).To(And(
			HaveKeyWithValue(v1alpha1.TemplateHashAnnotation, "template-1"),
			HaveKeyWithValue(v1alpha1.BootstrapHashAnnotation, "bootstrap-1"),
		))
		f.Expect(f.registered(m)).To(ContainElement(HaveKeyWithValue("key", karpv1.UnregisteredTaintKey)))
	})

	t.Run("When it is called again after prices have changed, it should return the existing Machine and not today's choice", func(t *testing.T) {
		f := newFixture(t)
		nodeClaim, first := f.launch("replay", nil)
		f.offer(func(templates []template.Template) {
			templates[0].Price, templates[0].Source.ResourceVersions = ptr.To(9.0), "2"
		})
		second, err := f.provider.Create(f.ctx, nodeClaim)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(second.Labels[corev1.LabelInstanceTypeStable]).To(Equal("c2-small"))
		f.Expect(second.Labels[corev1.LabelTopologyZone]).To(Equal(first.Labels[corev1.LabelTopologyZone]))
		f.Expect(second.Status.ProviderID).To(Equal(first.Status.ProviderID))
		f.Expect(f.Objects(t.Context(), clusterv1.GroupVersion.WithKind("Machine"))).To(HaveLen(1))
	})

	t.Run("When what it was made as isn't offered any more, it should still return the Machine", func(t *testing.T) {
		f := newFixture(t)
		nodeClaim, _ := f.launch("vanished", nil)
		f.selects([]template.Template{f.Template("other", 1)}, template.Cluster{}, template.Gaps{})
		again, err := f.provider.Create(f.ctx, nodeClaim)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(again.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		f.Expect(again.Status.Allocatable).To(Equal(nodeClaim.Spec.Resources.Requests))
	})
}

// ended expects an error by which Karpenter deletes the NodeClaim, so that it keeps nothing from being scheduled, and an event that
// reports why.
func ended(isKind func(error) bool, reason string) func(f *fixture, err error) {
	return func(f *fixture, err error) {
		f.Expect(isKind(err)).To(BeTrue(), "%v", err)
		f.Expect(f.recorder.Reasons()).To(ContainElement(reason))
		f.Expect(f.recorder.Messages()).NotTo(ContainElement(BeEmpty()))
	}
}

// ends makes a NodeClaim that gets no machine, which an event reports.
func (f *fixture) ends(reason, name string, change func(*karpv1.NodeClaim)) {
	f.t.Helper()
	ended(karpcloudprovider.IsInsufficientCapacityError, reason)(f, f.refused(name, change))
}

func TestCreateErrors(t *testing.T) {
	insufficient := func(f *fixture, err error) {
		f.Expect(karpcloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	}
	notReady := func(f *fixture, err error) {
		f.Expect(karpcloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
	}
	unknown := ended(karpcloudprovider.IsNodeClassNotReadyError, cloudprovider.NodeClassReadinessUnknownReason)
	for name, tc := range map[string]struct {
		prepare func(f *fixture)
		change  func(*karpv1.NodeClaim)
		want    func(f *fixture, err error)
	}{
		"When nothing meets the requirements, it should say that there is no capacity": {
			change: func(n *karpv1.NodeClaim) {
				n.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{requirement(corev1.LabelArchStable, "riscv64")}
			},
			want: insufficient,
		},
		"When the node class is gone, it should say that there is no capacity": {
			change: func(n *karpv1.NodeClaim) { n.Spec.NodeClassRef.Name = "nowhere" },
			want:   insufficient,
		},
		"When the node class isn't ready, it should say so": {
			prepare: func(f *fixture) {
				f.updateStatus(func(nc *v1alpha1.ClusterAPINodeClass) {
					nc.StatusConditions().SetFalse(v1alpha1.ConditionTemplatesReady, v1alpha1.NoTemplatesReason, "none")
				})
			},
			want: notReady,
		},
		"When it isn't known yet whether the node class is ready, it should end the launch and say so": {
			prepare: func(f *fixture) {
				f.updateStatus(func(nc *v1alpha1.ClusterAPINodeClass) { nc.Status.Conditions = nil })
			},
			want: unknown,
		},
		"When the node class has changed since it was ready, it should end the launch and say so": {
			prepare: func(f *fixture) {
				f.update(func(nc *v1alpha1.ClusterAPINodeClass) {
					nc.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(20))}
				})
			},
			want: unknown,
		},
		"When the operator has reported a pause, it should wait for its own report, end the launch and say so": {
			prepare: func(f *fixture) {
				f.updateStatus(func(nc *v1alpha1.ClusterAPINodeClass) {
					nc.Status.Conditions = []status.Condition{{
						Type: status.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.PausedReason, ObservedGeneration: nc.Generation, LastTransitionTime: metav1.Now(),
					}}
				})
			},
			want: unknown,
		},
		"When AutoNode is being turned off, it should launch nothing": {prepare: turnOff, want: notReady},
		"When the Cluster hasn't been read since the start, it should end the launch and say so": {
			prepare: func(f *fixture) {
				f.store.Delete(f.nodeClass.Name)
				f.templates.Lose()
			},
			want: unknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if tc.prepare != nil {
				tc.prepare(f)
			}
			_, err := f.provider.Create(f.ctx, f.claim("fails", tc.change))
			f.Expect(err).To(HaveOccurred())
			tc.want(f, err)
		})
	}

	t.Run("When the guest's admin writes a node class's status, it should make nothing of what that reports", func(t *testing.T) {
		f := newFixture(t)
		f.updateStatus(func(nc *v1alpha1.ClusterAPINodeClass) { nc.Status.Version = "1.20.0" })
		nodeClaim, _ := f.launch("forged", nil)
		f.Expect(f.machine(nodeClaim.Name).Spec.Version).To(Equal("v1.36.2"))

		for outcome, want := range map[version.Outcome]func(*fixture, error){
			version.TooNew: notReady, version.TooOld: notReady, version.Malformed: notReady, version.Unknown: unknown,
		} {
			config := f.provider.Config
			config.Version = func(string, *v1alpha1.ClusterAPINodeClass, *template.Template) (version.Result, bool) {
				return version.Result{Version: "1.36.2", Outcome: outcome, Message: "no"}, true
			}
			_, err := cloudprovider.New(config).Create(f.ctx, f.claim("unready-"+strings.ToLower(string(outcome)), nil))
			f.Expect(err).To(HaveOccurred())
			want(f, err)
		}
	})

	t.Run("When the Cluster's infrastructure isn't ready and a Machine waits for it, it should launch no further one", func(t *testing.T) {
		f := newFixture(t)
		f.Cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
		f.Cluster.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.ClusterInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: "VCenterUnreachable", Message: "Cannot complete login", LastTransitionTime: metav1.Now(),
		}}
		f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())
		f.Eventually(func(g Gomega) {
			cluster := &clusterv1.Cluster{}
			g.Expect(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(f.Cluster), cluster)).To(Succeed())
			g.Expect(cluster.Status.Conditions).To(HaveLen(1))
		}).Should(Succeed())
		_, err := f.provider.Create(f.ctx, f.claim("first", nil))
		f.Expect(err).NotTo(HaveOccurred(), "a condition alone, which may flap, stops nothing")
		f.store.Inventory.ObserveMachine("first", inventory.Machine{})
		_, err = f.provider.Create(f.ctx, f.claim("second", nil))
		f.Expect(karpcloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue())
		f.Expect(err).To(MatchError(ContainSubstring("isn't ready: VCenterUnreachable: Cannot complete login")))
	})
	t.Run("When the Cluster is being deleted, it should launch nothing, independent of the node class", func(t *testing.T) {
		f := newFixture(t)
		patch := client.MergeFrom(f.Cluster.DeepCopy())
		f.Cluster.Finalizers = []string{"example.com/held"}
		f.Expect(f.Admin.Patch(t.Context(), f.Cluster, patch)).To(Succeed())
		t.Cleanup(func() {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			NewWithT(t).Expect(f.Admin.Patch(context.WithoutCancel(t.Context()), f.Cluster, patch)).To(Succeed())
		})
		f.Expect(f.Admin.Delete(t.Context(), f.Cluster.DeepCopy())).To(Succeed())
		f.Eventually(func(g Gomega) {
			cluster := &clusterv1.Cluster{}
			g.Expect(f.Management.GetClient().Get(f.ctx, client.ObjectKeyFromObject(f.Cluster), cluster)).To(Succeed())
			g.Expect(cluster.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		nodeClaim := f.claim("late", nil)
		_, err := f.provider.Create(f.ctx, nodeClaim)
		notReady(f, err)
		err = f.Admin.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: f.MachineName(nodeClaim.Name)}, &clusterv1.Machine{})
		f.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	})
}

func TestDeleteAndGet(t *testing.T) {
	f := newFixture(t)
	nodeClaim, created := f.launch("life", nil)

	t.Run("When a machine is looked up by its synthetic provider ID, it should be found", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { _, err := f.provider.Get(f.ctx, created.Status.ProviderID); return err }).Should(Succeed())
	})
	t.Run("When a machine has its real provider ID, it should be found and listed by it", func(t *testing.T) {
		g := NewWithT(t)
		m := f.hold(nodeClaim)
		patched := m.DeepCopy()
		patched.Spec.ProviderID = "cloud://life"
		g.Expect(f.Admin.Patch(t.Context(), patched, client.MergeFrom(m))).To(Succeed())
		g.Eventually(func(g Gomega) {
			found, err := f.provider.Get(f.ctx, "cloud://life")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Status.ProviderID).To(Equal("cloud://life"))
			listed, err := f.provider.List(f.ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(listed).To(HaveLen(1))
			g.Expect(listed[0].Status.ProviderID).To(Equal("cloud://life"))
			g.Expect(listed[0].CreationTimestamp).NotTo(BeZero())
			g.Expect(listed[0].DeletionTimestamp).To(BeNil())
			g.Expect(listed[0].Labels).To(HaveKeyWithValue(karpv1.NodePoolLabelKey, "general"))
		}).Should(Succeed())
	})
	t.Run("When a Machine lacks everything that ours say, it should be listed all the same and not keep the others", func(t *testing.T) {
		g := NewWithT(t)
		bare := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "bare", Labels: map[string]string{
				clusterv1.ClusterNameLabel: "blue", v1alpha1.NodeClaimUIDLabel: "x", v1alpha1.NodeClaimLabel: "bare",
			}},
			Spec: clusterv1.MachineSpec{
				ClusterName:       "blue",
				Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("x")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "x.io", Kind: "X", Name: "x"},
			},
		}
		g.Expect(f.Admin.Create(t.Context(), bare)).To(Succeed())
		// Karpenter's state would wait for one without a provider ID, and with it scheduling, drift and consolidation of all others.
		g.Eventually(func() ([]*karpv1.NodeClaim, error) { return f.provider.List(f.ctx) }).Should(And(
			HaveLen(2), HaveEach(HaveField("Status.ProviderID", Not(BeEmpty())))))
		g.Expect(f.Admin.Delete(t.Context(), bare)).To(Succeed())
	})
	t.Run("When the instance of a machine is gone, it should not be found, so that nothing is drained, and be listed until it is deleted", func(t *testing.T) {
		g := NewWithT(t)
		annotate := func(value any) {
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.MachineName(nodeClaim.Name)}}
			raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.InstanceGoneAnnotation: value}}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(f.Admin.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, raw))).To(Succeed())
		}
		annotate("InstanceTerminated")
		g.Eventually(func() error { _, err := f.provider.Get(f.ctx, "cloud://life"); return err }).Should(
			And(MatchError(ContainSubstring("is gone: InstanceTerminated")), Satisfy(karpcloudprovider.IsNodeClaimNotFoundError)))
		listed, err := f.provider.List(f.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(listed).To(ContainElement(HaveField("Status.ProviderID", "cloud://life")))
		annotate(nil)
		g.Eventually(func() error { _, err := f.provider.Get(f.ctx, "cloud://life"); return err }).Should(Succeed())
	})
	t.Run("When a machine is deleted, it should say nothing until it is gone, and then that it is", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(f.provider.Delete(f.ctx, nodeClaim)).To(Succeed())
		g.Eventually(func(g Gomega) {
			found, err := f.provider.Get(f.ctx, "cloud://life")
			g.Expect(err).NotTo(HaveOccurred(), "it is still there")
			g.Expect(found.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		g.Expect(f.provider.Delete(f.ctx, nodeClaim)).To(Succeed())
		m := f.machine(nodeClaim.Name)
		released := m.DeepCopy()
		released.Finalizers = nil
		g.Expect(f.Admin.Patch(t.Context(), released, client.MergeFrom(m))).To(Succeed())
		g.Eventually(func() bool {
			return karpcloudprovider.IsNodeClaimNotFoundError(f.provider.Delete(f.ctx, nodeClaim))
		}).Should(BeTrue())
		_, err := f.provider.Get(f.ctx, "cloud://life")
		g.Expect(karpcloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue())
	})
	t.Run("When a Machine is being deleted while Create is asked again, it should give the claim up", func(t *testing.T) {
		g := NewWithT(t)
		again, _ := f.launch("again", nil)
		g.Expect(f.Admin.Delete(t.Context(), f.hold(again))).To(Succeed())
		g.Eventually(func() bool {
			_, err := f.provider.Create(f.ctx, again)
			return karpcloudprovider.IsInsufficientCapacityError(err)
		}).Should(BeTrue())
	})
}

func TestInstanceTypes(t *testing.T) {
	t.Run("When the node class has templates, it should offer them, available or not", func(t *testing.T) {
		f := newFixture(t)
		f.unavailable.Mark(offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: "on-demand"}, "test")
		instanceTypes := f.instanceTypes(f.ctx, "general")
		f.Expect(instanceTypes).To(HaveLen(2))
		f.Expect(instanceTypes[0].Offerings).To(HaveLen(2))
		f.Expect(instanceTypes[0].Offerings.Available()).To(HaveLen(1))
	})
	t.Run("When the node class doesn't exist, it should say so in an event", func(t *testing.T) {
		f := newFixture(t)
		nodePool := f.pool("general")
		nodePool.Spec.Template.Spec.NodeClassRef.Name = "nowhere"
		_, err := f.provider.GetInstanceTypes(f.ctx, nodePool)
		f.Expect(err).To(MatchError(ContainSubstring("nowhere")))
		f.Expect(f.recorder.Reasons()).To(ConsistOf("NodeClassNotFound"))
	})
	// https://github.com/rancher/rancher/issues/34997
	t.Run("When the NodePool's name has a dot, it should say in an event that its nodes may not join", func(t *testing.T) {
		f := newFixture(t)
		f.Expect(f.instanceTypes(f.ctx, "gpu.large")).To(HaveLen(2))
		f.Expect(f.recorder.Messages()).To(ConsistOf(ContainSubstring("gpu.large-4qmgt, and most images end a host name at the first dot: a kubelet that registers as gpu can't join")))
		f.Expect(f.instanceTypes(f.ctx, "general")).To(HaveLen(2))
		f.Expect(f.recorder.Reasons()).To(ConsistOf("NodePoolNameDotted"))
	})
	t.Run("When many ask for the first time at once, all should get what the first one reads", func(t *testing.T) {
		f := newFixture(t)
		f.store.Delete(f.nodeClass.Name)
		got := make(chan *karpcloudprovider.InstanceType, 10)
		for range cap(got) {
			go func() {
				instanceTypes, err := f.provider.GetInstanceTypes(f.ctx, f.pool("general"))
				if err != nil || len(instanceTypes) == 0 {
					instanceTypes = []*karpcloudprovider.InstanceType{nil}
				}
				got <- instanceTypes[0]
			}()
		}
		first := <-got
		f.Expect(first).NotTo(BeNil())
		for range cap(got) - 1 {
			f.Expect(<-got).To(BeIdenticalTo(first))
		}
	})
	t.Run("When the Cluster can't be read, it should not pretend that there are no instance types", func(t *testing.T) {
		f := newFixture(t)
		f.store.Delete(f.nodeClass.Name)
		f.templates.Lose()
		_, err := f.provider.GetInstanceTypes(f.ctx, f.pool("general"))
		f.Expect(karpcloudprovider.IsNodeClassNotReadyError(err)).To(BeTrue(), "%v", err)
	})
	t.Run("When a node class that is being deleted isn't known, it should not become known again", func(t *testing.T) {
		f := newFixture(t)
		f.store.Delete(f.nodeClass.Name)
		deleted := f.nodeClass.DeepCopy()
		deleted.DeletionTimestamp = ptr.To(metav1.Now())
		_, err := f.store.List(f.ctx, deleted)
		f.Expect(err).To(MatchError(instancetype.ErrUnresolved))
	})
}

func TestIsDrifted(t *testing.T) {
	t.Run("When the template's content changes after launch, it should say TemplateDrifted", func(t *testing.T) {
		f := newFixture(t)
		nodeClaim, created := f.launch("drifts", nil)
		nodeClaim.Annotations = created.Annotations
		isDrifted := func() (karpcloudprovider.DriftReason, error) { return f.provider.IsDrifted(f.ctx, nodeClaim) }
		f.Eventually(isDrifted).Should(BeEmpty())
		f.offer(func(templates []template.Template) {
			changed := f.InfrastructureTemplate.DeepCopy()
			changed.SetGeneration(2)
			templates[0].Infrastructure, templates[0].ContentHash, templates[0].Source.ResourceVersions = changed, "template-2", "2"
		})
		f.Expect(isDrifted()).To(Equal(drift.TemplateDrifted))
	})
	t.Run("When the same template reads differently after an upgrade, it should report no drift and update the Machine once", func(t *testing.T) {
		f := newFixture(t)
		nodeClaim, created := f.launch("renewed", nil)
		nodeClaim.Annotations = created.Annotations
		f.Expect(f.machine(nodeClaim.Name).Annotations).To(And(
			HaveKeyWithValue(v1alpha1.TemplateRevisionAnnotation, string(f.InfrastructureTemplate.GetUID())+"/1"),
			HaveKeyWithValue(v1alpha1.BootstrapRevisionAnnotation, string(f.BootstrapTemplate.GetUID())+"/1"),
		))
		f.offer(func(templates []template.Template) {
			templates[0].ContentHash, templates[0].Source.ResourceVersions = "template-2", "2"
		})
		f.Eventually(func(g Gomega) {
			g.Expect(f.provider.IsDrifted(f.ctx, nodeClaim)).To(BeEmpty())
			cached, err := f.provider.Machines.ForNodeClaim(f.ctx, nodeClaim.UID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cached.Annotations).To(HaveKeyWithValue(v1alpha1.TemplateHashAnnotation, "template-2"))
		}).Should(Succeed())
		before := f.machine(nodeClaim.Name).ResourceVersion
		f.Expect(f.provider.IsDrifted(f.ctx, nodeClaim)).To(BeEmpty())
		f.Expect(f.machine(nodeClaim.Name).ResourceVersion).To(Equal(before))
	})
	t.Run("When the Machine is gone, it should say that and not drift", func(t *testing.T) {
		f := newFixture(t)
		_, err := f.provider.IsDrifted(f.ctx, f.claim("none", nil))
		f.Expect(karpcloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
	})
}
