// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// NodePriceLabel is what eks-node-viewer and tools like it read a node's price from, in US dollars an hour.
const NodePriceLabel = "eks-node-viewer/instance-price"

// Reasons of the NodeClaim's condition Launched while Create is being retried.
const (
	// NodeClassReadinessUnknownReason: the node class hasn't been looked at yet.
	NodeClassReadinessUnknownReason = "NodeClassReadinessUnknown"
	// ClusterUnreadableReason: the CAPI Cluster that the node joins can't be read.
	ClusterUnreadableReason = "ClusterUnreadable"
	// NameTakenReason: an object with the NodeClaim's name exists in the control-plane namespace and isn't ours; it is left
	// alone, and the NodeClaim is replaced after Karpenter's launch timeout.
	NameTakenReason = "NameTaken"
	// ReplacingLeftoverReason: what an earlier attempt made doesn't fit what is wanted now and is being removed.
	ReplacingLeftoverReason = "ReplacingLeftover"
	// MachineNotCreatedReason: the management cluster doesn't take the Machine or one of its children; the message says why.
	MachineNotCreatedReason = "MachineNotCreated"
	// MachinesUncountedReason: the machines that a shape source has haven't been counted since the start, and it has a maximum.
	MachinesUncountedReason = "MachinesUncounted"
	// MachineUnbuildableReason: a template can't be cloned; the message says what is wrong with it.
	MachineUnbuildableReason = "MachineUnbuildable"
)

// launch is what was chosen for a NodeClaim.
type launch struct {
	instanceType *cloudprovider.InstanceType
	choice       instancetype.Choice
	// offering as NodeOverlays have it.
	offering *cloudprovider.Offering
}

// Create makes a Machine for a NodeClaim and returns at once, with a synthetic provider ID and what was resolved. Called
// again for the same NodeClaim, it returns what the first call made.
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	created, err := c.create(ctx, nodeClaim)
	if cloudprovider.IsInsufficientCapacityError(err) || cloudprovider.IsNodeClassNotReadyError(err) {
		c.Inventory.Abandon(ctx, nodeClaim)
	}
	return created, err
}

func (c *CloudProvider) create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return nil, err
	}
	existing, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if err == nil {
		return c.resolved(ctx, nodeClaim, nodeClass, existing)
	}
	if !errors.Is(err, machine.ErrNotFound) {
		return nil, cloudprovider.NewCreateError(err, MachineNotCreatedReason, err.Error())
	}
	chosen, err := c.choose(ctx, nodeClaim, nodeClass)
	if err != nil {
		return nil, err
	}
	plan, err := c.plan(ctx, nodeClaim, nodeClass, chosen)
	if err != nil {
		return nil, err
	}
	created, err := c.Machines.Create(ctx, plan)
	if err != nil {
		return nil, createError(err)
	}
	log.FromContext(ctx).Info("created machine", "Machine", klog.KObj(created), "shape", chosen.choice.Shape.Source.Annotation(),
		"instanceType", chosen.instanceType.Name, "zone", chosen.offering.Zone(), "capacityType", chosen.offering.CapacityType(), "price", chosen.offering.Price)
	return c.resolved(ctx, nodeClaim, nodeClass, created)
}

func (c *CloudProvider) readyNodeClass(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1alpha1.ClusterAPINodeClass, error) {
	if nodeClaim.Spec.NodeClassRef == nil {
		return nil, cloudprovider.NewInsufficientCapacityError(fmt.Errorf("NodeClaim %s names no node class", nodeClaim.Name))
	}
	nodeClass, err := c.nodeClass(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return nil, cloudprovider.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, err
	}
	ready := nodeClass.StatusConditions().Get(status.ConditionReady)
	switch {
	case nodeClass.DeletionTimestamp != nil:
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s is being deleted", nodeClass.Name))
	case nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true":
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: AutoNode is being turned off", nodeClass.Name))
	case ready.IsFalse():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, ready.Message))
	case !ready.IsTrue():
		err := fmt.Errorf("it isn't known yet whether node class %s is ready", nodeClass.Name)
		return nil, cloudprovider.NewCreateError(err, NodeClassReadinessUnknownReason, err.Error())
	}
	return nodeClass, nil
}

