// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	guestcluster "github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
)

// machines lists the Machines that Karpenter made for the cluster, sorted by name.
func (t *Teardown) machines(ctx context.Context, s *scope.Scope) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := t.Live.List(ctx, list,
		client.InNamespace(s.ControlPlaneNamespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.ClusterKey().Name},
		client.HasLabels{v1alpha1.NodeClaimUIDLabel},
	); err != nil {
		return nil, fmt.Errorf("listing Machines: %w", err)
	}
	// A copy of a Machine has the labels too.
	list.Items = slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !v1alpha1.MadeForNodeClaim(&m) })
	slices.SortFunc(list.Items, func(a, b clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// collectMachines deletes Machines without a NodeClaim, and waits until they are gone.
func (t *Teardown) collectMachines(ctx context.Context, machines []clusterv1.Machine, d drain) (scope.Result, error) {
	if err := t.deleteMachines(ctx, machines); err != nil {
		return scope.Result{}, err
	}
	message := fmt.Sprintf("%d %s to be deleted by Cluster API: %s", len(machines), english.PluralWord(len(machines), "Machine is", "Machines are"), names(machines, 3))
	if d.phase == stopped {
		message += "; " + t.outlook(d)
	}
	return scope.Result{Wait: true, Message: message, Reason: d.reason(), RequeueAfter: d.within(t.Clock.Now(), relistInterval)}, nil
}

// deleteMachines deletes Machines without a drain by Cluster API: either Karpenter has drained them, or the guest is
// unreachable. It continues after an error.
func (t *Teardown) deleteMachines(ctx context.Context, machines []clusterv1.Machine) error {
	var errs []error
	for i := range machines {
		errs = append(errs, t.deleteMachine(ctx, &machines[i]))
	}
	return errors.Join(errs...)
}

func (t *Teardown) deleteMachine(ctx context.Context, machine *clusterv1.Machine) error {
	before := machine.DeepCopy()
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeNodeDrainingAnnotation, "")
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")
	if len(before.Annotations) != len(machine.Annotations) {
		if err := t.Management.Patch(ctx, machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("excluding Machine %s from draining: %w", klog.KObj(machine), err)
		}
	}
	if !machine.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := t.Management.Delete(ctx, machine, client.Preconditions{UID: &machine.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Machine %s: %w", klog.KObj(machine), err)
	}
	log.FromContext(ctx).Info("Deleted a Machine", "Machine", klog.KObj(machine))
	return nil
}

// guestIsGone reports whether the API server of the management cluster has neither the Cluster nor its kubeconfig any
// more.
func (t *Teardown) guestIsGone(ctx context.Context, s *scope.Scope) (bool, error) {
	key := s.ClusterKey()
	for name, object := range map[string]client.Object{
		key.Name:                                 &clusterv1.Cluster{},
		secret.Name(key.Name, secret.Kubeconfig): &corev1.Secret{},
	} {
		err := t.Live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, object)
		if err == nil {
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading %T %s/%s: %w", object, key.Namespace, name, err)
		}
	}
	return true, nil
}

// cleanUpTime is the timeout of one cleanup of a guest after its drain, with all its requests.
const cleanUpTime = 30 * time.Second

// end ends a drain after its deadline through the management cluster, which no guest can block: it stops Karpenter,
// so that nothing more is launched, records what is left, and deletes the Machines. It tries once to remove what is
// in the guest, and records what the guest refuses.
func (t *Teardown) end(ctx context.Context, s *scope.Scope, m *memory) (scope.Result, error) {
	why := fmt.Sprintf("Karpenter didn't remove its nodes within %s, and %s more by force", t.drainOf(s).timeout, gracePeriod(t.drainOf(s).timeout))
	switch {
	case s.Guest != nil:
	case s.HostedCluster.DeletionTimestamp.IsZero():
		why = unreachable(s, why)
	default:
		why = unreachable(s, fmt.Sprintf("the deletion waited for it for %s", t.drainOf(s).timeout))
	}
	// Stop Karpenter first, so that no Machine is created after the list.
	stopping, err := t.stopKarpenter(ctx, s)
	if err != nil {
		return stopping, err
	}
	machines, err := t.machines(ctx, s)
	if err != nil {
		return stopping, err
	}
	if len(machines) > 0 || s.Guest == nil {
		if err := t.record(ctx, s, why, findings{machines: describeMachines(machines)}); err != nil {
			return stopping, err
		}
	}
	if err := t.deleteMachines(ctx, machines); err != nil {
		return stopping, err
	}
	if stopping.Wait {
		return stopping, nil
	}
	if s.Guest != nil && !m.cleaned {
		if err := t.cleanUp(ctx, s, why); err != nil {
			return scope.Result{}, err
		}
		m.cleaned = true
	}
	return t.removeComponent(ctx, s)
}

// cleanUp removes what is in the guest as far as the guest allows, and records the rest. Its errors are the
// management cluster's.
func (t *Teardown) cleanUp(ctx context.Context, s *scope.Scope, why string) error {
	bounded, cancel := context.WithTimeout(ctx, cleanUpTime)
	defer cancel()
	left := &leftovers{ctx: bounded, guest: s.Guest}
	claims, err := nodeClaims(bounded, s, live(s.Guest))
	left.note("NodeClaims", err)
	if len(claims) > 0 {
		if err := t.record(ctx, s, why, findings{claims: describeClaims(claims)}); err != nil {
			return err
		}
	}
	for i := range claims {
		if left.over() {
			left.lines = append(left.lines, fmt.Sprintf("%d more NodeClaims, and their nodes", len(claims)-i))
			break
		}
		left.note("NodeClaim "+claims[i].Name, release(bounded, s.Guest, &claims[i]))
		left.note("Node "+oneLine(claims[i].Status.NodeName), releaseNode(bounded, s.Guest, claims[i].Status.NodeName))
	}
	// These objects were deleted by name before; the error names an object that stays.
	deleted := !s.HostedCluster.DeletionTimestamp.IsZero()
	goes, err := createdDefinition(bounded, s)
	left.note("CustomResourceDefinition "+s.Profile.NodeClass.Definition(), err)
	_, err = t.removeNodeClasses(bounded, s, t.drainOf(s), deleted && goes)
	left.note("node classes", err)
	left.note("node classes", releaseNodeClasses(bounded, s))
	left.note("Karpenter's identity", removeIdentity(bounded, s))
	left.note("Lease "+leaseName, removeLease(bounded, s))
	if deleted {
		_, err := t.removeDefinitions(bounded, s, t.drainOf(s))
		left.note("CustomResourceDefinitions", err)
	}
	if len(left.lines) == 0 {
		return nil
	}
	return t.record(ctx, s, why, findings{guest: left.lines})
}

// leftovers is what stays in a guest.
type leftovers struct {
	ctx   context.Context //nolint:containedctx // it is the bound of one look
	guest *scope.Guest
	lines []string
	hung  bool
}

// over reports whether further requests are pointless.
func (l *leftovers) over() bool { return l.hung || l.ctx.Err() != nil }

// note records why something stays. Once the guest stops answering, all later requests fail for that reason.
func (l *leftovers) note(what string, err error) {
	if err == nil || l.hung {
		return
	}
	l.hung = guestcluster.Unanswered(l.guest, err) || l.ctx.Err() != nil
	for _, err := range flatten(err) {
		l.lines = append(l.lines, what+": "+quoted(err))
	}
	if l.hung {
		l.lines = append(l.lines, "and what is behind that, because the guest takes too long to answer")
	}
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

// findings are the lines of a drain's record, one per object.
type findings struct{ machines, claims, guest []string }

// record writes the ConfigMap before anything is abandoned, or adds to the record of the same drain. It has no owner,
// so that it outlives the HostedCluster, and is in the namespace of the Machines. The first record of Machines and
// NodeClaims publishes an event, and so does the first of what the guest keeps.
func (t *Teardown) record(ctx context.Context, s *scope.Scope, why string, found findings) error {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.AbandonedConfigMap}
	started := t.begun(s).UTC().Format(time.RFC3339)
	existing := &corev1.ConfigMap{}
	if err := t.Live.Get(ctx, key, existing); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	known := existing.Data["hostedClusterUID"] == string(s.HostedCluster.UID) && existing.Data["drainStarted"] == started
	if !known {
		existing.Data = map[string]string{"time": t.Clock.Now().UTC().Format(time.RFC3339), "reason": why}
	}
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name,
			Labels: map[string]string{
				v1beta1.HostedClusterLabel:          s.HostedCluster.Name,
				v1beta1.HostedClusterNamespaceLabel: s.HostedCluster.Namespace,
			},
		},
		Data: map[string]string{
			"hostedCluster":    s.HostedCluster.Namespace + "/" + s.HostedCluster.Name,
			"hostedClusterUID": string(s.HostedCluster.UID),
			"drainStarted":     started,
			"time":             existing.Data["time"],
			"reason":           existing.Data["reason"],
			"machines":         union(existing.Data["machines"], found.machines),
			"nodeClaims":       union(existing.Data["nodeClaims"], found.claims),
		},
	}
	if guest := union(existing.Data["leftInGuest"], found.guest); guest != "" {
		record.Data["leftInGuest"] = guest
	}
	if s.Profile.Unattended != nil {
		record.Data["unattended"] = s.Profile.Unattended(s.ClusterKey().Name) + "\n"
	}
	if known && maps.Equal(record.Data, existing.Data) {
		return nil
	}
	// A namespace that is being deleted rejects the record. It deletes the Machines too, which Cluster API handles as
	// usual.
	if err := t.Apply.Objects(ctx, t.Management, nil, record); err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	tell := func(what string) {
		note := fmt.Sprintf("; %s: see ConfigMap %s", what, key)
		t.Recorder.Eventf(s.HostedCluster, nil, corev1.EventTypeWarning, v1beta1.AbandonedReason, "Drain", "%s%s", why[:min(len(why), maxNote-len(note))], note)
	}
	switch n := len(found.machines); {
	case known || n == 0 && len(found.guest) > 0 && s.Profile.Unattended == nil:
	case s.Profile.Unattended != nil:
		tell("machines may be left that no controller removes")
	default:
		tell(fmt.Sprintf("%d %s deleted without a drain", n, english.PluralWord(n, "Machine is", "Machines are")))
	}
	if !known {
		log.FromContext(ctx).Info("Gave up waiting for nodes to drain", "ConfigMap", key, "machines", len(found.machines))
	}
	if len(found.guest) > 0 && existing.Data["leftInGuest"] == "" {
		tell("objects are left in the guest, which refuses their removal")
	}
	return nil
}

