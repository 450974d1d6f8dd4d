// SPDX-License-Identifier: Apache-2.0

// Package nodepool reports NodePools that name a node class or labels which don't exist here. Karpenter core ignores a NodePool of another
// kind of node class, and takes an unknown key of a requirement for a label that the NodePool defines.
package nodepool

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// UndeclaredKeys is a condition and an event: requirements are on labels that no machine has. Ready doesn't depend on it.
const UndeclaredKeys = "UndeclaredKeys"

// reserved matches keys of domains in which a NodePool can't define labels.
var reserved = regexp.MustCompile(`^(.*\.)?(kubernetes\.io|k8s\.io|karpenter\.sh|karpenter\.cluster\.x-k8s\.io|karpenter\.k8s\.gcp|` +
	`k8s\.aws|amazonaws\.com|azure\.com|cloud\.google\.com)/`)

// Controller of NodePools.
type Controller struct {
	guest    client.Client
	declared func(nodeClass string) (sets.Set[string], error)
	recorder events.Recorder
}

// New returns the controller. declared are the keys of the labels that templates of a node class have; an error while they aren't known.
func New(guest client.Client, declared func(nodeClass string) (sets.Set[string], error), recorder events.Recorder) *Controller {
	return &Controller{guest, declared, recorder}
}

// Name of the controller.
func (c *Controller) Name() string { return "nodepool.undeclared" }

// Reconcile reports a NodePool's undeclared keys or unsupported node class, and clears the condition once the keys are corrected.
func (c *Controller) Reconcile(ctx context.Context, nodePool *karpv1.NodePool) (reconcile.Result, error) {
	changed, ref := nodePool.DeepCopy(), nodePool.Spec.Template.Spec.NodeClassRef
	conditions := changed.StatusConditions()
	before, reason, message := conditions.Get(UndeclaredKeys), UndeclaredKeys, ""
	if ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.Kind {
		if !conditions.Get(karpv1.ConditionTypeNodeClassReady).IsUnknown() {
			return reconcile.Result{}, nil // reported, or it is another Karpenter's
		}
		reason, message = "NodeClassUnsupported", fmt.Sprintf("this cluster's Karpenter launches nothing for %s %s of group %s: its node "+
			"classes are ClusterAPINodeClasses; recreate the NodePool with nodeClassRef {group: %s, kind: %s, name: default}",
			ref.Kind, ref.Name, ref.Group, v1alpha1.Group, v1alpha1.Kind)
		conditions.SetFalse(karpv1.ConditionTypeNodeClassReady, reason, message)
	} else if declared, err := c.declared(ref.Name); err != nil {
		return reconcile.Result{}, nil //nolint:nilerr // the node class triggers the next reconcile
	} else if message = undeclared(nodePool, declared); message != "" {
		conditions.SetTrueWithReason(UndeclaredKeys, reason, message)
	} else {
		_ = conditions.Clear(UndeclaredKeys) // fails for conditions that Ready depends on
	}
	if before == nil && message == "" || before != nil && before.Message == message {
		return reconcile.Result{}, nil
	}
	err := c.guest.Status().Patch(ctx, changed, client.MergeFromWithOptions(nodePool, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err): // the conflicting change triggers the next reconcile
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("updating the conditions of NodePool %s: %w", nodePool.Name, err)
	case message != "":
		c.recorder.Publish(events.Event{
			InvolvedObject: nodePool, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
			DedupeValues: []string{string(nodePool.UID), message},
		})
	}
	return reconcile.Result{}, nil
}

// undeclared names each key of the requirements that no machine has, unless it looks like a label of the user's own: in a domain that isn't
// reserved, not compared as a number, and more than two letters away from a known key.
func undeclared(nodePool *karpv1.NodePool, declared sets.Set[string]) string {
	known, found := declared.Union(karpv1.WellKnownLabels).Union(sets.KeySet(nodePool.Spec.Template.Labels)), sets.New[string]()
	for _, r := range nodePool.Spec.Template.Spec.Requirements {
		if known.Has(r.Key) || karpv1.NormalizedLabels[r.Key] != "" || r.Operator == corev1.NodeSelectorOpDoesNotExist {
			continue
		}
		apart := func(key string) int { // names first: the domain is another provider's
			return distance(r.Key[strings.Index(r.Key, "/")+1:], key[strings.Index(key, "/")+1:])<<10 + distance(r.Key, key)
		}
		nearest := slices.MinFunc(sets.List(known), func(a, b string) int { return apart(a) - apart(b) })
		if strings.Contains("Gt Lt Gte Lte", string(r.Operator)) || distance(r.Key, nearest) <= min(2, len(r.Key)/4) ||
			reserved.MatchString(r.Key) && !strings.HasPrefix(r.Key, corev1.LabelNamespaceNodeRestriction+"/") {
			found.Insert(fmt.Sprintf("%s (nearest: %s)", r.Key, nearest))
		}
	}
	if found.Len() == 0 {
		return ""
	}
	return "no template, catalog or well-known label has " + strings.Join(sets.List(found), ", ") +
		"; it selects no machines, and Karpenter makes up its value on nodes: correct the key, or write a label of your own into " +
		"spec.template.metadata.labels"
}

// distance is how many bytes have to be inserted, removed or replaced.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for i := range len(a) + 1 {
		diagonal := i - 1
		for j := range row {
			switch {
			case i == 0 || j == 0:
				row[j] = i + j
			case a[i-1] == b[j-1]:
				diagonal, row[j] = row[j], diagonal
			default:
				diagonal, row[j] = row[j], 1+min(diagonal, row[j], row[j-1])
			}
		}
	}
	return row[len(b)]
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named(c.Name()).For(&karpv1.NodePool{}).
		Watches(&v1alpha1.ClusterAPINodeClass{}, nodepoolutils.NodeClassEventHandler(c.guest)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
