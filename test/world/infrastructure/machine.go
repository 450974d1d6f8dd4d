// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

// capacityTypeLabel is Karpenter's label that says how a machine is paid for; a cloud's spot market runs dry by itself.
const capacityTypeLabel = "karpenter.sh/capacity-type"

// machineReconciler is the cloud: it starts machines, lets them join their guests, and stops them.
type machineReconciler struct {
	management        client.Client
	guests            *guests
	identities        *identities
	memories          *memories
	recorder          events.EventRecorder
	clock             clock.PassiveClock
	provisioningDelay time.Duration
	registrationDelay time.Duration
}

func (r *machineReconciler) setup(manager ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(manager).
		Named("kwokmachine").
		For(&infrav1.KwokMachine{}, builder.WithPredicates(notOnlyStatus)).
		// Cluster API writes a Machine's status many times, and nothing of it is of interest here.
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(machineToKwokMachine), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster),
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, infrastructureProvisioned))).
		Watches(&infrav1.KwokCluster{}, handler.EnqueueRequestsFromMapFunc(r.ofKwokCluster),
			builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&infrav1.KwokMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.ofTemplate),
			builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		WatchesRawSource(source.Func(r.identities.Start)).
		WithOptions(options).
		Complete(r)
}

// notOnlyStatus keeps out what this controller writes itself: a message that differs each time, such as one with a port
// number, must not bring the machine here again at once.
var notOnlyStatus = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	was, is := update.ObjectOld, update.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || // spec and deletion
		!slices.Equal(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// infrastructureProvisioned passes the change of a Cluster that its machines wait for.
var infrastructureProvisioned = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	was, is := update.ObjectOld.(*clusterv1.Cluster), update.ObjectNew.(*clusterv1.Cluster)
	return !equality.Semantic.DeepEqual(was.Status.Initialization, is.Status.Initialization)
}}

func machineToKwokMachine(_ context.Context, object client.Object) []reconcile.Request {
	machine := object.(*clusterv1.Machine)
	if ref := machine.Spec.InfrastructureRef; ref.Kind == "KwokMachine" && ref.APIGroup == infrav1.GroupVersion.Group {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}}}
	}
	return nil
}

func (r *machineReconciler) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return r.machines(ctx, cluster.GetNamespace(), cluster.GetName(), func(*infrav1.KwokMachine) bool { return true })
}

func (r *machineReconciler) ofKwokCluster(ctx context.Context, kwokCluster client.Object) []reconcile.Request {
	return r.ofCluster(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: kwokCluster.GetNamespace(), Name: ownerOf(kwokCluster, "Cluster"),
	}})
}

func (r *machineReconciler) ofTemplate(ctx context.Context, template client.Object) []reconcile.Request {
	return r.machines(ctx, template.GetNamespace(), "", func(kwokMachine *infrav1.KwokMachine) bool {
		return clonedFrom(kwokMachine) == template.GetName()
	})
}

