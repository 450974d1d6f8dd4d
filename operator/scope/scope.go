// SPDX-License-Identifier: Apache-2.0

// Package scope is the seam between the HostedCluster reconciler and its steps: the inputs of a step about one hosted cluster, and its
// result. It holds no behaviour of its own.
package scope

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/payload"
)

// Mode is why steps run. Modes are bits: a step may run in several.
type Mode uint8

const (
	// On: AutoNode is on.
	On Mode = 1 << iota
	// Draining: AutoNode is turned off, or the HostedCluster is deleted.
	Draining
	// Paused: the HostedCluster or its Cluster is paused. Status writes are dropped; messages describe the pause.
	Paused
	// Upkeep: the teardown, which runs in Draining, needs Karpenter to run on. See Scope.Upkeep.
	Upkeep
)

// Step is one job of the HostedCluster reconciler. It owns its conditions on the HostedCluster's status, which it sets in
// memory: the reconciler patches once, when all steps have run. A step is idempotent, and never changes spec or metadata.
type Step interface {
	// Name is a lowercase noun, for logs and errors.
	Name() string
	// Reconcile does all that is possible now. An error is retried with back-off; waiting isn't an error.
	Reconcile(ctx context.Context, s *Scope) (Result, error)
}

// Result is the result of a step.
type Result struct {
	// Wait: an input is missing. The steps after this one don't run, and the running Karpenter isn't changed. A watch has to
	// trigger the reconciler; RequeueAfter is for inputs that can't be watched.
	Wait bool
	// Message describes the missing input. It is copied to AutoNodeEnabled and the MESSAGE column.
	Message string
	// Reason is AutoNodeEnabled's reason, if it isn't the default for waiting.
	Reason string
	// Resuming, with Wait: the missing input existed before, and this process, which has just started, has to
	// find it again. The status stays unchanged meanwhile.
	Resuming bool
	// RequeueAfter is the requeue interval; zero for none.
	RequeueAfter time.Duration
}

// Scope is the state of one hosted cluster during one reconciliation. Earlier steps fill the inputs of later ones.
type Scope struct {
	// Mode is why the step runs now.
	Mode Mode
	// Upkeep runs the steps of that mode until one fails. The teardown calls it, once it has seen the leftovers: a
	// guest that answers reads and refuses writes mustn't look unreachable. Nil outside Draining.
	Upkeep func(ctx context.Context) error

	// HostedCluster is a copy of the object; steps write to its status only.
	HostedCluster *v1beta1.HostedCluster
	// ControlPlaneNamespace is the namespace of the control plane in the management cluster.
	ControlPlaneNamespace string
	// Cluster is the Cluster API Cluster, nil while there is none.
	Cluster *clusterv1.Cluster
	// Component is the ControlPlaneComponent that owns the operator's objects in the control-plane namespace. It exists
	// from before the first step that needs an owner; nil when AutoNode is off and nothing of it is left.
	Component *v1beta1.ControlPlaneComponent
	// Profile is the cloud provider's that Component runs or will run. Steps don't run without one.
	Profile *provider.Profile

	// Release is the resolved payload; nil while it isn't resolved.
	Release *payload.Release
	// Karpenter is the payload's Karpenter for the cluster's platform; meaningless while Release is nil.
	Karpenter payload.Component

	// FeatureGates are those of Karpenter; nil while they aren't known.
	FeatureGates *FeatureGates

	// NodeUpgrade is which version nodes get, and when those that have another are replaced.
	NodeUpgrade NodeUpgrade

	// Sleep is whether the cluster has no nodes for a while.
	Sleep Sleep

	// NodeClassGeneration is the generation of the default node class as it was applied now; zero where none was.
	NodeClassGeneration int64

	// Rollout names the rollout of Karpenter that was applied now, if it is complete; see provider.RolloutVariable.
	Rollout string

	// Guest reaches the guest cluster; nil while it can't be reached.
	Guest *Guest
}

