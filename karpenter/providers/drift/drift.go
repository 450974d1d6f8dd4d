// SPDX-License-Identifier: Apache-2.0

// Package drift says whether a machine still is what its node class would make now. It reads memory only: Karpenter asks
// for every node whenever a pod changes.
package drift

import (
	"strings"

	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	provider "github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// Reasons for which a node is replaced. People filter by them: they never change.
const (
	// NodeClassDrifted: the node class's fields that reach a node have changed: see Hash.
	NodeClassDrifted cloudprovider.DriftReason = "NodeClassDrifted"
	// OfferingGone: the node class doesn't offer the machine's instance type, in its zone and as its capacity type, any more.
	OfferingGone cloudprovider.DriftReason = "OfferingGone"
	// ShapeDrifted: the content of the infrastructure template has changed.
	ShapeDrifted cloudprovider.DriftReason = "ShapeDrifted"
	// BootstrapDrifted: the content of the bootstrap template has changed, or the data Secret's name.
	BootstrapDrifted cloudprovider.DriftReason = "BootstrapDrifted"
	// NodeImageDrifted: the release payload names another image where the node class's bootstrap patches or the source's patches have one.
	NodeImageDrifted cloudprovider.DriftReason = "NodeImageDrifted"
	// VersionDrifted: nodes of this class and shape get another Kubernetes version now.
	VersionDrifted cloudprovider.DriftReason = "VersionDrifted"
)

// Config of a Detector.
type Config struct {
	// InstanceTypes hold the shapes as they are now.
	InstanceTypes *instancetype.Provider
	// Images are those that the payload names; nil for none.
	Images *nodeimage.File
	// Version resolves the version of a shape's nodes, and says whether the guest's API server answers. Without a shape it
	// is that of the node class.
	Version func(nodeClass *v1alpha1.ClusterAPINodeClass, sh *template.Template) (result version.Result, reachable bool)
	// Upgrades says when nodes may be replaced because the payload gives another version; nil at any time.
	Upgrades version.Upgrades
	// Rollout is the rollout of Karpenter that this process is of; empty for none. While a node class names another one, replicas of that
	// may run beside this process, or take over from it, and what this one replaced they would replace back.
	Rollout string
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
}

// Detector finds drift.
type Detector struct{ Config }

// New returns a detector.
func New(config Config) *Detector {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Detector{Config: config}
}

// Reason returns why a NodeClaim's node is to be replaced, or "". What isn't known is never drift.
func (d *Detector) Reason(nodeClass *v1alpha1.ClusterAPINodeClass, nodeClaim *karpv1.NodeClaim, machine *clusterv1.Machine) cloudprovider.DriftReason {
	if nodeClass.DeletionTimestamp != nil || nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true" {
		// Its nodes go anyway.
		return ""
	}
	if differs(nodeClass.Annotations[v1alpha1.RolloutAnnotation], d.Rollout) {
		return ""
	}
	sh, gone := d.shape(nodeClass.Name, machine)
	// Replacing nodes while the control plane changes under them would replace them twice.
	resolved, reachable := d.Version(nodeClass, sh)
	if !reachable || resolved.Outcome != version.Desired {
		return ""
	}
	deployed := isDeployed(machine)
	deferred := deployed && nodeClass.Spec.DriftPolicy == v1alpha1.DriftPolicyDefer
	switch {
	case nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] == HashVersion &&
		differs(nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation], Hash(nodeClass)):
		return NodeClassDrifted
	case gone:
		return OfferingGone
	case sh != nil && !deferred && shapeOf(sh).hasChanged(machine.Annotations):
		return ShapeDrifted
	case sh != nil && !deferred && bootstrapOf(sh).hasChanged(machine.Annotations):
		return BootstrapDrifted
	case sh != nil && !deferred && d.mayUpgrade() && contentDiffers(machine.Annotations[v1alpha1.NodeImagesHashAnnotation], d.images(nodeClass, sh, resolved.Version)):
		return NodeImageDrifted
	}
	if nodeClass.Spec.Version == "" && deployed && (sh == nil || deferred && sh.Version() != "") {
		// The version is the MachineDeployment's, which isn't known, or isn't ours to follow.
		return ""
	}
	if differs(strings.TrimPrefix(machine.Spec.Version, "v"), strings.TrimPrefix(resolved.Version, "v")) {
		// A version that the node class or the MachineDeployment names is its writer's decision, not the platform's.
		followsPayload := nodeClass.Spec.Version == "" && (sh == nil || sh.Version() == "")
		if followsPayload && !d.mayUpgrade() {
			return ""
		}
		return VersionDrifted
	}
	return ""
}

// mayUpgrade says whether nodes may be replaced now for what the payload decides.
func (d *Detector) mayUpgrade() bool { return d.Upgrades == nil || d.Upgrades(d.Clock.Now()) }

// images is the hash of the images that a machine of a shape would be made with; empty if its patches refer to none.
func (d *Detector) images(nodeClass *v1alpha1.ClusterAPINodeClass, sh *template.Template, version string) string {
	hash, _ := provider.ImagesHash(nodeClass.Spec.BootstrapPatches, sh, d.Images.For(version, sh.Arch))
	return hash
}

// differs compares two values of which either may be unknown.
func differs(have, want string) bool {
	return have != "" && want != "" && have != want
}

// isDeployed tells whether a machine's shape came from a MachineDeployment.
func isDeployed(machine *clusterv1.Machine) bool {
	return strings.HasPrefix(machine.Annotations[v1alpha1.ShapeSourceAnnotation], template.MachineDeploymentKind.String()+"/")
}

// shape returns what a machine would be made from now, or nil when that isn't known, and whether what it was made as is
// known not to be offered any more. Templates are often replaced by others of another name: where the machine's own source
// has gone and another one offers the same, that is what counts.
func (d *Detector) shape(nodeClass string, machine *clusterv1.Machine) (now *template.Template, gone bool) {
	form := inventory.OriginOf(machine)
	snapshot, err := d.InstanceTypes.Cached(nodeClass)
	if err != nil || form.Source == "" {
		return nil, false
	}
	own, found := snapshot.Shape(form.Source)
	if !found && !snapshot.Knows(form.Source) || form.InstanceType == "" || form.Zone == "" || form.CapacityType == "" {
		return own, false
	}
	if snapshot.Gone(form.Source, form.Key) {
		return own, true
	}
	if choice, offered := snapshot.Resolve(form.InstanceType, form.Zone, form.CapacityType); offered && !found {
		return choice.Shape, false
	}
	return own, false
}
