// SPDX-License-Identifier: Apache-2.0

// Package cloudprovider implements Karpenter core's CloudProvider. It chooses an offering for a NodeClaim; package
// machine creates the Machine. It imports no controller.
package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

var _ karpcloudprovider.CloudProvider = (*CloudProvider)(nil)

// Name of the provider in metrics and logs.
const Name = "clusterapi"

// Config of a CloudProvider.
type Config struct {
	// Guest reads NodeClasses and NodeClaims from the cache.
	Guest client.Client
	// Management reads the Cluster from the cache.
	Management client.Client
	// ManagementLive reads MachineHealthChecks from the API server, for a reboot.
	ManagementLive client.Reader
	Recorder       events.Recorder
	// AllowedPatches are the allowed bootstrap patches of node classes; nil allows any.
	AllowedPatches []v1alpha1.BootstrapPatches
	// KubeletBounds bound spec.kubelet of node classes; nil for none.
	KubeletBounds *v1alpha1.KubeletBounds
	// Images are the node images that the payload names.
	Images *nodeimage.File
	// Machines of the cluster.
	Machines *machine.Provider
	// InstanceTypes of every node class.
	InstanceTypes *instancetype.Provider
	// Inventory enforces the maximum sizes of templates, and of reservations of the infrastructure.
	Inventory *inventory.Inventory
	// Capacity limits launches.
	Capacity capacityprovider.Limiter
	// Vacancies are held for the replacements of nodes that were terminated first.
	Vacancies *vacancy.Keeper
	// Rejections are the offerings that a NodePool doesn't get, because their machines couldn't be created.
	Rejections *offering.Rejections
	// Overlays are applied to the instance types before one is chosen, where the feature gate NodeOverlay is on.
	Overlays *nodeoverlay.InstanceTypeStore
	Drift    *drift.Detector
	// Release returns the payload of a NodeClaim's machine while an upgrade proves itself; nil for never.
	Release func(nodeClaim *karpv1.NodeClaim) upgradeplan.Release
	// Version resolves the version of a template's nodes with the node version of that payload, empty for the desired one's. It doesn't trust
	// the node class's status, which the cluster admin can write.
	Version func(payload string, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (result version.Result, reachable bool)
	// RepairPolicies are the platform's, beside RepairPolicies' own. One for the same condition and status replaces it.
	RepairPolicies []v1alpha1.RepairPolicy
	// InPlaceReboot: some machines of the cluster can be rebooted in place. Otherwise policies that ask for it replace nodes at once, instead
	// of draining them for a reboot that fails.
	InPlaceReboot bool
	// Profiles say which kinds of machines reboot; nil for the embedded ones.
	Profiles *profile.Profiles
}

// CloudProvider implements Karpenter's interface.
type CloudProvider struct {
	Config
	repairPolicies []karpcloudprovider.RepairPolicy
}

// New returns a provider.
func New(config Config) *CloudProvider {
	return &CloudProvider{Config: config, repairPolicies: repairPolicies(config.RepairPolicies, config.InPlaceReboot)}
}

// Delete starts the removal of a NodeClaim's machine, whether its provider ID is synthetic or real. It returns a
// NodeClaimNotFoundError once everything is gone, with the Node of a machine that never got its provider ID.
func (c *CloudProvider) Delete(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	err := c.Machines.Delete(ctx, nodeClaim)
	if errors.Is(err, machine.ErrNotFound) {
		c.release(nodeClaim)
		if err := c.deleteNode(ctx, nodeClaim); err != nil {
			return err
		}
	}
	return wrapped(err, "deleting the machine of NodeClaim "+nodeClaim.Name)
}

// wrapped adds to an error what was being done, and makes it a NodeClaimNotFoundError if there is no Machine.
func wrapped(err error, doing string) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if errors.Is(err, machine.ErrNotFound) {
		return karpcloudprovider.NewNodeClaimNotFoundError(err)
	}
	return err
}

// Get finds a machine by its real or synthetic provider ID. A machine whose instance is gone isn't found: Karpenter then
// removes its node without a drain, and deletes the machine with the NodeClaim.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	found, err := c.Machines.ForProviderID(ctx, providerID)
	if err != nil {
		return nil, wrapped(err, fmt.Sprintf("finding the machine with provider ID %q", providerID))
	}
	if machine.InstanceGone(found) {
		return nil, karpcloudprovider.NewNodeClaimNotFoundError(fmt.Errorf(
			"the instance of Machine %s is gone: %s", klog.KObj(found), found.Annotations[v1alpha1.InstanceGoneAnnotation]))
	}
	return c.nodeClaimOf(ctx, found), nil
}

// List returns every machine of this cluster that was launched for a NodeClaim.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	nodeClaims := []*karpv1.NodeClaim{}
	err := c.Machines.Each(ctx, func(m *clusterv1.Machine) { nodeClaims = append(nodeClaims, c.nodeClaimOf(ctx, m)) })
	if err != nil {
		return nil, err
	}
	return nodeClaims, nil
}

