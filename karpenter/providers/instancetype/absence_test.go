// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// priceFile has one spot price, or none after it was deleted.
type priceFile struct {
	price    *float64
	sequence uint64
}

func (f *priceFile) Price(_ *template.Template, _, capacityType string) (float64, bool) {
	if f.price == nil || capacityType != karpv1.CapacityTypeSpot {
		return 0, false
	}
	return *f.price, true
}

func (f *priceFile) Sequence() uint64 { return f.sequence }

func (f *priceFile) Since(sequence uint64) ([]string, bool) { return nil, sequence == f.sequence }

// seen is what Karpenter makes of a spot node in zone a.
type seen struct {
	// listed: Karpenter core doesn't replace the node as InstanceTypeNotFound. gone: the provider does.
	listed, gone bool
	// available: more such nodes can be launched.
	available bool
	// price of the node, by which it is consolidated.
	price float64
}

func TestAbsence(t *testing.T) {
	key := offering.Key{InstanceType: "c4", Zone: "a", CapacityType: karpv1.CapacityTypeSpot}
	type world struct {
		templates []template.Template
		cluster   template.Cluster
		prices    *priceFile
	}
	for name, absent := range map[string]func(*world){
		"a failure domain is dropped":             func(w *world) { w.cluster.FailureDomains = []string{"b"} },
		"the spot price is deleted":               func(w *world) { w.templates[0].SpotPrice = nil },
		"the template is deleted":                 func(w *world) { w.templates = w.templates[1:] },
		"the patch that makes it spot is removed": func(w *world) { w.templates[0].Patches, w.templates[0].SpotPrice = patch.List{}, nil },
		"the price file is deleted": func(w *world) {
			w.templates[0].SpotPrice = nil
			w.prices = &priceFile{}
		},
	} {
		t.Run("When "+name+", it should keep the node and launch no more of it until it is back", func(t *testing.T) {
			launched := inventory.Origin{Key: key, Price: 0.03}
			now := func() *world {
				tmpl := newTemplate("c4", 4, 0.1, func(s *template.Template) { s.SpotPrice, s.Patches = ptr.To(0.03), spotPatches(t) })
				launched.Source = tmpl.Source.Annotation()
				return &world{[]template.Template{tmpl, newTemplate("c8", 8, 0.2, nil)}, template.Cluster{FailureDomains: []string{"a", "b"}}, &priceFile{}}
			}
			// A price file that is deleted had the price before, instead of the annotation.
			there := now()
			if w := now(); name == "the price file is deleted" {
				absent(w)
				there = w
				there.prices = &priceFile{price: ptr.To(0.03)}
			}
			there.templates[0].Source.ResourceVersions = "1"
			file := &priceFile{}
			store := newProvider(Config{Pricing: pricing.Sources{file, pricing.Annotations{}, pricing.Estimate{}}})
			look := func(w *world) seen {
				t.Helper()
				file.price, file.sequence = w.prices.price, file.sequence+1
				set(store, nodeClass(1), w.templates, w.cluster)
				snapshot := cached(t, store)
				s := seen{gone: snapshot.Gone(launched.Source, launched.Key)}
				for _, it := range snapshot.InstanceTypes {
					labels := map[string]string{corev1.LabelInstanceTypeStable: key.InstanceType, corev1.LabelTopologyZone: key.Zone, karpv1.CapacityTypeLabelKey: key.CapacityType}
					if it.Name == key.InstanceType && it.Offerings.HasCompatible(karpscheduling.NewLabelRequirements(labels)) {
						s.listed = true
						s.available = it.Offerings.Available().HasCompatible(karpscheduling.NewLabelRequirements(labels))
						s.price, _ = it.OfferingPrice(key.Zone, key.CapacityType)
					}
				}
				return s
			}
			store.Inventory = machinesOf(launched)

			if got, want := look(there), (seen{listed: true, available: true, price: 0.03}); got != want {
				t.Fatalf("before: %+v, want %+v", got, want)
			}
			gone := now()
			absent(gone)
			for i := range gone.templates {
				gone.templates[i].Source.ResourceVersions += "-2"
			}
			if got, want := look(gone), (seen{listed: true, price: 0.03}); got != want {
				t.Errorf("meanwhile: %+v, want %+v", got, want)
			}
			back := *there
			back.templates = append([]template.Template(nil), there.templates...)
			back.templates[0].Source.UID, back.templates[0].Source.ResourceVersions = "another", "3"
			if got, want := look(&back), (seen{listed: true, available: true, price: 0.03}); got != want {
				t.Errorf("after: %+v, want %+v", got, want)
			}
		})
	}

	for name, change := range map[string]func(*template.Template){
		"makes another instance type": func(s *template.Template) { s.InstanceType = "c4-metal" },
		"is bound to another zone":    func(s *template.Template) { s.FailureDomains = []string{"b"} },
		"makes another capacity type": func(s *template.Template) { s.CapacityType = karpv1.CapacityTypeOnDemand },
	} {
		t.Run("When the template "+name+", it should replace the node", func(t *testing.T) {
			tmpl := newTemplate("c4", 4, 0.1, func(s *template.Template) { s.SpotPrice = ptr.To(0.03) })
			in := input(tmpl)
			in.Inventory = machinesOf(madeFrom(tmpl, "a"))
			change(&in.Templates[0])
			if snapshot := snapshotOf(in); !snapshot.Gone(tmpl.Source.Annotation(), key) {
				t.Errorf("it isn't gone: %v", offered(snapshot.InstanceTypes))
			}
		})
	}
}