// machines returns the machines of a namespace that match, of one cluster if one is named.
func (r *machineReconciler) machines(ctx context.Context, namespace, cluster string, match func(*infrav1.KwokMachine) bool) []reconcile.Request {
	options := []client.ListOption{client.InNamespace(namespace)}
	if cluster != "" {
		options = append(options, client.MatchingLabels{clusterv1.ClusterNameLabel: cluster})
	}
	list := &infrav1.KwokMachineList{}
	if err := r.management.List(ctx, list, options...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing machines")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if match(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// instance is one machine with all that its reconciliation needs.
type instance struct {
	*infrav1.KwokMachine
	memory *memory
	// guest names the Cluster.
	guest       types.NamespacedName
	machine     *clusterv1.Machine   // nil while there is no owner
	cluster     *clusterv1.Cluster   // nil where there is none
	kwokCluster *infrav1.KwokCluster // nil where there is none
	faults      faults
	now         time.Time
}

// Reconcile brings one machine further on its way and sets its status.
func (r *machineReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cached := &infrav1.KwokMachine{}
	if err := r.management.Get(ctx, request.NamespacedName, cached); err != nil {
		if apierrors.IsNotFound(err) {
			r.memories.drop(request.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	memory := r.memories.get(cached)
	kwokMachine := memory.latest(cached)
	before := kwokMachine.DeepCopy()
	if memory.passing != nil {
		memory.passing.DeepCopyInto(&kwokMachine.Status)
	}
	i, err := r.load(ctx, kwokMachine)
	if err != nil {
		return reconcile.Result{}, err
	}
	i.memory = memory
	var result reconcile.Result
	switch {
	case i.cluster != nil && paused(i.cluster, kwokMachine):
		setCondition(i, infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "")
	case !kwokMachine.DeletionTimestamp.IsZero():
		unpause(i)
		result, err = r.delete(ctx, i)
	default:
		unpause(i)
		result, err = r.run(ctx, i)
	}
	retry, writeErr := r.write(ctx, i, before)
	if err = errors.Join(err, writeErr); err != nil {
		return reconcile.Result{}, err
	}
	return sooner(retry, result), nil
}

// load finds what belongs to a machine and reads what is to go wrong with it.
func (r *machineReconciler) load(ctx context.Context, kwokMachine *infrav1.KwokMachine) (*instance, error) {
	i := &instance{KwokMachine: kwokMachine, now: r.clock.Now()}
	inNamespace := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: kwokMachine.Namespace, Name: name}
	}
	clusterName := kwokMachine.Labels[clusterv1.ClusterNameLabel]
	if owner := ownerOf(kwokMachine, "Machine"); owner != "" {
		machine := &clusterv1.Machine{}
		switch err := r.management.Get(ctx, inNamespace(owner), machine); {
		case err == nil:
			i.machine = machine
			clusterName = machine.Spec.ClusterName
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading the owner: %w", err)
		}
	}
	i.guest = inNamespace(clusterName)
	faulty := []metav1.Object{kwokMachine}
	if name := clonedFrom(kwokMachine); name != "" {
		template := &infrav1.KwokMachineTemplate{}
		switch err := r.management.Get(ctx, inNamespace(name), template); {
		case err == nil:
			faulty = append(faulty, template)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading the template: %w", err)
		}
	}
	if clusterName != "" {
		cluster := &clusterv1.Cluster{}
		switch err := r.management.Get(ctx, i.guest, cluster); {
		case err == nil:
			i.cluster = cluster
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading the Cluster: %w", err)
		}
	}
	if i.cluster != nil {
		kwokCluster := &infrav1.KwokCluster{}
		switch err := r.management.Get(ctx, inNamespace(i.cluster.Spec.InfrastructureRef.Name), kwokCluster); {
		case err == nil:
			i.kwokCluster = kwokCluster
			faulty = append(faulty, kwokCluster)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading the KwokCluster: %w", err)
		}
	}
	i.faults = readFaults(faulty...)
	i.reportFaults()
	return i, nil
}

// clonedFrom returns the name of the template that a machine was cloned from, "" where it wasn't.
func clonedFrom(kwokMachine *infrav1.KwokMachine) string {
	if strings.HasPrefix(kwokMachine.Annotations[clusterv1.TemplateClonedFromGroupKindAnnotation], "KwokMachineTemplate.") {
		return kwokMachine.Annotations[clusterv1.TemplateClonedFromNameAnnotation]
	}
	return ""
}

func (i *instance) reportFaults() {
	switch {
	case len(i.faults.problems) > 0:
		setCondition(i, infrav1.ConditionFaultsUnderstood, metav1.ConditionFalse, infrav1.ReasonMalformedFault,
			strings.Join(i.faults.problems, "; "))
	case i.faults.asked:
		setCondition(i, infrav1.ConditionFaultsUnderstood, metav1.ConditionTrue, infrav1.ReasonFaultsUnderstood, "")
	default:
		meta.RemoveStatusCondition(&i.Status.Conditions, infrav1.ConditionFaultsUnderstood)
	}
}

// run starts the machine and lets it join. The result says when there is more to do.
func (r *machineReconciler) run(ctx context.Context, i *instance) (reconcile.Result, error) {
	began := i.Status.StartTime.IsZero()
	started, result := r.provision(i)
	var err error
	switch {
	case !started:
		i.joined(metav1.ConditionFalse, infrav1.ReasonWaitingForInstance, "no machine runs yet")
	case began: // the finalizer has to be there before anything that it is for
		i.joined(metav1.ConditionFalse, infrav1.ReasonBooting, "the machine is booting")
		result = sooner(result, reconcile.Result{RequeueAfter: max(time.Millisecond, delay(i.Spec.RegistrationDelay, r.registrationDelay))})
	default:
		var joinResult reconcile.Result
		joinResult, err = r.join(ctx, i)
		result = sooner(result, joinResult)
	}
	i.summarize()
	return result, err
}

// provision brings the machine to run and tells Cluster API of it.
func (r *machineReconciler) provision(i *instance) (started bool, result reconcile.Result) {
	not := func(reason, format string, args ...any) {
		i.provisioned(metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
	}
	if i.Status.StartTime.IsZero() {
		switch {
		case i.machine == nil:
			not(infrav1.ReasonWaitingForMachine, "no Machine owns this KwokMachine yet; one whose spec.infrastructureRef names it will")
			return false, result
		case i.cluster == nil || i.cluster.Status.Initialization.InfrastructureProvisioned == nil ||
			!*i.cluster.Status.Initialization.InfrastructureProvisioned:
			not(infrav1.ReasonWaitingForCluster, "the infrastructure of Cluster %s isn't provisioned", i.guest.Name)
			return false, result
		case i.machine.Spec.Bootstrap.DataSecretName == nil:
			not(infrav1.ReasonWaitingForBootstrapData, "Machine %s has no spec.bootstrap.dataSecretName yet", i.machine.Name)
			return false, result
		}
		if problem := i.place(); problem != "" {
			not(infrav1.ReasonInvalidFailureDomain, "%s", problem)
			return false, result
		}
		if i.faults.noCapacity.include(i.Status.FailureDomain, i.Labels[capacityTypeLabel]) {
			i.Status.RequestTime = metav1.MicroTime{}
			not(infrav1.ReasonInsufficientCapacity, "%s", i.noCapacityMessage())
			return false, result
		}
		if i.Status.RequestTime.IsZero() {
			i.Status.RequestTime = metav1.NewMicroTime(i.now)
		}
		if wait := i.Status.RequestTime.Add(delay(i.Spec.ProvisioningDelay, r.provisioningDelay)).Sub(i.now); wait > 0 {
			not(infrav1.ReasonProvisioning, "the machine is starting")
			return false, reconcile.Result{RequeueAfter: wait}
		}
		i.Status.StartTime = metav1.NewMicroTime(i.now)
	}
	controllerutil.AddFinalizer(i.KwokMachine, infrav1.MachineFinalizer)
	if i.Status.Initialization.Provisioned == nil {
		if left := i.faults.lateProviderID.left(i.Status.StartTime.Time, i.now); left != 0 {
			not(infrav1.ReasonProviderIDPending, "the machine runs, but its provider ID isn't known yet")
			return true, reconcile.Result{RequeueAfter: max(0, left)}
		}
		provisioned := true
		i.Status.Initialization.Provisioned = &provisioned
	}
	i.Spec.ProviderID = i.providerID()
	i.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineInternalIP, Address: node.Address(i.providerID())},
		{Type: clusterv1.MachineHostName, Address: i.hostname()},
	}
	i.provisioned(metav1.ConditionTrue, infrav1.ReasonProvisioned, "")
	return true, result
}

// place chooses the zone: the one that the Machine or, failing that, a label asks for, else any.
func (i *instance) place() (problem string) {
	var zones []string
	if i.kwokCluster != nil {
		for _, domain := range i.kwokCluster.Status.FailureDomains {
			zones = append(zones, domain.Name)
		}
	}
	wanted, by := i.machine.Spec.FailureDomain, fmt.Sprintf("Machine %s: spec.failureDomain", i.machine.Name)
	if wanted == "" {
		wanted, by = i.Labels[corev1.LabelTopologyZone], "label "+corev1.LabelTopologyZone
	}
	switch {
	case wanted == "" && len(zones) == 0:
	case wanted == "":
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(i.Name)) // never fails
		i.Status.FailureDomain = zones[int(hash.Sum32())%len(zones)]
	case len(zones) > 0 && !slices.Contains(zones, wanted):
		return fmt.Sprintf("%s %q is not one of the zones %s", by, wanted, strings.Join(zones, ", "))
	default:
		i.Status.FailureDomain = wanted
	}
	return ""
}

// noCapacityMessage says it as EC2 does.
func (i *instance) noCapacityMessage() string {
	what := i.instanceType()
	if capacityType := i.Labels[capacityTypeLabel]; capacityType != "" {
		what += " " + capacityType
	}
	return strings.TrimSpace(fmt.Sprintf("We currently do not have sufficient %s capacity in the zone you requested (%s). "+
		"Our system will be working on provisioning additional capacity.", what, i.Status.FailureDomain))
}

func (i *instance) providerID() string {
	return infrav1.ProviderIDPrefix + i.Namespace + "/" + i.Name
}

// hostname is the name that the machine gives itself.
func (i *instance) hostname() string {
	if i.machine != nil {
		return i.machine.Name
	}
	return i.Name
}

func (i *instance) instanceType() string {
	switch {
	case i.Spec.InstanceType != "":
		return i.Spec.InstanceType
	case i.Labels[corev1.LabelInstanceTypeStable] != "":
		return i.Labels[corev1.LabelInstanceTypeStable]
	}
	return clonedFrom(i.KwokMachine)
}

func (i *instance) provisioned(status metav1.ConditionStatus, reason, message string) {
	setCondition(i, infrav1.ConditionProvisioned, status, reason, message)
}

func (i *instance) joined(status metav1.ConditionStatus, reason, message string) {
	setCondition(i, infrav1.ConditionJoined, status, reason, message)
}

// summarize computes Ready: the machine runs and its bootstrap data didn't fail. What a cloud can't know (a node that never
// joins, or died) doesn't show here.
func (i *instance) summarize() {
	provisioned := meta.FindStatusCondition(i.Status.Conditions, infrav1.ConditionProvisioned)
	joined := meta.FindStatusCondition(i.Status.Conditions, infrav1.ConditionJoined)
	switch {
	case provisioned.Status != metav1.ConditionTrue:
		setCondition(i, infrav1.ConditionReady, metav1.ConditionFalse, provisioned.Reason, provisioned.Message)
	case joined.Reason == infrav1.ReasonInvalidBootstrapData || joined.Reason == infrav1.ReasonRegistrationFailed:
		setCondition(i, infrav1.ConditionReady, metav1.ConditionFalse, joined.Reason, joined.Message)
	default:
		setCondition(i, infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonReady, "")
	}
}

// delete stops the machine. Its Node is left to Cluster API, as in a cloud.
func (r *machineReconciler) delete(ctx context.Context, i *instance) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(i.KwokMachine, infrav1.MachineFinalizer) {
		return reconcile.Result{}, nil
	}
	if left := i.faults.deletionHangs.left(i.DeletionTimestamp.Time, i.now); left != 0 {
		setCondition(i, infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonDeletionHangs, "the machine doesn't stop")
		return reconcile.Result{RequeueAfter: max(0, left)}, nil
	}
	setCondition(i, infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonDeleting, "the machine is being stopped")
	// A guest that was never reached has no kubelets; one that can't be reached must not keep its machines.
	if guest := r.guests.known(i.guest); guest != nil && i.Status.NodeName != "" {
		ctx, cancel := context.WithTimeout(ctx, guestTimeout)
		defer cancel()
		if err := guest.fleet.EndTerminatingPods(ctx, i.Status.NodeName); err != nil {
			ctrl.LoggerFrom(ctx).Info("Pods were left on the machine", "reason", err.Error())
		}
		guest.fleet.Halt(i.Status.NodeName)
	}
	r.identities.drop(i.UID, types.NamespacedName{Namespace: i.Namespace, Name: i.Name})
	controllerutil.RemoveFinalizer(i.KwokMachine, infrav1.MachineFinalizer)
	return reconcile.Result{}, nil
}

