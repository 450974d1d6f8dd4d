// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestMaximumSize(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*template.Template)
		machines int
		want     int
	}{
		{"When a source has fewer machines than it may, it should be available", func(s *template.Template) { s.MaxSize = ptr.To(2) }, 1, 2},
		{"When a source has as many machines as it may, it should be unavailable", func(s *template.Template) { s.MaxSize = ptr.To(2) }, 2, 0},
		{"When the source keeps machines itself, they should count", func(s *template.Template) { s.MaxSize, s.Replicas = ptr.To(3), 2 }, 1, 0},
		{"When the source keeps more machines than it may, it should be unavailable", func(s *template.Template) { s.MaxSize, s.Replicas = ptr.To(3), 5 }, 0, 0},
		{"When a source has no maximum, it should always be available", nil, 500, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(newTemplate("c2-small", 2, 0.021, tc.change))
			in.Inventory = newInventory()
			for i := range tc.machines {
				in.Inventory.ObserveMachine(types.UID(fmt.Sprint(i)), inventory.Machine{Origin: inventory.Origin{Source: in.Templates[0].Source.Annotation()}})
			}
			NewWithT(t).Expect(snapshotOf(in).InstanceTypes[0].Offerings.Available()).To(HaveLen(tc.want))
		})
	}
}
