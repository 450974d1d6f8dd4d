// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/informer"
)

// ErrNoBootstrap: the node class says nothing about bootstrap, and a shape has none of its own.
var ErrNoBootstrap = errors.New("spec.bootstrap isn't set, and infrastructure templates have no bootstrap of their own")

// Kinds of Cluster API that this package reads.
var (
	clusterKind           = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}
	machineDeploymentKind = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "MachineDeployment"}
)

// Config of a Resolver.
type Config struct {
	// Objects reads the control-plane namespace of the management cluster. Its Versions have to name the version of
	// cluster.x-k8s.io that this package understands: see Versions.
	Objects *informer.Set
	// ClusterName is the Cluster that machines are made for. What belongs to another one is never a shape.
	ClusterName string
}

// Versions of API groups that are read as Go types.
var Versions = map[string]string{"cluster.x-k8s.io": "v1beta2"}

// Resolver finds the shapes that a node class selects.
type Resolver struct {
	Config
	finders []finder
}

// finder is one kind of shape source.
type finder interface {
	// find adds what the node class selects to found, without bootstrap where the source has none of its own. The error is
	// that of ctx, and nothing else.
	find(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error
}

// NewResolver returns a resolver of every kind of shape source.
func NewResolver(config Config) *Resolver { return &Resolver{Config: config} }

// Resolve finds the shapes that a node class selects. A source that is malformed, and a kind that can't be read, is reported in
// Found; the error is that of ctx, and nothing else.
func (r *Resolver) Resolve(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass) (*Found, error) {
	return nil, errors.ErrUnsupported
}

// Cluster reads what shapes need to know of the Cluster. The error is a NotFound, an *informer.UnreadableError, or that of
// ctx.
func (r *Resolver) Cluster(ctx context.Context) (Cluster, error) {
	return Cluster{}, errors.ErrUnsupported
}
