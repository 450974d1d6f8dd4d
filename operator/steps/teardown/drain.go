// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
)

// drain deletes the NodeClaims and waits until Karpenter has removed them.
func (t *Teardown) drain(ctx context.Context, s *scope.Scope, m *memory, claims []karpv1.NodeClaim, d drain, r *refusals,
) (scope.Result, error) {
	if err := t.withholdMachines(ctx, s, m); err != nil {
		return scope.Result{}, err
	}
	if err := r.take(refusal(operate(ctx, s))); err != nil {
		return scope.Result{}, err
	}
	if err := t.write(s, m, claims, d, r, func(claim *karpv1.NodeClaim) error { return t.request(ctx, s, claim, d) }); err != nil {
		return scope.Result{}, err
	}
	now := t.Clock.Now()
	result := scope.Result{Wait: true, RequeueAfter: d.within(now, m.listedAt.Add(relistInterval).Sub(now))}
	if !s.Guest.Complete || m.more {
		result.RequeueAfter = min(result.RequeueAfter, unwatched)
	}
	if d.phase == forced && !m.notified {
		m.notified = true
		log.FromContext(ctx).Info("Forced the drain of what is left", "nodeClaims", len(claims))
		t.Recorder.Eventf(s.HostedCluster, nil, corev1.EventTypeWarning, v1beta1.DrainForcedReason, "Drain",
			"%d %s not drained within %s: the pods left on them are terminated", len(claims),
			english.PluralWord(len(claims), "node was", "nodes were"), d.timeout)
	}

	parts := []string{m.progress(len(claims))}
	if len(r.all) > 0 {
		return t.refuse(s, m, d, r, parts[0]), nil
	}
	available := meta.FindStatusCondition(componentConditions(s), v1beta1.Available)
	if available != nil && available.Status == metav1.ConditionFalse {
		parts = append(parts, "Karpenter, which drains them, isn't available: "+available.Message)
	} else if blockedBy := m.blockedBy(claims); blockedBy != "" {
		parts = append(parts, blockedBy)
	}
	result.Reason = d.reason()
	parts = append(parts, t.outlook(d))
	result.Message = strings.Join(parts, "; ")
	return result, nil
}

// write calls do for each NodeClaim that needs it, starting after the last one of the previous call. It continues
// after a NodeClaim that the guest refuses, until the loop's time is up.
func (t *Teardown) write(s *scope.Scope, m *memory, claims []karpv1.NodeClaim, d drain, r *refusals, do func(*karpv1.NodeClaim) error,
) error {
	ends, n, all := t.limit(s, d.phase), 0, min(len(claims), writesAtOnce)
	for ; n < all && !r.hung && !ends(); n++ {
		if err := r.take(refusal(do(&claims[(m.next+n)%len(claims)]))); err != nil {
			return err
		}
	}
	if m.more = n < all; len(claims) > 0 {
		m.next = (m.next + n) % len(claims)
	}
	return nil
}

// loopTime is how long one loop over a guest's objects takes at most, but for the call that it ends with. The guest's admin may
// make any number of them, and a webhook there may answer each write just within the timeout of a call.
const loopTime = 15 * time.Second

// limit returns a function that ends a loop over a guest's objects, by its time or by the end of the drain's phase. The next reconciliation
// continues.
func (t *Teardown) limit(s *scope.Scope, during phase) (ends func() bool) {
	until := t.Clock.Now().Add(loopTime)
	return func() bool { return !t.Clock.Now().Before(until) || t.drainOf(s).phase != during }
}

// unfinished is the error of a loop that has ended before its last object; nil if none is left.
func unfinished(remaining int, doing string) error {
	if remaining == 0 {
		return nil
	}
	return refusal(fmt.Errorf("%s: %d are left, because the guest takes long to answer", doing, remaining))
}

// request deletes a NodeClaim. In a forced drain it also lets Karpenter terminate the pods that block it.
func (t *Teardown) request(ctx context.Context, s *scope.Scope, claim *karpv1.NodeClaim, d drain) error {
	if claim.DeletionTimestamp.IsZero() {
		if err := s.Guest.Live.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting NodeClaim %s in the guest: %w", claim.Name, err)
		}
		log.FromContext(ctx).Info("Deleted a NodeClaim to drain its node", "NodeClaim", klog.KObj(claim))
	}
	now := t.Clock.Now().UTC()
	if d.phase != forced || mayTerminate(claim, now) {
		return nil
	}
	before := client.MergeFrom(claim.DeepCopy())
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, karpv1.NodeClaimTerminationTimestampAnnotationKey, now.Format(time.RFC3339))
	if err := s.Guest.Live.Patch(ctx, claim, before); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("forcing the drain of NodeClaim %s in the guest: %w", claim.Name, err)
	}
	return nil
}

