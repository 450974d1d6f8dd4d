// SPDX-License-Identifier: Apache-2.0

package benchmark_test

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwokgroup "sigs.k8s.io/karpenter/kwok/apis"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

const (
	// guestNodes is the number of nodes of BenchmarkGuest, each with podsPerNode pods.
	guestNodes  = 5_000
	podsPerNode = 4
	// pendingPods are scheduled in one round, most of them to nodes that exist.
	pendingPods = 1_000
)

// prompt is a clock on which nothing has to be waited for: Karpenter validates a consolidation after 15 seconds.
type prompt struct{ clock.RealClock }

func (c prompt) After(time.Duration) <-chan time.Time {
	now := make(chan time.Time, 1)
	now <- c.Now()
	return now
}

// guest is a guest cluster of one provider, as its Karpenter has it in memory.
type guest struct {
	ctx           context.Context // with core's options
	client        client.Client
	cloudProvider karpcloudprovider.CloudProvider
	cluster       *state.Cluster
	provisioner   *provisioning.Provisioner
	queue         *disruption.Queue
	recorder      events.Recorder
	methods       []disruption.Method
}

// newGuest returns a guest whose nodes are of small instance types, in real caches. Nine of ten nodes are full, one is nearly empty.
func newGuest(tb testing.TB, class karpv1.NodeClassReference, instanceTypes []*karpcloudprovider.InstanceType, pending int, provider func(client.Client) karpcloudprovider.CloudProvider) *guest {
	tb.Helper()
	core := &options.Options{PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict, IgnoreDRARequests: true, CPURequests: 2000}
	core.FeatureGates.ReservedCapacity = true
	g := &guest{ctx: options.ToContext(context.Background(), core), recorder: events.NewRecorder(&record.FakeRecorder{})}
	nodes, nodeClaims, pods := &corev1.NodeList{}, &karpv1.NodeClaimList{}, &corev1.PodList{}
	for i := range guestNodes {
		it := instanceTypes[3+i%13]
		node, nodeClaim := nodeOf(i, it, class)
		nodes.Items, nodeClaims.Items = append(nodes.Items, node), append(nodeClaims.Items, nodeClaim)
		share := 0.9
		if i%10 == 0 {
			share = 0.1
		}
		for j := range podsPerNode {
			pods.Items = append(pods.Items, runningPod(i, j, node.Name, it.Allocatable(), share/podsPerNode))
		}
	}
	for _, pod := range podsOf(pending, true) {
		pod.ResourceVersion = "1"
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		pods.Items = append(pods.Items, *pod)
	}
	nodePools := &karpv1.NodePoolList{Items: []karpv1.NodePool{nodePoolOf(class)}}
	_, g.client = environment.Cached(tb, clientgoscheme.Scheme, index, nodes, nodeClaims, pods, nodePools,
		&appsv1.DaemonSetList{}, &policyv1.PodDisruptionBudgetList{}, &storagev1.CSINodeList{}, &storagev1.VolumeAttachmentList{}, &corev1.NamespaceList{}, &corev1.ServiceList{}, &corev1.ReplicationControllerList{})
	g.cloudProvider = provider(g.client)
	clk := prompt{}
	g.cluster = state.NewCluster(clk, g.client, g.cloudProvider)
	for i := range nodeClaims.Items {
		g.cluster.UpdateNodeClaim(nodeClaims.Items[i].DeepCopy())
		if err := g.cluster.UpdateNode(g.ctx, nodes.Items[i].DeepCopy()); err != nil {
			tb.Fatal(err)
		}
	}
	g.provisioner = provisioning.NewProvisioner(g.client, g.recorder, g.cloudProvider, g.cluster, clk, nil, nil)
	g.queue = disruption.NewQueue(g.client, g.recorder, g.cluster, clk, g.provisioner)
	g.methods = disruption.NewMethods(g.ctx, clk, g.cluster, g.client, g.provisioner, g.cloudProvider, g.recorder, g.queue)
	if !g.cluster.Synced(g.ctx) {
		tb.Fatal("Karpenter's state hasn't synced")
	}
	return g
}

