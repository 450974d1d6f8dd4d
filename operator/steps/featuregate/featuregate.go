// SPDX-License-Identifier: Apache-2.0

// Package featuregate decides which feature gates the Karpenter of a hosted cluster gets. A gate may need a CustomResourceDefinition and
// permissions in the guest: later steps apply those of the gates that are on.
package featuregate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// recheck is the interval between checks of others' objects in a guest: the operator watches only its own objects there.
const recheck = time.Minute

// Config is the input of New.
type Config struct {
	// Management reads the management cluster from the cache.
	Management client.Reader
	Clock      clock.PassiveClock
	// Platform are the gates that the platform sets for every hosted cluster.
	Platform map[string]bool
	// Allowed are the gates that a HostedCluster may set.
	Allowed []string
}

// FeatureGates is the step.
type FeatureGates struct {
	Config
	// observed remembers others' objects, by the HostedCluster and the gate.
	observed lru.Cache[observation, observed]
}

type observation struct {
	hostedCluster types.UID
	gate          string
}

type observed struct {
	finding    finding
	at         time.Time
	connection *rest.Config
}

// finding is the report of the condition FeatureGatesAccepted about a gate.
type finding struct {
	// off: the gate stays off.
	off             bool
	reason, message string
}

var _ scope.Step = (*FeatureGates)(nil)

// New returns the step.
func New(config Config) *FeatureGates {
	return &FeatureGates{Config: config, observed: lru.New[observation, observed](1 << 14)}
}

// Name implements scope.Step.
func (*FeatureGates) Name() string { return "featuregate" }

// Reconcile sets Scope.FeatureGates and the condition FeatureGatesAccepted. It never waits: a gate that can't be on is off, and everything
// else goes on.
func (f *FeatureGates) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	inUse, err := f.inUse(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	decided := &scope.FeatureGates{Set: map[string]bool{}, InUse: inUse, Definitions: sets.New[string]()}
	s.FeatureGates = decided
	if s.Draining() || s.Guest == nil {
		return scope.Result{}, nil // Karpenter runs on as it is
	}
	wanted, findings := f.wanted(s.HostedCluster)
	observes := false
	for _, gate := range gates {
		on, ok := wanted[gate.name]
		if ok && on {
			found, err := f.check(ctx, s, gate)
			if err != nil {
				return scope.Result{}, err
			}
			if found.reason != "" {
				findings, observes = append(findings, found), true
			} else if gate.definition != "" {
				decided.Definitions.Insert(gate.definition)
			}
			on = !found.off
		}
		if ok {
			decided.Set[gate.name] = on
		}
		if on {
			decided.InUse.Insert(gate.name)
		}
	}
	report(s.HostedCluster, findings)
	if observes {
		return scope.Result{RequeueAfter: recheck}, nil
	}
	return scope.Result{}, nil
}

// wanted returns the gates that are to be set: the platform's, and those of the HostedCluster that it may set.
func (f *FeatureGates) wanted(hostedCluster *v1beta1.HostedCluster) (map[string]bool, []finding) {
	wanted := map[string]bool{}
	maps.Copy(wanted, f.Platform)
	config := hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter
	if config == nil {
		return wanted, nil
	}
	var refused []string
	for _, name := range slices.Sorted(maps.Keys(config.FeatureGates)) {
		if slices.Contains(f.Allowed, name) {
			wanted[name] = config.FeatureGates[name]
		} else {
			refused = append(refused, message.Quote(name))
		}
	}
	if len(refused) == 0 {
		return wanted, nil
	}
	allowed := "none"
	if len(f.Allowed) > 0 {
		allowed = strings.Join(f.Allowed, ", ")
	}
	return wanted, []finding{{off: true, reason: v1beta1.FeatureGateNotAllowedReason, message: fmt.Sprintf(
		"spec.autoNode.provisionerConfig.karpenter.featureGates: %s without effect; the platform allows "+
			"HostedClusters %s", strings.Join(refused, ", "), allowed)}}
}

// inUse returns the gates of the replicas that may still run: of the Deployment as it is, and of the last complete rollout.
func (f *FeatureGates) inUse(ctx context.Context, s *scope.Scope) (sets.Set[string], error) {
	inUse := sets.New[string]()
	if s.Component == nil {
		return inUse, nil
	}
	inUse.Insert(s.Component.Status.FeatureGates...)
	deployment := &appsv1.Deployment{}
	if err := f.Management.Get(ctx, s.ComponentKey(), deployment); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the Deployment: %w", err)
	}
	for i := range deployment.Spec.Template.Spec.Containers {
		inUse.Insert(Enabled(&deployment.Spec.Template.Spec.Containers[i])...)
	}
	return inUse, nil
}

// check returns the finding about a gate that is to be on. Its requests to the guest's API server are repeated at most every recheck.
func (f *FeatureGates) check(ctx context.Context, s *scope.Scope, gate gate) (finding, error) {
	if gate.definition == "" && gate.kind.Empty() {
		return finding{}, nil
	}
	key := observation{s.HostedCluster.UID, gate.name}
	if before, ok := f.observed.Get(key); ok && before.connection == s.Guest.Config && f.Clock.Since(before.at) < recheck {
		return before.finding, nil
	}
	look := foreign
	if gate.definition == "" {
		look = unserved
	}
	found, err := look(ctx, s.Guest, gate)
	if err != nil {
		return finding{}, err
	}
	if found.reason == "" {
		f.observed.Remove(key) // the operator's own is in its cache
		return found, nil
	}
	f.observed.Add(key, observed{finding: found, at: f.Clock.Now(), connection: s.Guest.Config})
	return found, nil
}

// report sets FeatureGatesAccepted, or removes it where there is nothing to say.
func report(hostedCluster *v1beta1.HostedCluster, findings []finding) {
	if len(findings) == 0 {
		meta.RemoveStatusCondition(&hostedCluster.Status.Conditions, v1beta1.FeatureGatesAccepted)
		return
	}
	condition := metav1.Condition{
		Type: v1beta1.FeatureGatesAccepted, Status: metav1.ConditionTrue, Reason: findings[0].reason,
		ObservedGeneration: hostedCluster.Generation,
	}
	messages := make([]string, 0, len(findings))
	for _, found := range findings {
		if found.off && condition.Status == metav1.ConditionTrue {
			condition.Status, condition.Reason = metav1.ConditionFalse, found.reason
		}
		messages = append(messages, found.message)
	}
	condition.Message = strings.Join(messages, "; ")
	meta.SetStatusCondition(&hostedCluster.Status.Conditions, condition)
}
