// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

var update = flag.Bool("update", false, "write what tests got into testdata")

// newTemplate has as many GiB as cores twice over.
func newTemplate(name string, cores int64, price float64, change func(*template.Template)) template.Template {
	tmpl := template.Template{
		Source: template.Source{
			GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate"},
			Namespace: "clusters-blue", Name: name, ResourceVersions: "1",
		},
		Bootstrap:    template.Bootstrap{DataSecretName: "join"},
		InstanceType: name, Arch: "amd64", OS: "linux",
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewQuantity(cores, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(cores*2<<30, resource.BinarySI),
			corev1.ResourcePods:             *resource.NewQuantity(110, resource.DecimalSI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(100<<30, resource.BinarySI),
		},
		Price: &price,
	}
	if change != nil {
		change(&tmpl)
	}
	return tmpl
}

// snapshotOf builds a snapshot that shares nothing with an earlier one.
func snapshotOf(in Input) *Snapshot { return newBuilder(in, nil).build() }

func input(templates ...template.Template) Input {
	return Input{
		Templates: templates, Cluster: template.Cluster{FailureDomains: []string{"a", "b"}}, Pricing: pricing.New(pricing.NewFile("")),
		Unavailable: offering.NewUnavailable(clock.RealClock{}), Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{},
	}
}

// render writes everything that Karpenter sees.
func render(s *Snapshot) string {
	var b strings.Builder
	resources := func(title string, list corev1.ResourceList) {
		fmt.Fprintf(&b, "  %s:", title)
		var names []string
		for name := range list {
			names = append(names, string(name))
		}
		slices.Sort(names)
		for _, name := range names {
			q := list[corev1.ResourceName(name)]
			fmt.Fprintf(&b, " %s=%s", name, q.String())
		}
		b.WriteString("\n")
	}
	for _, it := range s.InstanceTypes {
		fmt.Fprintf(&b, "%s\n", it.Name)
		resources("capacity", it.Capacity)
		resources("allocatable", it.Allocatable())
		var reqs []string
		for _, r := range it.Requirements {
			reqs = append(reqs, r.String())
		}
		slices.Sort(reqs)
		fmt.Fprintf(&b, "  requirements:\n    %s\n  offerings:\n", strings.Join(reqs, "\n    "))
		for _, o := range it.Offerings {
			choice, ok := s.Resolve(it.Name, o.Zone(), o.CapacityType())
			fmt.Fprintf(&b, "    %s %s $%g available=%t from %s failureDomain=%q found=%t\n",
				o.Zone(), o.CapacityType(), o.Price, o.Available, choice.Template.Source.Name, choice.FailureDomain, ok)
		}
	}
	for _, problem := range s.Problems {
		fmt.Fprintf(&b, "problem: %s\n", problem)
	}
	return b.String()
}

func TestBuildGolden(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		input      func() Input
	}{
		{"When templates differ, it should make a type of each", "types", func() Input {
			return input(
				newTemplate("c2-small", 2, 0.021, func(s *template.Template) { s.SpotPrice = ptr.To(0.007) }),
				newTemplate("c4-arm", 4, 0.080, func(s *template.Template) {
					s.Arch, s.FailureDomains = "arm64", []string{"c"}
					s.Labels = map[string]string{"team": "web", corev1.LabelTopologyRegion: "eu"}
				}),
			)
		}},
		{"When templates share a name, it should make one type that promises the least of them", "merged", func() Input {
			return input(
				newTemplate("c4-a", 4, 0.096, func(s *template.Template) {
					s.InstanceType, s.FailureDomains = "c4", []string{"a"}
					s.Labels = map[string]string{"team": "web", "rack": "1"}
				}),
				newTemplate("c4-b", 4, 0.090, func(s *template.Template) {
					s.InstanceType, s.FailureDomains = "c4", []string{"b"}
					s.Labels = map[string]string{"team": "web", "rack": "2"}
					s.Capacity[corev1.ResourceMemory] = resource.MustParse("7Gi")
					delete(s.Capacity, corev1.ResourceEphemeralStorage)
				}),
				newTemplate("c4-b-dear", 4, 0.5, func(s *template.Template) {
					s.InstanceType, s.FailureDomains, s.Labels = "c4", []string{"b", "c"}, map[string]string{"team": "web"}
				}),
				newTemplate("c4-b-paused", 4, 0.01, func(s *template.Template) {
					s.InstanceType, s.FailureDomains, s.Labels = "c4", []string{"b"}, map[string]string{"team": "web"}
					s.Paused = true
				}),
				newTemplate("c4-arm", 4, 0.01, func(s *template.Template) { s.InstanceType, s.Arch = "c4", "arm64" }),
			)
		}},
		{"When there are no failure domains, it should offer one zone that isn't a failure domain", "zoneless", func() Input {
			in := input(newTemplate("c2-small", 2, 0.021, nil))
			in.Cluster = template.Cluster{}
			return in
		}},
		{"When real nodes have less memory than their template declares, it should promise no more than that and keep the label", "learned", func() Input {
			in := input(
				newTemplate("c2-small", 2, 0.021, nil),
				newTemplate("c4-large", 4, 0.096, func(s *template.Template) { s.ContentHash = "1" }),
				newTemplate("c8-huge", 8, 0.2, func(s *template.Template) { s.ContentHash = "2" }),
			)
			in.Inventory = newInventory()
			for name, n := range map[string]struct {
				template int
				hash     string
				memory   int64
			}{
				"a": {1, "1", 7900 << 20}, "b": {1, "1", 7950 << 20},
				"c": {2, "1", 1 << 30}, // of what the template was before
				"d": {2, "2", 32 << 30},
			} {
				in.Inventory.ObserveMachine(types.UID(name), inventory.Machine{
					Origin: inventory.Origin{Source: in.Templates[n.template].Source.Annotation()}, ContentHash: n.hash, ProviderID: name,
				})
				in.Inventory.ObserveNode(name, inventory.Node{ProviderID: name, Capacity: inventory.Amounts{Memory: n.memory}})
			}
			return in
		}},
		{"When the Cluster is paused, it should offer nothing", "paused", func() Input {
			in := input(newTemplate("c2-small", 2, 0.021, nil))
			in.Cluster.Paused = true
			return in
		}},
		{"When something can't be used, it should say so and go on", "problems", func() Input {
			in := input(newTemplate("c2-small", 2, 0.021, nil), newTemplate("c4-large", 4, 0.096, func(s *template.Template) { s.Bootstrap = template.Bootstrap{} }))
			in.Cluster.FailureDomains = append(in.Cluster.FailureDomains, "/subscriptions/1/zones/2")
			in.Kubelet = &v1alpha1.KubeletConfiguration{
				KubeReserved:   map[string]v1alpha1.ReservedQuantity{"cpu": "some", "memory": "1e1000000000"},
				SystemReserved: map[string]v1alpha1.ReservedQuantity{"memory": "-1Gi"},
				EvictionHard:   map[string]v1alpha1.EvictionThreshold{"memory.available": "NaN%", "nodefs.available": "a lot"},
			}
			return in
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := render(snapshotOf(tc.input()))
			path := "testdata/" + tc.file + ".golden"
			if *update {
				NewWithT(t).Expect(os.WriteFile(path, []byte(got), 0o644)).To(Succeed())
			}
			want, err := os.ReadFile(path)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(got).To(BeComparableTo(string(want)))
		})
	}
}

