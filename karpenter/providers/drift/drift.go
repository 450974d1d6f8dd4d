// SPDX-License-Identifier: Apache-2.0

// Package drift reports whether a machine differs from one that its node class would launch now. It reads memory only:
// Karpenter checks every node whenever a pod changes.
package drift

import (
	"cmp"
	"strings"

	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/nodeimage"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// Reasons of drift. Users filter by them: never change them.
const (
	// NodeClassDrifted: node class fields that affect a node have changed: see Hash.
	NodeClassDrifted karpcloudprovider.DriftReason = "NodeClassDrifted"
	// OfferingGone: the machine's source makes another instance type, zone or capacity type now.
	OfferingGone karpcloudprovider.DriftReason = "OfferingGone"
	// TemplateDrifted: the content of the infrastructure template has changed. If its image is of another version, as VersionDrifted.
	TemplateDrifted karpcloudprovider.DriftReason = "TemplateDrifted"
	// BootstrapDrifted: the content of the bootstrap template has changed, or the data Secret's name.
	BootstrapDrifted karpcloudprovider.DriftReason = "BootstrapDrifted"
	// NodeImageDrifted: the release payload names another image for the node class's bootstrap patches or the source's patches.
	NodeImageDrifted karpcloudprovider.DriftReason = "NodeImageDrifted"
	// VersionDrifted: the node is behind or ahead of the Kubernetes version that nodes of this class and template now get, or another
	// template of the same offering has an image with that version. A node whose kubelet has the version isn't replaced for it.
	VersionDrifted karpcloudprovider.DriftReason = "VersionDrifted"
)

// Config of a Detector.
type Config struct {
	// InstanceTypes returns the current templates.
	InstanceTypes *instancetype.Provider
	// Images are the node images that the payload names.
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
func (d *Detector) Reason(nodeClass *v1alpha1.ClusterAPINodeClass, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine,
) karpcloudprovider.DriftReason {
	if held, _ := nodeClass.Held(); nodeClass.DeletionTimestamp != nil || held != "" {
		// A deleted node class's nodes are removed anyway.
		return ""
	}
	const adopted = v1alpha1.AdoptedAnnotation
	if _, held := nodeClaim.Annotations[adopted]; held && m.Annotations[adopted] == string(nodeClaim.UID) {
		return ""
	}
	if differs(nodeClass.Annotations[v1alpha1.RolloutAnnotation], d.Rollout) {
		return ""
	}
	current := d.template(nodeClass.Name, m)
	tmpl := current.template
	// During a control plane upgrade nodes would be replaced twice, and no node is replaced for a template that may not launch
	// yet.
	resolved, reachable := d.Version(nodeClass, tmpl)
	if !reachable || resolved.Outcome != version.Desired {
		return ""
	}
	deployed := IsDeployed(m)
	deferred := deployed && nodeClass.Spec.DriftPolicy == v1alpha1.DriftPolicyDefer
	// The payload's upgrade window doesn't apply to a version set in the node class or the MachineDeployment.
	followsPayload := nodeClass.Spec.Version == "" && (tmpl == nil || tmpl.Version() == "")
	reimaged := current.isReimaged(m, resolved.Version)
	// A template's change that brings the payload's version is held like that version.
	deferredByWindow := reimaged && followsPayload && !d.mayUpgrade()
	switch {
	case nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] == v1alpha1.NodeClassHashVersion &&
		differs(nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation], nodeClass.Hash()):
		return NodeClassDrifted
	case current.gone:
		return OfferingGone
	case deferredByWindow:
		return ""
	case current.succeeds && !deferred:
		return VersionDrifted
	case tmpl != nil && !deferred && templateOf(tmpl).hasChanged(m.Annotations):
		return TemplateDrifted
	case tmpl != nil && !deferred && bootstrapOf(tmpl).hasChanged(m.Annotations):
		return BootstrapDrifted
	case tmpl != nil && !deferred && d.mayUpgrade() &&
		contentDiffers(m.Annotations[v1alpha1.NodeImagesHashAnnotation], d.images(nodeClass, tmpl, resolved.Version)):
		return NodeImageDrifted
	}
	switch {
	case nodeClass.Spec.Version == "" && deployed && (tmpl == nil || deferred && (tmpl.Version() != "" || tmpl.ImageVersion != "")):
		// The version is the MachineDeployment's, which is unknown or not followed.
	case runs(m, resolved.Version):
		// The node has the version already, which its image brought before the payload did. A Machine's version doesn't change a machine.
	case tmpl != nil && tmpl.ImageVersion != "":
		// Its image decides, whatever version its Machine requests.
		if reimaged {
			return VersionDrifted
		}
	case tmpl != nil && tmpl.NamesKubelet(nodeClass):
		// A new node would boot the same image.
	case differs(strings.TrimPrefix(m.Spec.Version, "v"), strings.TrimPrefix(resolved.Version, "v")):
		if !followsPayload || d.mayUpgrade() {
			return VersionDrifted
		}
	}
	return ""
}

