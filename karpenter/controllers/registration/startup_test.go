// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karplifecycle "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// ours is a cloud provider that only reports which node classes are its own.
type ours struct {
	karpcloudprovider.CloudProvider
}

func (ours) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

var (
	dedicated = corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	agent     = corev1.Taint{Key: "example.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute}
)

// startTainted has a NodeClaim whose NodePool has a taint and a startup taint.
func startTainted(t *testing.T) *fixture {
	t.Helper()
	return startAs(t, func(spec *karpv1.NodeClaimSpec) {
		spec.Taints, spec.StartupTaints = []corev1.Taint{dedicated}, []corev1.Taint{agent}
	}, func(guest client.Client) client.Client { return guest })
}

// bootstrapped is what the kubelet of the NodeClaim's machine registers with.
func (f *fixture) bootstrapped(change func(*machine.Plan)) func(*corev1.Node) {
	f.t.Helper()
	plan := f.Plan(f.nodeClaim)
	if change != nil {
		change(&plan)
	}
	objects, err := machine.Build(plan)
	f.Expect(err).NotTo(HaveOccurred())
	registered, _, err := unstructured.NestedMap(objects.Bootstrap.Object, "spec", "joinConfiguration", "nodeRegistration")
	f.Expect(err).NotTo(HaveOccurred())
	taints, err := kubelet.Taints(registered["taints"])
	f.Expect(err).NotTo(HaveOccurred())
	args, err := kubelet.Args(registered["kubeletExtraArgs"])
	f.Expect(err).NotTo(HaveOccurred())
	return func(node *corev1.Node) {
		node.Spec.Taints, node.Labels = taints, map[string]string{}
		for pair := range strings.SplitSeq(args["node-labels"], ",") {
			key, value, _ := strings.Cut(pair, "=")
			node.Labels[key] = value
		}
	}
}

// removed is a startup taint's agent: it removes the taint once.
func (f *fixture) removed(node *corev1.Node, wanted corev1.Taint) {
	f.t.Helper()
	f.Eventually(func(g Gomega) {
		g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
		stored, kept := node.DeepCopy(), []corev1.Taint{}
		for _, taint := range node.Spec.Taints {
			if !taint.MatchTaint(&wanted) {
				kept = append(kept, taint)
			}
		}
		node.Spec.Taints = kept
		g.Expect(f.Admin.Patch(f.t.Context(), node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))).To(Succeed())
	}).Should(Succeed())
}

// register lets Karpenter core register the node, as soon as the cache shows what it needs.
func (f *fixture) register(node *corev1.Node) {
	f.t.Helper()
	core := karplifecycle.NewController(clock.RealClock{}, f.guest, ours{}, &environment.Recorder{}, nil, nodepoolhealth.NewState(), nil)
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), f.nodeClaim)).To(Succeed())
	f.nodeClaim.Status.ProviderID = f.providerID()
	f.nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	f.Expect(f.Admin.Status().Update(f.t.Context(), f.nodeClaim)).To(Succeed())
	f.Eventually(func(g Gomega) {
		nodeClaim := &karpv1.NodeClaim{}
		g.Expect(f.guest.Get(f.t.Context(), client.ObjectKeyFromObject(f.nodeClaim), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Status.ProviderID).To(Equal(f.providerID()))
		cached := &corev1.Node{}
		g.Expect(f.guest.Get(f.t.Context(), client.ObjectKeyFromObject(node), cached)).To(Succeed())
		g.Expect(cached.ResourceVersion).To(Equal(f.latest(node).ResourceVersion))
		_, err := core.Reconcile(f.t.Context(), nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.latest(node).Labels).To(HaveKeyWithValue(karpv1.NodeRegisteredLabelKey, "true"))
	}).Should(Succeed())
}

func (f *fixture) latest(node *corev1.Node) *corev1.Node {
	f.t.Helper()
	after := &corev1.Node{}
	f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(node), after)).To(Succeed())
	return after
}

// told are a node's taints but that which the API server gives every new node.
func (f *fixture) told(node *corev1.Node) func() []corev1.Taint {
	return func() []corev1.Taint {
		return slices.DeleteFunc(f.latest(node).Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	}
}

// https://github.com/kubernetes-sigs/karpenter/issues/1772
func TestStartupTaint(t *testing.T) {
	identified := func(f *fixture, node *corev1.Node) {
		f.t.Helper()
		stored := f.latest(node)
		patched := stored.DeepCopy()
		patched.Spec.ProviderID = f.providerID()
		f.Expect(f.Admin.Patch(f.t.Context(), patched, client.MergeFrom(stored))).To(Succeed())
	}

	t.Run("When an agent removes a startup taint before the node has its provider ID, the taint should not come back", func(t *testing.T) {
		f := startTainted(t)
		f.provided()
		joins := f.bootstrapped(nil)
		node := f.node("slow", func(n *corev1.Node) { joins(n); n.Spec.ProviderID = "" })
		f.Expect(f.told(node)()).To(ContainElements(dedicated, agent, karpv1.UnregisteredNoExecuteTaint))
		f.removed(node, agent)
		identified(f, node)
		f.register(node)
		f.Expect(f.told(node)()).To(Equal([]corev1.Taint{dedicated}))
	})

	t.Run("When a patch replaces the taints that the bootstrap registers, Karpenter should add them", func(t *testing.T) {
		f := startTainted(t)
		f.provided()
		joins := f.bootstrapped(func(p *machine.Plan) { p.BootstrapPatches = replacedTaints(t) })
		node := f.node("replaced", func(n *corev1.Node) { joins(n); n.Spec.ProviderID = "" })
		f.Expect(f.told(node)()).To(Equal([]corev1.Taint{karpv1.UnregisteredNoExecuteTaint}))
		identified(f, node)
		f.register(node)
		f.Expect(f.told(node)()).To(ConsistOf(dedicated, agent))
	})

	t.Run("When the bootstrap can't have taints, the node should get them once, and a removed one should not come back", func(t *testing.T) {
		f := startTainted(t)
		f.provided()
		node := f.node("bare", nil)
		f.Eventually(f.told(node)).Should(ConsistOf(dedicated, agent, karpv1.UnregisteredNoExecuteTaint))
		f.removed(node, agent)
		f.register(node)
		f.Expect(f.told(node)()).To(Equal([]corev1.Taint{dedicated}))
	})

	t.Run("When bootstrap data declares by the label that it has all taints but the unregistered one, only that should be added", func(t *testing.T) {
		f := startTainted(t)
		f.provided()
		node := f.node("labelled", func(n *corev1.Node) {
			n.Labels = map[string]string{karpv1.NodeDoNotSyncTaintsLabelKey: "true"}
			n.Spec.Taints = []corev1.Taint{dedicated} // the agent has removed its own
		})
		f.Eventually(f.told(node)).Should(ConsistOf(dedicated, karpv1.UnregisteredNoExecuteTaint))
		f.register(node)
		f.Expect(f.told(node)()).To(Equal([]corev1.Taint{dedicated}))
	})
}

func replacedTaints(t *testing.T) []v1alpha1.BootstrapPatches {
	t.Helper()
	decoded, err := patch.Decode(`[{op: replace, path: /spec/joinConfiguration/nodeRegistration/taints, value: [{key: karpenter.sh/unregistered, effect: NoExecute}]}]`)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return []v1alpha1.BootstrapPatches{{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig", Patches: decoded}}
}
