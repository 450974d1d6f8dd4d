// SPDX-License-Identifier: Apache-2.0

package benchmark_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	kwokoptions "sigs.k8s.io/karpenter/kwok/options"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
)

// catalogTypes are the instance types of a catalog, as Karpenter gets them, and what they take of memory in MiB with the catalog and all that
// is computed of it.
func catalogTypes(tb testing.TB, n int) (instanceTypes []*karpcloudprovider.InstanceType, memory float64) {
	tb.Helper()
	before := heap()
	provider, instanceTypes := catalogProvider(tb, n)
	memory = heap() - before
	goruntime.KeepAlive(provider)
	return instanceTypes, memory
}

// catalogProvider has the instance types of a catalog.
func catalogProvider(tb testing.TB, n int) (*instancetype.Provider, []*karpcloudprovider.InstanceType) {
	tb.Helper()
	provider := instancetype.New(instancetype.Config{
		Templates: environment.FleetCatalog(n).Resolver(), Pricing: pricing.New(pricing.NewFile("")), Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{},
	})
	listing, err := provider.Refresh(context.Background(), environment.CatalogNodeClass())
	if err != nil {
		tb.Fatal(err)
	}
	for _, it := range listing.Snapshot.InstanceTypes {
		it.Allocatable() // which Karpenter caches
	}
	return provider, listing.Snapshot.InstanceTypes
}

// heap is what is in use, in MiB.
func heap() float64 {
	goruntime.GC()
	goruntime.GC()
	stats := goruntime.MemStats{}
	goruntime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// kwokType is an instance type in the file that Karpenter's kwok provider reads at its start: `--instance-types-file-path`.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.15.0/kwok/cloudprovider/helpers.go
type kwokType struct {
	Name             string              `json:"name"`
	Offerings        []kwokOffering      `json:"offerings"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []corev1.OSName     `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
}

type kwokOffering struct {
	Price               float64
	ReservationCapacity int
	Requirements        []corev1.NodeSelectorRequirement
}

// kwokOverhead is what the kwok provider subtracts from the resources of every instance type.
var kwokOverhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("10Mi")}

// kwokTypes are our instance types as Karpenter's kwok provider returns them, with the same allocatable resources. With apart, offerings that
// aren't reserved say so, as ours do and those of Karpenter's AWS provider: without it, Karpenter takes them for any reservation that a pod
// requires.
// https://github.com/aws/karpenter-provider-aws/blob/v1.14.1/pkg/providers/instancetype/offering/base_resolver.go
func kwokTypes(tb testing.TB, ours []*karpcloudprovider.InstanceType, apart bool) []*karpcloudprovider.InstanceType {
	tb.Helper()
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	file := make([]kwokType, 0, len(ours))
	for _, it := range ours {
		their := kwokType{Name: it.Name, Architecture: "amd64", OperatingSystems: []corev1.OSName{corev1.Linux}, Resources: resources.Merge(it.Allocatable(), kwokOverhead)}
		for _, o := range it.Offerings {
			offering := kwokOffering{
				Price: o.Price, ReservationCapacity: o.ReservationCapacity,
				Requirements: []corev1.NodeSelectorRequirement{in(corev1.LabelTopologyZone, o.Zone()), in(karpv1.CapacityTypeLabelKey, o.CapacityType())},
			}
			switch {
			case o.CapacityType() == karpv1.CapacityTypeReserved:
				offering.Requirements = append(offering.Requirements, in(v1alpha1.ReservationIDLabel, o.ReservationID()))
			case apart:
				offering.Requirements = append(offering.Requirements, corev1.NodeSelectorRequirement{Key: v1alpha1.ReservationIDLabel, Operator: corev1.NodeSelectorOpDoesNotExist})
			}
			their.Offerings = append(their.Offerings, offering)
		}
		file = append(file, their)
	}
	content, err := json.Marshal(file)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "instance-types.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}
	theirs, err := kwok.ConstructInstanceTypes(kwokoptions.ToContext(tb.Context(), &kwokoptions.Options{InstanceTypesFilePath: path}))
	if err != nil {
		tb.Fatal(err)
	}
	for i, their := range theirs {
		if got, want := their.Allocatable(), ours[i].Allocatable(); !equality.Semantic.DeepEqual(got, want) {
			tb.Fatalf("the kwok provider's %s has %v, ours %v: it isn't the same work", their.Name, got, want)
		}
	}
	return theirs
}

