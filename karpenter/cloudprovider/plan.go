// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity/conversion"
	"github.com/autonode-io/autonode/clusterstatus"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

func (c *CloudProvider) plan(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, chosen launch) (machine.Plan, error) {
	if kind := machine.Unallowed(nodeClass.Spec.BootstrapPatches, c.AllowedPatches); kind != "" {
		// The node class has just changed, and its condition hasn't caught up.
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: the platform doesn't allow its spec.bootstrapPatches for %s", nodeClass.Name, kind))
	}
	if problems := c.KubeletBounds.Problems(nodeClass.Spec.Kubelet); len(problems) > 0 {
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: spec.kubelet.%s", nodeClass.Name, problems[0]))
	}
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: c.Machines.Namespace, Name: c.Machines.ClusterName}
	if err := c.Management.Get(ctx, key, cluster); err != nil {
		err = fmt.Errorf("reading Cluster %s: %w", key, err)
		return machine.Plan{}, because(ClusterUnreadableReason, err)
	}
	if cluster.DeletionTimestamp != nil {
		// The node class's status may lag, or a user may have overwritten it.
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("its Cluster %s is being deleted", key))
	}
	if notReady := clusterstatus.NotReady(cluster); notReady != "" && (!clusterstatus.Provisioned(cluster) || c.InstanceTypes.Inventory.Pending() > 0) {
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(errors.New(notReady))
	}
	tmpl := chosen.choice.Template
	labels := nodeLabels(nodeClaim, chosen)
	resolved, _ := c.Version(nodeClass, tmpl)
	switch {
	case resolved.Outcome == version.Unknown:
		err := errors.New(resolved.Message)
		return machine.Plan{}, because(NodeClassReadinessUnknownReason, err)
	case !resolved.Ready():
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, resolved.Message))
	}
	plan := machine.Plan{
		NodeClaim:              nodeClaim,
		Cluster:                cluster,
		InfrastructureTemplate: tmpl.Infrastructure,
		InfrastructurePatches:  tmpl.Patches,
		PatchesFrom:            tmpl.PatchesFrom(),
		BootstrapTemplate:      tmpl.Bootstrap.ConfigTemplate,
		DataSecretName:         tmpl.Bootstrap.DataSecretName,
		Version:                resolved.Version,
		FailureDomain:          chosen.choice.FailureDomain,
		NodeLabels:             labels,
		Taints:                 tmpl.Taints,
		BootstrapPatches:       nodeClass.Spec.BootstrapPatches,
		Kubelet:                tmpl.Kubelet(nodeClass.Spec.Kubelet),
		JoinWithin:             nodeClass.Spec.Deadlines.LaunchOrDefault() + nodeClass.Spec.Deadlines.RegistrationOrDefault(),
		MaxPods:                int32(min(chosen.choice.InstanceType.Capacity.Pods().Value(), 1<<30)),
		Labels:                 map[string]string{},
		Annotations: map[string]string{
			v1alpha1.NodeClassHashAnnotation:        nodeClass.Hash(),
			v1alpha1.NodeClassHashVersionAnnotation: v1alpha1.NodeClassHashVersion,
			v1alpha1.TemplateHashAnnotation:         tmpl.ContentHash,
			v1alpha1.BootstrapHashAnnotation:        tmpl.Bootstrap.Hash,
			v1alpha1.TemplateSourceAnnotation:       tmpl.Source.Annotation(),
			v1alpha1.PriceAnnotation:                formatPrice(chosen.price()),
			v1alpha1.MachineSizeAnnotation: conversion.FormatMachineSize(
				capacityprovider.MachineOf(chosen.choice.Key, tmpl),
				conversion.MachinePrices{List: chosen.choice.ListPrice, OnDemand: chosen.onDemand}),
		},
	}
	for key, revision := range map[string]string{
		v1alpha1.TemplateRevisionAnnotation: tmpl.Revision(), v1alpha1.BootstrapRevisionAnnotation: tmpl.Bootstrap.Revision(),
		v1alpha1.TemplateOwnedHashAnnotation: tmpl.OwnedHash, v1alpha1.BootstrapOwnedHashAnnotation: tmpl.Bootstrap.OwnedHash,
		v1alpha1.TemplateKubernetesVersionAnnotation: stated(tmpl), v1alpha1.ReplacesAnnotation: chosen.choice.Replaces,
	} {
		if revision != "" {
			plan.Annotations[key] = revision
		}
	}
	if chosen.choice.Zoneless {
		// Neither the machine nor its kubelet may claim a zone: a cloud controller manager sets the Node's.
		delete(labels, corev1.LabelTopologyZone)
		plan.Annotations[v1alpha1.OfferingZoneAnnotation] = chosen.offering.Zone()
	}
	plan.Images = c.Images.For(plan.Version, tmpl.Arch)
	if hash, _ := machine.ImagesHash(plan.BootstrapPatches, tmpl, plan.Images); hash != "" {
		plan.Annotations[v1alpha1.NodeImagesHashAnnotation] = hash
	}
	if tmpl.Machine != nil {
		// Our labels win: they define the Machine's owner.
		plan.Labels = maps.Clone(tmpl.Machine.Labels)
		merged := maps.Clone(tmpl.Machine.Annotations)
		if merged == nil {
			merged = map[string]string{}
		}
		maps.Copy(merged, plan.Annotations)
		plan.Annotations = merged
		plan.Deletion = tmpl.Machine.Spec.Deletion
		plan.MachineTaints = tmpl.Machine.Spec.Taints
		plan.MinReadySeconds = tmpl.Machine.Spec.MinReadySeconds
		plan.ReadinessGates = tmpl.Machine.Spec.ReadinessGates
	}
	return plan, nil
}

// stated is the version of the image that a template's source states; empty for one that its nodes have reported.
func stated(tmpl *template.Template) string {
	if tmpl.ObservedImage {
		return ""
	}
	return tmpl.ImageVersion
}
