// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/minsize"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// fixture is a controller that reads past every cache, a node class that selects one source, and what its minimum is.
type fixture struct {
	*GomegaWithT
	*environment.Environment
	t          *testing.T
	nodeClass  *v1alpha1.ClusterAPINodeClass
	templates  *environment.Templates
	store      *instancetype.Provider
	suspended  atomic.Bool
	guest      *environment.Faults
	controller *minsize.Controller
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{GomegaWithT: NewWithT(t), Environment: environment.New(t), t: t}
	f.nodeClass = f.NodeClass(t.Context())
	f.guest = &environment.Faults{Client: f.Admin}
	f.restart()
	return f
}

// restart makes a controller that has read nothing yet.
func (f *fixture) restart() {
	f.templates = &environment.Templates{}
	f.store = instancetype.New(instancetype.Config{Templates: f.templates, Pricing: pricing.New(pricing.NewFile("")), Inventory: environment.NoMachines(), Capacity: environment.Unleased()})
	f.controller = minsize.New(f.config(f.guest))
}

func (f *fixture) config(guest client.Client) minsize.Config {
	return minsize.Config{
		Guest: guest, ManagementCache: f.Management.GetCache(), Machines: f.Machines(f.Admin), InstanceTypes: f.store, Suspended: f.suspended.Load,
	}
}

// template returns the template of the one source.
func (f *fixture) template(minimum int, changes ...func(*template.Template)) template.Template {
	tmpl := f.Template("c4-large", 0.1)
	tmpl.MinSize = ptr.To(minimum)
	for _, change := range changes {
		change(&tmpl)
	}
	tmpl.Source.ResourceVersions = fmt.Sprint(*tmpl.MinSize, tmpl.Replicas, tmpl.Held)
	return tmpl
}

func (f *fixture) minimum(size int, changes ...func(*template.Template)) {
	f.offer(f.nodeClass, []template.Template{f.template(size, changes...)}, template.Cluster{}, template.Gaps{})
}

// offer sets what a node class selects, and has that read.
func (f *fixture) offer(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template, cluster template.Cluster, gaps template.Gaps) {
	f.t.Helper()
	f.templates.Offer(nodeClass.Name, templates, cluster, gaps)
	_, err := f.store.Refresh(f.t.Context(), nodeClass)
	f.Expect(err).NotTo(HaveOccurred())
}

func (f *fixture) source() string { return f.template(0).Source.Annotation() }

// node joins, with a Machine of the source, and Karpenter registers it.
func (f *fixture) node(name string) {
	f.t.Helper()
	f.nodeOf(name, f.source())
}

func (f *fixture) nodes(names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.node(name)
	}
}

func (f *fixture) nodeOf(name, source string) {
	f.t.Helper()
	ctx := f.t.Context()
	nodeClaim := f.NodeClaim(ctx, name)
	plan := f.Plan(nodeClaim)
	plan.Annotations = map[string]string{}
	if source != "" {
		plan.Annotations[v1alpha1.TemplateSourceAnnotation] = source
	}
	created, err := f.Machines(nil).Create(ctx, plan)
	f.Expect(err).NotTo(HaveOccurred())
	provisioned := created.DeepCopy()
	provisioned.Spec.ProviderID = "cloud://" + nodeClaim.Name
	f.Expect(f.Admin.Patch(ctx, provisioned, client.MergeFrom(created))).To(Succeed())
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeClaim.Name, Labels: map[string]string{
			karpv1.NodePoolLabelKey: "general", karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
		}},
		Spec: corev1.NodeSpec{ProviderID: provisioned.Spec.ProviderID},
	}
	f.Expect(f.Admin.Create(ctx, node)).To(Succeed())
	f.t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(ctx), node) })
	f.status(name, func(nodeClaim *karpv1.NodeClaim) {
		nodeClaim.Status.ProviderID, nodeClaim.Status.NodeName = node.Spec.ProviderID, node.Name
		nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	})
}

// status changes a NodeClaim's.
func (f *fixture) status(name string, change func(*karpv1.NodeClaim)) {
	f.t.Helper()
	nodeClaim := &karpv1.NodeClaim{}
	f.Expect(f.Admin.Get(f.t.Context(), f.key(name), nodeClaim)).To(Succeed())
	stored := nodeClaim.DeepCopy()
	change(nodeClaim)
	f.Expect(f.Admin.Status().Patch(f.t.Context(), nodeClaim, client.MergeFrom(stored))).To(Succeed())
}

func (f *fixture) drifted(name string, is bool) {
	f.t.Helper()
	f.status(name, func(nodeClaim *karpv1.NodeClaim) {
		if is {
			nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		} else if err := nodeClaim.StatusConditions().Clear(karpv1.ConditionTypeDrifted); err != nil {
			f.t.Error(err)
		}
	})
}

func (f *fixture) key(name string) client.ObjectKey {
	return client.ObjectKey{Name: f.Namespace + "-" + name}
}

