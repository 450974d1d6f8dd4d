// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

const (
	// guestTimeout is the timeout of one request to a guest.
	guestTimeout = 10 * time.Second
	// guestRetry is the time after which an unreachable guest is tried again.
	guestRetry = time.Second
	// refusalRetry is the time after which a refused Node, or bootstrap data that can't be read, is tried again.
	refusalRetry = 10 * time.Second
	// deathCheck is the interval at which a Node's conditions are read while its machine dies.
	deathCheck = 200 * time.Millisecond
	// readyGrace is how long a machine that is to die may take to get ready first.
	readyGrace = 10 * time.Second
)

// join has a running machine join its guest, and die if that fault is set.
func (r *machineReconciler) join(ctx context.Context, i *instance) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	if i.cluster == nil { // then there is no guest to be connected to
		i.joined(metav1.ConditionUnknown, infrav1.ReasonWaitingForCluster, fmt.Sprintf("Cluster %s doesn't exist", i.guest.Name))
		return reconcile.Result{}, nil
	}
	if r.hypervisor != nil {
		return r.boot(ctx, i)
	}
	if i.Status.JoinTime.IsZero() {
		if joined, result, err := r.register(ctx, i); !joined || err != nil {
			return result, err
		}
	}
	guest, err := r.guests.get(ctx, i.guest)
	if err != nil {
		i.joined(metav1.ConditionUnknown, infrav1.ReasonGuestUnreachable, err.Error())
		return reconcile.Result{RequeueAfter: guestRetry}, nil
	}
	if i.past(i.faults.dies) || i.past(i.faults.terminated) {
		return r.die(ctx, i, guest)
	}
	guest.fleet.Run(i.Status.NodeName)
	i.joined(metav1.ConditionTrue, infrav1.ReasonJoined, "")
	return sooner(r.serve(ctx, i, guest), i.nextFault()), nil
}

// nextFault is when the next fault of a joined machine is due.
func (i *instance) nextFault() (result reconcile.Result) {
	for _, later := range []span{i.faults.dies, i.faults.terminated} {
		if later.on {
			result = sooner(result, reconcile.Result{RequeueAfter: later.left(i.Status.JoinTime.Time, i.now)})
		}
	}
	return result
}

// register makes the Node that the machine's bootstrap data describes: as that node, by a certificate that it has asked for with its
// bootstrap token. Bootstrap data without a token stand for a machine that its cloud vouches for, and nothing is asked.
func (r *machineReconciler) register(ctx context.Context, i *instance) (joined bool, result reconcile.Result, err error) {
	not := func(reason, message string, retry time.Duration) (bool, reconcile.Result, error) {
		i.joined(metav1.ConditionFalse, reason, message)
		return false, reconcile.Result{RequeueAfter: retry}, nil
	}
	if i.neverJoins() {
		return not(infrav1.ReasonNeverJoins, "the fault never-joins is set", 0)
	}
	if wait := i.Status.StartTime.Add(delay(i.Spec.RegistrationDelay, r.registrationDelay)).Sub(i.now); wait > 0 {
		return not(infrav1.ReasonBooting, "the machine is booting", wait)
	}
	if i.machine == nil {
		return not(infrav1.ReasonWaitingForMachine, "the Machine that owned this KwokMachine has gone", 0)
	}
	kubelet, err := r.readBootstrapData(ctx, i)
	var malformed *malformedError
	switch {
	case errors.As(err, &malformed):
		return not(infrav1.ReasonInvalidBootstrapData, err.Error(), refusalRetry)
	case err != nil:
		return false, result, err
	}
	guest, err := r.guests.get(ctx, i.guest)
	if err != nil {
		return not(infrav1.ReasonGuestUnreachable, err.Error(), guestRetry)
	}
	version := cmp.Or(i.Spec.ImageVersion, i.machine.Spec.Version)
	if version == "" { // then the machine's image decides; this cloud's images have the guest's version
		info, err := guest.client.Discovery().ServerVersion()
		if err != nil {
			return r.unreachable(ctx, i, fmt.Errorf("asking for the guest's version: %w", err))
		}
		version = info.GitVersion
	}
	self := &connection{guest.client, func() {}}
	if kubelet.Discovery != nil {
		var problem *obstacle
		switch self, problem = r.authenticate(ctx, i, guest, kubelet); {
		case problem == nil:
			defer self.close()
		case problem.unreachable != nil:
			return r.unreachable(ctx, i, problem.unreachable)
		default:
			return not(problem.reason, problem.message, problem.retry)
		}
	}
	wanted := node.New(i.describe(version), kubelet)
	switch problem := create(ctx, guest, self, wanted); {
	case problem == nil:
	case problem.unreachable != nil:
		return r.unreachable(ctx, i, problem.unreachable)
	default:
		return not(problem.reason, problem.message, problem.retry)
	}
	if err := i.label(ctx, guest, wanted.Name); err != nil {
		return r.unreachable(ctx, i, err)
	}
	if own := r.identities.get(i.UID); own != nil && !own.served && own.serving.name == "" {
		if err := own.askServing(ctx, r.errand(i, guest), self, node.Address(i.providerID())); err != nil {
			own.serving.refused(i.now, err.Error())
			ctrl.LoggerFrom(ctx).Info("A kubelet requests its serving certificate again", "reason", err.Error())
		}
	}
	i.Status.NodeName = wanted.Name
	i.Status.JoinTime = metav1.NewMicroTime(i.now)
	return true, result, nil
}

