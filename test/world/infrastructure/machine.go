// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// machineReconciler is the cloud: it starts machines, lets them join their guests, and stops them.
type machineReconciler struct {
	management client.Client
	guests     *guests
	// hypervisor is nil where machines are kwok nodes.
	hypervisor        RealMachines
	identities        *identities
	memories          sync.Map // *memory, by the machine's namespace and name
	recorder          events.EventRecorder
	clock             clock.PassiveClock
	provisioningDelay time.Duration
	registrationDelay time.Duration
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
			r.memories.Delete(request.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	memory := r.memoryOf(cached)
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
	case i.cluster != nil && annotations.IsPaused(i.cluster, kwokMachine):
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
	faulty := []metav1.Object{kwokMachine}
	machine, err := util.GetOwnerMachine(ctx, r.management, kwokMachine.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the owner: %w", err)
	}
	clusterName := kwokMachine.Labels[clusterv1.ClusterNameLabel]
	if err == nil && machine != nil {
		i.machine, clusterName = machine, machine.Spec.ClusterName
	}
	i.guest = types.NamespacedName{Namespace: kwokMachine.Namespace, Name: clusterName}
	template, cluster, kwokCluster := &infrav1.KwokMachineTemplate{}, &clusterv1.Cluster{}, &infrav1.KwokCluster{}
	if found, err := r.find(ctx, kwokMachine.Namespace, clonedFrom(kwokMachine), template); err != nil {
		return nil, err
	} else if found {
		faulty = append(faulty, template)
	}
	if found, err := r.find(ctx, kwokMachine.Namespace, clusterName, cluster); err != nil {
		return nil, err
	} else if found {
		i.cluster = cluster
	}
	if found, err := r.find(ctx, kwokMachine.Namespace, cluster.Spec.InfrastructureRef.Name, kwokCluster); err != nil {
		return nil, err
	} else if found {
		i.kwokCluster = kwokCluster
		faulty = append(faulty, kwokCluster)
	}
	i.faults = readFaults(faulty...)
	i.reportFaults()
	if i.faults.interrupted {
		setCondition(i, infrav1.ConditionInterrupted, metav1.ConditionTrue, infrav1.ReasonInterrupted, "the fault interrupted is set")
	} else {
		conditions.Delete(i, infrav1.ConditionInterrupted)
	}
	return i, nil
}

// find reads an object and reports whether there is one of that name.
func (r *machineReconciler) find(ctx context.Context, namespace, name string, object client.Object) (bool, error) {
	if name == "" {
		return false, nil
	}
	err := r.management.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading %T %s: %w", object, name, err)
	}
	return err == nil, nil
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
		conditions.Delete(i, infrav1.ConditionFaultsUnderstood)
	}
}

// run starts the machine and lets it join. The result reports when there is more to do.
func (r *machineReconciler) run(ctx context.Context, i *instance) (reconcile.Result, error) {
	began := i.Status.StartTime.IsZero()
	started, result, err := r.provision(ctx, i)
	switch {
	case err != nil:
	case !started:
		i.joined(metav1.ConditionFalse, infrav1.ReasonWaitingForInstance, "no machine runs yet")
	case began && i.Status.JoinTime.IsZero(): // the finalizer has to be there before anything that it is for
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

func (i *instance) provisioned(status metav1.ConditionStatus, reason, message string) {
	setCondition(i, infrav1.ConditionProvisioned, status, reason, message)
}

func (i *instance) joined(status metav1.ConditionStatus, reason, message string) {
	setCondition(i, infrav1.ConditionJoined, status, reason, message)
}

// summarize computes Ready: the machine runs and its bootstrap data didn't fail. What a cloud can't know (a node that never
// joins, or died) doesn't show here.
func (i *instance) summarize() {
	provisioned := conditions.Get(i, infrav1.ConditionProvisioned)
	joined := conditions.Get(i, infrav1.ConditionJoined)
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
	if r.hypervisor != nil {
		if err := r.hypervisor.PowerOff(ctx, string(i.UID)); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.identities.drop(i.UID, types.NamespacedName{Namespace: i.Namespace, Name: i.Name})
	controllerutil.RemoveFinalizer(i.KwokMachine, infrav1.MachineFinalizer)
	return reconcile.Result{}, nil
}

// sooner returns the result that comes back first.
func sooner(a, b reconcile.Result) reconcile.Result {
	if a.RequeueAfter == 0 || (b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter) {
		return b
	}
	return a
}