// annotate sets an annotation of a node, or removes it.
func (f *fixture) annotate(name, key string, value any) {
	f.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, key)
	if value != nil {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.key(name).Name}}
	f.Expect(f.Admin.Patch(f.t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

// held are the nodes that Karpenter doesn't disrupt; one that isn't ours has a question mark.
func (f *fixture) held() (string, error) {
	nodes := &corev1.NodeList{}
	if err := f.Admin.List(f.t.Context(), nodes); err != nil {
		return "", err
	}
	var held []string
	for _, node := range nodes.Items {
		name, ok := strings.CutPrefix(node.Name, f.Namespace+"-")
		if !ok {
			continue
		}
		source, kept := node.Annotations[v1alpha1.KeptForMinimumAnnotation]
		switch isHeld := node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true"; {
		case kept != isHeld:
			name += "?"
		case !kept:
			continue
		case source != f.source():
			name += " for " + source
		}
		held = append(held, name)
	}
	return strings.Join(held, " "), nil
}

// pass is one reconcile.
func (f *fixture) pass() reconcile.Result {
	f.t.Helper()
	result, err := f.controller.Reconcile(f.t.Context(), reconcile.Request{})
	f.Expect(err).NotTo(HaveOccurred())
	return result
}

// settle reconciles until nothing is written any more, and returns who is held.
func (f *fixture) settle() string {
	f.t.Helper()
	passes := 0
	for before := int64(-1); before != f.guest.Writes(); passes++ {
		before = f.guest.Writes()
		f.pass()
		f.Expect(passes).To(BeNumerically("<", 10), "it writes on and on")
	}
	held, err := f.held()
	f.Expect(err).NotTo(HaveOccurred())
	return held
}

func TestKept(t *testing.T) {
	t.Run("When more nodes run than the minimum, it should keep the oldest, by one write each", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(2)
		f.nodes("a", "b", "c")
		f.Expect(f.settle()).To(Equal("a b"))
		f.Expect(f.guest.Writes()).To(Equal(int64(2)))
		f.Expect(f.settle()).To(Equal("a b"))
		f.Expect(f.guest.Writes()).To(Equal(int64(2)), "a write where nothing changed")
	})
	t.Run("When the minimum changes, it should keep as many as it declares, less the source's own", func(t *testing.T) {
		f := newFixture(t)
		f.nodes("a", "b", "c")
		f.minimum(3)
		f.Expect(f.settle()).To(Equal("a b c"))
		f.minimum(2)
		f.Expect(f.settle()).To(Equal("a b"))
		f.minimum(2, func(tmpl *template.Template) { tmpl.Replicas = 1 })
		f.Expect(f.settle()).To(Equal("a"))
		f.offer(f.nodeClass, nil, template.Cluster{}, template.Gaps{})
		f.Expect(f.settle()).To(BeEmpty())
	})
	t.Run("When nodes drift, it should release them for replacement, but not before others are kept", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(2)
		f.nodes("a", "b", "c")
		f.Expect(f.settle()).To(Equal("a b"))
		f.drifted("a", true)
		f.pass()
		f.Expect(f.held()).To(Equal("a b c"))
		f.pass()
		f.Expect(f.held()).To(Equal("b c"))
		f.drifted("b", true)
		f.Expect(f.settle()).To(Equal("c"))
		f.drifted("a", false)
		f.Expect(f.settle()).To(Equal("a c"))
	})
	t.Run("When nodes leave, by Karpenter's decision or a person's, it should keep the next ones", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.nodes("a", "b", "c")
		f.status("a", func(nodeClaim *karpv1.NodeClaim) {
			nodeClaim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDisruptionReason, "Underutilized", "")
		})
		f.Expect(f.settle()).To(Equal("b"))
		node := &corev1.Node{}
		f.Expect(f.Admin.Get(t.Context(), f.key("b"), node)).To(Succeed())
		node.Finalizers = []string{karpv1.TerminationFinalizer}
		f.Expect(f.Admin.Update(t.Context(), node)).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), node)).To(Succeed())
		// b goes by itself: its mark isn't worth a write.
		f.Expect(f.settle()).To(Equal("b c"))
		f.Expect(f.Admin.Get(t.Context(), f.key("b"), node)).To(Succeed())
		node.Finalizers = nil
		f.Expect(f.Admin.Update(t.Context(), node)).To(Succeed())
	})
	t.Run("When Karpenter has tainted a node to disrupt it, it should keep another one", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.nodes("a", "b")
		node := &corev1.Node{}
		f.Expect(f.Admin.Get(t.Context(), f.key("a"), node)).To(Succeed())
		node.Spec.Taints = []corev1.Taint{karpv1.DisruptedNoScheduleTaint}
		f.Expect(f.Admin.Update(t.Context(), node)).To(Succeed())
		f.Expect(f.settle()).To(Equal("b"))
	})
	t.Run("When it isn't known which source a node is from, or Karpenter hasn't registered it, it should leave it alone", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(9)
		f.nodeOf("unknown", "")
		f.nodeOf("foreign", "TestMachineTemplate.infrastructure.cluster.x-k8s.io/another")
		f.node("joining")
		f.status("joining", func(nodeClaim *karpv1.NodeClaim) {
			nodeClaim.StatusConditions().SetUnknown(karpv1.ConditionTypeRegistered)
		})
		f.node("replaced")
		f.status("replaced", func(nodeClaim *karpv1.NodeClaim) { nodeClaim.Status.ProviderID = "cloud://another" })
		f.Expect(f.settle()).To(BeEmpty())
	})
	t.Run("When several node classes select the source, it should count once, for all of them", func(t *testing.T) {
		f := newFixture(t)
		other := f.nodeClass.DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Name: f.nodeClass.Name + "-other"}
		f.Expect(f.Admin.Create(t.Context(), other)).To(Succeed())
		t.Cleanup(func() { _ = f.Admin.Delete(context.WithoutCancel(t.Context()), other) })
		f.nodes("a", "b", "c")
		f.minimum(2)
		// The other one hasn't been read yet, which doesn't matter: the source is the same.
		f.Expect(f.settle()).To(Equal("a b"))
		f.minimum(1)
		f.Expect(f.settle()).To(Equal("a"))
		f.offer(other, []template.Template{f.template(1)}, template.Cluster{}, template.Gaps{})
		f.offer(f.nodeClass, nil, template.Cluster{}, template.Gaps{})
		f.Expect(f.settle()).To(Equal("a"))
		f.offer(other, nil, template.Cluster{}, template.Gaps{})
		f.Expect(f.settle()).To(BeEmpty())
	})
}