// outlook returns the fate of nodes that aren't drained.
func (t *Teardown) outlook(d drain) string {
	switch deadline := t.clockTime(d.deadline); {
	case d.phase == stopped:
		return fmt.Sprintf("it was to be done by %s, and %s.onTimeout is Stop: remove what holds it, raise %[2]s.timeout, "+
			"or set onTimeout to Force", deadline, d.field)
	case d.phase == over:
		return "its Machines are deleted through the management cluster"
	case d.phase == forced:
		return "pods are terminated by force, and what is left is given up at " + t.clockTime(d.givenUp)
	case d.stops:
		return fmt.Sprintf("to be done by %s; nothing is forced", deadline)
	default:
		return "forced at " + deadline
	}
}

// reason is AutoNodeEnabled's reason; empty for the default.
func (d drain) reason() string {
	if d.phase == stopped {
		return v1beta1.AutoNodeDrainStoppedReason
	}
	return ""
}

func componentConditions(s *scope.Scope) []metav1.Condition {
	if s.Component == nil {
		return nil
	}
	return s.Component.Status.Conditions
}

// markDraining keeps Karpenter from launching nodes for evicted pods: the provider makes a marked node class not
// ready. It starts after the last node class of the previous call.
func (t *Teardown) markDraining(ctx context.Context, s *scope.Scope, m *memory, read lister) error {
	annotation, until := s.Profile.NodeClass.DrainingAnnotation, s.Sleep.Until
	classes, err := nodeClasses(ctx, s, read)
	if err != nil {
		return err
	}
	var errs []error
	ends, remaining, first := t.limit(s, t.drainOf(s).phase), len(classes), m.nextClass
	for ; remaining > 0 && !ends(); remaining-- {
		class := classes[m.nextClass%len(classes)]
		m.nextClass = (m.nextClass + 1) % len(classes)
		marks := class.GetAnnotations()
		if marks[annotation] == "true" && marks[v1alpha1.AsleepUntilAnnotation] == until || !class.GetDeletionTimestamp().IsZero() {
			continue
		}
		before, ok := class.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T can't be copied", class)
		}
		marks = labels.Merge(marks, labels.Set{annotation: "true", v1alpha1.AsleepUntilAnnotation: until})
		if until == "" {
			delete(marks, v1alpha1.AsleepUntilAnnotation)
		}
		class.SetAnnotations(marks)
		switch err := s.Guest.Live.Patch(ctx, class, client.MergeFrom(before)); {
		case client.IgnoreNotFound(err) != nil:
			errs = append(errs, fmt.Errorf("marking node class %s as draining in the guest: %w", class.GetName(), err))
			if outage.Lost(s.Guest, err) {
				return refusal(errors.Join(errs...)) // neither would be the next
			}
			continue
		case err == nil && class.GetAnnotations()[annotation] != "true":
			errs = append(errs, fmt.Errorf("marking node class %s as draining in the guest: something there takes the mark away", class.GetName()))
			continue
		}
		log.FromContext(ctx).Info("Marked a node class as draining", s.Profile.NodeClass.Kind, klog.KObj(class))
	}
	if remaining == 0 {
		m.nextClass = first
	}
	return refusal(errors.Join(append(errs, unfinished(remaining, "marking node classes as draining in the guest"))...))
}

// nodeClaims returns the provider's NodeClaims, oldest first. Those of another Karpenter, which the guest's admin may
// run, are left alone.
func nodeClaims(ctx context.Context, s *scope.Scope, read lister) ([]karpv1.NodeClaim, error) {
	claims := &karpv1.NodeClaimList{}
	if err := read(ctx, watch.NodeClaimDefinition, claims); err != nil {
		return nil, err
	}
	ours := slices.DeleteFunc(claims.Items, func(claim karpv1.NodeClaim) bool {
		return claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Group != s.Profile.NodeClass.Group
	})
	slices.SortFunc(ours, func(a, b karpv1.NodeClaim) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return ours, nil
}

func nodeClasses(ctx context.Context, s *scope.Scope, read lister) ([]client.Object, error) {
	classes := s.Profile.NodeClass.NewList()
	if err := read(ctx, s.Profile.NodeClass.Definition(), classes); err != nil {
		return nil, err
	}
	var objects []client.Object
	err := meta.EachListItem(classes, func(item runtime.Object) error {
		class, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%T isn't a node class", item)
		}
		objects = append(objects, class)
		return nil
	})
	return objects, err
}

// lister lists all objects of a kind, given its CRD.
type lister func(ctx context.Context, definition string, into client.ObjectList) error

// cached lists from the guest's watches, which must have started.
func cached(guest *scope.Guest) lister {
	return func(ctx context.Context, definition string, into client.ObjectList) error {
		if err := guest.Cached.List(ctx, into); err != nil {
			return fmt.Errorf("listing %s in the guest's cache: %w", definition, err)
		}
		return nil
	}
}

