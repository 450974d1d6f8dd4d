// SPDX-License-Identifier: Apache-2.0

// Package template reads the sources that a node class selects in the control-plane namespace of the management
// cluster: infrastructure machine templates, MachineDeployments and InstanceTypeCatalogs. It writes nothing.
package template

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
)

// Source identifies the object that a template was read from.
type Source struct {
	GroupKind       schema.GroupKind
	Namespace, Name string
	UID             types.UID
	// Entry is the instance type of an InstanceTypeCatalog; empty for the catalog as a whole and for any other source.
	Entry string
	// Shared: the catalog isn't in the control-plane namespace.
	Shared bool
	// ResourceVersions are those of the source, and for a MachineDeployment of its infrastructure template too; for an entry of a catalog
	// the hash of the entry and those of the template. They differ whenever the template may.
	ResourceVersions string
}

// String is <Kind> <namespace>/<name>, as messages name it, and for an entry of a catalog the entry.
func (s Source) String() string {
	if s.Entry != "" {
		return fmt.Sprintf("%s %s/%s: %s", s.GroupKind.Kind, s.Namespace, s.Name, s.Entry)
	}
	return fmt.Sprintf("%s %s/%s", s.GroupKind.Kind, s.Namespace, s.Name)
}

// Annotation is the value of v1alpha1.TemplateSourceAnnotation.
func (s Source) Annotation() string {
	annotation := s.GroupKind.String() + "/"
	if s.Shared {
		annotation += s.Namespace + ":"
	}
	annotation += s.Name
	if s.Entry != "" {
		annotation += "/" + s.Entry
	}
	return annotation
}

// Catalog is the name of the InstanceTypeCatalog that has the template; empty for any other source.
func (s Source) Catalog() string {
	if s.Entry == "" {
		return ""
	}
	return s.Name
}

// Covers reports whether an annotation names the source or one of its entries.
func (s Source) Covers(annotation string) bool {
	rest, ok := strings.CutPrefix(annotation, s.Annotation())
	return ok && (rest == "" || rest[0] == '/')
}

func (s Source) compare(other Source) int {
	return cmp.Or(
		cmp.Compare(s.GroupKind.Group, other.GroupKind.Group),
		cmp.Compare(s.GroupKind.Kind, other.GroupKind.Kind),
		cmp.Compare(s.Namespace, other.Namespace),
		cmp.Compare(s.Name, other.Name),
		cmp.Compare(s.Entry, other.Entry),
	)
}

// Bootstrap is how a machine joins: exactly one of ConfigTemplate and DataSecretName is set.
type Bootstrap struct {
	// ConfigTemplate is the bootstrap template to clone, such as a KubeadmConfigTemplate. It is shared with the cache: never
	// change it.
	ConfigTemplate *unstructured.Unstructured
	// DataSecretName names a Secret with ready bootstrap data in the control-plane namespace.
	DataSecretName string
	// Hash is of the template's spec.template, or of the Secret's name: a Secret's content may rotate without replacing
	// nodes.
	Hash string
	// OwnedHash is as Template's; empty for a Secret.
	OwnedHash string
	// Kubelet are the settings in the template, and Patched reports that they have those of a node class's patches in them.
	Kubelet kubelet.Settings
	Patched bool
}

// Revision of the bootstrap template: see Template.Revision.
func (b Bootstrap) Revision() string { return revisionOf(b.ConfigTemplate) }

// IsDefined reports whether a machine can join.
func (b Bootstrap) IsDefined() bool { return b.ConfigTemplate != nil || b.DataSecretName != "" }

