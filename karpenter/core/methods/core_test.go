// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"flag"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// classed is a cloud provider with AutoNode's node class. A test adds the calls that it answers.
type classed struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (classed) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// newGuest returns a guest that has objects, with the index that core reads.
func newGuest(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&karpv1.NodeClaim{}, &karpv1.NodePool{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string { return []string{pod.(*corev1.Pod).Spec.NodeName} }).Build()
}

// poolName is the NodePool of newPool.
const poolName = "general"

// room is the capacity of a machine with so many CPUs.
func room(cpus string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
}

// newPool returns a NodePool that is ready, with a budget of nodes, and doesn't consolidate.
func newPool(budget string) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: poolName, UID: poolName}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	pool.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("Never"), Budgets: []karpv1.Budget{{Nodes: budget}},
	}
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, status.ConditionReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	return pool
}

// newNode returns a node of the NodePool that is ready, and its NodeClaim, claim-NAME, with these conditions besides. Both share their labels.
func newNode(name, instanceType, capacityType string, capacity corev1.ResourceList, conditions ...string) (*corev1.Node, *karpv1.NodeClaim) {
	labels := map[string]string{
		karpv1.NodePoolLabelKey: poolName, corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: "a", corev1.LabelHostname: name,
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", karpv1.CapacityTypeLabelKey: capacityType,
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: labels}, Spec: corev1.NodeSpec{ProviderID: "test://" + name},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, UID: types.UID("claim-" + name), Labels: labels, Finalizers: []string{karpv1.TerminationFinalizer}}}
	claim.Spec.NodeClassRef = newPool("").Spec.Template.Spec.NodeClassRef
	claim.Status.NodeName, claim.Status.ProviderID, claim.Status.Capacity, claim.Status.Allocatable = name, "test://"+name, capacity, capacity
	for _, condition := range append([]string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized}, conditions...) {
		claim.StatusConditions().SetTrue(condition)
	}
	return node, claim
}

// newPod returns a pod of a ReplicaSet that runs on a node.
func newPod(node, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "cart"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r"}}},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// requesting returns a container that requests CPU.
func requesting(cpu string) []corev1.Container {
	return []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
}

// evictsNone is a PodDisruptionBudget of newPod's pods that allows no eviction.
func evictsNone() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}}},
	}
}

// coreConfig is that of a core.
type coreConfig struct {
	Guest         client.Client
	CloudProvider karpcloudprovider.CloudProvider
	Recorder      events.Recorder
	Clock         clock.Clock
	// Flags of Karpenter's command line.
	Flags []string
}

// core is what Karpenter core's disruption controller and its methods need.
type core struct {
	coreConfig
	Context     context.Context // it has core's options, for as long as the test runs
	State       *state.Cluster
	Provisioner *provisioning.Provisioner
	Queue       *disruption.Queue
}

// newCore returns a core whose state has the objects of the guest.
func newCore(t *testing.T, config coreConfig, objects []client.Object) *core {
	t.Helper()
	g := gomega.NewWithT(t)
	opts, fs := &options.Options{}, &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	opts.AddFlags(fs)
	g.Expect(opts.Parse(fs, config.Flags...)).To(gomega.Succeed())
	ctx, guest, cloudProvider := options.ToContext(t.Context(), opts), config.Guest, config.CloudProvider
	cluster, costs := state.NewCluster(config.Clock, guest, cloudProvider), cost.NewClusterCost(ctx, cloudProvider, guest)
	for _, object := range objects {
		var feed reconcile.Reconciler
		switch object.(type) {
		case *karpv1.NodePool:
			feed = informer.NewNodePoolController(guest, cloudProvider, cluster, costs)
		case *karpv1.NodeClaim:
			feed = informer.NewNodeClaimController(guest, cloudProvider, cluster, costs)
		case *corev1.Node:
			feed = informer.NewNodeController(guest, cluster)
		case *corev1.Pod:
			feed = informer.NewPodController(guest, cluster)
		default:
			continue
		}
		_, err := feed.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	devices := deviceallocation.NewController(guest)
	devices.Hydrate(ctx)
	provisioner := provisioning.NewProvisioner(guest, config.Recorder, cloudProvider, cluster, config.Clock, devices, virtualpods.NewVirtualPodCache(guest))
	return &core{
		coreConfig: config, Context: ctx, State: cluster, Provisioner: provisioner,
		Queue: disruption.NewQueue(guest, config.Recorder, cluster, config.Clock, provisioner),
	}
}

// disrupt runs the disruption controller once, with these methods, and the commands that it begins. It returns those.
func (c *core) disrupt(t *testing.T, methods []disruption.Method) []*disruption.Command {
	t.Helper()
	g := gomega.NewWithT(t)
	controller := disruption.NewController(c.Context, c.Clock, c.Guest, c.Provisioner, c.CloudProvider, c.Recorder, c.State, c.Queue, nil, disruption.WithMethods(methods...))
	_, err := controller.Reconcile(c.Context)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	begun := c.Queue.GetCommands()
	for _, command := range begun {
		_, err := c.Queue.Reconcile(c.Context, command.Candidates[0].NodeClaim)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	return begun
}
