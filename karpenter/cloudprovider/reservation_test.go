// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const (
	block = "block-3"
	// inBlock is the number of machines of the reservation.
	inBlock = 3
)

// planner plans with Karpenter core's scheduler, as its provisioner does, and launches with our provider.
type planner struct {
	*fixture
	pools []*karpv1.NodePool
	// pods of a NodePool, by its name; each needs a machine of its own.
	pods map[string][]*corev1.Pod
}

// newPlanner has two NodePools of a node class that offers one instance type, reserved and on demand, and four pods for each.
func newPlanner(t *testing.T) *planner {
	t.Helper()
	f, _ := limited(t)
	core := &options.Options{PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict, IgnoreDRARequests: true}
	core.FeatureGates.ReservedCapacity = true
	f.ctx = options.ToContext(t.Context(), core)
	f.selectsReserved()
	p := &planner{fixture: f, pods: map[string][]*corev1.Pod{}}
	for _, name := range []string{"web", "batch"} {
		p.pools = append(p.pools, f.pool(name, requirement(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeReserved, karpv1.CapacityTypeOnDemand)))
		for i := range 4 {
			pod := fmt.Sprint(name, "-", i)
			p.pods[name] = append(p.pods[name], &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, UID: types.UID(pod)},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{karpv1.NodePoolLabelKey: name},
					Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("3"),
					}}}},
				},
			})
		}
	}
	return p
}

// selectsReserved lets the node class offer one instance type, reserved and on demand.
func (f *fixture) selectsReserved() {
	k4 := f.Template("k4", 0)
	k4.Price, k4.Offerings = nil, []catalog.Offering{
		{Zone: "a", CapacityType: karpv1.CapacityTypeReserved, Price: 0.010, Priced: true, Reservation: block, Count: inBlock},
		{Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand, Price: 0.139, Priced: true},
	}
	f.selects([]template.Template{k4}, template.Cluster{FailureDomains: []string{"a"}}, template.Gaps{})
}

// offered is what Karpenter knows of a NodePool's instance types now.
func (p *planner) offered(pools ...*karpv1.NodePool) map[string][]*karpcloudprovider.InstanceType {
	p.t.Helper()
	byPool := map[string][]*karpcloudprovider.InstanceType{}
	for _, pool := range pools {
		instanceTypes, err := p.provider.GetInstanceTypes(p.ctx, pool)
		p.Expect(err).NotTo(HaveOccurred())
		byPool[pool.Name] = instanceTypes
	}
	return byPool
}

// plan is one scheduling round. Pods that wait for what other pods of the round may leave of the reservation are planned in the next one.
func (p *planner) plan(pools []*karpv1.NodePool, offered map[string][]*karpcloudprovider.InstanceType, pods []*corev1.Pod) (planned []*karpv1.NodeClaim, waiting []*corev1.Pod) {
	p.t.Helper()
	guest := fake.NewClientBuilder().Build()
	cluster := state.NewCluster(clock.RealClock{}, guest, nil)
	topology, err := scheduling.NewTopology(p.ctx, guest, cluster, nil, pools, offered, pods)
	p.Expect(err).NotTo(HaveOccurred())
	scheduler := scheduling.NewScheduler(p.ctx, guest, pools, cluster, nil, topology, offered, nil, events.NewRecorder(&record.FakeRecorder{}), clock.RealClock{}, nil, nil,
		scheduling.DisableReservedCapacityFallback, scheduling.NumConcurrentReconciles(2))
	results, err := scheduler.Solve(p.ctx, pods)
	p.Expect(err).NotTo(HaveOccurred())
	for pod, err := range results.PodErrors {
		p.Expect(scheduling.IsReservedOfferingError(err)).To(BeTrue(), "%v", err)
		waiting = append(waiting, pod)
	}
	for _, nodeClaim := range results.NewNodeClaims {
		planned = append(planned, nodeClaim.ToNodeClaim())
	}
	return planned, waiting
}