// choose finds the cheapest available offering that meets the NodeClaim, and the shape behind it.
func (c *CloudProvider) choose(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass) (launch, error) {
	snapshot, err := c.InstanceTypes.List(ctx, nodeClass)
	if err != nil {
		return launch{}, cloudprovider.NewCreateError(err, NodeClassReadinessUnknownReason, err.Error())
	}
	instanceTypes := snapshot.Tolerating(nodeClaim.Spec.Taints, nodeClaim.Spec.StartupTaints)
	if instanceTypes, err = c.overlaid(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey], instanceTypes); err != nil {
		return launch{}, cloudprovider.NewCreateError(err, NodeClassReadinessUnknownReason, err.Error())
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	for _, candidate := range offering.Cheapest(instanceTypes, requirements, nodeClaim.Spec.Resources.Requests, string(nodeClaim.UID)) {
		key := candidate.Key()
		choice, ok := snapshot.Resolve(key.InstanceType, key.Zone, key.CapacityType)
		if !ok {
			continue
		}
		switch reserved, err := c.reserve(nodeClaim, choice.Shape); {
		case err != nil:
			return launch{}, cloudprovider.NewCreateError(err, MachinesUncountedReason, err.Error())
		case reserved:
			return launch{instanceType: candidate.InstanceType, offering: candidate.Offering, choice: choice}, nil
		}
		// Other launches took the last places since the snapshot was made. Another shape may make the same offering now.
		if now, err := c.InstanceTypes.Cached(nodeClass.Name); err == nil && now != snapshot {
			return c.choose(ctx, nodeClaim, nodeClass)
		}
	}
	return launch{}, cloudprovider.NewInsufficientCapacityError(fmt.Errorf(
		"none of the %d instance types of node class %s has an available offering that meets the requirements of NodeClaim %s",
		len(instanceTypes), nodeClass.Name, nodeClaim.Name))
}

// reserve keeps a place for the NodeClaim among the machines that may be made from a template. False means that there is none left.
func (c *CloudProvider) reserve(nodeClaim *karpv1.NodeClaim, sh *template.Template) (bool, error) {
	most, limited := sh.Maximum()
	if !limited {
		return true, nil
	}
	return c.Inventory.Acquire(nodeClaim.UID, sh.Source.Annotation(), most)
}

func (c *CloudProvider) overlaid(ctx context.Context, nodePool string, instanceTypes []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
	if c.Overlays == nil || !options.FromContext(ctx).FeatureGates.NodeOverlay {
		return instanceTypes, nil
	}
	instanceTypes, err := c.Overlays.ApplyAll(nodePool, instanceTypes)
	if err != nil {
		return nil, fmt.Errorf("applying NodeOverlays: %w", err)
	}
	return instanceTypes, nil
}

func (c *CloudProvider) plan(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, chosen launch) (machine.Plan, error) {
	if kind := machine.Unallowed(nodeClass.Spec.BootstrapPatches, c.AllowedPatches); kind != "" {
		// The node class has just changed, and its condition hasn't yet.
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: the platform doesn't allow its spec.bootstrapPatches for %s", nodeClass.Name, kind))
	}
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: c.Machines.Namespace, Name: c.Machines.ClusterName}
	if err := c.Management.Get(ctx, key, cluster); err != nil {
		err = fmt.Errorf("reading Cluster %s: %w", key, err)
		return machine.Plan{}, cloudprovider.NewCreateError(err, ClusterUnreadableReason, err.Error())
	}
	if cluster.DeletionTimestamp != nil {
		// The node class may not say so yet, or its status not what Karpenter has written there.
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("its Cluster %s is being deleted", key))
	}
	sh := chosen.choice.Shape
	resolved, _ := c.Version(nodeClass, sh)
	switch {
	case resolved.Outcome == version.Unknown:
		err := errors.New(resolved.Message)
		return machine.Plan{}, cloudprovider.NewCreateError(err, NodeClassReadinessUnknownReason, err.Error())
	case !resolved.Ready():
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, resolved.Message))
	}
	plan := machine.Plan{
		NodeClaim:              nodeClaim,
		Cluster:                cluster,
		InfrastructureTemplate: sh.Template,
		BootstrapTemplate:      sh.Bootstrap.ConfigTemplate,
		DataSecretName:         sh.Bootstrap.DataSecretName,
		Version:                resolved.Version,
		FailureDomain:          chosen.choice.FailureDomain,
		NodeLabels:             nodeLabels(nodeClaim, chosen),
		Taints:                 sh.Taints,
		BootstrapPatches:       nodeClass.Spec.BootstrapPatches,
		Kubelet:                nodeClass.Spec.Kubelet,
		JoinWithin:             nodeClass.Spec.Deadlines.LaunchOrDefault() + nodeClass.Spec.Deadlines.RegistrationOrDefault(),
		MaxPods:                int32(min(chosen.choice.InstanceType.Capacity.Pods().Value(), 1<<30)),
		Labels:                 map[string]string{},
		Annotations: map[string]string{
			v1alpha1.NodeClassHashAnnotation:        drift.Hash(nodeClass),
			v1alpha1.NodeClassHashVersionAnnotation: drift.HashVersion,
			v1alpha1.ShapeHashAnnotation:            sh.ContentHash,
			v1alpha1.BootstrapHashAnnotation:        sh.Bootstrap.Hash,
			v1alpha1.ShapeSourceAnnotation:          sh.Source.Annotation(),
			priceAnnotation:                         formatPrice(chosen.offering.Price),
		},
	}
	for key, revision := range map[string]string{
		v1alpha1.ShapeRevisionAnnotation: sh.Revision(), v1alpha1.BootstrapRevisionAnnotation: sh.Bootstrap.Revision(),
	} {
		if revision != "" {
			plan.Annotations[key] = revision
		}
	}
	plan.Images = c.Images.For(plan.Version, sh.Arch)
	if sh.Bootstrap.ConfigTemplate != nil {
		if hash, _ := machine.ImagesHash(plan.BootstrapPatches, sh.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind(), plan.Images); hash != "" {
			plan.Annotations[v1alpha1.NodeImagesHashAnnotation] = hash
		}
	}
	if sh.Machine != nil {
		// Ours win: they decide whose the Machine is.
		plan.Labels = maps.Clone(sh.Machine.Labels)
		merged := maps.Clone(sh.Machine.Annotations)
		if merged == nil {
			merged = map[string]string{}
		}
		maps.Copy(merged, plan.Annotations)
		plan.Annotations = merged
		plan.Deletion = sh.Machine.Spec.Deletion
		plan.MachineTaints = sh.Machine.Spec.Taints
		plan.MinReadySeconds = sh.Machine.Spec.MinReadySeconds
		plan.ReadinessGates = sh.Machine.Spec.ReadinessGates
	}
	return plan, nil
}

