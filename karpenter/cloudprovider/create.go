// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	fleet "github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// settleTimeout is how long a launch waits for what isn't known right after Karpenter has started, or a node class has
// changed: that takes less than a second, and another NodeClaim would be ten seconds later.
const (
	settleTimeout  = 2 * time.Second
	settleInterval = 100 * time.Millisecond
)

// abandonTimeout is how long a launch that has failed waits for the API server's answer whether it has a Machine.
const abandonTimeout = 2 * time.Second

// launch is what Create chose for a NodeClaim.
type launch struct {
	instanceType *cloudprovider.InstanceType
	choice       instancetype.Choice
	// offering after NodeOverlays.
	offering *cloudprovider.Offering
	// onDemand is the list price of the same machine on demand; zero if it isn't known.
	onDemand float64
}

// key identifies the offering.
func (l launch) key() offering.Key { return offering.KeyOf(l.instanceType.Name, l.offering) }

// price is the machine's, without commitments: those are the account's matter, and change.
func (l launch) price() float64 {
	if l.offering.Price == l.choice.Offering.Price {
		return l.choice.ListPrice
	}
	return l.offering.Price // a NodeOverlay's
}

// Create creates a Machine for a NodeClaim and returns at once, with a synthetic provider ID and the chosen offering.
// A second call for the same NodeClaim returns the first call's Machine.
//
// Karpenter schedules no pod of any NodePool while a NodeClaim has no provider ID, so what a launch would have to wait for
// ends it: the error is an InsufficientCapacityError or a NodeClassNotReadyError, by which Karpenter deletes the NodeClaim
// and plans again for its pods. Only if the management cluster doesn't answer, so that no launch succeeds, it is a
// CreateError, which Karpenter retries.
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	created, err := c.create(ctx, nodeClaim)
	for began := time.Now(); isUnsettled(err) && time.Since(began) < settleTimeout && pause(ctx, settleInterval); {
		created, err = c.create(ctx, nodeClaim)
	}
	if err == nil {
		return created, nil
	}
	if ctx.Err() != nil || isUnanswered(err) {
		return nil, cloudprovider.NewCreateError(err, ManagementUnreachableReason, err.Error())
	}
	abandoning, cancel := context.WithTimeout(ctx, abandonTimeout)
	defer cancel()
	c.Inventory.Abandon(abandoning, nodeClaim)
	if isWaiting(err) {
		c.Capacity.Leave(nodeClaim.Name)
	} else {
		c.Capacity.Abandon(nodeClaim.Name)
	}
	return nil, c.ended(nodeClaim, err)
}

// pause waits, and reports whether the context is still valid.
func pause(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *CloudProvider) create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return nil, err
	}
	switch existing, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID); {
	case err == nil:
		return c.answerExisting(ctx, nodeClaim, nodeClass, existing)
	case !errors.Is(err, machine.ErrNotFound):
		return nil, because(MachineNotCreatedReason, err)
	}
	if err := c.Capacity.Open(ctx); err != nil {
		return nil, because(CapacityLeaseUnreadReason, err)
	}
	chosen, err := c.choose(ctx, nodeClaim, nodeClass)
	if err != nil {
		return nil, err
	}
	defer c.Capacity.Done(nodeClaim.Name)
	plan, err := c.plan(ctx, nodeClaim, nodeClass, chosen)
	if err != nil {
		return nil, err
	}
	created, err := c.Machines.Create(ctx, plan)
	if err != nil {
		return nil, c.notCreated(nodeClaim, chosen, err)
	}
	c.Rejections.Works(nodePoolOf(nodeClaim), chosen.key())
	if !chosen.made(created) {
		// An earlier attempt created it from another choice, and the cache hasn't seen it.
		return c.answerExisting(ctx, nodeClaim, nodeClass, created)
	}
	log.FromContext(ctx).Info("created machine", "Machine", klog.KObj(created), "template", chosen.choice.Template.Source.Annotation(),
		"instanceType", chosen.instanceType.Name, "zone", chosen.offering.Zone(), "capacityType", chosen.offering.CapacityType(), "price", chosen.offering.Price)
	return answer(nodeClaim, created, &chosen)
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
	case ready != nil && ready.ObservedGeneration != nodeClass.Generation:
		// The templates, too, may be those that an earlier spec selected.
		err := fmt.Errorf("node class %s has changed and isn't evaluated yet", nodeClass.Name)
		return nil, because(NodeClassReadinessUnknownReason, err)
	case ready.IsFalse():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, ready.Message))
	case !ready.IsTrue():
		err := fmt.Errorf("it isn't known yet whether node class %s is ready", nodeClass.Name)
		return nil, because(NodeClassReadinessUnknownReason, err)
	}
	return nodeClass, nil
}