// write writes what has changed: metadata and spec first, so that Cluster API never sees a provisioned machine without
// a provider ID, then the status, then an event for what changed in the world. The result says when there is more to write.
func (r *machineReconciler) write(ctx context.Context, i *instance, before *infrav1.KwokMachine) (reconcile.Result, error) {
	after, status := i.KwokMachine, i.Status.DeepCopy()
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !slices.Equal(before.Finalizers, after.Finalizers) {
		written := after.DeepCopy()
		written.Status = before.Status
		patch := client.MergeFrom(before)
		if len(before.Finalizers) > 0 && !slices.Equal(before.Finalizers, after.Finalizers) { // this writes the whole list
			patch = client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		}
		if err := r.management.Patch(ctx, written, patch); err != nil {
			return retryConflict(fmt.Errorf("writing the machine: %w", err))
		}
		if !written.DeletionTimestamp.IsZero() && len(written.Finalizers) == 0 {
			return reconcile.Result{}, nil // gone
		}
		for n := range status.Conditions { // they are about what was just written
			if status.Conditions[n].ObservedGeneration == before.Generation {
				status.Conditions[n].ObservedGeneration = written.Generation
			}
		}
		i.memory.written = written.DeepCopy()
		before = written.DeepCopy()
		after = written
	}
	after.Status = *status
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		i.memory.passing = nil
		return reconcile.Result{}, nil
	}
	if wait := i.memory.hold(&before.Status, &after.Status, i.now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// Nobody else writes the status, and before isn't older than what was written last: it needs no lock, which would fail whenever
	// somebody has written anything else of the machine.
	if err := r.management.Status().Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	i.memory.written, i.memory.passing = after.DeepCopy(), nil
	r.recordChanges(before, after)
	return reconcile.Result{}, nil
}