// priceAnnotation keeps what a machine was expected to cost when it was chosen.
const priceAnnotation = v1alpha1.PriceAnnotation

// nodeLabels are what a node has: what was resolved, then what the shape says, and above all what the NodeClaim says.
func nodeLabels(nodeClaim *karpv1.NodeClaim, chosen launch) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, chosen.choice.Shape.Labels)
	for _, requirements := range []scheduling.Requirements{chosen.instanceType.Requirements, chosen.offering.Requirements} {
		for key, requirement := range requirements {
			if requirement.Operator() == corev1.NodeSelectorOpIn && requirement.Len() == 1 {
				labels[key] = requirement.Any()
			}
		}
	}
	labels[NodePriceLabel] = formatPrice(chosen.offering.Price)
	maps.Copy(labels, nodeClaim.Labels)
	return labels
}

func formatPrice(price float64) string {
	return strconv.FormatFloat(price, 'f', -1, 64)
}

// resolved is what Create tells Karpenter: what the Machine that there is was made as, whatever would be chosen now.
func (c *CloudProvider) resolved(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, m *clusterv1.Machine) (*karpv1.NodeClaim, error) {
	if m.DeletionTimestamp != nil {
		// Somebody deletes it, and it won't come back: the pods need another claim.
		return nil, cloudprovider.NewInsufficientCapacityError(fmt.Errorf("its Machine %s is being deleted", klog.KObj(m)))
	}
	key := offering.Key{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
		Zone:         m.Labels[corev1.LabelTopologyZone],
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
	}
	result := nodeClaimOf(m)
	result.Status.ProviderID = machine.SyntheticProviderID(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
	for _, annotation := range []string{v1alpha1.NodeClassHashAnnotation, v1alpha1.NodeClassHashVersionAnnotation} {
		if value := m.Annotations[annotation]; value != "" {
			result.Annotations[annotation] = value
		}
	}
	choice, ok, err := c.InstanceTypes.Resolve(nodeClass.Name, key.InstanceType, key.Zone, key.CapacityType)
	if err != nil || !ok {
		// What it was made as isn't offered any more. The Machine is there all the same; its node tells the rest, and until
		// then it is taken to hold what it was made for.
		result.Status.Capacity = nonZero(nodeClaim.Spec.Resources.Requests)
		result.Status.Allocatable = result.Status.Capacity
		return result, nil //nolint:nilerr // see above
	}
	chosen := launch{instanceType: choice.InstanceType, offering: choice.Offering, choice: choice}
	if overlaid, err := c.overlaid(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey], []*cloudprovider.InstanceType{choice.InstanceType}); err == nil && len(overlaid) == 1 {
		chosen.instanceType = overlaid[0]
		for _, o := range overlaid[0].Offerings {
			if o.Zone() == key.Zone && o.CapacityType() == key.CapacityType {
				chosen.offering = o
			}
		}
	}
	result.Labels = nodeLabels(nodeClaim, chosen)
	result.Status.Capacity = nonZero(chosen.instanceType.Capacity)
	result.Status.Allocatable = nonZero(chosen.instanceType.Allocatable())
	return result, nil
}

func nonZero(list corev1.ResourceList) corev1.ResourceList {
	result := corev1.ResourceList{}
	for name, quantity := range list {
		if !resources.IsZero(quantity) {
			result[name] = quantity
		}
	}
	return result
}

// createError tells Karpenter why a Machine couldn't be made. It tries again, with a back-off.
func createError(err error) error {
	reason := MachineNotCreatedReason
	var unbuildable *machine.BuildError
	switch {
	case errors.Is(err, machine.ErrTaken):
		reason = NameTakenReason
	case errors.Is(err, machine.ErrLeftover):
		reason = ReplacingLeftoverReason
	case errors.Is(err, machine.ErrPaused):
		reason = v1alpha1.ClusterPausedReason
	case errors.As(err, &unbuildable):
		reason = MachineUnbuildableReason
	}
	return cloudprovider.NewCreateError(err, reason, err.Error())
}
