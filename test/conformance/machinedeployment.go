// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// machineDeployment is Cluster API without a Karpenter: its controllers make the machines of a MachineDeployment, whose replicas the
// measurement sets.
type machineDeployment struct{ *clusterAPI }

func newMachineDeployment(management *controlplane.Cluster, dir string) (*machineDeployment, error) {
	base, err := newClusterAPI("", management, dir)
	return &machineDeployment{base}, err
}

// start creates the MachineDeployment, without replicas. The follower watches NodeClaims in every guest, so their CRD has to be there.
func (p *machineDeployment) start(ctx context.Context, _ setup, guest *controlplane.Cluster, c client.Client) (runner, error) {
	if err := crd.Install(ctx, c, missing(nil)...); err != nil {
		return runner{}, err
	}
	if err := p.client.Create(ctx, hosting.Workers(guest, 0)); err != nil {
		return runner{}, fmt.Errorf("creating a MachineDeployment: %w", err)
	}
	return runner{}, nil
}

func (p *machineDeployment) defaults() [][]byte { return nil }

// ask asks for the nodes of a size: by pods that need them, or by replicas of the MachineDeployment.
func (m *subject) ask(ctx context.Context, size Size) error {
	if m.workers != nil {
		return m.scale(ctx, size.Nodes)
	}
	for _, deployment := range size.deployments(m.small) {
		if err := m.guest.Create(ctx, deployment); err != nil {
			return fmt.Errorf("asking for pods: %w", err)
		}
	}
	return nil
}

// release takes that back.
func (m *subject) release(ctx context.Context, size Size) error {
	if m.workers != nil {
		return m.scale(ctx, 0)
	}
	for _, deployment := range size.deployments(m.small) {
		if err := m.guest.Delete(ctx, deployment, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			return fmt.Errorf("removing the pods: %w", err)
		}
	}
	return nil
}

func (m *subject) scale(ctx context.Context, replicas int) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := m.management.Patch(ctx, m.workers, patch); err != nil {
		return fmt.Errorf("scaling the MachineDeployment: %w", err)
	}
	return nil
}