// create makes a machine's Node as that node, unless it is there.
func create(ctx context.Context, guest *guest, self *connection, wanted *corev1.Node) *obstacle {
	_, err := self.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		existing, err := guest.client.CoreV1().Nodes().Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return &obstacle{unreachable: fmt.Errorf("reading Node %s: %w", wanted.Name, err)}
		}
		if existing.Spec.ProviderID != wanted.Spec.ProviderID {
			return refused("another Node has the name %s; its provider ID is %q", wanted.Name, existing.Spec.ProviderID)
		}
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
		return refused("creating Node %s: %v", wanted.Name, err)
	default:
		return &obstacle{unreachable: fmt.Errorf("creating Node %s: %w", wanted.Name, err)}
	}
}

// unreachable reports that a guest didn't answer, and reads its kubeconfig again, which may have changed.
func (r *machineReconciler) unreachable(ctx context.Context, i *instance, cause error) (bool, reconcile.Result, error) {
	if _, err := r.guests.refresh(ctx, i.guest); err != nil {
		cause = errors.Join(cause, err)
	}
	i.joined(metav1.ConditionFalse, infrav1.ReasonGuestUnreachable, cause.Error())
	return false, reconcile.Result{RequeueAfter: guestRetry}, nil
}

// malformedError: the bootstrap data can't make a node.
type malformedError struct{ cause error }

func (e *malformedError) Error() string { return e.cause.Error() }
func (e *malformedError) Unwrap() error { return e.cause }

// readBootstrapData reads it once: a machine gets it when it starts.
func (r *machineReconciler) readBootstrapData(ctx context.Context, i *instance) (*bootstrap.Kubelet, error) {
	if i.memory.kubelet != nil {
		return i.memory.kubelet, nil
	}
	secret, err := r.bootstrapSecret(ctx, i)
	if err != nil {
		return nil, err
	}
	kubelet, err := bootstrap.Read(secret.Data, i.metadata())
	if err != nil {
		return nil, &malformedError{fmt.Errorf("bootstrap Secret %s: %w", secret.Name, err)}
	}
	i.memory.kubelet = kubelet
	return kubelet, nil
}

func (i *instance) describe(version string) node.Instance {
	return node.Instance{
		ID:              string(i.UID),
		ProviderID:      i.providerID(),
		Type:            i.instanceType(),
		Zone:            i.Status.FailureDomain,
		Region:          i.region(),
		Architecture:    string(i.Spec.Architecture),
		OperatingSystem: i.Spec.OperatingSystem,
		Capacity:        i.Spec.Capacity,
		KubeletVersion:  "v" + strings.TrimPrefix(version, "v"),
	}
}

// label puts the cloud's own labels on the Node, as a cloud's controller-manager does: a kubelet may not set all of them.
func (i *instance) label(ctx context.Context, guest *guest, name string) error {
	if len(i.Spec.NodeLabels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": i.Spec.NodeLabels}})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	if _, err := guest.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling Node %s: %w", name, err)
	}
	return nil
}

func (i *instance) region() string {
	if i.kwokCluster != nil {
		return i.kwokCluster.Spec.Region
	}
	return ""
}

// die stops the kubelet and writes what the guest's controller-manager would write after its grace period.
func (r *machineReconciler) die(ctx context.Context, i *instance, guest *guest) (reconcile.Result, error) {
	name := i.Status.NodeName
	current := guest.fleet.Node(name)
	switch ready := readiness(current); {
	case ready == corev1.ConditionFalse && conditions.GetReason(i, infrav1.ConditionJoined) != infrav1.ReasonDead && i.now.Before(i.Status.JoinTime.Add(readyGrace)):
		// kwok is about to make it ready; dying in the middle of that, it would be revived by the write that is on its way.
		guest.fleet.Run(name)
		i.joined(metav1.ConditionTrue, infrav1.ReasonJoined, "")
		return reconcile.Result{RequeueAfter: deathCheck}, nil
	case current == nil, ready == corev1.ConditionUnknown:
		guest.fleet.Halt(name)
		i.joined(metav1.ConditionFalse, infrav1.ReasonDead, "the fault dies is set")
		return reconcile.Result{}, nil
	}
	guest.fleet.Halt(name)
	i.joined(metav1.ConditionFalse, infrav1.ReasonDead, "the fault dies is set")
	if err := markUnknown(ctx, i.now, guest, name); err != nil {
		return reconcile.Result{RequeueAfter: guestRetry}, nil //nolint:nilerr // the guest's controller-manager will do it too
	}
	return reconcile.Result{RequeueAfter: deathCheck}, nil // to see that it stayed so
}

// past reports whether the time has come for a fault that is counted from the joining.
func (i *instance) past(s span) bool {
	return s.on && !i.Status.JoinTime.IsZero() && (s.forever || s.left(i.Status.JoinTime.Time, i.now) == 0)
}

// readiness returns the status of a Node's condition Ready, False where there is none.
func readiness(current *corev1.Node) corev1.ConditionStatus {
	if current != nil {
		for _, condition := range current.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status
			}
		}
	}
	return corev1.ConditionFalse
}

// markUnknown writes the conditions of a Node whose kubelet is silent, as the node lifecycle controller does.
func markUnknown(ctx context.Context, now time.Time, guest *guest, name string) error {
	status := corev1.NodeStatus{}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
			LastTransitionTime: metav1.NewTime(now),
		})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": status.Conditions}})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	if _, err := guest.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("marking Node %s as unknown: %w", name, err)
	}
	return nil
}