// round is one scheduling round of Karpenter's provisioner, from the pending pods to the NodeClaims that it would create. It returns how many
// those are.
func round(tb testing.TB, instanceTypes []*karpcloudprovider.InstanceType, pods []*corev1.Pod) int {
	tb.Helper()
	core := &options.Options{PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict, IgnoreDRARequests: true}
	core.FeatureGates.ReservedCapacity = true
	ctx := options.ToContext(context.Background(), core)
	nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general", UID: "pool"}}
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	guest := fake.NewClientBuilder().Build()
	cluster := state.NewCluster(clock.RealClock{}, guest, nil)
	pools, byPool := []*karpv1.NodePool{nodePool}, map[string][]*karpcloudprovider.InstanceType{nodePool.Name: instanceTypes}
	topology, err := scheduling.NewTopology(ctx, guest, cluster, nil, pools, byPool, pods)
	if err != nil {
		tb.Fatal(err)
	}
	scheduler := scheduling.NewScheduler(ctx, guest, pools, cluster, nil, topology, byPool, nil,
		events.NewRecorder(&record.FakeRecorder{}), clock.RealClock{}, nil, nil, scheduling.NumConcurrentReconciles(2))
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		tb.Fatal(err)
	}
	results = results.TruncateInstanceTypes(ctx, scheduling.MaxInstanceTypes)
	if len(results.PodErrors) > 0 || len(results.NewNodeClaims) == 0 {
		tb.Fatal(len(results.PodErrors), "pods fit nowhere,", len(results.NewNodeClaims), "NodeClaims")
	}
	return len(results.NewNodeClaims)
}

// cpuTime is what this process has used. Unlike the duration of a round it means something beside other work.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	usage := syscall.Rusage{}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// podsOf are pods of five Deployments. spread distributes those of four among the zones, one of them on spot capacity.
func podsOf(n int, spread bool) (pods []*corev1.Pod) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		app := fmt.Sprintf("web-%d", i%5)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("web-%d", i)), Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse([]string{"100m", "250m", "500m", "1", "1500m"}[random.IntN(5)]),
				corev1.ResourceMemory: resource.MustParse([]string{"100Mi", "256Mi", "512Mi", "1Gi", "2Gi"}[random.IntN(5)]),
			}}}}},
		}
		if spread && i%5 > 0 {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			}}
		}
		if spread && i%5 == 1 {
			pod.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot}
		}
		pods = append(pods, pod)
	}
	return pods
}

// BenchmarkRound schedules 1,000 pods with 1,000 instance types of a catalog, and with the same types as Karpenter's kwok provider has
// them, by turns. ratio is ours to theirs, the median of all turns. In the last one, offerings of theirs that aren't reserved don't say so.
func BenchmarkRound(b *testing.B) {
	ours, memory := catalogTypes(b, 1_000)
	for _, tc := range []struct {
		name          string
		spread, apart bool
	}{{"pods=alike", false, true}, {"pods=spread", true, true}, {"pods=alike/reservations=untold", false, false}} {
		theirs, pods := kwokTypes(b, ours, tc.apart), podsOf(1_000, tc.spread)
		b.Run(tc.name, func(b *testing.B) {
			compare(b, ours, theirs, pods)
			b.ReportMetric(memory, "MiB")
		})
	}
}

// turn is the number of comparisons so far: of some benchmarks each has only one.
var turn int

// compare measures rounds of two providers' types.
func compare(b *testing.B, ours, theirs []*karpcloudprovider.InstanceType, pods []*corev1.Pod) {
	b.Helper()
	nodeClaims := byTurns(b, func(provider int) int {
		return round(b, [][]*karpcloudprovider.InstanceType{ours, theirs}[provider], pods)
	})
	b.ReportMetric(float64(nodeClaims), "NodeClaims")
}

// byTurns measures what two providers do, ours and then theirs, by turns. Neither pays for the other's garbage, and neither is always the
// first. Both have to come to the same outcome, which it returns.
func byTurns(b *testing.B, do func(provider int) int) int {
	b.Helper()
	var elapsed, cpu [2]time.Duration
	var outcomes [2]int
	var ratios, cpuRatios []float64
	var milliseconds [2]float64
	for b.Loop() {
		for i := range 2 {
			provider := (i + turn) % 2
			goruntime.GC()
			started, used := time.Now(), cpuTime(b)
			outcomes[provider] = do(provider)
			elapsed[provider], cpu[provider] = time.Since(started), cpuTime(b)-used
			milliseconds[provider] += elapsed[provider].Seconds() * 1e3
		}
		ratios, cpuRatios = append(ratios, float64(elapsed[0])/float64(elapsed[1])), append(cpuRatios, float64(cpu[0])/float64(cpu[1]))
		turn++
	}
	if outcomes[0] != outcomes[1] {
		b.Fatalf("with our provider %d, with the kwok provider %d: it isn't the same work", outcomes[0], outcomes[1])
	}
	b.ReportMetric(0, "ns/op") // garbage collections and both providers' rounds
	b.ReportMetric(milliseconds[0]/float64(b.N), "ours-ms/op")
	b.ReportMetric(milliseconds[1]/float64(b.N), "kwok-ms/op")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(cpuRatios), "cpu-ratio")
	return outcomes[0]
}

// median is the mean of the two middle values of an even number.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