func TestUnknown(t *testing.T) {
	start := func(t *testing.T) *fixture {
		f := newFixture(t)
		f.minimum(2)
		f.nodes("a", "b", "c")
		f.Expect(f.settle()).To(Equal("a b"))
		return f
	}
	t.Run("When Karpenter starts, it should release none before the node classes are read", func(t *testing.T) {
		f := start(t)
		f.restart()
		f.drifted("a", true)
		f.Expect(f.settle()).To(Equal("a b"))
		f.minimum(1)
		f.Expect(f.settle()).To(Equal("b"))
	})
	t.Run("When a kind can't be read, it should release none", func(t *testing.T) {
		f := start(t)
		f.offer(f.nodeClass, nil, template.Cluster{}, template.Gaps{All: true})
		f.Expect(f.settle()).To(Equal("a b"))
	})
	t.Run("When the source can't be used by now, it should keep the minimum that it had", func(t *testing.T) {
		f := start(t)
		held := f.template(2, func(tmpl *template.Template) { tmpl.Held = true })
		f.offer(f.nodeClass, []template.Template{held}, template.Cluster{}, template.Gaps{Sources: []string{f.source()}})
		f.drifted("a", true)
		f.Expect(f.settle()).To(Equal("b c"))
		f.restart()
		f.offer(f.nodeClass, nil, template.Cluster{}, template.Gaps{Sources: []string{f.source()}})
		f.Expect(f.settle()).To(Equal("b c"))
	})
	t.Run("When nothing may be decided, it should write nothing until it may", func(t *testing.T) {
		f := start(t)
		f.minimum(0)
		f.suspended.Store(true)
		f.Expect(f.settle()).To(Equal("a b"))
		f.Expect(f.pass().RequeueAfter).To(BeNumerically(">", 0))
		f.suspended.Store(false)
		f.Expect(f.settle()).To(BeEmpty())
	})
}

func TestKarpenter(t *testing.T) {
	t.Run("When a node is kept, Karpenter's own check should refuse to disrupt it, until it drifts", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.nodes("a", "b")
		disruptable := func(name string) error {
			stateNode := state.NewNode()
			stateNode.Node, stateNode.NodeClaim = &corev1.Node{}, &karpv1.NodeClaim{}
			f.Expect(f.Admin.Get(t.Context(), f.key(name), stateNode.Node)).To(Succeed())
			f.Expect(f.Admin.Get(t.Context(), f.key(name), stateNode.NodeClaim)).To(Succeed())
			return stateNode.ValidateNodeDisruptable(clock.RealClock{})
		}
		f.Expect(disruptable("a")).To(Succeed())
		f.settle()
		f.Expect(disruptable("a")).To(MatchError(ContainSubstring(karpv1.DoNotDisruptAnnotationKey)))
		f.Expect(disruptable("b")).To(Succeed())
		f.drifted("a", true)
		f.settle()
		f.Expect(disruptable("a")).To(Succeed())
		f.Expect(disruptable("b")).To(MatchError(ContainSubstring(karpv1.DoNotDisruptAnnotationKey)))
	})
}
