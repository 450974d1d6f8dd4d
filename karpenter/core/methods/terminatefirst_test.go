// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/guestclient"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

type vacatedKey struct{}

// provider offers one instance type: while full only in a context in which a machine has gone.
type provider struct {
	classed
	full, reserved bool
}

func (provider) Name() string                                     { return "test" }
func (provider) RepairPolicies() []karpcloudprovider.RepairPolicy { return nil }

func (p provider) GetInstanceTypes(ctx context.Context, _ *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	capacityType := karpv1.CapacityTypeOnDemand
	if p.reserved {
		capacityType = karpv1.CapacityTypeReserved
	}
	requirements := karpscheduling.NewRequirements(
		karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "a"),
		karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityType))
	offering := &karpcloudprovider.Offering{Requirements: requirements, Price: 1, Available: !p.full || ctx.Value(vacatedKey{}) != nil}
	if p.reserved {
		requirements.Add(karpscheduling.NewRequirement(v1alpha1.ReservationIDLabel, corev1.NodeSelectorOpIn, "cr-1"))
		offering.Available, offering.ReservationCapacity = true, map[bool]int{false: 1}[p.full]
	}
	return []*karpcloudprovider.InstanceType{{
		Name: "c4", Capacity: room("4"), Overhead: &karpcloudprovider.InstanceTypeOverhead{}, Offerings: karpcloudprovider.Offerings{offering},
		Requirements: karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "c4"),
			karpscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
			karpscheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, "linux"),
			karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "a"),
			karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityType),
			karpscheduling.NewRequirement(v1alpha1.ReservationIDLabel, corev1.NodeSelectorOpIn, "cr-1"),
		),
	}}, nil
}

// situation of a NodePool with drifted nodes, each with pods.
type situation struct {
	name string
	provider
	nodes, podsEach int
	// pending pods, which no node has room for.
	pending      int
	podCPU       string
	static       bool
	gateOff      bool
	vacancies    int
	budget       string
	change       func(*karpv1.NodePool, *corev1.Pod, *corev1.Node, *karpv1.NodeClaim)
	blockedByPDB bool
	// decision of the commands, and how many there are.
	decision disruption.Decision
	commands int
	reason   disruption.TerminateFirstReason
}

func (s *situation) objects() (objects []client.Object) {
	pool := newPool(cmp.Or(s.budget, "1"))
	if s.static {
		pool.Spec.Replicas = ptr.To(int64(s.nodes))
	}
	objects = append(objects, pool)
	for i := range s.nodes {
		name := fmt.Sprintf("n%d", i)
		node, claim := newNode(name, "c4", karpv1.CapacityTypeOnDemand, room("4"), karpv1.ConditionTypeDrifted)
		if s.reserved {
			claim.Labels[karpv1.CapacityTypeLabelKey], claim.Labels[v1alpha1.ReservationIDLabel] = karpv1.CapacityTypeReserved, "cr-1"
		}
		objects = append(objects, node, claim)
		for j := range s.podsEach {
			pod := newPod(name, fmt.Sprintf("%s-%d", name, j))
			pod.Spec.Containers = requesting(s.podCPU)
			if s.change != nil {
				s.change(pool, pod, node, claim)
			}
			objects = append(objects, pod)
		}
	}
	for i := range s.pending {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("pending-%d", i), UID: types.UID(fmt.Sprintf("pending-%d", i)), Labels: map[string]string{"app": "cart"}},
			Spec:       corev1.PodSpec{Containers: requesting(s.podCPU)},
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
			}},
		})
	}
	if s.blockedByPDB {
		objects = append(objects, evictsNone())
	}
	return objects
}