// launch creates a planned NodeClaim and its machine.
func (p *planner) launch(planned *karpv1.NodeClaim) error {
	p.t.Helper()
	p.Expect(p.Admin.Create(p.t.Context(), planned)).To(Succeed())
	p.t.Cleanup(func() { _ = p.Admin.Delete(context.WithoutCancel(p.t.Context()), planned) })
	_, err := p.provider.Create(p.ctx, planned)
	return err
}

// isReserved reports whether a NodeClaim is planned for the reservation.
func isReserved(nodeClaim *karpv1.NodeClaim) bool {
	requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	return requirements.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeReserved) && !requirements.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeOnDemand)
}

// bought counts the Machines by capacity type, and checks that the reserved ones are of the reservation.
func (p *planner) bought() map[string]int {
	p.t.Helper()
	machines := &clusterv1.MachineList{}
	p.Expect(p.Admin.List(p.t.Context(), machines, client.InNamespace(p.Namespace))).To(Succeed())
	counts := map[string]int{}
	for i := range machines.Items {
		labels := machines.Items[i].Labels
		counts[labels[karpv1.CapacityTypeLabelKey]]++
		if labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeReserved {
			p.Expect(labels).To(HaveKeyWithValue(v1alpha1.ReservationIDLabel, block))
		}
	}
	return counts
}

func TestReservationOfTwoNodePools(t *testing.T) {
	inEnd := Equal(map[string]int{karpv1.CapacityTypeReserved: inBlock, karpv1.CapacityTypeOnDemand: 8 - inBlock})
	t.Run("When both are planned in one round, it should plan no more reserved machines than there are, and the rest on demand in the next one", func(t *testing.T) {
		p := newPlanner(t)
		planned, waiting := p.plan(p.pools, p.offered(p.pools...), append(p.pods["web"], p.pods["batch"]...))
		p.Expect(planned).To(And(HaveLen(inBlock), HaveEach(Satisfy(isReserved))))
		for _, nodeClaim := range planned {
			p.Expect(p.launch(nodeClaim)).To(Succeed())
		}
		planned, waiting = p.plan(p.pools, p.offered(p.pools...), waiting)
		p.Expect(waiting).To(BeEmpty())
		for _, nodeClaim := range planned {
			p.Expect(p.launch(nodeClaim)).To(Succeed())
		}
		p.Expect(p.bought()).To(inEnd)
	})
	t.Run("When each is planned as if it were alone, it should launch no more reserved machines than there are, and let Karpenter plan the rest again", func(t *testing.T) {
		p := newPlanner(t)
		var planned []*karpv1.NodeClaim
		for _, pool := range p.pools {
			alone := []*karpv1.NodePool{pool}
			claims, _ := p.plan(alone, p.offered(pool), p.pods[pool.Name])
			p.Expect(claims).To(And(HaveLen(inBlock), HaveEach(Satisfy(isReserved))))
			planned = append(planned, claims...)
		}
		launched := map[string]int{}
		for _, nodeClaim := range planned {
			err := p.launch(nodeClaim)
			if err == nil {
				launched[nodeClaim.Labels[karpv1.NodePoolLabelKey]]++
				continue
			}
			p.Expect(karpcloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		}
		p.Expect(p.bought()).To(Equal(map[string]int{karpv1.CapacityTypeReserved: inBlock}))
		// Karpenter deletes the NodeClaims without capacity, and their pods are pending again. All pods of a NodePool are equal.
		var left []*corev1.Pod
		for _, pool := range p.pools {
			left = append(left, p.pods[pool.Name][launched[pool.Name]:]...)
		}
		planned, waiting := p.plan(p.pools, p.offered(p.pools...), left)
		p.Expect(waiting).To(BeEmpty())
		for _, nodeClaim := range planned {
			p.Expect(p.launch(nodeClaim)).To(Succeed())
		}
		p.Expect(p.bought()).To(inEnd)
	})
}
