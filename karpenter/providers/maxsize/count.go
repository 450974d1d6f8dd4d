// SPDX-License-Identifier: Apache-2.0

package maxsize

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// Watch returns a ledger that counts the Machines in a cache that owns accepts. The ledger follows them from then on, on replicas
// that don't lead too.
func Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool, clk clock.PassiveClock) (*Ledger, error) {
	follower := &machine.Follower{}
	ledger := NewLedger(clk, follower.Complete)
	observe := func(nodeClaim types.UID, m *clusterv1.Machine) {
		ledger.Observe(nodeClaim, m.Annotations[v1alpha1.ShapeSourceAnnotation])
	}
	if err := follower.Start(ctx, management, owns, observe, ledger.Forget); err != nil {
		return nil, err
	}
	return ledger, nil
}