// grantTimeout is how long a launch waits for a larger grant before Karpenter deletes the NodeClaim and plans again.
const grantTimeout = 2 * time.Second

// choose returns the cheapest available offering that meets the NodeClaim's requirements, and its template. If
// concurrent launches use up the template's maximum, another template may make the same offering, so it retries with
// a newer snapshot, and so it does once if a larger grant of the CapacityLease was asked for.
func (c *CloudProvider) choose(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass) (launch, error) {
	for waited := false; ; {
		snapshot, err := c.InstanceTypes.List(ctx, nodeClass)
		if err != nil {
			return launch{}, because(NodeClassReadinessUnknownReason, err)
		}
		chosen, stale, err := c.cheapest(ctx, nodeClaim, nodeClass, snapshot)
		if isWaiting(err) && !waited {
			waited = true
			c.Capacity.Await(ctx, grantTimeout)
			continue
		}
		if err == nil && !stale {
			chosen.onDemand = snapshot.OnDemandPrice(chosen.instanceType.Name, chosen.offering.Zone())
		}
		if err != nil || !stale {
			return chosen, err
		}
	}
}

// cheapest chooses from a snapshot. It reports a stale snapshot if it offers a template that has reached its maximum.
func (c *CloudProvider) cheapest(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot) (chosen launch, stale bool, err error) {
	instanceTypes := snapshot.Tolerating(nodeClaim.Spec.Taints, nodeClaim.Spec.StartupTaints)
	if instanceTypes, err = c.meeting(ctx, nodeClaim, snapshot, instanceTypes); err != nil {
		return launch{}, false, err
	}
	if instanceTypes, err = c.overlaid(ctx, nodePoolOf(nodeClaim), instanceTypes); err != nil {
		return launch{}, false, because(NodeClassReadinessUnknownReason, err)
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	ungranted := ""
	for candidate := range snapshot.Cheapest(instanceTypes, requirements, nodeClaim.Spec.Resources.Requests, string(nodeClaim.UID)) {
		key := candidate.Key()
		if _, rejected := c.Rejections.Entry(nodePoolOf(nodeClaim), key); rejected {
			continue
		}
		resolved, ok := snapshot.ResolveKey(key)
		if !ok {
			continue
		}
		choice, ok := snapshot.For(resolved, nodeClaim, requirements)
		if !ok {
			continue
		}
		if choice.Template != resolved.Template {
			candidate.Offering = choice.Offering
		}
		needed := machineOf(choice, key)
		if !c.Capacity.Fits(nodeClaim.Name, needed) {
			since, possible := c.Capacity.Request(nodeClaim.Name, needed)
			switch {
			case possible && c.Capacity.Clock.Since(since) < capacity.GrantWait:
				return launch{}, false, c.ungranted(needed)
			case possible:
				ungranted = fmt.Sprintf("; the operator hasn't granted more of %s within %s", c.Capacity.Lacking(needed), capacity.GrantWait)
				c.Capacity.Doubt(needed)
			case ungranted == "" && c.isStale(nodeClass, snapshot):
				return launch{}, true, nil
			}
			continue
		}
		switch reserved, err := c.reserve(nodeClaim, choice); {
		case err != nil:
			return launch{}, false, because(MachinesUncountedReason, err)
		case reserved && c.Capacity.Spend(nodeClaim.Name, needed):
			return launch{instanceType: candidate.InstanceType, offering: candidate.Offering, choice: choice}, false, nil
		}
		if c.isStale(nodeClass, snapshot) {
			return launch{}, true, nil
		}
	}
	if pools := c.Capacity.Exhausted(); pools != "" && ungranted == "" {
		ungranted = "; the hosted cluster's CapacityLease leaves nothing of " + pools
	}
	return launch{}, false, cloudprovider.NewInsufficientCapacityError(fmt.Errorf(
		"none of the %d instance types of node class %s has an available offering that meets the requirements of NodeClaim %s%s",
		len(instanceTypes), nodeClass.Name, nodeClaim.Name, ungranted))
}

// isStale reports whether there is a newer snapshot.
func (c *CloudProvider) isStale(nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot) bool {
	now, err := c.InstanceTypes.Cached(nodeClass.Name)
	return err == nil && now != snapshot
}

// machineOf returns what a choice's machine takes from the CapacityLease.
func machineOf(choice instancetype.Choice, key offering.Key) fleet.Machine {
	return capacity.MachineOf(key, choice.Template)
}

// ungranted says what a launch waits for.
func (c *CloudProvider) ungranted(m fleet.Machine) error {
	err := fmt.Errorf("the hosted cluster's CapacityLease has too little left of %s for instance type %s; waiting for the operator to grant more",
		c.Capacity.Lacking(m), m.InstanceType)
	return because(WaitingForCapacityReason, err)
}

// meeting leaves out the instance types that the NodeClaim's NodePool doesn't get, as GetInstanceTypes does.
func (c *CloudProvider) meeting(ctx context.Context, nodeClaim *karpv1.NodeClaim, snapshot *instancetype.Snapshot, instanceTypes []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
	nodePool := &karpv1.NodePool{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: nodePoolOf(nodeClaim)}, nodePool)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the NodePool of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	meeting, _ := snapshot.Meeting(instanceTypes, nodePool.Spec.Template.Spec.Requirements)
	return meeting, nil
}