func TestEveryWellKnownLabelHasARequirement(t *testing.T) {
	t.Run("When a type is built, it should say something for every well-known label but the NodePool's", func(t *testing.T) {
		it := snapshotOf(input(newTemplate("c2-small", 2, 0.021, nil))).InstanceTypes[0]
		for label := range karpv1.WellKnownLabels {
			if it.Requirements.Has(label) == (label == karpv1.NodePoolLabelKey) {
				t.Errorf("%s: %v", label, it.Requirements.Has(label))
			}
		}
	})
	t.Run("When the platform declares a region, a type should be in it and in no other, and a template's own should win", func(t *testing.T) {
		in := input(newTemplate("c2-small", 2, 0.021, nil), newTemplate("far", 2, 0.021, func(s *template.Template) {
			s.Labels = map[string]string{corev1.LabelTopologyRegion: "us"}
		}))
		in.Cluster.Region = "eu"
		for i, want := range []string{"eu", "us"} {
			it := snapshotOf(in).InstanceTypes[i]
			if got := it.Requirements.Get(corev1.LabelTopologyRegion); got.Len() != 1 || !got.Has(want) {
				t.Errorf("%s: %s, want %s", it.Name, got, want)
			}
		}
	})
	t.Run("When a NodePool requests a size, it should be found by cores and memory", func(t *testing.T) {
		it := snapshotOf(input(newTemplate("c4-large", 4, 0.096, nil))).InstanceTypes[0]
		for _, tc := range []struct {
			key, operator, value string
			want                 bool
		}{
			{wellknown.InstanceCPULabel, "Gt", "3", true},
			{wellknown.InstanceCPULabel, "Gt", "4", false},
			{wellknown.InstanceMemoryLabel, "Lt", "8193", true},
			{wellknown.InstanceMemoryLabel, "Lt", "8192", false},
			{karpv1.NodePoolLabelKey, "In", "general", true},
			{corev1.LabelTopologyRegion, "In", "eu", false},
		} {
			reqs := karpscheduling.NewRequirements(karpscheduling.NewRequirement(tc.key, corev1.NodeSelectorOperator(tc.operator), tc.value))
			NewWithT(t).Expect(it.Requirements.Intersects(reqs) == nil).To(Equal(tc.want), "%s %s %s", tc.key, tc.operator, tc.value)
		}
	})
}

