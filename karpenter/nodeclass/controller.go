// SPDX-License-Identifier: Apache-2.0

// Package nodeclass keeps the status of ClusterAPINodeClasses in the guest cluster, and their instance types in the store.
package nodeclass

import (
	"context"

	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/informer"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/version"
)

// Config of the controller.
type Config struct {
	// Guest reads and writes node classes, and reads NodeClaims.
	Guest client.Client
	// Management reads, without a cache, whether a bootstrap data Secret exists.
	Management client.Reader
	// Namespace is the control-plane namespace in the management cluster.
	Namespace string
	Objects   *informer.Set
	Shapes    *shape.Resolver
	Store     *instancetype.Store
	Version   *version.Tracker
	// PayloadVersion is the release payload's node version; empty without a payload.
	PayloadVersion string
	Recorder       record.EventRecorder
	Clock          clock.Clock
}

// Controller of node classes.
type Controller struct {
	Config
}

// New returns the controller.
func New(config Config) *Controller { return &Controller{Config: config} }

// Name of the controller.
func (c *Controller) Name() string { return "nodeclass" }

// Register adds the controller to the guest's manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error { return nil }

// HashVersion is the version of the rule that Hash follows. It has to be raised whenever Hash gives another result for
// the same node class, so that nodes that were made before aren't replaced for it.
const HashVersion = "v1"

// Hash is of the node class's fields that a node has to be replaced for when they change: spec.bootstrap and
// spec.kubelet. What the selectors find, and the version, are compared by what a node was made from.
func Hash(nodeClass *v1alpha1.ClusterAPINodeClass) string { return "" }
