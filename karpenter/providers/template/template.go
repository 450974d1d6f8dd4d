// SPDX-License-Identifier: Apache-2.0

// Package template reads what a node class selects in the control-plane namespace of the management cluster: infrastructure
// machine templates and MachineDeployments, each of which is one form that a machine can have. Nothing here writes.
package template

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/karpenter/providers/message"
	"github.com/autonode-io/autonode/karpenter/providers/patch"
)

// Source identifies the object that a shape was read from.
type Source struct {
	GroupKind       schema.GroupKind
	Namespace, Name string
	UID             types.UID
	// ResourceVersions are those of everything that the shape was read from: the source, and for a MachineDeployment its
	// template too. They differ whenever the shape may.
	ResourceVersions string
}

// String is <Kind> <namespace>/<name>, as messages name it.
func (s Source) String() string {
	return fmt.Sprintf("%s %s/%s", s.GroupKind.Kind, s.Namespace, s.Name)
}

// Annotation is <kind>.<group>/<name>, the value of v1alpha1.ShapeSourceAnnotation.
func (s Source) Annotation() string { return s.GroupKind.String() + "/" + s.Name }

func (s Source) compare(other Source) int {
	return cmp.Or(
		cmp.Compare(s.GroupKind.Group, other.GroupKind.Group),
		cmp.Compare(s.GroupKind.Kind, other.GroupKind.Kind),
		cmp.Compare(s.Namespace, other.Namespace),
		cmp.Compare(s.Name, other.Name),
	)
}

// Bootstrap is how a machine of a shape joins: exactly one of ConfigTemplate and DataSecretName is set.
type Bootstrap struct {
	// ConfigTemplate is the bootstrap template to clone, such as a KubeadmConfigTemplate. It is shared with the cache: never
	// change it.
	ConfigTemplate *unstructured.Unstructured
	// DataSecretName names a Secret with ready bootstrap data in the control-plane namespace.
	DataSecretName string
	// Hash is of the template's spec.template, or of the Secret's name: what is in the Secret may rotate, and that is no
	// reason to replace a node.
	Hash string
}

// Revision of the bootstrap template: see Shape.Revision.
func (b Bootstrap) Revision() string { return revisionOf(b.ConfigTemplate) }

// IsDefined tells whether there is a way to join.
func (b Bootstrap) IsDefined() bool { return b.ConfigTemplate != nil || b.DataSecretName != "" }

// Template is one form of machine that a source offers. What its pointers point to is shared with the cache: never change it.
type Template struct {
	Source Source
	// Template is the infrastructure machine template that machines are cloned from.
	Template *unstructured.Unstructured
	// ContentHash is of the template's spec.template, and of Patches where there are any.
	ContentHash string
	// Patches are applied to each infrastructure machine.
	Patches patch.List
	// CapacityType of the machines that the template itself makes, if the source says it. Otherwise they are on demand.
	CapacityType string
	// Bootstrap is the source's own, else the node class's. Without either it isn't defined, and nothing can be launched.
	Bootstrap Bootstrap
	// Machine is the MachineDeployment's machine template: its labels, annotations, version and timeouts. It is nil for any
	// other source.
	Machine *clusterv1.MachineTemplateSpec

	// InstanceType is the name that the shape is offered as. Several shapes may share it.
	InstanceType string
	// Arch and OS are as the labels kubernetes.io/arch and kubernetes.io/os have them.
	Arch, OS string
	// Capacity holds at least cpu, memory and pods.
	Capacity corev1.ResourceList
	// Devices that the DRA driver DeviceDriver publishes for a node of this shape; none without a driver.
	Devices      int
	DeviceDriver string
	// Labels are what nodes of this shape have beside the well-known ones that other fields hold.
	Labels map[string]string
	// Taints are what nodes of this shape have from the start.
	Taints []corev1.Taint
	// FailureDomains that the source is bound to, or the zone that it says its nodes are in. Empty: those of the Cluster.
	FailureDomains []string
	// Price and SpotPrice are in US dollars an hour; nil when the source doesn't say. Without SpotPrice there is no spot
	// offering.
	Price, SpotPrice *float64
	// MinSize and MaxSize are the Cluster Autoscaler's limits for the number of machines; nil without one.
	MinSize, MaxSize *int
	// Replicas are the machines that the source keeps itself, or is about to: those of a MachineDeployment.
	Replicas int
	// Paused: nothing may be launched from this shape, and nothing written.
	Paused bool
	// NodeVersion is what nodes of this shape get where that isn't the node class's version: what Version allows. Whoever
	// keeps the node class sets it.
	NodeVersion string
	// Held: nothing may be launched from this shape, because its version isn't one that nodes may have, or because its
	// source is malformed by now.
	Held bool
}

// Version is the Kubernetes version of the MachineDeployment, with a leading v or without; empty for any other source.
func (s *Template) Version() string {
	if s.Machine == nil {
		return ""
	}
	return s.Machine.Spec.Version
}

