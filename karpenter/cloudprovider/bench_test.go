// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// machines is a provider whose cache, the real one, holds that many Machines.
func machines(b *testing.B, count int) *machine.Provider {
	b.Helper()
	return machine.New(machine.Config{
		Management: environment.NewFleet(b, count, 1).Management, Namespace: environment.FleetNamespace, ClusterName: environment.FleetCluster,
	})
}

// BenchmarkGet finds a Machine by its provider ID: as fast among 10,000 as among 100.
func BenchmarkGet(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", count), func(b *testing.B) {
			provider := cloudprovider.New(cloudprovider.Config{Machines: machines(b, count)})
			id := fmt.Sprintf("cloud://%d", count/2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := provider.Get(b.Context(), id); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkForNodeClaim finds a NodeClaim's Machine: as fast among 10,000 as among 100.
func BenchmarkForNodeClaim(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", count), func(b *testing.B) {
			provider := machines(b, count)
			uid := types.UID(fmt.Sprintf("uid-%d", count/2))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := provider.ForNodeClaim(b.Context(), uid); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkList lists every machine, as Karpenter's garbage collection does.
func BenchmarkList(b *testing.B) {
	const count = 5_000
	provider := cloudprovider.New(cloudprovider.Config{Machines: machines(b, count)})
	b.ReportAllocs()
	for b.Loop() {
		found, err := provider.List(b.Context())
		if err != nil || len(found) != count {
			b.Fatalf("listed %d: %v", len(found), err)
		}
	}
}
