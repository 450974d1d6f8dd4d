// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/clusterstatus"
)

// Reasons of ConditionMachineProvisioned while it isn't True.
const (
	// ClusterNotReadyReason: the infrastructure of the Cluster isn't ready; the message has the infrastructure provider's sentence.
	ClusterNotReadyReason = "ClusterNotReady"
	// awaitingMachineReason: the infrastructure of the Cluster is ready again, and the machine is still to come.
	awaitingMachineReason = "AwaitingMachine"
)

// clusterReady reports on the NodeClaim of a machine that hasn't come why the Cluster's infrastructure isn't ready: the provider reports
// nothing on the machine before it has a session. It writes nothing while the infrastructure is ready.
type clusterReady struct{ Config }

func (r *clusterReady) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if r.provisioned(ctx, m) || nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		return outcome{}, nil
	}
	notReady, err := r.notReady(ctx)
	if err != nil {
		return outcome{}, err
	}
	conditions := nodeClaim.StatusConditions(status.WithClock(r.Clock))
	current := conditions.Get(ConditionMachineProvisioned)
	stored := nodeClaim.DeepCopy()
	switch said := current != nil && current.Reason == ClusterNotReadyReason; {
	case notReady != "" && (!said || current.Message != notReady):
		conditions.SetFalse(ConditionMachineProvisioned, ClusterNotReadyReason, notReady)
	case notReady == "" && said:
		conditions.SetUnknownWithReason(ConditionMachineProvisioned, awaitingMachineReason, "the infrastructure of the Cluster is ready again")
	default:
		return outcome{}, nil
	}
	return r.patchStatus(ctx, nodeClaim, stored)
}

// notReady returns why the infrastructure of the Cluster isn't ready; empty if it is, or there is no Cluster.
func (c Config) notReady(ctx context.Context) (string, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: c.Machines.Namespace, Name: c.Machines.ClusterName}
	if err := c.Machines.Management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	return clusterstatus.NotReady(cluster), nil
}