// index adds the indexes of Karpenter core's that its rounds read.
func index(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
}

func nodePoolOf(class karpv1.NodeClassReference) karpv1.NodePool {
	pool := karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general", UID: "pool", ResourceVersion: "1"}}
	pool.Spec.Template.Spec.NodeClassRef = &class
	pool.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, ConsolidateAfter: karpv1.MustParseNillableDuration("0s"), Budgets: []karpv1.Budget{{Nodes: "10%"}},
	}
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	return pool
}

func nodeOf(i int, it *karpcloudprovider.InstanceType, class karpv1.NodeClassReference) (corev1.Node, karpv1.NodeClaim) {
	name, providerID := fmt.Sprintf("general-%d", i), fmt.Sprintf("cloud://%d", i)
	labels := map[string]string{
		karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: it.Name, corev1.LabelTopologyZone: string(rune('a' + i%3)), corev1.LabelHostname: name,
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	created := metav1.NewTime(time.Unix(1_700_000_000, 0))
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), ResourceVersion: "1", Labels: labels, CreationTimestamp: created},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{
			Capacity: it.Capacity, Allocatable: it.Allocatable(), Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	nodeClaim := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + fmt.Sprint(i)), ResourceVersion: "1", Labels: labels, CreationTimestamp: created,
	}}
	nodeClaim.Spec.NodeClassRef = &class
	nodeClaim.Status.ProviderID, nodeClaim.Status.NodeName = providerID, name
	nodeClaim.Status.Capacity, nodeClaim.Status.Allocatable = it.Capacity, it.Allocatable()
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, karpv1.ConditionTypeConsolidatable} {
		nodeClaim.StatusConditions().SetTrue(condition)
	}
	return node, nodeClaim
}

// runningPod is a pod that requests a share of its node.
func runningPod(i, j int, node string, allocatable corev1.ResourceList, share float64) corev1.Pod {
	requests := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		quantity := allocatable[name].DeepCopy()
		quantity.SetMilli(int64(float64(quantity.MilliValue()) * share))
		requests[name] = quantity
	}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("run-%d-%d", i, j), UID: types.UID(fmt.Sprintf("run-%d-%d", i, j)), ResourceVersion: "1",
			Labels: map[string]string{"app": fmt.Sprintf("run-%d", i%50)},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "run", Resources: corev1.ResourceRequirements{Requests: requests}}}},
	}
	controller := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "run", UID: "run", Controller: &controller}}
	pod.Status.Phase = corev1.PodRunning
	return pod
}

// schedule is one round of Karpenter's provisioner. It returns how many pods get a node. Which do, and how many NodeClaims others need, differs
// from round to round.
func (g *guest) schedule(tb testing.TB) int {
	tb.Helper()
	results, err := g.provisioner.Schedule(g.ctx)
	if err != nil {
		tb.Fatal(err)
	}
	if len(results.PodErrors) > 0 {
		tb.Fatal(len(results.PodErrors), "pods fit nowhere")
	}
	scheduled := 0
	for _, node := range results.ExistingNodes {
		scheduled += len(node.Pods)
	}
	for _, nodeClaim := range results.NewNodeClaims {
		scheduled += len(nodeClaim.Pods)
	}
	return scheduled
}

