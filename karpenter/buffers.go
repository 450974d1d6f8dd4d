// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"sync"

	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// moveBuffers returns what has Karpenter remember the capacity buffers of a node whose provider ID changes. It counts them by
// provider ID in each scheduling pass, and for as long as there is no other pass, a node that it can't find there is empty to it.
func moveBuffers(cluster *state.Cluster) func(from, to string) {
	var mu sync.Mutex
	return func(from, to string) {
		mu.Lock()
		defer mu.Unlock()
		moving := cluster.BufferPodCount(from)
		if moving == 0 {
			return
		}
		counts := map[string]int{to: moving}
		for node := range cluster.Nodes() {
			id := node.ProviderID()
			if count := cluster.BufferPodCount(id); count > 0 {
				counts[id] = count
			}
		}
		cluster.UpdateBufferPodCounts(counts)
	}
}