// GetInstanceTypes returns the instance types of the NodePool's node class. An offering that was rejected for the NodePool
// isn't available. The slice and its elements are shared: don't modify them.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	ref := nodePool.Spec.Template.Spec.NodeClassRef
	if ref == nil {
		return nil, fmt.Errorf("getting instance types: NodePool %s names no node class", nodePool.Name)
	}
	// Snapshots of deleted node classes are dropped, so a snapshot implies the node class. Reading the node class
	// would copy its status.
	snapshot, err := c.InstanceTypes.Cached(ref.Name)
	if err != nil {
		nodeClass, err := c.nodeClass(ctx, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) {
				c.Recorder.Publish(nodePoolWithoutNodeClass(nodePool, ref.Name))
			}
			// An empty list would mean that nothing fits.
			return nil, fmt.Errorf("getting instance types for NodePool %s: %w", nodePool.Name, err)
		}
		if snapshot, err = c.InstanceTypes.List(ctx, nodeClass); err != nil {
			return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("getting instance types for NodePool %s: %w", nodePool.Name, err))
		}
	}
	if strings.Contains(nodePool.Name, ".") {
		c.Recorder.Publish(nodePoolDotted(nodePool))
	}
	instanceTypes, differing := snapshot.Offered(nodePool)
	for _, d := range differing {
		c.Recorder.Publish(instanceTypeDiffers(nodePool, d))
	}
	if machine, ok := ctx.Value(vacatedKey{}).(instancetype.Vacated); ok {
		instanceTypes, _ = snapshot.Without(machine, c.Capacity, instanceTypes)
	}
	if room, ok := ctx.Value(inTimeKey{}).(func(capacity.Machine) int); ok {
		instanceTypes = snapshot.InTime(room, instanceTypes)
	}
	return c.Rejections.Offered(nodePool.Name, instanceTypes), nil
}

// IsDrifted returns why a NodeClaim's node has to be replaced, or "". It reads memory only. Its one write migrates
// the template hash of a Machine that hasn't drifted, after the hash rule has changed.
func (c *CloudProvider) IsDrifted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (karpcloudprovider.DriftReason, error) {
	nodeClass, err := c.nodeClass(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		// The desired state is unknown.
		return "", nil
	}
	var found *clusterv1.Machine
	if err == nil {
		found, err = c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	}
	if err != nil {
		return "", wrapped(err, "finding drift of NodeClaim "+nodeClaim.Name)
	}
	reason := c.Drift.Reason(nodeClass, nodeClaim, found)
	if reason == "" {
		if renewed := c.Drift.Renewed(nodeClass, found); len(renewed) > 0 {
			// The next check repeats it.
			if err := c.Machines.Annotate(ctx, found, renewed); err != nil {
				log.FromContext(ctx).Error(err, "migrating the template hash of a Machine", "Machine", klog.KObj(found))
			}
		}
	}
	return reason, nil
}

// Name implements cloudprovider.CloudProvider.
func (c *CloudProvider) Name() string { return Name }

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

func (c *CloudProvider) nodeClass(ctx context.Context, name string) (*v1alpha1.ClusterAPINodeClass, error) {
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	if err := c.Guest.Get(ctx, types.NamespacedName{Name: name}, nodeClass); err != nil {
		return nil, fmt.Errorf("reading node class %s: %w", name, err)
	}
	return nodeClass, nil
}

// nodeClaimOf returns a Machine as a NodeClaim, with the provider ID that the NodeClaim has by now.
func (c *CloudProvider) nodeClaimOf(ctx context.Context, m *clusterv1.Machine) *karpv1.NodeClaim {
	nodeClaim := nodeClaimOf(m)
	nodeClaim.Status.ProviderID = c.Machines.ProviderID(ctx, m)
	return nodeClaim
}

// nodeClaimOf returns a Machine as a NodeClaim, without a provider ID.
func nodeClaimOf(m *clusterv1.Machine) *karpv1.NodeClaim {
	offered := inventory.OfferingOf(m)
	labels := make(map[string]string, 5)
	label := func(key, value string) {
		if value != "" {
			labels[key] = value
		}
	}
	label(karpv1.NodePoolLabelKey, m.Labels[karpv1.NodePoolLabelKey])
	label(karpv1.CapacityTypeLabelKey, offered.CapacityType)
	label(corev1.LabelInstanceTypeStable, offered.InstanceType)
	label(corev1.LabelTopologyZone, offered.Zone)
	label(v1alpha1.ReservationIDLabel, offered.Reservation)
	nodeClaim := &karpv1.NodeClaim{}
	nodeClaim.Name = v1alpha1.NodeClaimOf(m)
	nodeClaim.Labels = labels
	nodeClaim.Annotations = map[string]string{v1alpha1.MachineAnnotation: m.Namespace + "/" + m.Name}
	nodeClaim.CreationTimestamp = m.CreationTimestamp
	nodeClaim.DeletionTimestamp = m.DeletionTimestamp
	nodeClaim.Status.NodeName = m.Status.NodeRef.Name
	return nodeClaim
}