// consolidate is one round of Karpenter's disruption controller, up to the command that it would start. It returns how many nodes would
// go.
func (g *guest) consolidate(tb testing.TB) int {
	tb.Helper()
	g.cluster.MarkUnconsolidated()
	for _, method := range g.methods {
		candidates, totals, err := disruption.GetCandidatesWithTotals(g.ctx, g.cluster, g.client, g.recorder, prompt{}, g.cloudProvider, method.ShouldDisrupt, method.Class(), g.queue, nil)
		if err != nil {
			tb.Fatal(err)
		}
		if len(candidates) == 0 {
			continue
		}
		if setter, ok := method.(disruption.NodePoolTotalsSetter); ok {
			setter.SetNodePoolTotals(totals)
		}
		budgets, err := disruption.BuildDisruptionBudgetMapping(g.ctx, g.cluster, prompt{}, g.client, g.cloudProvider, g.recorder, method.Reason())
		if err != nil {
			tb.Fatal(err)
		}
		commands, err := method.ComputeCommands(g.ctx, budgets, candidates...)
		if err != nil {
			tb.Fatal(err)
		}
		if i := slices.IndexFunc(commands, func(c disruption.Command) bool { return c.Decision() != disruption.NoOpDecision }); i >= 0 {
			return len(commands[i].Candidates)
		}
	}
	return 0
}

// Karpenter core looks up the kinds of node classes there. The kwok provider's are in it already.
func init() { utilruntime.Must(v1alpha1.AddToScheme(clientgoscheme.Scheme)) }

// ourProvider is our cloud provider with a Machine for each node, in a real cache.
func ourProvider(tb testing.TB, instanceTypes *instancetype.Provider) func(client.Client) karpcloudprovider.CloudProvider {
	tb.Helper()
	return func(guest client.Client) karpcloudprovider.CloudProvider {
		scheme := runtime.NewScheme()
		if err := clusterv1.AddToScheme(scheme); err != nil {
			tb.Fatal(err)
		}
		list := &clusterv1.MachineList{}
		for i := range guestNodes {
			list.Items = append(list.Items, environment.FleetMachine(i, environment.FleetSource(0)))
		}
		_, management := environment.Cached(tb, scheme, machine.Index, list, &clusterv1.ClusterList{})
		return cloudprovider.New(cloudprovider.Config{
			Guest: guest, Management: management, Recorder: events.NewRecorder(&record.FakeRecorder{}), InstanceTypes: instanceTypes,
			Machines:  machine.New(machine.Config{Management: management, Namespace: environment.FleetNamespace, ClusterName: environment.FleetCluster}),
			Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{},
			Rejections: offering.NewRejections(clock.RealClock{}), Profiles: profile.Embedded(),
		})
	}
}

// BenchmarkGuest measures a guest of 5,000 nodes with our provider and with Karpenter's kwok provider, by turns: a scheduling round of 1,000
// pods, a consolidation round while no pod is pending, and the memory of all that Karpenter has of the guest. ratio is ours to theirs, the
// median of all turns.
func BenchmarkGuest(b *testing.B) {
	provider, ours := catalogProvider(b, 1_000)
	theirs := kwokTypes(b, ours, true)
	for _, tc := range []struct {
		name, unit string
		pending    int
		round      func(*guest, testing.TB) int
	}{{"scheduling", "pods", pendingPods, (*guest).schedule}, {"consolidation", "nodes", 0, (*guest).consolidate}} {
		b.Run(tc.name, func(b *testing.B) {
			before := heap()
			ourGuest := newGuest(b, karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: environment.FleetNodeClass}, ours, tc.pending, ourProvider(b, provider))
			between := heap()
			kwokGuest := newGuest(b, karpv1.NodeClassReference{Group: kwokgroup.Group, Kind: "KWOKNodeClass", Name: "default"}, theirs, tc.pending, func(guest client.Client) karpcloudprovider.CloudProvider {
				return kwok.NewCloudProvider(b.Context(), guest, theirs)
			})
			memory := [2]float64{between - before, heap() - between}
			outcome := byTurns(b, func(provider int) int { return tc.round([]*guest{ourGuest, kwokGuest}[provider], b) })
			b.ReportMetric(float64(outcome), tc.unit)
			b.ReportMetric(memory[0], "ours-MiB")
			b.ReportMetric(memory[1], "kwok-MiB")
			goruntime.KeepAlive(ourGuest)
			goruntime.KeepAlive(kwokGuest)
		})
	}
}
