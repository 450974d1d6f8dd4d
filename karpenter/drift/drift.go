// SPDX-License-Identifier: Apache-2.0

// Package drift says whether a machine still is what its node class would make now. It reads memory only: Karpenter asks
// for every node whenever a pod changes.
package drift

import (
	"strings"
	"sync"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/nodeclass"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/version"
)

// Reasons for which a node is replaced. People filter by them: they never change.
const (
	// NodeClassDrifted: the node class's fields that reach a node have changed: see nodeclass.Hash.
	NodeClassDrifted cloudprovider.DriftReason = "NodeClassDrifted"
	// ShapeDrifted: the content of the infrastructure template has changed.
	ShapeDrifted cloudprovider.DriftReason = "ShapeDrifted"
	// BootstrapDrifted: the content of the bootstrap template has changed, or the data Secret's name.
	BootstrapDrifted cloudprovider.DriftReason = "BootstrapDrifted"
	// VersionDrifted: nodes of this class get another Kubernetes version now.
	VersionDrifted cloudprovider.DriftReason = "VersionDrifted"
)

// Config of a Detector.
type Config struct {
	// InstanceTypes hold the shapes as they are now.
	InstanceTypes *instancetype.Store
	// Version resolves a node class's version, and says whether the guest's API server answers.
	Version func(nodeClass *v1alpha1.ClusterAPINodeClass) (result version.Result, reachable bool)
}

// Detector finds drift.
type Detector struct {
	Config
	// sources index the shapes of a snapshot by source: of node class name to *sources.
	sources sync.Map
}

// New returns a detector.
func New(config Config) *Detector {
	return &Detector{Config: config}
}

// Reason returns why a NodeClaim's node is to be replaced, or "". What isn't known is never drift.
func (d *Detector) Reason(nodeClass *v1alpha1.ClusterAPINodeClass, nodeClaim *karpv1.NodeClaim, machine *clusterv1.Machine) cloudprovider.DriftReason {
	if nodeClass.DeletionTimestamp != nil || nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true" {
		// Its nodes go anyway.
		return ""
	}
	// Replacing nodes while the control plane changes under them would replace them twice.
	resolved, reachable := d.Version(nodeClass)
	if !reachable || resolved.Outcome != version.Desired {
		return ""
	}
	if nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] == nodeclass.HashVersion &&
		differs(nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation], nodeclass.Hash(nodeClass)) {
		return NodeClassDrifted
	}
	sh := d.shape(nodeClass.Name, machine.Annotations[v1alpha1.ShapeSourceAnnotation])
	if sh != nil {
		if differs(machine.Annotations[v1alpha1.ShapeHashAnnotation], sh.ContentHash) {
			return ShapeDrifted
		}
		if differs(machine.Annotations[v1alpha1.BootstrapHashAnnotation], sh.Bootstrap.Hash) {
			return BootstrapDrifted
		}
	}
	if differs(strings.TrimPrefix(machine.Spec.Version, "v"), strings.TrimPrefix(resolved.Version, "v")) {
		return VersionDrifted
	}
	return ""
}

// differs compares two values of which either may be unknown.
func differs(have, want string) bool {
	return have != "" && want != "" && have != want
}

type sources struct {
	snapshot *instancetype.Snapshot
	shapes   map[string]*shape.Shape
}

// shape returns the shape of a source as it is now, or nil when it isn't offered or not known.
func (d *Detector) shape(nodeClass, source string) *shape.Shape {
	snapshot, err := d.InstanceTypes.Snapshot(nodeClass)
	if err != nil {
		return nil
	}
	if value, ok := d.sources.Load(nodeClass); ok && value.(*sources).snapshot == snapshot {
		return value.(*sources).shapes[source]
	}
	index := &sources{snapshot: snapshot, shapes: map[string]*shape.Shape{}}
	for _, choice := range snapshot.Choices() {
		index.shapes[choice.Shape.Source.Annotation()] = choice.Shape
	}
	d.sources.Store(nodeClass, index)
	return index.shapes[source]
}
