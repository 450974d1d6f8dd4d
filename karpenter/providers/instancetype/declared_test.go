// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestMeeting(t *testing.T) {
	const disk = "example.com/disk"
	bare := newTemplate("bare", 2, 0.1, func(s *template.Template) { s.SpotPrice = ptr.To(0.05) })
	ssd := newTemplate("ssd", 2, 0.2, func(s *template.Template) { s.Labels = map[string]string{disk: "ssd"} })
	open := []karpv1.NodeSelectorRequirementWithMinValues{{Key: disk, Operator: corev1.NodeSelectorOpExists}}
	has := []string{"ssd: a on-demand $0.2", "ssd: b on-demand $0.2"}
	for name, tc := range map[string]struct {
		machines []string
		want     []string
	}{
		"When no machine has a type without the label, a NodePool that requires it should not get the type": {nil, has},
		"When machines have it, the type should stay, so that they aren't replaced, and not be available": {
			[]string{"a"}, append([]string{"bare: a on-demand $0.1 !", "bare: a spot $0.05 !", "bare: b on-demand $0.1 !", "bare: b spot $0.05 !"}, has...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(bare, ssd)
			for _, zone := range tc.machines {
				in.Inventory = machinesOf(madeFrom(bare, zone))
			}
			snapshot := snapshotOf(in)
			meeting, differing := snapshot.Meeting(snapshot.InstanceTypes, open)
			if diff := cmp.Diff(tc.want, offered(meeting)); diff != "" || len(differing) > 0 {
				t.Errorf("offerings, %v (-want +got):\n%s", differing, diff)
			}
		})
	}
	t.Run("When a NodePool requires nothing that a template declares, it should get the types themselves", func(t *testing.T) {
		snapshot := snapshotOf(input(bare, ssd))
		meeting, _ := snapshot.Meeting(snapshot.InstanceTypes, []karpv1.NodeSelectorRequirementWithMinValues{{Key: "team", Operator: corev1.NodeSelectorOpExists}})
		NewWithT(t).Expect(&meeting[0]).To(BeIdenticalTo(&snapshot.InstanceTypes[0]), "they were copied")
	})
}

func TestOffered(t *testing.T) {
	const disk = "example.com/disk"
	snapshot := snapshotOf(input(newTemplate("bare", 2, 0.1, func(*template.Template) {}), newTemplate("ssd", 2, 0.2, func(s *template.Template) { s.Labels = map[string]string{disk: "ssd"} })))
	nodePool := &karpv1.NodePool{}
	nodePool.Generation = 1
	nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: disk, Operator: corev1.NodeSelectorOpExists}}
	t.Run("When a guest's admin creates any number of NodePools, it should keep what a bounded number of them gets", func(t *testing.T) {
		for i := range 3 * maxChosen {
			nodePool.UID = types.UID(fmt.Sprint(i))
			if its, _ := snapshot.Offered(nodePool); len(its) != 1 || its[0].Name != "ssd" {
				t.Fatalf("got %v", offered(its))
			}
		}
		kept := 0
		snapshot.chosen.Range(func(any, any) bool {
			kept++
			return true
		})
		if kept == 0 || kept > maxChosen {
			t.Errorf("%d are kept", kept)
		}
	})
}