// isReimaged reports whether a new machine would boot an image of another version than this one: of the template's, if it states one,
// otherwise of the version that its nodes get. A machine's booted version is known since its template states it.
func (c current) isReimaged(m *clusterv1.Machine, resolved string) bool {
	if c.template == nil {
		return false
	}
	stated, booted := c.template.ImageVersion, m.Annotations[v1alpha1.TemplateKubernetesVersionAnnotation]
	switch {
	case c.succeeds:
		return true
	case stated == "" && booted == "":
		return false // nothing is known of images
	case booted == "" && !templateOf(c.template).hasChanged(m.Annotations):
		return false // the template only declares by now the version that it booted all along
	case booted == "":
		booted = cmp.Or(kubeletOf(m), m.Spec.Version)
	case stated == "" && !templateOf(c.template).hasChanged(m.Annotations):
		return false // it declares nothing any more, and has the same image
	}
	return differs(strings.TrimPrefix(booted, "v"), strings.TrimPrefix(cmp.Or(stated, resolved), "v"))
}

// runs reports whether a machine's kubelet is known to have a version.
func runs(m *clusterv1.Machine, v string) bool {
	return v != "" && kubeletOf(m) != "" && version.IsMade(kubeletOf(m), v)
}

// kubeletOf returns the version of a machine's kubelet; empty if it isn't known.
func kubeletOf(m *clusterv1.Machine) string {
	if m.Status.NodeInfo == nil {
		return ""
	}
	return m.Status.NodeInfo.KubeletVersion
}

// mayUpgrade reports whether nodes may be replaced now for the payload.
func (d *Detector) mayUpgrade() bool { return d.Upgrades == nil || d.Upgrades(d.Clock.Now()) }

// images is the hash of the images that a template's machine would boot from; empty if its patches refer to none.
func (d *Detector) images(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, version string) string {
	hash, _ := machine.ImagesHash(nodeClass.Spec.BootstrapPatches, tmpl, d.Images.For(version, tmpl.Arch))
	return hash
}

// differs reports whether two known values differ.
func differs(have, want string) bool {
	return have != "" && want != "" && have != want
}

// deployments is how the name of a source begins that is a MachineDeployment.
var deployments = template.MachineDeploymentKind.String() + "/"

// IsDeployed reports whether a machine is from a MachineDeployment.
func IsDeployed(m *clusterv1.Machine) bool {
	return strings.HasPrefix(machine.Source(m), deployments)
}

// current is the template that a machine would be launched from now.
type current struct {
	// template is nil if unknown.
	template *template.Template
	// gone: the machine's source makes something else now.
	gone bool
	// succeeds: the machine's source still makes the same, and template is another one, whose image has the version that nodes get.
	succeeds bool
}

// template returns the template that a machine would be launched from now. Templates are often replaced by others of another name:
// if the machine's own source is gone and another one makes the same offering, that one counts. So does one that stands beside it
// and has the nodes' version, which its own hasn't.
func (d *Detector) template(nodeClass string, m *clusterv1.Machine) current {
	source, key := machine.Source(m), inventory.OfferingOf(m)
	snapshot, err := d.InstanceTypes.Cached(nodeClass)
	if err != nil || source == "" {
		return current{}
	}
	tmpl, found := snapshot.Template(source)
	if !found && !snapshot.Knows(source) || key.InstanceType == "" || key.Zone == "" || key.CapacityType == "" {
		return current{template: tmpl}
	}
	if snapshot.Gone(source, key) {
		return current{template: tmpl, gone: true}
	}
	if found {
		if successor := snapshot.Successor(tmpl, key); successor != nil && !runs(m, successor.ImageVersion) {
			return current{template: successor, succeeds: true}
		}
		return current{template: tmpl}
	}
	if choice, offered := snapshot.ResolveKey(key); offered {
		return current{template: choice.Template}
	}
	return current{}
}
