// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// reboot ends a Machine's remediation when Karpenter core has seen that the node rebooted and rejoined. Otherwise the infrastructure
// provider would reboot it again, and then give it up.
type reboot struct{ Config }

func (r *reboot) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if !machine.RebootRequested(m) || nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRebooting).IsTrue() {
		return outcome{}, nil
	}
	// The NodeClaim was read before its Machine, and may have been given a reboot in between.
	live := &karpv1.NodeClaim{}
	if err := r.GuestLive.Get(ctx, client.ObjectKeyFromObject(nodeClaim), live); err != nil {
		return outcome{}, client.IgnoreNotFound(fmt.Errorf("reading NodeClaim %s: %w", nodeClaim.Name, err))
	}
	if live.UID != nodeClaim.UID || live.StatusConditions().Get(karpv1.ConditionTypeRebooting).IsTrue() {
		return outcome{}, nil
	}
	paused, err := r.Machines.Paused(ctx)
	if err != nil {
		return outcome{}, err
	}
	if paused {
		return outcome{requeueAfter: pausedInterval}, nil
	}
	if err := r.Machines.EndReboot(ctx, m); err != nil {
		return outcome{}, err
	}
	log.FromContext(ctx).Info("ended the machine's remediation after its reboot")
	return outcome{}, nil
}

// pausedInterval is the requeue interval while the Cluster is paused: this controller doesn't watch it.
const pausedInterval = time.Minute