// recordChanges makes an event for each change that a person would want to see.
func (r *machineReconciler) recordChanges(before, after *infrav1.KwokMachine) {
	for _, kind := range []string{
		infrav1.ConditionProvisioned, infrav1.ConditionJoined, infrav1.ConditionServing, infrav1.ConditionFaultsUnderstood,
	} { // that a machine has joined a cloud doesn't know
		was := meta.FindStatusCondition(before.Status.Conditions, kind)
		is := meta.FindStatusCondition(after.Status.Conditions, kind)
		if is == nil || (was != nil && was.Reason == is.Reason) {
			continue
		}
		switch is.Reason {
		case infrav1.ReasonProvisioned:
			r.recorder.Eventf(after, nil, corev1.EventTypeNormal, is.Reason, "Provision", "the machine runs in zone %q", after.Status.FailureDomain)
		case infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidFailureDomain, infrav1.ReasonInvalidBootstrapData,
			infrav1.ReasonRegistrationFailed, infrav1.ReasonCertificateRefused, infrav1.ReasonDead, infrav1.ReasonMalformedFault:
			r.recorder.Eventf(after, nil, corev1.EventTypeWarning, is.Reason, "Reconcile", "%s", is.Message)
		}
	}
}

// delay returns the delay of a machine: its own, else the provider's.
func delay(own *metav1.Duration, fallback time.Duration) time.Duration {
	if own != nil {
		return own.Duration
	}
	return fallback
}

// sooner returns the result that comes back first.
func sooner(a, b reconcile.Result) reconcile.Result {
	if a.RequeueAfter == 0 || (b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter) {
		return b
	}
	return a
}