// Template is a source as Karpenter offers it. Its pointers are shared with the cache: never change their targets.
type Template struct {
	Source Source
	// Infrastructure is the infrastructure machine template that machines are cloned from.
	Infrastructure *unstructured.Unstructured
	// Kind has the profiles of the infrastructure's kind.
	Kind infrastructure.Kind
	// ContentHash is of the template's spec.template, and of Patches and Overhead where there are any.
	ContentHash string
	// OwnedHash is ContentHash without the fields that only webhooks have set; empty if that isn't known.
	OwnedHash string
	// Patches are applied to each infrastructure machine.
	Patches patch.List
	// CapacityType that the source declares for its machines. Empty means on-demand.
	CapacityType string
	// Offerings are those that a catalog offers; nil for any other source.
	Offerings []catalog.Offering
	// Overhead has the reservations of kubelets of a catalog's instance type unless the node class declares them; nil for the bootstrap's.
	Overhead *v1alpha1.KubeletConfiguration
	// OverheadHash is of Overhead; empty without one.
	OverheadHash string
	// Bootstrap is the source's own, otherwise the node class's. If neither has one it isn't defined, and nothing can
	// be launched.
	Bootstrap Bootstrap
	// Machine is the MachineDeployment's machine template: its labels, annotations, version and timeouts. It is nil for any
	// other source.
	Machine *clusterv1.MachineTemplateSpec

	// InstanceType is the name that the template is offered as. Several templates may share it.
	InstanceType string
	// Arch and OS are the values of the labels kubernetes.io/arch and kubernetes.io/os.
	Arch, OS string
	// Capacity holds at least cpu, memory and pods.
	Capacity corev1.ResourceList
	// DefaultPods: the pods of Capacity are the default, because the source declares nothing.
	DefaultPods bool
	// NominalMemory: the memory of Capacity is the machine's nominal one, from a catalog or the template's status or spec. A node has
	// less. An annotation declares the node's memory.
	NominalMemory bool
	// MemoryOverhead is the fraction of the declared memory that nodes lack; nil if the source doesn't say.
	MemoryOverhead *float64
	// Devices that DRA drivers publish for a node of this template.
	Devices []catalog.Devices
	// VolumeLimits are how many volumes of a CSI driver can be attached to a node of this template, by driver. A driver that isn't there is
	// unlimited until the node's CSINode reports otherwise.
	VolumeLimits map[string]int
	// Labels of the template's nodes, without the well-known ones that other fields hold.
	Labels map[string]string
	// Taints of the template's nodes at registration.
	Taints []corev1.Taint
	// FailureDomains of the source, or the zone of its labels. Empty means the Cluster's.
	FailureDomains []string
	// Price and SpotPrice are in US dollars per hour; nil if the source has none. Without SpotPrice there is no spot
	// offering.
	Price, SpotPrice *float64
	// MaxSize is the Cluster Autoscaler's maximum number of machines; nil without one.
	MaxSize *int
	// Replicas of the MachineDeployment itself, desired or existing.
	Replicas int
	// Paused: the provider launches nothing from this template and writes nothing.
	Paused bool
	// Image that the template names, as its kind's profile reads it; empty if the provider may look for one by the Machine's version.
	Image string
	// ImageVersion is the Kubernetes version of the image that the template boots, without a leading v; empty if the source doesn't
	// say, or is a MachineDeployment with a version.
	ImageVersion string
	// ObservedImage: the source doesn't state ImageVersion. The template's nodes have reported it.
	ObservedImage bool
	// NodeVersion is the version of this template's nodes if it isn't the node class's: ImageVersion, or Version, as far as the API
	// server supports it. The node class's controller sets it, and the next two.
	NodeVersion string
	// Outdated: ImageVersion isn't the node class's version. A template whose is takes precedence.
	Outdated bool
	// Ahead: the provider launches nothing from this template yet, because ImageVersion exceeds the node class's version.
	Ahead bool
	// Notes are unknown or unusable properties of the template. It is in use nevertheless.
	Notes []Note
	// Blocked: the provider launches nothing from this template, because its version isn't supported or its source is
	// malformed.
	Blocked bool

	// kindCapacityType is the capacity type of the machines that the template itself makes, by the kind's own fields, and
	// kindCapacityField the field that declares it; empty where the kind has none.
	kindCapacityType, kindCapacityField string
}

// Zone returns the value of the zone label of the template's nodes in a failure domain, or for such a value itself. region
// is the Cluster's. It is unknown, and the failure domain itself, if only the region is missing.
func (s *Template) Zone(failureDomain, region string) (zone string, known bool) {
	return s.Kind.NodeZone(failureDomain, cmp.Or(s.Labels[corev1.LabelTopologyRegion], region))
}

// setImageVersion sets the version that an infrastructure template or its source states.
func (s *Template) setImageVersion(value string) (problem string) {
	version := strings.TrimPrefix(value, "v")
	if _, err := semver.Parse(version); err != nil || len(version) > maxVersion {
		return "is not a version, such as 1.36.3"
	}
	s.ImageVersion = version
	return ""
}

// maxVersion is the length of a version, in bytes.
const maxVersion = 64

// Version is the Kubernetes version of the MachineDeployment, with or without a leading v; empty for any other source.
func (s *Template) Version() string {
	if s.Machine == nil {
		return ""
	}
	return s.Machine.Spec.Version
}