// reserve reserves one of a template's machines, and one of a reservation's, for the NodeClaim. It returns false if the template has
// reached its maximum or the reservation is used up.
func (c *CloudProvider) reserve(nodeClaim *karpv1.NodeClaim, choice instancetype.Choice) (bool, error) {
	if choice.Reservation != "" {
		if acquired, err := c.Inventory.AcquireReserved(nodeClaim.UID, choice.Reservation, choice.ReservationCount); !acquired || err != nil {
			return false, err
		}
	}
	tmpl := choice.Template
	most, limited := tmpl.Maximum()
	if !limited {
		return true, nil
	}
	return c.Inventory.Acquire(nodeClaim.UID, tmpl.Source.Annotation(), most)
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
		// The node class has just changed, and its condition hasn't caught up.
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: the platform doesn't allow its spec.bootstrapPatches for %s", nodeClass.Name, kind))
	}
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: c.Machines.Namespace, Name: c.Machines.ClusterName}
	if err := c.Management.Get(ctx, key, cluster); err != nil {
		err = fmt.Errorf("reading Cluster %s: %w", key, err)
		return machine.Plan{}, because(ClusterUnreadableReason, err)
	}
	if cluster.DeletionTimestamp != nil {
		// The node class's status may lag, or a user may have overwritten it.
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("its Cluster %s is being deleted", key))
	}
	tmpl := chosen.choice.Template
	labels := nodeLabels(nodeClaim, chosen)
	resolved, _ := c.Version(nodeClass, tmpl)
	switch {
	case resolved.Outcome == version.Unknown:
		err := errors.New(resolved.Message)
		return machine.Plan{}, because(NodeClassReadinessUnknownReason, err)
	case !resolved.Ready():
		return machine.Plan{}, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, resolved.Message))
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
			v1alpha1.NodeClassHashAnnotation:        drift.Hash(nodeClass),
			v1alpha1.NodeClassHashVersionAnnotation: drift.HashVersion,
			v1alpha1.TemplateHashAnnotation:         tmpl.ContentHash,
			v1alpha1.BootstrapHashAnnotation:        tmpl.Bootstrap.Hash,
			v1alpha1.TemplateSourceAnnotation:       tmpl.Source.Annotation(),
			v1alpha1.PriceAnnotation:                formatPrice(chosen.price()),
			v1alpha1.MachineSizeAnnotation: autonodev1alpha1.FormatMachineSize(
				machineOf(chosen.choice, chosen.key()),
				autonodev1alpha1.MachinePrices{List: chosen.choice.ListPrice, OnDemand: chosen.onDemand}),
		},
	}
	for key, revision := range map[string]string{
		v1alpha1.TemplateRevisionAnnotation: tmpl.Revision(), v1alpha1.BootstrapRevisionAnnotation: tmpl.Bootstrap.Revision(),
		v1alpha1.TemplateOwnedHashAnnotation: tmpl.OwnedHash, v1alpha1.BootstrapOwnedHashAnnotation: tmpl.Bootstrap.OwnedHash,
		v1alpha1.TemplateKubernetesVersionAnnotation: tmpl.ImageVersion,
	} {
		if revision != "" {
			plan.Annotations[key] = revision
		}
	}
	if chosen.choice.Zoneless {
		// Neither the machine nor its kubelet may claim a zone: a cloud controller manager tells the Node's.
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