// commands runs Karpenter core's disruption controller once. It returns the commands, and the NodeClaims whose vacancies are held.
func commands(t *testing.T, s *situation) (begun []*disruption.Command, vacancies map[string]string, recorder *environment.Recorder) {
	t.Helper()
	objects := s.objects()
	vacancies, recorder = map[string]string{}, &environment.Recorder{}
	var core *core
	guest := guestclient.New(newGuest(objects...), guestclient.Config{
		Suspended:    func() error { return nil },
		Declares:     func(string, string) bool { return false },
		Created:      func(context.Context, *karpv1.NodeClaim, error) {},
		AwaitsTaints: func(context.Context, *corev1.Node) bool { return true },
		Deleted: methods.Terminated(func() *disruption.Queue { return core.Queue }, recorder,
			func(nodeClaim *karpv1.NodeClaim, full string, _ bool) { vacancies[nodeClaim.Name] = full }),
		Written: func(client.Object) {},
	})
	core = newCore(t, coreConfig{
		Guest: guest, CloudProvider: s.provider, Recorder: recorder, Clock: clocktesting.NewFakeClock(time.Now()),
		Flags: []string{fmt.Sprintf("--feature-gates=StaticCapacity=true,TerminateFirstDrift=%t", !s.gateOff)},
	}, objects)
	wrapped := methods.TerminateFirst(disruption.NewMethods(core.Context, core.Clock, core.State, guest, core.Provisioner, s.provider, recorder, core.Queue), methods.TerminateFirstConfig{
		Guest: guest, Cluster: core.State, Provisioner: core.Provisioner, CloudProvider: s.provider, Recorder: recorder, Clock: core.Clock,
		WithoutPending: guestclient.WithoutPending,
		Vacancies:      func(string) int { return s.vacancies },
		Vacate: func(ctx context.Context, _ *karpv1.NodeClaim) (context.Context, methods.Full, bool) {
			switch {
			case !s.full:
				return ctx, methods.Full{}, false
			case s.reserved:
				return ctx, methods.Full{}, true
			}
			return context.WithValue(ctx, vacatedKey{}, true), methods.Full{Source: true}, true
		},
	})
	return core.disrupt(t, wrapped), vacancies, recorder
}

func TestReasons(t *testing.T) {
	reserved := map[string]string{v1alpha1.ReservationIDLabel: "r-1"}
	for name, tc := range map[string]struct {
		full   methods.Full
		labels map[string]string
		want   disruption.TerminateFirstReason
	}{
		"When the node is in a reservation, it should say that this is full, whatever else is": {
			methods.Full{Host: true, Source: true}, reserved, disruption.TerminateFirstNoReservedCapacity},
		"When there is no spare host, it should say so, though the source has its maximum size": {
			methods.Full{Host: true, Source: true}, nil, methods.NoSpareHost},
		"When the source has its maximum size, it should say so":   {methods.Full{Source: true}, nil, methods.SourceFull},
		"When it is neither, it should say that the lease is full": {methods.Full{}, nil, methods.LeaseFull},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.full.Reason(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}})).To(Equal(tc.want))
		})
	}
}

