// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/assets/infrastructure"
)

// Reboot requests a reboot of a NodeClaim's machine in place, as Cluster API has it: it annotates the Machine for remediation. A
// MachineHealthCheck of the platform then makes the infrastructure provider's remediation object, one at a time for a Machine, so that
// repeated calls are one reboot. Controller nodeclaim ends the request when Karpenter core has seen the new boot.
func (c *CloudProvider) Reboot(ctx context.Context, nodeClaim *karpv1.NodeClaim, operationID string) error {
	found, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if err != nil {
		return wrapped(err, "rebooting the machine of NodeClaim "+nodeClaim.Name)
	}
	kind := c.Profiles.For(found.Spec.InfrastructureRef.GroupKind())
	if !kind.Reboots() {
		return karpcloudprovider.NewNodeRebootNotImplementedError()
	}
	if err := c.healthChecked(ctx, found, kind); err != nil {
		return err
	}
	paused, err := c.Machines.Paused(ctx)
	if err != nil {
		return fmt.Errorf("rebooting Machine %s: %w", klog.KObj(found), err)
	}
	if paused {
		return fmt.Errorf("rebooting Machine %s: Cluster %s is paused", klog.KObj(found), found.Spec.ClusterName)
	}
	return c.Machines.RequestReboot(ctx, found, operationID)
}

// healthChecked returns why no MachineHealthCheck would have a Machine rebooted, or nil. One that has no template of remediations, or one
// of another kind, would have the Machine replaced at the same time.
func (c *CloudProvider) healthChecked(ctx context.Context, m *clusterv1.Machine, kind infrastructure.Kind) error {
	checks := &clusterv1.MachineHealthCheckList{}
	if err := c.ManagementLive.List(ctx, checks, client.InNamespace(m.Namespace)); err != nil {
		err = fmt.Errorf("listing MachineHealthChecks: %w", err)
		if apierrors.IsForbidden(err) {
			return karpcloudprovider.NewNodeRebootFailedError(err)
		}
		return err
	}
	selected := false
	for i := range checks.Items {
		check := &checks.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&check.Spec.Selector)
		if err != nil || check.Spec.ClusterName != m.Spec.ClusterName || check.DeletionTimestamp != nil ||
			!selector.Matches(labels.Set(m.Labels)) {
			continue
		}
		if ref := check.Spec.Remediation.TemplateRef; !ref.IsDefined() || !kind.RebootsBy(ref.GroupVersionKind().GroupKind()) {
			return karpcloudprovider.NewNodeRebootFailedError(fmt.Errorf(
				"MachineHealthCheck %s selects Machine %s, and its spec.remediation.templateRef is no template of reboots",
				klog.KObj(check), klog.KObj(m)))
		}
		selected = true
	}
	if !selected {
		return karpcloudprovider.NewNodeRebootFailedError(fmt.Errorf(
			"no MachineHealthCheck of Cluster %s selects Machine %s", m.Spec.ClusterName, klog.KObj(m)))
	}
	return nil
}