// Revision is <UID>/<generation> of the infrastructure template, and behind it the hash of Patches where there are any: annotations change
// no generation. It is empty if the template has no UID. As long as it is the same, nobody has
// changed the template, even if it reads differently: an API server of another version may prefer another version of the kind,
// or fill in other defaults.
func (s *Template) Revision() string {
	revision := revisionOf(s.Template)
	if hash := s.Patches.Hash(); revision != "" && hash != "" {
		revision += "/" + hash
	}
	return revision
}

func revisionOf(template *unstructured.Unstructured) string {
	if template == nil || template.GetUID() == "" || template.GetGeneration() == 0 {
		return ""
	}
	return string(template.GetUID()) + "/" + strconv.FormatInt(template.GetGeneration(), 10)
}

// Maximum is the number of machines that may be made from the shape, if there is one. What the source keeps itself counts: the
// maximum is that of the Cluster Autoscaler's node group, which a MachineDeployment and its replicas are.
func (s *Template) Maximum() (limit int, limited bool) {
	if s.MaxSize == nil {
		return 0, false
	}
	return max(*s.MaxSize-s.Replicas, 0), true
}

// Minimum is the number of machines made from the shape that stay although nobody needs them. What the source keeps itself counts, as for Maximum.
func (s *Template) Minimum() int {
	if s.MinSize == nil {
		return 0
	}
	return max(*s.MinSize-s.Replicas, 0)
}

// InvalidError says why one source is left out. The others stay usable.
type InvalidError struct {
	Source Source
	// On is the object that carries Key, if it isn't the source: a MachineDeployment's template.
	On string
	// Key is the annotation or field that is wrong, and Value what it holds; both empty where nothing single is.
	Key, Value string
	// Problem reads on from the value: "is not a quantity".
	Problem string
	// Unresolved: it isn't the source that is wrong, but what it refers to doesn't exist.
	Unresolved bool
}

// maxShown is how many bytes of a value a message repeats.
const maxShown = 100

// Error names the object, the key, the value and what is wrong with it.
func (e *InvalidError) Error() string {
	prefix := e.Source.String() + ": "
	if e.On != "" {
		prefix += e.On + ": "
	}
	if e.Key == "" {
		return prefix + e.Problem
	}
	// The problem stands behind the value, and messages are cut.
	return fmt.Sprintf("%s%s: %q %s", prefix, e.Key, message.Cut(e.Value, maxShown), e.Problem)
}

// Found is what a node class selects.
type Found struct {
	// SelectorErrs are the selectors that can't be parsed, each naming its field.
	SelectorErrs []error
	// Matching is everything that the selectors choose, whether it can be used or not.
	Matching []Source
	// Shapes that can be used, ordered by source.
	Shapes []Template
	// Invalid are the sources that match and can't be used.
	Invalid []*InvalidError
	// Unreadable are the kinds that couldn't be read, each an *informer.UnreadableError: what Shapes lacks because of them
	// is unknown.
	Unreadable []error
	// Existing counts the objects that were looked at, whether they match or not, by kind.
	Existing map[schema.GroupKind]int
	// BootstrapErr says why the node class's own bootstrap can't be used, although some shapes need it: ErrNoBootstrap, a Forbidden, a
	// NotFound, or an *informer.UnreadableError. Those shapes have no bootstrap: they exist, but nothing can be launched from them.
	BootstrapErr error
}

// Checked returns what was found, where templates that fail a check count as malformed sources.
func (f *Found) Checked(check func(*Template) error) *Found {
	checked := *f
	checked.Shapes, checked.Invalid = nil, slices.Clone(f.Invalid)
	for i := range f.Shapes {
		if err := check(&f.Shapes[i]); err != nil {
			checked.Invalid = append(checked.Invalid, &InvalidError{Source: f.Shapes[i].Source, Problem: err.Error()})
			continue
		}
		checked.Shapes = append(checked.Shapes, f.Shapes[i])
	}
	slices.SortFunc(checked.Invalid, func(a, b *InvalidError) int { return a.Source.compare(b.Source) })
	return &checked
}

func (f *Found) add(s Template, invalid *InvalidError) {
	if invalid != nil {
		f.Invalid = append(f.Invalid, invalid)
		return
	}
	f.Shapes = append(f.Shapes, s)
}

// unreadable notes a kind that can't be read, once.
func (f *Found) unreadable(err error) {
	if !slices.ContainsFunc(f.Unreadable, func(other error) bool { return other.Error() == err.Error() }) {
		f.Unreadable = append(f.Unreadable, err)
	}
}

// Cluster is what shapes need to know of the Cluster that they make machines for.
type Cluster struct {
	// FailureDomains by name, ordered.
	FailureDomains []string
	Paused         bool
	// Deleting: nothing may be launched any more.
	Deleting bool
}
