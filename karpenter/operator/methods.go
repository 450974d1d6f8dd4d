// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
)

// Vacate answers methods.TerminateFirstConfig.Vacate.
func (p *Providers) Vacate(ctx context.Context, nodeClaim *karpv1.NodeClaim) (context.Context, methods.Full, bool) {
	vacated, full, ok := p.CloudProvider.Vacate(ctx, nodeClaim)
	return vacated, methods.Full{Host: full&instancetype.FullHosts != 0, Source: full&instancetype.FullSource != 0}, ok
}
