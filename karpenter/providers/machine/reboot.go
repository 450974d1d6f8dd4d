// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// RequestReboot annotates a Machine that is shared with the cache, so that a MachineHealthCheck has it rebooted.
func (p *Provider) RequestReboot(ctx context.Context, machine *clusterv1.Machine, operationID string) error {
	if machine.Annotations[v1alpha1.RebootAnnotation] == operationID {
		return nil
	}
	return p.Annotate(ctx, machine, map[string]string{clusterv1.RemediateMachineAnnotation: "", v1alpha1.RebootAnnotation: operationID})
}

// RebootRequested reports whether a Machine is annotated for a reboot.
func RebootRequested(machine *clusterv1.Machine) bool {
	_, requested := machine.Annotations[v1alpha1.RebootAnnotation]
	return requested
}

// EndReboot removes the annotations of RequestReboot: the MachineHealthCheck takes the Machine for healthy, and deletes the remediation.
// While the Cluster is paused it writes nothing.
func (p *Provider) EndReboot(ctx context.Context, machine *clusterv1.Machine) error {
	paused, err := p.Paused(ctx)
	if err != nil || paused {
		return err
	}
	patched := machine.DeepCopy()
	delete(patched.Annotations, clusterv1.RemediateMachineAnnotation)
	delete(patched.Annotations, v1alpha1.RebootAnnotation)
	if err := p.Management.Patch(ctx, patched, client.MergeFrom(machine), FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("ending the reboot of Machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}
