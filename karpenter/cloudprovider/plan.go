// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// plan describes the machine of a chosen launch.
func (c *CloudProvider) plan(
	nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, cluster *clusterv1.Cluster, chosen *launch,
) (machine.Plan, error) {
	tmpl, labels := chosen.choice.Template, maps.Clone(chosen.labels)
	release := upgradeplan.Release{}
	if c.Release != nil && nodeClass.Spec.Version == "" && tmpl.Version() == "" {
		release = c.Release(nodeClaim)
	}
	resolved, _ := c.Version(release.Version, nodeClass, tmpl)
	switch {
	case resolved.Outcome == version.Unknown:
		return machine.Plan{}, because(NodeClassReadinessUnknownReason, errors.New(resolved.Message))
	case !resolved.Ready():
		return machine.Plan{}, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, resolved.Message))
	}
	plan := machine.Plan{
		NodeClaim:        nodeClaim,
		Cluster:          cluster,
		Template:         *tmpl,
		Version:          resolved.Version,
		FailureDomain:    chosen.choice.FailureDomain,
		NodeLabels:       labels,
		BootstrapPatches: nodeClass.Spec.BootstrapPatches,
		Kubelet:          tmpl.Kubelet(nodeClass.Spec.Kubelet),
		JoinWithin:       nodeClass.Spec.Deadlines.LaunchOrDefault() + nodeClass.Spec.Deadlines.RegistrationOrDefault(),
		MaxPods:          int32(min(chosen.choice.InstanceType.Capacity.Pods().Value(), 1<<30)),
		Annotations: map[string]string{
			v1alpha1.NodeClassHashAnnotation:        nodeClass.Hash(),
			v1alpha1.NodeClassHashVersionAnnotation: v1alpha1.NodeClassHashVersion,
			v1alpha1.TemplateHashAnnotation:         tmpl.ContentHash,
			v1alpha1.BootstrapHashAnnotation:        tmpl.Bootstrap.Hash,
		},
	}
	maps.Copy(plan.Annotations, chosen.facts())
	plan.Images = c.Images.ForRelease(release.Image, plan.Version, tmpl.Arch)
	imagesHash, _ := machine.ImagesHash(plan.BootstrapPatches, tmpl, plan.Images)
	imageVersion, zone := tmpl.ImageVersion, ""
	if tmpl.ObservedImage {
		imageVersion = "" // its nodes have reported it, the source states none
	}
	if chosen.choice.Zoneless {
		// Neither the machine nor its kubelet may claim a zone: a cloud controller manager sets the Node's.
		delete(labels, corev1.LabelTopologyZone)
		zone = chosen.offering.Zone()
	}
	for key, value := range map[string]string{
		v1alpha1.TemplateRevisionAnnotation: tmpl.Revision(), v1alpha1.BootstrapRevisionAnnotation: tmpl.Bootstrap.Revision(),
		v1alpha1.TemplateOwnedHashAnnotation: tmpl.OwnedHash, v1alpha1.BootstrapOwnedHashAnnotation: tmpl.Bootstrap.OwnedHash,
		v1alpha1.TemplateKubernetesVersionAnnotation: imageVersion, v1alpha1.ReplacesAnnotation: chosen.choice.Replaces,
		v1alpha1.OfferingZoneAnnotation: zone, v1alpha1.NodeImagesHashAnnotation: imagesHash,
		v1alpha1.ReleaseAnnotation: release.Image,
	} {
		if value != "" {
			plan.Annotations[key] = value
		}
	}
	return plan, nil
}

// facts are the annotations by which a Machine is counted.
func (l *launch) facts() map[string]string {
	return map[string]string{
		v1alpha1.TemplateSourceAnnotation: l.choice.Template.Source.Annotation(),
		v1alpha1.PriceAnnotation:          l.price(),
		v1alpha1.MachineSizeAnnotation: annotation.FormatMachineSize(capacity.Priced{
			Machine: capacityprovider.MachineOf(l.choice.Key, l.choice.Template), Price: l.choice.ListPrice, OnDemand: l.onDemand,
		}),
	}
}