// ClusterKey names the Cluster API Cluster.
func (s *Scope) ClusterKey() client.ObjectKey {
	return client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: s.HostedCluster.ClusterName()}
}

// Names are the names of the hosted cluster's objects in the control-plane namespace.
func (s *Scope) Names() v1beta1.Names { return s.HostedCluster.Names() }

// ComponentKey names the ControlPlaneComponent, and everything that is called like it.
func (s *Scope) ComponentKey() client.ObjectKey {
	return client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: s.Names().Karpenter}
}

// NodeUpgrade is which version nodes get, and when those that have another are replaced.
type NodeUpgrade struct {
	// Version is the version of new nodes, as the payload writes it; empty to follow the guest's API server.
	Version string
	provider.Upgrades
	// Waits describes when, or after whose approval, nodes are replaced; empty if nothing holds them.
	Waits string
	// Ring: Waits is about the rings of spec.autoNode.nodeUpgrade.after.
	Ring bool
	// Plan is of an upgrade that proves itself; nil for none. Progress is its report while nodes wait for it, and Resume the command that
	// resumes it, if it takes one.
	Plan     *upgradeplan.Plan
	Progress *v1alpha1.NodeUpgradeStatus
	Resume   string
}

// Sleep of a cluster.
type Sleep struct {
	// Until is the value of v1alpha1.AsleepUntilAnnotation while Karpenter's nodes have to go, or have gone.
	Until string
	// Asleep: none is left, and Karpenter is to have no replica.
	Asleep bool
	// Message describes it.
	Message string
}

// Wanted reports whether the cluster has to be asleep.
func (s Sleep) Wanted() bool { return s.Until != "" }

// NodeDrain is how nodes drain, and the name of its field.
func (s *Scope) NodeDrain() (drain *v1beta1.NodeDrain, field string) {
	if !s.Sleep.Wanted() {
		return s.HostedCluster.Spec.NodeDrain, "spec.nodeDrain"
	}
	if sleep := s.HostedCluster.Spec.AutoNode.Sleep; sleep != nil {
		drain = sleep.NodeDrain
	}
	return drain, "spec.autoNode.sleep.nodeDrain"
}

// Draining is true while AutoNode is being turned off, or the HostedCluster deleted.
func (s *Scope) Draining() bool {
	return s.HostedCluster.Spec.AutoNode == nil || !s.HostedCluster.DeletionTimestamp.IsZero()
}

// Sooner returns the shorter of two times until a step has to run again; zero is none.
func Sooner(a, b time.Duration) time.Duration {
	if b > 0 && (a <= 0 || b < a) {
		return b
	}
	return a
}

// SetCondition sets a condition of the HostedCluster, for its generation.
func (s *Scope) SetCondition(condition metav1.Condition) {
	condition.ObservedGeneration = s.HostedCluster.Generation
	meta.SetStatusCondition(&s.HostedCluster.Status.Conditions, condition)
}

// Guest reaches one guest cluster.
type Guest struct {
	// Cached reads from watches, of the kinds that the guest step watches, and writes.
	Cached client.Client
	// Live reads from the API server, and writes.
	Live client.Client
	// Complete: the guest serves Karpenter's kinds and Cached watches them. Before, a cached read of one could block
	// for seconds.
	Complete bool
	// Config names the API server, its CA and the operator's own credentials.
	Config *rest.Config
}

// FeatureGates of a hosted cluster's Karpenter.
type FeatureGates struct {
	// Set are those that the platform or the HostedCluster sets. The others keep the defaults of Karpenter's Deployment.
	Set map[string]bool
	// InUse are those that are on in Set, or in a replica that may still run: Karpenter has their permissions in the guest.
	InUse sets.Set[string]
	// Definitions are the names of the CustomResourceDefinitions that the operator keeps in the guest because of Set.
	Definitions sets.Set[string]
}