func TestTerminateFirst(t *testing.T) {
	NewWithT(t).Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	karpcloudprovider.ReservationIDLabel = v1alpha1.ReservationIDLabel
	karpv1.WellKnownLabels = karpv1.WellKnownLabels.Union(sets.New(v1alpha1.ReservationIDLabel)) // as package wellknown does
	full, fullReservation := provider{full: true}, provider{full: true, reserved: true}
	for _, s := range []situation{
		{name: "When a source has its maximum size, it should terminate the node first", provider: full, nodes: 3, podsEach: 1, podCPU: "3",
			decision: disruption.TerminateFirstDecision, commands: 1, reason: methods.SourceFull},
		{name: "When a reservation is full, it should leave it to core to terminate the node first", provider: fullReservation, nodes: 3, podsEach: 1, podCPU: "3",
			decision: disruption.TerminateFirstDecision, commands: 1, reason: disruption.TerminateFirstNoReservedCapacity},
		{name: "When a reservation is full and pods wait for more, it should terminate the node first", provider: fullReservation, nodes: 3, podsEach: 1, podCPU: "3", pending: 4,
			decision: disruption.TerminateFirstDecision, commands: 1, reason: disruption.TerminateFirstNoReservedCapacity},
		{name: "When a source has its maximum size and pods wait for more, it should terminate the node first", provider: full, nodes: 3, podsEach: 1, podCPU: "3", pending: 4,
			decision: disruption.TerminateFirstDecision, commands: 1, reason: methods.SourceFull},
		{name: "When there is room for the replacement, it should launch that first", nodes: 3, podsEach: 1, podCPU: "3", decision: disruption.ReplaceDecision, commands: 1},
		{name: "When the reservation has room, it should launch the replacement first", provider: provider{reserved: true}, nodes: 3, podsEach: 1, podCPU: "3",
			decision: disruption.ReplaceDecision, commands: 1},
		{name: "When the pods fit on other nodes, it should delete the node as ever", provider: full, nodes: 2, podsEach: 1, podCPU: "1", decision: disruption.DeleteDecision, commands: 1},
		{name: "When the feature gate is off, it should leave the node", provider: full, nodes: 3, podsEach: 1, podCPU: "3", gateOff: true},
		{name: "When the last terminated node isn't replaced yet, the budget should count it", provider: full, nodes: 3, podsEach: 1, podCPU: "3", vacancies: 1},
		{name: "When the last terminated node of a reservation isn't replaced yet, the budget should count it", provider: fullReservation, nodes: 3, podsEach: 1, podCPU: "3", vacancies: 1},
		{name: "When the budget allows two, it should terminate another one", provider: full, nodes: 3, podsEach: 1, podCPU: "3", vacancies: 1, budget: "2",
			decision: disruption.TerminateFirstDecision, commands: 1, reason: methods.SourceFull},
		{name: "When the NodePool's budget allows none, it should terminate none", provider: full, nodes: 3, podsEach: 1, podCPU: "3", budget: "0"},
		{name: "When a PodDisruptionBudget blocks the pods, it should terminate none", provider: full, nodes: 3, podsEach: 1, podCPU: "3", blockedByPDB: true},
		{name: "When a pod may not be disrupted, it should terminate none", provider: full, nodes: 3, podsEach: 1, podCPU: "3",
			change: func(_ *karpv1.NodePool, pod *corev1.Pod, _ *corev1.Node, _ *karpv1.NodeClaim) {
				pod.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
			}},
		{name: "When a node may not be disrupted, it should terminate none", provider: full, nodes: 3, podsEach: 1, podCPU: "3",
			change: func(_ *karpv1.NodePool, _ *corev1.Pod, node *corev1.Node, _ *karpv1.NodeClaim) {
				node.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
			}},
		{name: "When one machine has no room for the pods of the node, it should leave the node", provider: full, nodes: 3, podsEach: 2, podCPU: "3"},
		{name: "When a static NodePool's source has its maximum size, it should terminate as many nodes as the budget allows", provider: full, nodes: 3, podsEach: 1, podCPU: "3", static: true, budget: "2",
			decision: disruption.TerminateFirstDecision, commands: 2, reason: methods.SourceFull},
		{name: "When a static NodePool's source has room, it should launch the replacement first", nodes: 3, podsEach: 1, podCPU: "3", static: true, decision: disruption.ReplaceDecision, commands: 1},
		{name: "When a static NodePool is at its limit of nodes, it should leave it to core to terminate the node first", nodes: 3, podsEach: 1, podCPU: "3", static: true,
			change: func(pool *karpv1.NodePool, _ *corev1.Pod, _ *corev1.Node, _ *karpv1.NodeClaim) {
				pool.Spec.Limits = karpv1.Limits{resources.Node: resource.MustParse("3")}
			}, decision: disruption.TerminateFirstDecision, commands: 1, reason: disruption.TerminateFirstStaticAtLimit},
		{name: "When a static NodePool isn't ready, it should terminate none first", decision: disruption.ReplaceDecision, commands: 1, provider: full, nodes: 3, podsEach: 1, podCPU: "3", static: true,
			change: func(pool *karpv1.NodePool, _ *corev1.Pod, _ *corev1.Node, _ *karpv1.NodeClaim) {
				pool.StatusConditions().SetFalse(karpv1.ConditionTypeNodeClassReady, "NotReady", "")
			}},
		{name: "When the last terminated node of a static NodePool isn't replaced yet, the budget should count it", provider: full, nodes: 3, podsEach: 1, podCPU: "3", static: true, vacancies: 1},
	} {
		t.Run(s.name, func(t *testing.T) {
			g := NewWithT(t)
			begun, vacancies, recorder := commands(t, &s)
			g.Expect(begun).To(HaveLen(s.commands))
			for _, command := range begun {
				g.Expect(command.Decision()).To(Equal(s.decision))
				g.Expect(command.TerminateFirstReason).To(Equal(s.reason))
			}
			if s.reason == "" {
				g.Expect(vacancies).To(BeEmpty())
				return
			}
			g.Expect(vacancies).To(And(HaveLen(s.commands), HaveEach(ContainSubstring(" "))), "by NodeClaim, what is full")
			g.Expect(recorder.Reasons()).To(ContainElement(methods.TerminateFirstReason))
		})
	}
}