func TestTolerating(t *testing.T) {
	dedicated := corev1.Taint{Key: "dedicated", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	prefer := corev1.Taint{Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule}
	snapshot := snapshotOf(input(
		newTemplate("plain", 2, 0.02, nil),
		newTemplate("tainted", 2, 0.01, func(s *template.Template) { s.Taints = []corev1.Taint{dedicated} }),
		newTemplate("preferred", 2, 0.01, func(s *template.Template) { s.Taints = []corev1.Taint{prefer} }),
	))
	names := func(its []*karpcloudprovider.InstanceType) (names []string) {
		for _, it := range its {
			names = append(names, it.Name)
		}
		return names
	}
	for _, tc := range []struct {
		name   string
		taints []corev1.Taint
		want   []string
	}{
		{"When a NodePool has no taints, it should leave out the types whose nodes have some", nil, []string{"plain", "preferred"}},
		{"When a NodePool has the taint, it should keep them", []corev1.Taint{dedicated}, []string{"plain", "preferred", "tainted"}},
		{"When a NodePool has the taint with another value, it should leave them out", []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}, []string{"plain", "preferred"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(names(snapshot.Tolerating(tc.taints))).To(BeComparableTo(tc.want))
		})
	}
}

func nodeClass(generation int64) *v1alpha1.ClusterAPINodeClass {
	return &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1", Generation: generation}}
}

// newProvider returns a provider whose templates set sets.
func newProvider(config Config) *Provider {
	config.Templates = &environment.Templates{}
	if config.Pricing == nil {
		config.Pricing = pricing.New(pricing.NewFile(""))
	}
	if config.Inventory == nil {
		config.Inventory = environment.NoMachines()
	}
	if config.Capacity == nil {
		config.Capacity = capacityprovider.Unlimited{}
	}
	return New(config)
}

func set(p *Provider, nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template, cluster template.Cluster) *Snapshot {
	return setPartial(p, nodeClass, templates, cluster, template.Gaps{})
}

func setPartial(p *Provider, nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template, cluster template.Cluster, gaps template.Gaps) *Snapshot {
	p.Templates.(*environment.Templates).Offer(nodeClass.Name, templates, cluster, gaps)
	listing, err := p.Refresh(context.Background(), nodeClass)
	if err != nil {
		panic(err) // what Offer said is never an error
	}
	return listing.Snapshot
}

