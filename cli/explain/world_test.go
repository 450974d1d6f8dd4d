// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// simulate feeds objects to Karpenter core. Instance types are those in the status of node classes.
func simulate(t *testing.T, objects ...client.Object) *explain.Simulation {
	t.Helper()
	return simulateWith(t, platform{}, objects...)
}

// platform is what a cloud provider has beside the status of node classes.
type platform struct {
	karpcloudprovider.CloudProvider
	// volumeLimits by instance type and CSI driver.
	volumeLimits map[string]map[string]int
	repairs      []karpcloudprovider.RepairPolicy
	failures     []explain.Failure
	// full: nothing can be launched unless a node goes.
	full bool
	// methods come before Karpenter core's.
	methods []func(methods.Core) disruption.Method
}

// vacatedKey is the key of a context in which a node has gone.
type vacatedKey struct{}

func (platform) vacate(ctx context.Context, _ *karpv1.NodeClaim) (context.Context, methods.Full, bool) {
	return context.WithValue(ctx, vacatedKey{}, true), methods.Full{Source: true}, true
}

// RepairPolicies implements cloudprovider.CloudProvider.
func (p platform) RepairPolicies() []karpcloudprovider.RepairPolicy { return p.repairs }

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (p platform) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	instanceTypes, err := p.CloudProvider.GetInstanceTypes(ctx, nodePool)
	for _, it := range instanceTypes {
		it.VolumeAttachmentLimits = p.volumeLimits[it.Name]
		for _, o := range it.Offerings {
			o.Available = o.Available && (!p.full || ctx.Value(vacatedKey{}) != nil)
		}
	}
	return instanceTypes, err
}

func simulateWith(t *testing.T, p platform, objects ...client.Object) *explain.Simulation {
	t.Helper()
	g := NewWithT(t)
	snapshot, err := explain.SnapshotOf(objects...)
	g.Expect(err).NotTo(HaveOccurred())
	p.CloudProvider, _ = explain.ReportedBy(snapshot)
	opts, fs := &options.Options{}, &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	opts.AddFlags(fs)
	g.Expect(opts.Parse(fs, fmt.Sprintf("--feature-gates=NodeOverlay=true,NodeRepair=%t,TerminateFirstDrift=%t", len(p.repairs) > 0, p.full))).To(Succeed())
	config := explain.Config{Guest: snapshot, CloudProvider: p, Options: opts, Clock: clocktesting.NewFakeClock(noon), Failures: p.failures, Methods: p.methods}
	if p.full {
		config.Vacate = p.vacate
	}
	simulation, err := explain.New(t.Context(), config)
	g.Expect(err).NotTo(HaveOccurred())
	return simulation
}

// nodeClass offers four instance types.
func nodeClass(change func(*v1alpha1.ClusterAPINodeClass)) *v1alpha1.ClusterAPINodeClass {
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "class"}}
	offer := func(name, arch, cpu, memory, price, spot string) {
		class.Status.Templates = append(class.Status.Templates, v1alpha1.TemplateStatus{
			InstanceType: name, Architecture: arch, CPU: scalar.Text(cpu), Memory: scalar.Text(memory), Pods: 110,
			Price: price, SpotPrice: spot, Zones: []string{"a", "b"},
		})
	}
	offer("small", "amd64", "2", "8Gi", "0.05", "0.02")
	offer("medium", "amd64", "8", "32Gi", "0.2", "")
	offer("large", "amd64", "32", "128Gi", "0.8", "")
	offer("arm", "arm64", "16", "64Gi", "0.3", "")
	if change != nil {
		change(class)
	}
	return class
}

func nodePool(name string, change func(*karpv1.NodePool)) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
	}
	pool.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, ConsolidateAfter: karpv1.MustParseNillableDuration("30s"),
		Budgets: []karpv1.Budget{{Nodes: "10"}},
	}
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
	pool.StatusConditions().SetTrue(status.ConditionReady)
	if change != nil {
		change(pool)
	}
	return pool
}

// pod is pending: kube-scheduler found no node for it.
func pod(name, cpu string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}},
	}
	if change != nil {
		change(p)
	}
	return p
}

// daemonSet requests CPU on each node that its pods fit.
func daemonSet(name, cpu string, nodeSelector map[string]string) *appsv1.DaemonSet {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: types.UID(name)}}
	set.Spec.Template.Spec = pod(name, cpu, func(p *corev1.Pod) { p.Spec.NodeSelector = nodeSelector }).Spec
	return set
}

// on has a pod run on a node.
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = node
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r"}}
	}
}

// machine is an initialized node of a NodePool, with its NodeClaim.
func machine(name, pool, instanceType, cpu string, change func(*corev1.Node, *karpv1.NodeClaim)) []client.Object {
	labels := map[string]string{
		karpv1.NodePoolLabelKey: pool, corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: "a", corev1.LabelHostname: name,
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: "test://" + name},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		}},
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + name, UID: types.UID("claim-" + name), Labels: labels,
		CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	claim.Status.NodeName, claim.Status.ProviderID, claim.Status.Capacity, claim.Status.Allocatable = name, "test://"+name, room, room
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, karpv1.ConditionTypeConsolidatable} {
		claim.StatusConditions().SetTrue(condition)
	}
	if change != nil {
		change(node, claim)
	}
	return []client.Object{node, claim}
}
