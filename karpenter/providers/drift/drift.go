// SPDX-License-Identifier: Apache-2.0

// Package drift reports whether a machine differs from what its node class would launch now. It reads memory only:
// Karpenter checks every node whenever a pod changes.
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

// Reasons of drift. Users filter by them: never change them.
const (
	// NodeClassDrifted: node class fields that affect a node have changed: see Hash.
	NodeClassDrifted cloudprovider.DriftReason = "NodeClassDrifted"
	// OfferingGone: the machine's source makes another instance type, zone or capacity type now.
	OfferingGone cloudprovider.DriftReason = "OfferingGone"
	// TemplateDrifted: the content of the infrastructure template has changed.
	TemplateDrifted cloudprovider.DriftReason = "TemplateDrifted"
	// BootstrapDrifted: the content of the bootstrap template has changed, or the data Secret's name.
	BootstrapDrifted cloudprovider.DriftReason = "BootstrapDrifted"
	// NodeImageDrifted: the release payload names another image for the node class's bootstrap patches or the source's patches.
	NodeImageDrifted cloudprovider.DriftReason = "NodeImageDrifted"
	// VersionDrifted: nodes of this class and template now get another Kubernetes version.
	VersionDrifted cloudprovider.DriftReason = "VersionDrifted"
)

// Config of a Detector.
type Config struct {
	// InstanceTypes returns the current templates.
	InstanceTypes *instancetype.Provider
	// Images are the node images that the payload names; nil for none.
	Images *nodeimage.File
	// Version resolves the version of a template's nodes, and reports whether the guest's API server answers. Without a
	// template it resolves that of the node class.
	Version func(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (result version.Result, reachable bool)
	// Upgrades reports whether nodes may be replaced for the payload's version; nil for at any time.
	Upgrades version.Upgrades
	// Rollout is the Karpenter rollout that this process belongs to; empty for none. While a node class names another
	// rollout, replicas of that one may still run or take over, and would replace this one's nodes again.
	Rollout string
	// Clock defaults to the real one.
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

// Reason returns why a NodeClaim's node has to be replaced, or "". Unknown inputs never count as drift.
func (d *Detector) Reason(nodeClass *v1alpha1.ClusterAPINodeClass, nodeClaim *karpv1.NodeClaim, machine *clusterv1.Machine) cloudprovider.DriftReason {
	if nodeClass.DeletionTimestamp != nil || nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true" {
		// A deleted node class's nodes are removed anyway.
		return ""
	}
	if differs(nodeClass.Annotations[v1alpha1.RolloutAnnotation], d.Rollout) {
		return ""
	}
	tmpl, gone := d.template(nodeClass.Name, machine)
	// During a control plane upgrade nodes would be replaced twice.
	resolved, reachable := d.Version(nodeClass, tmpl)
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
	case tmpl != nil && !deferred && templateOf(tmpl).hasChanged(machine.Annotations):
		return TemplateDrifted
	case tmpl != nil && !deferred && bootstrapOf(tmpl).hasChanged(machine.Annotations):
		return BootstrapDrifted
	case tmpl != nil && !deferred && d.mayUpgrade() && contentDiffers(machine.Annotations[v1alpha1.NodeImagesHashAnnotation], d.images(nodeClass, tmpl, resolved.Version)):
		return NodeImageDrifted
	}
	if nodeClass.Spec.Version == "" && deployed && (tmpl == nil || deferred && tmpl.Version() != "") {
		// The version is the MachineDeployment's, which is unknown or not followed.
		return ""
	}
	if differs(strings.TrimPrefix(machine.Spec.Version, "v"), strings.TrimPrefix(resolved.Version, "v")) {
		// The payload's upgrade window doesn't apply to a version set in the node class or the MachineDeployment.
		followsPayload := nodeClass.Spec.Version == "" && (tmpl == nil || tmpl.Version() == "")
		if followsPayload && !d.mayUpgrade() {
			return ""
		}
		return VersionDrifted
	}
	return ""
}

// mayUpgrade reports whether nodes may be replaced now for the payload.
func (d *Detector) mayUpgrade() bool { return d.Upgrades == nil || d.Upgrades(d.Clock.Now()) }

// images is the hash of the images that a template's machine would boot from; empty if its patches refer to none.
func (d *Detector) images(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, version string) string {
	hash, _ := provider.ImagesHash(nodeClass.Spec.BootstrapPatches, tmpl, d.Images.For(version, tmpl.Arch))
	return hash
}

// differs reports whether two known values differ.
func differs(have, want string) bool {
	return have != "" && want != "" && have != want
}

// deployments is how the name of a source begins that is a MachineDeployment.
var deployments = template.MachineDeploymentKind.String() + "/"

// isDeployed reports whether a machine is from a MachineDeployment.
func isDeployed(machine *clusterv1.Machine) bool {
	return strings.HasPrefix(provider.Source(machine), deployments)
}

// template returns the template that a machine would be launched from now, nil if unknown, and whether its source makes
// something else now. Templates are often replaced by others of another name: if the machine's own source is gone and
// another one makes the same offering, that one counts.
func (d *Detector) template(nodeClass string, machine *clusterv1.Machine) (now *template.Template, gone bool) {
	source, key := provider.Source(machine), inventory.OfferingOf(machine)
	snapshot, err := d.InstanceTypes.Cached(nodeClass)
	if err != nil || source == "" {
		return nil, false
	}
	own, found := snapshot.Template(source)
	if !found && !snapshot.Knows(source) || key.InstanceType == "" || key.Zone == "" || key.CapacityType == "" {
		return own, false
	}
	if snapshot.Gone(source, key) {
		return own, true
	}
	if choice, offered := snapshot.ResolveKey(key); offered && !found {
		return choice.Template, false
	}
	return own, false
}
