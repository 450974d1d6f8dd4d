// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/test/environment"
)

func TestDeletionInFleet(t *testing.T) {
	read := map[int]int64{}
	for _, count := range []int{10, 1_000} {
		fleet := environment.NewFleet(t, count, count/5)
		provider := deleting(t, fleet)
		nodeClaim := environment.FleetNodeClaim(count)
		if err := provider.Delete(t.Context(), &nodeClaim); !errors.Is(err, machine.ErrNotFound) {
			t.Fatal(err)
		}
		read[count] = fleet.Management.Read.Load() + fleet.Guest.Read.Load()
		t.Run("When Machines refer to kinds, it should find the kinds", func(t *testing.T) {
			want := []schema.GroupVersionKind{environment.KubeadmConfig, environment.TestMachine}
			if diff := cmp.Diff(want, provider.ChildKinds(t.Context())); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("When a deletion completes in a larger fleet, it should read no more objects", func(t *testing.T) {
		if read[10] != read[1_000] {
			t.Errorf("objects read by number of Machines: %v", read)
		}
	})
}
