// SPDX-License-Identifier: Apache-2.0

package benchmark_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kwokv1alpha1 "sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/test/environment"
)

// secrets has every Secret.
type secrets struct{ client.Reader }

func (secrets) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// catalogTypes are the instance types of a catalog, as Karpenter gets them.
func catalogTypes(tb testing.TB, n int) []*cloudprovider.InstanceType {
	tb.Helper()
	provider := instancetype.New(instancetype.Config{
		Templates: template.NewResolver(template.Config{
			Objects: environment.FleetCatalog(n), ClusterName: environment.FleetCluster, Namespace: environment.FleetNamespace, Secrets: secrets{},
		}),
		Pricing: pricing.Default(),
	})
	listing, err := provider.Refresh(context.Background(), environment.CatalogNodeClass())
	if err != nil {
		tb.Fatal(err)
	}
	return listing.Snapshot.InstanceTypes
}

// kwokTypes are our instance types as Karpenter's kwok provider has them: it reads a file at its start, and returns them as they are. Its
// package isn't linked, because it would bring a dependency of its own.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/kwok/cloudprovider/helpers.go
func kwokTypes(ours []*cloudprovider.InstanceType) (theirs []*cloudprovider.InstanceType) {
	in := func(key string, values ...string) *karpscheduling.Requirement {
		return karpscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
	}
	for _, it := range ours {
		cpu, memory := it.Capacity.Cpu().String(), it.Capacity.Memory().String()
		their := &cloudprovider.InstanceType{
			Name: it.Name, Capacity: it.Capacity.DeepCopy(),
			Requirements: karpscheduling.NewRequirements(
				in(corev1.LabelInstanceTypeStable, it.Name), in(corev1.LabelArchStable, "amd64"), in(corev1.LabelOSStable, "linux"),
				in(corev1.LabelTopologyZone, "a", "b", "c"), in(karpv1.CapacityTypeLabelKey, "on-demand", "reserved", "spot"),
				in(kwokv1alpha1.InstanceSizeLabelKey, cpu), in(kwokv1alpha1.InstanceFamilyLabelKey, "t"),
				in(kwokv1alpha1.InstanceCPULabelKey, cpu), in(kwokv1alpha1.InstanceMemoryLabelKey, memory),
			),
			Overhead: &cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("10Mi"),
			}},
		}
		for _, o := range it.Offerings {
			requirements := karpscheduling.NewRequirements(in(corev1.LabelTopologyZone, o.Zone()), in(karpv1.CapacityTypeLabelKey, o.CapacityType()))
			if o.CapacityType() == karpv1.CapacityTypeReserved {
				requirements.Add(in(v1alpha1.ReservationIDLabel, o.ReservationID()))
			}
			their.Offerings = append(their.Offerings, &cloudprovider.Offering{
				Requirements: requirements, Price: o.Price, Available: true, ReservationCapacity: o.ReservationCapacity,
			})
		}
		theirs = append(theirs, their)
	}
	return theirs
}

// roundOf prepares one scheduling round of pods.
func roundOf(tb testing.TB, instanceTypes []*cloudprovider.InstanceType, pods []*corev1.Pod) func() {
	tb.Helper()
	core := &options.Options{PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict, IgnoreDRARequests: true}
	core.FeatureGates.ReservedCapacity = true
	ctx := options.ToContext(context.Background(), core)
	nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general", UID: "pool"}}
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	guest := fake.NewClientBuilder().Build()
	cluster := state.NewCluster(clock.RealClock{}, guest, nil)
	pools, byPool := []*karpv1.NodePool{nodePool}, map[string][]*cloudprovider.InstanceType{nodePool.Name: instanceTypes}
	topology, err := scheduling.NewTopology(ctx, guest, cluster, nil, pools, byPool, pods)
	if err != nil {
		tb.Fatal(err)
	}
	scheduler := scheduling.NewScheduler(ctx, guest, pools, cluster, nil, topology, byPool, nil,
		events.NewRecorder(&record.FakeRecorder{}), clock.RealClock{}, nil, nil, scheduling.NumConcurrentReconciles(2))
	return func() {
		results, err := scheduler.Solve(ctx, pods)
		if err != nil || len(results.PodErrors) > 0 || len(results.NewNodeClaims) == 0 {
			tb.Fatal(err, len(results.PodErrors), len(results.NewNodeClaims))
		}
	}
}

func podsOf(n int) (pods []*corev1.Pod) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("web-%d", i)), Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse([]string{"100m", "250m", "500m", "1", "1500m"}[random.IntN(5)]),
				corev1.ResourceMemory: resource.MustParse([]string{"100Mi", "256Mi", "512Mi", "1Gi", "2Gi"}[random.IntN(5)]),
			}}}}},
		})
	}
	return pods
}

// BenchmarkRound schedules 1,000 pods with 1,000 instance types of a catalog, and with the same types as Karpenter's kwok provider has
// them, by turns. ratio is ours to theirs.
func BenchmarkRound(b *testing.B) {
	ours := catalogTypes(b, 1_000)
	theirs := kwokTypes(ours)
	pods := podsOf(1_000)
	measure := func(instanceTypes []*cloudprovider.InstanceType) time.Duration {
		round := roundOf(b, instanceTypes, pods)
		started := time.Now()
		round()
		return time.Since(started)
	}
	var total [2]time.Duration
	for b.Loop() {
		total[0] += measure(ours)
		total[1] += measure(theirs)
	}
	b.ReportMetric(float64(total[0].Milliseconds())/float64(b.N), "ours-ms/op")
	b.ReportMetric(float64(total[1].Milliseconds())/float64(b.N), "kwok-ms/op")
	b.ReportMetric(float64(total[0])/float64(total[1]), "ratio")
}