func TestProvider(t *testing.T) {
	// small sets a node class with one template, whatever has changed of them.
	small := func(store *Provider, changes ...func(*v1alpha1.ClusterAPINodeClass, *template.Template, *template.Cluster)) *Snapshot {
		class, tmpl, cluster := nodeClass(1), newTemplate("c2-small", 2, 0.021, nil), template.Cluster{FailureDomains: []string{"a", "b"}}
		for _, change := range changes {
			change(class, &tmpl, &cluster)
		}
		return set(store, class, []template.Template{tmpl}, cluster)
	}
	t.Run("When a node class hasn't been read yet, it should say so instead of offering nothing", func(t *testing.T) {
		store := newProvider(Config{})
		_, err := store.InstanceTypes("default")
		NewWithT(t).Expect(err).To(MatchError(ErrUnresolved))
		_, _, err = store.Resolve("default", "c2-small", "a", "on-demand")
		NewWithT(t).Expect(err).To(MatchError(ErrUnresolved))
	})
	t.Run("When nothing has changed, it should hand out the same snapshot", func(t *testing.T) {
		store := newProvider(Config{})
		first := small(store)
		NewWithT(t).Expect(small(store)).To(BeIdenticalTo(first))
		NewWithT(t).Expect(store.Cached("default")).To(BeIdenticalTo(first))
	})
	for name, change := range map[string]func(*v1alpha1.ClusterAPINodeClass, *template.Template, *template.Cluster){
		"the node class": func(class *v1alpha1.ClusterAPINodeClass, _ *template.Template, _ *template.Cluster) {
			class.Generation = 2
		},
		"a source": func(_ *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, _ *template.Cluster) {
			tmpl.Source.ResourceVersions = "2"
		},
		"the bootstrap": func(_ *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, _ *template.Cluster) {
			tmpl.Bootstrap.Hash = "2"
		},
		"a failure domain": func(_ *v1alpha1.ClusterAPINodeClass, _ *template.Template, cluster *template.Cluster) {
			cluster.FailureDomains = []string{"a"}
		},
		"that the Cluster is paused": func(_ *v1alpha1.ClusterAPINodeClass, _ *template.Template, cluster *template.Cluster) {
			cluster.Paused = true
		},
	} {
		t.Run("When this changes: "+name+", it should rebuild", func(t *testing.T) {
			store := newProvider(Config{})
			first := small(store)
			NewWithT(t).Expect(small(store, change)).NotTo(BeIdenticalTo(first))
		})
	}
	t.Run("When a node class is deleted, it should be forgotten", func(t *testing.T) {
		store := newProvider(Config{})
		small(store)
		store.Delete("default")
		_, err := store.Cached("default")
		NewWithT(t).Expect(err).To(MatchError(ErrUnresolved))
	})
}

// manyTemplates are 700 types, as a large cloud has them.
func manyTemplates() (templates []template.Template) {
	for i := range 700 {
		templates = append(templates, environment.FleetTemplate(i))
	}
	return templates
}

func manyZones() template.Cluster { return template.Cluster{FailureDomains: []string{"a", "b", "c"}} }

// manyMachines are one of each type in a zone, and one of each that no zone was known of.
func manyMachines() *inventory.Inventory {
	var origins []inventory.Origin
	for _, tmpl := range manyTemplates() {
		origins = append(origins, madeFrom(tmpl, "a"), madeFrom(tmpl, DefaultZone))
	}
	return machinesOf(origins...)
}

func BenchmarkInstanceTypes(b *testing.B) {
	unavailable := offering.NewUnavailable(clock.RealClock{})
	store := newProvider(Config{Unavailable: unavailable, Inventory: manyMachines()})
	set(store, nodeClass(1), manyTemplates(), manyZones())
	b.Run("one template changed", func(b *testing.B) {
		b.ReportAllocs()
		templates := manyTemplates()
		for i := 0; b.Loop(); i++ {
			templates[0].Source.ResourceVersions = fmt.Sprint(i)
			set(store, nodeClass(1), templates, manyZones())
		}
	})
}