// Revision is <UID>/<generation> of the infrastructure template, followed by the hash of Patches if there are any,
// because annotations don't change the generation. It is empty if the template has no UID. While it stays the same, the
// template hasn't changed, even if it reads differently: another version of the API server may prefer another version
// of the kind, or set other defaults.
func (s *Template) Revision() string {
	revision := revisionOf(s.Infrastructure)
	if hash := s.additions(); revision != "" && hash != "" {
		revision += "/" + hash
	}
	return revision
}

// additions identifies the additions to the infrastructure template; empty for none.
func (s *Template) additions() string {
	if s.OverheadHash == "" {
		return s.Patches.Hash()
	}
	return s.Patches.Hash() + "+" + s.OverheadHash
}

// addHash adds the additions to the hashes.
func (s *Template) addHash() {
	if hash := s.additions(); hash != "" {
		s.ContentHash = hashOf([]byte(s.ContentHash + "/" + hash))
		if s.OwnedHash != "" {
			s.OwnedHash = hashOf([]byte(s.OwnedHash + "/" + hash))
		}
	}
}

// Kubelet returns the kubelet settings that the machine is made with, beside those of its bootstrap; nil for none. Each that the node class
// sets replaces the instance type's.
func (s *Template) Kubelet(nodeClass *v1alpha1.KubeletConfiguration) *v1alpha1.KubeletConfiguration {
	if s.Overhead == nil {
		return nodeClass
	}
	merged := kubelet.Settings{KubeletConfiguration: *s.Overhead}.Over(nodeClass).KubeletConfiguration
	return &merged
}

// MaxPods returns the maximum number of pods of the template's nodes.
func (s *Template) MaxPods(nodeClass *v1alpha1.KubeletConfiguration) int64 {
	declared := s.Capacity.Pods().Value()
	if s.DefaultPods {
		declared = 0
	}
	return s.Bootstrap.Kubelet.Pods(nodeClass, declared, s.Capacity.Cpu().MilliValue()/1000)
}

// PatchesFrom is where Patches are, for messages.
func (s *Template) PatchesFrom() string {
	if s.IsCatalogs() {
		return "patches of the catalog and of the instance type"
	}
	return "annotation " + v1alpha1.InfrastructurePatchesAnnotation
}

// NamesKubelet reports whether each machine of the template gets the same kubelet, whatever version its Machine has: the template names an
// image, and neither a patch nor the bootstrap depends on the version. Kubeadm runs the kubelet that it finds; other bootstrap providers
// install the Machine's version.
func (s *Template) NamesKubelet(nodeClass *v1alpha1.ClusterAPINodeClass) bool {
	if s.Image == "" || s.Patches.Refers(patch.Version) || len(s.Patches.Images()) > 0 || !s.Bootstrap.IsDefined() {
		return false
	}
	if s.Bootstrap.ConfigTemplate == nil {
		return true
	}
	kind := s.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()
	if kind != kubeadm {
		return false
	}
	return !slices.ContainsFunc(nodeClass.Spec.BootstrapPatches, func(patches v1alpha1.BootstrapPatches) bool {
		return patches.APIGroup == kind.Group && slices.ContainsFunc(patches.Patches, refersToVersion)
	})
}

// kubeadm is the kind of kubeadm's bootstrap templates.
var kubeadm = schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate"}

// refersToVersion reports whether a patch's value may depend on the version of nodes, or on an image that the payload names for it.
func refersToVersion(p v1alpha1.JSONPatch) bool {
	if p.ValueFrom == nil {
		return false
	}
	return slices.ContainsFunc([]string{patch.Version, "image"}, func(variable string) bool {
		return strings.Contains(p.ValueFrom.Variable, variable) || strings.Contains(p.ValueFrom.Template, variable)
	})
}

// IsCatalogs reports whether the template is an instance type of a catalog.
func (s *Template) IsCatalogs() bool { return s.Offerings != nil }

func revisionOf(template *unstructured.Unstructured) string {
	if template == nil || template.GetUID() == "" || template.GetGeneration() == 0 {
		return ""
	}
	return string(template.GetUID()) + "/" + strconv.FormatInt(template.GetGeneration(), 10)
}

// Maximum is the maximum number of machines of the template, if it has one. A MachineDeployment's own replicas count,
// as in a node group of the Cluster Autoscaler.
func (s *Template) Maximum() (limit int, limited bool) {
	if s.MaxSize == nil {
		return 0, false
	}
	return max(*s.MaxSize-s.Replicas, 0), true
}
