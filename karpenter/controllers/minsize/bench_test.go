// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/minsize"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// sized returns a controller in a fleet whose sources have a minimum size that needs no mark, because every node has one
// of a user.
func sized(tb testing.TB, f *environment.Fleet, minimum int) *minsize.Controller {
	tb.Helper()
	offered := &environment.Templates{}
	var templates []template.Template
	for i := range f.Sources {
		templates = append(templates, environment.FleetTemplate(i))
		templates[i].MinSize = ptr.To(minimum)
	}
	offered.Offer(environment.FleetNodeClass, templates, template.Cluster{FailureDomains: []string{"a", "b", "c"}}, template.Gaps{})
	instanceTypes := instancetype.New(instancetype.Config{Templates: offered, Pricing: pricing.New(pricing.NewFile("")), Inventory: environment.NoMachines(), Capacity: environment.Unleased()})
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	nodeClass.Name = environment.FleetNodeClass
	if _, err := instanceTypes.Refresh(tb.Context(), nodeClass); err != nil {
		tb.Fatal(err)
	}
	return minsize.New(minsize.Config{
		Guest: f.Guest, ManagementCache: f.ManagementCache, InstanceTypes: instanceTypes, Suspended: func() bool { return false },
		Machines: machine.New(machine.Config{Management: f.Management, Namespace: environment.FleetNamespace, ClusterName: environment.FleetCluster}),
	})
}

// request is what an event of a source's node, NodeClaim or Machine leads to.
func request(source string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: source}}
}

// BenchmarkEvent handles one event of one node: as fast in a fleet of 5,000 nodes and 1,000 templates as in one of 500
// and 100.
func BenchmarkEvent(b *testing.B) {
	for _, count := range []int{500, 5_000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			fleet := environment.NewFleet(b, count, count/5)
			controller := sized(b, fleet, 2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := controller.Reconcile(b.Context(), request(fleet.Sources[0])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