// maxNote is the API's limit of an event's note, in bytes.
const maxNote = 1024

// maxRecorded limits each list of the record, in bytes: a ConfigMap is limited to a megabyte.
const maxRecorded = 250 << 10

// union adds lines to a record's, up to the limit.
func union(text string, lines []string) string {
	const cut = "... and more\n"
	if strings.HasSuffix(text, cut) {
		return text
	}
	known := sets.New(strings.Split(text, "\n")...)
	var b strings.Builder
	b.WriteString(text)
	for _, line := range lines {
		if known.Has(line) {
			continue
		}
		if b.Len()+len(line) > maxRecorded {
			b.WriteString(cut)
			break
		}
		known.Insert(line)
		b.WriteString(line + "\n")
	}
	return b.String()
}

// describeMachines returns a line per Machine: its name, its NodeClaim, its provider ID.
func describeMachines(machines []clusterv1.Machine) []string {
	lines := make([]string, 0, len(machines))
	for i := range machines {
		m := &machines[i]
		lines = append(lines, fmt.Sprintf("%s nodeClaim=%s providerID=%s", m.Name, m.Labels[v1alpha1.NodeClaimLabel], oneLine(m.Spec.ProviderID)))
	}
	return lines
}

func describeClaims(claims []karpv1.NodeClaim) []string {
	lines := make([]string, 0, len(claims))
	for i := range claims {
		line := fmt.Sprintf("%s node=%s", claims[i].Name, oneLine(claims[i].Status.NodeName))
		if id := claims[i].Status.ProviderID; id != "" {
			line += " providerID=" + oneLine(id)
		}
		lines = append(lines, line)
	}
	return lines
}

// oneLine returns a name unchanged, and escapes and truncates anything else: the guest's admin controls a guest's
// status.
func oneLine(text string) string {
	text = text[:min(len(text), 2*maxQuote)]
	if escaped := strconv.Quote(text); escaped != `"`+text+`"` {
		return escaped
	}
	return text
}

func names(machines []clusterv1.Machine, limit int) string {
	var list []string
	for i := range machines {
		if i == limit {
			list = append(list, fmt.Sprintf("and %d more", len(machines)-limit))
			break
		}
		list = append(list, machines[i].Name)
	}
	return strings.Join(list, ", ")
}