// live lists from the guest's API server. It returns nothing if the guest lacks the kind's CRD. The API server has to
// say so about the CRD itself: a 404 of a list may come from anything that answers in place of a control plane that
// is down.
func live(guest *scope.Guest) lister {
	return func(ctx context.Context, definition string, into client.ObjectList) error {
		crd, err := readDefinition(ctx, guest, definition)
		if err != nil || crd == nil {
			return refusal(err)
		}
		if err := guest.Live.List(ctx, into); err != nil {
			return refusal(fmt.Errorf("listing %s in the guest: %w", definition, err))
		}
		return nil
	}
}

// readDefinition returns the metadata of a CRD; nil if an API server reports that it doesn't exist.
func readDefinition(ctx context.Context, guest *scope.Guest, name string) (*metav1.PartialObjectMetadata, error) {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(definitionKind)
	err := guest.Live.Get(ctx, client.ObjectKey{Name: name}, definition)
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CustomResourceDefinition %s in the guest: %w", name, err)
	}
	return definition, nil
}

// mayTerminate reports whether Karpenter may terminate the pods of a NodeClaim's node.
func mayTerminate(claim *karpv1.NodeClaim, now time.Time) bool {
	at, err := time.Parse(time.RFC3339, claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	return err == nil && !at.After(now)
}

// blocker is a NodeClaim and the reason why its node isn't drained; empty if unknown.
type blocker struct{ claim, why string }

// findBlocker returns the blocker of the oldest nodes, as far as their pods show it.
func findBlocker(ctx context.Context, guest *scope.Guest, claims []karpv1.NodeClaim) (blocker, error) {
	const examined = 3 // nodes; each is a request
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := guest.Live.List(ctx, budgets); err != nil {
		return blocker{}, fmt.Errorf("listing PodDisruptionBudgets in the guest: %w", err)
	}
	for n, listed := 0, 0; n < len(claims) && listed < examined; n++ {
		claim := &claims[n]
		if len(validation.IsDNS1123Subdomain(claim.Status.NodeName)) > 0 {
			continue
		}
		listed++
		pods := &corev1.PodList{}
		if err := guest.Live.List(ctx, pods, client.MatchingFields{"spec.nodeName": claim.Status.NodeName}); err != nil {
			return blocker{}, fmt.Errorf("listing the pods of node %s in the guest: %w", claim.Status.NodeName, err)
		}
		why, err := blockedBy(ctx, pods.Items, budgets.Items)
		if err != nil {
			return blocker{}, err
		}
		if why != "" {
			return blocker{claim: claim.Name, why: why}, nil
		}
	}
	return blocker{}, nil
}

// Limits of one check. The guest's admin writes any number of either, and each pair is compared.
const (
	maxPods    = 500 // a kubelet runs 110, by default
	maxBudgets = 100 // without an allowed disruption, in the pods' namespaces
)

// blockedBy returns the obstacle to the eviction of a node's pods. If it finds none, it returns how many objects exceed the limits.
func blockedBy(ctx context.Context, pods []corev1.Pod, budgets []policyv1.PodDisruptionBudget) (string, error) {
	evictable, unexamined, examined := map[string][]*corev1.Pod{}, max(0, len(pods)-maxPods), 0
	for i := range pods[:min(len(pods), maxPods)] {
		pod := &pods[i]
		if !pod.DeletionTimestamp.IsZero() || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || stays(pod) {
			continue
		}
		if v := pod.Annotations[karpv1.DoNotDisruptAnnotationKey]; v != "" && v != "false" {
			return fmt.Sprintf("pod %s, which has the annotation %s", klog.KObj(pod), karpv1.DoNotDisruptAnnotationKey), nil
		}
		evictable[pod.Namespace] = append(evictable[pod.Namespace], pod)
	}
	for i := range budgets {
		budget := &budgets[i]
		candidates := evictable[budget.Namespace]
		if len(candidates) == 0 || budget.Status.DisruptionsAllowed > 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if examined++; examined > maxBudgets {
			unexamined++
			continue
		}
		selector, err := lenient.Selector(budget.Spec.Selector)
		if err != nil {
			unexamined++
		} else if slices.ContainsFunc(candidates, func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }) {
			return fmt.Sprintf("PodDisruptionBudget %s (0 disruptions allowed)", klog.KObj(budget)), nil
		}
	}
	if unexamined > 0 {
		return fmt.Sprintf("unknown reasons: %d pods and PodDisruptionBudgets are beyond the limits of a check", unexamined), nil
	}
	return "", nil
}

// stays reports whether Karpenter leaves a pod on a node that it drains.
func stays(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Kind == "Node" }) ||
		slices.ContainsFunc(pod.Spec.Tolerations, func(toleration corev1.Toleration) bool {
			return toleration.ToleratesTaint(klog.Background(), &karpv1.DisruptedNoScheduleTaint, false)
		})
}
