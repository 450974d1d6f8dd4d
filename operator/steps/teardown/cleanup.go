// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// cleanUpTime is the timeout of one cleanup of a guest after its drain, with all its requests.
const cleanUpTime = 30 * time.Second

// cleanUp removes the objects in the guest as far as the guest allows, and records the rest. Its errors are the
// management cluster's.
func (t *Teardown) cleanUp(ctx context.Context, s *scope.Scope, why string) error {
	bounded, cancel := context.WithTimeout(ctx, cleanUpTime)
	defer cancel()
	until := t.Clock.Now().Add(cleanUpTime)
	rest := &leftovers{ctx: bounded, guest: s.Guest, late: func() bool { return !t.Clock.Now().Before(until) }}
	claims, err := nodeClaims(bounded, s, live(s.Guest))
	rest.note("NodeClaims", err)
	if len(claims) > 0 {
		if err := t.record(ctx, s, why, findings{claims: describeClaims(claims)}); err != nil {
			return err
		}
	}
	d, deleted, goes := t.drainOf(s), !s.HostedCluster.DeletionTimestamp.IsZero(), false
	for i := range claims {
		if rest.over() {
			rest.lines = append(rest.lines, fmt.Sprintf("%d more NodeClaims, and their nodes", len(claims)-i))
			break
		}
		rest.note("NodeClaim "+claims[i].Name, release(bounded, s.Guest, &claims[i]))
		for _, node := range nodeNames(s, &claims[i]) {
			rest.note("Node "+message.Quote(node), releaseNode(bounded, s.Guest, node))
		}
		if !deleted && !rest.over() { // else the CRD may go, and the records with it
			rest.note("NodeRecord "+v1alpha1.NodeRecordName(&claims[i]), t.closeRecord(bounded, s.Guest, &claims[i], why))
		}
	}
	// These objects were deleted by name before; the error names an object that stays.
	for _, one := range []struct {
		what string
		do   func() error
	}{
		{"CustomResourceDefinition " + s.Profile.NodeClass.Definition(), func() (err error) {
			goes, err = createdDefinition(bounded, s)
			return err
		}},
		{"node classes", func() error {
			_, err := t.removeNodeClasses(bounded, s, d, deleted && goes)
			return err
		}},
		{"node classes", func() error { return t.releaseNodeClasses(bounded, s, d) }},
		{"Karpenter's identity", func() error { return t.removeIdentity(bounded, s, d) }},
		{"Lease " + v1beta1.DedicatedNames().LeaderElection, func() error { return removeLease(bounded, s) }},
		{"CustomResourceDefinitions", func() error {
			if !deleted {
				return nil
			}
			_, err := t.removeDefinitions(bounded, s, d)
			return err
		}},
	} {
		if !rest.hung && rest.late() {
			rest.giveUp()
		}
		if rest.hung {
			break
		}
		rest.note(one.what, one.do())
	}
	if len(rest.lines) == 0 {
		return nil
	}
	return t.record(ctx, s, why, findings{guest: rest.lines})
}

// nodeNames returns the possible names of a NodeClaim's node. One that Karpenter hasn't registered has a name of its machine, as a
// rule.
func nodeNames(s *scope.Scope, claim *karpv1.NodeClaim) []string {
	switch {
	case claim.Status.NodeName != "":
		return []string{claim.Status.NodeName}
	case s.Cluster != nil:
		return []string{claim.Name, v1alpha1.InstanceName(s.Cluster.UID, claim.Name)}
	default:
		return []string{claim.Name}
	}
}

// leftovers are the objects that stay in a guest.
type leftovers struct {
	ctx   context.Context //nolint:containedctx // it is the bound of one look
	guest *scope.Guest
	lines []string
	// late reports whether the time for the cleanup is over.
	late func() bool
	hung bool
}

// over reports whether further requests are pointless.
func (l *leftovers) over() bool { return l.hung || l.ctx.Err() != nil || l.late() }

// note records why something stays. Once the guest stops answering, all later requests fail for that reason.
func (l *leftovers) note(what string, err error) {
	if err == nil || l.hung {
		return
	}
	for _, err := range flatten(err) {
		l.lines = append(l.lines, what+": "+message.Quoted(err.Error()))
	}
	if outage.Lost(l.guest, err) || l.ctx.Err() != nil {
		l.giveUp()
	}
}

// giveUp records that the guest is asked nothing more.
func (l *leftovers) giveUp() {
	l.hung = true
	l.lines = append(l.lines, "and what is behind that, because the guest takes too long to answer")
}

// flatten returns the joined errors.
func flatten(err error) []error {
	switch err := err.(type) { //nolint:errorlint // what they are in is looked for level by level
	case *refusedError:
		return flatten(err.err)
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range err.Unwrap() {
			all = append(all, flatten(one)...)
		}
		return all
	}
	return []error{err}
}

// closeRecord writes the end of a NodeClaim's node into its NodeRecord, unless Karpenter has.
func (t *Teardown) closeRecord(ctx context.Context, guest *scope.Guest, claim *karpv1.NodeClaim, why string) error {
	if claim.StatusConditions().Get(karpv1.ConditionTypeInstanceTerminating).IsTrue() {
		return nil
	}
	before, now := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeRecordName(claim)}}, t.Clock.Now().UTC()
	record := before.DeepCopy()
	record.Labels = map[string]string{v1alpha1.RecordedDayLabel: now.Format(time.DateOnly)}
	record.End = &v1alpha1.NodeEnd{Time: new(scalar.NewTime(now).Stored()), Reason: "Teardown", Because: "Teardown: " + why}
	if err := guest.Live.Patch(ctx, record, client.MergeFrom(before)); !meta.IsNoMatchError(err) {
		return client.IgnoreNotFound(err)
	}
	return nil // the provider has no NodeRecords
}

// releaseNode does the same to a NodeClaim's node.
func releaseNode(ctx context.Context, guest *scope.Guest, name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil // no node has that name
	}
	node := &corev1.Node{}
	switch err := guest.Live.Get(ctx, client.ObjectKey{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading node %s in the guest: %w", name, err)
	}
	return release(ctx, guest, node)
}

// release deletes an object in the guest and removes Karpenter's finalizer from it, even if the delete is refused.
// Its Machine is already deleted.
func release(ctx context.Context, guest *scope.Guest, object client.Object) error {
	var errs []error
	if object.GetDeletionTimestamp().IsZero() {
		err := guest.Live.Delete(ctx, object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("deleting %s in the guest: %w", object.GetName(), err))
		}
	}
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.RemoveFinalizer(object, karpv1.TerminationFinalizer) {
		return errors.Join(errs...)
	}
	switch err := guest.Live.Patch(ctx, object, client.MergeFrom(before)); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		errs = append(errs, fmt.Errorf("removing finalizer %s of %s in the guest: %w", karpv1.TerminationFinalizer, object.GetName(), err))
	case controllerutil.ContainsFinalizer(object, karpv1.TerminationFinalizer):
		errs = append(errs, fmt.Errorf("something in the guest keeps finalizer %s on %s", karpv1.TerminationFinalizer, object.GetName()))
	default:
		log.FromContext(ctx).Info("Removed Karpenter's finalizer", "object", klog.KObj(object))
	}
	return errors.Join(errs...)
}
