// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

// RealMachines runs machines for real: they join their guests by themselves. Calls may be repeated.
type RealMachines interface {
	// Address reserves the IP address of a machine and returns it.
	Address(ctx context.Context, id string) (string, error)
	// Boot starts a machine, unless it runs.
	Boot(ctx context.Context, machine Boot) error
	// PowerOff ends a machine, and leaves nothing of it.
	PowerOff(ctx context.Context, id string) error
}

// Boot is what a machine starts with.
type Boot struct {
	// ID is unique, and can be a file's name.
	ID string
	// Version of Kubernetes that the machine's image has, such as v1.36.2.
	Version string
	// Instance is the machine's instance metadata.
	bootstrap.Instance
	// UserData is the content of the machine's bootstrap Secret.
	UserData []byte
}

// hypervisorRetry is the time after which a machine that didn't start is tried again.
const hypervisorRetry = 5 * time.Second

// address is the machine's IP address. It keeps the one that it has.
func (r *machineReconciler) address(ctx context.Context, i *instance) (string, error) {
	if r.hypervisor == nil {
		return node.Address(i.providerID()), nil
	}
	for _, address := range i.Status.Addresses {
		if address.Type == clusterv1.MachineInternalIP {
			return address.Address, nil
		}
	}
	return r.hypervisor.Address(ctx, string(i.UID))
}

// boot starts a real machine, or ends it if that fault is set. Whether it joins is its own business.
func (r *machineReconciler) boot(ctx context.Context, i *instance) (reconcile.Result, error) {
	not := func(reason, message string, retry time.Duration) (reconcile.Result, error) {
		i.joined(metav1.ConditionFalse, reason, message)
		return reconcile.Result{RequeueAfter: retry}, nil
	}
	switch {
	case i.neverJoins():
		return not(infrav1.ReasonNeverJoins, "the fault never-joins is set", 0)
	case i.past(i.faults.dies), i.past(i.faults.terminated):
		if err := r.hypervisor.PowerOff(ctx, string(i.UID)); err != nil {
			return not(infrav1.ReasonDead, err.Error(), hypervisorRetry)
		}
		return not(infrav1.ReasonDead, "the fault dies is set", 0)
	case !i.Status.JoinTime.IsZero():
		return i.nextFault(), nil
	case i.machine == nil:
		return not(infrav1.ReasonWaitingForMachine, "the Machine that owned this KwokMachine has gone", 0)
	}
	secret, err := r.bootstrapSecret(ctx, i)
	var malformed *malformedError
	switch {
	case errors.As(err, &malformed):
		return not(infrav1.ReasonInvalidBootstrapData, err.Error(), refusalRetry)
	case err != nil:
		return reconcile.Result{}, err
	}
	if err := r.hypervisor.Boot(ctx, Boot{
		ID: string(i.UID), Version: "v" + strings.TrimPrefix(i.machine.Spec.Version, "v"), Instance: i.metadata(), UserData: secret.Data["value"],
	}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Starting a machine")
		return not(infrav1.ReasonBooting, err.Error(), hypervisorRetry)
	}
	i.Status.NodeName = i.hostname()
	i.Status.JoinTime = metav1.NewMicroTime(i.now)
	i.joined(metav1.ConditionTrue, infrav1.ReasonJoined, "the machine runs, and joins by itself")
	return i.nextFault(), nil
}

// metadata is the machine's instance metadata.
func (i *instance) metadata() bootstrap.Instance {
	return bootstrap.Instance{Hostname: i.hostname(), ProviderID: i.providerID(), Zone: i.Status.FailureDomain, Region: i.region()}
}

// bootstrapSecret reads the machine's bootstrap data. The error is a *malformedError if there is none.
func (r *machineReconciler) bootstrapSecret(ctx context.Context, i *instance) (*corev1.Secret, error) {
	if i.machine.Spec.Bootstrap.DataSecretName == nil {
		return nil, &malformedError{fmt.Errorf("spec.bootstrap.dataSecretName of Machine %s has gone", i.machine.Name)}
	}
	name := *i.machine.Spec.Bootstrap.DataSecretName
	secret := &corev1.Secret{}
	if err := r.management.Get(ctx, types.NamespacedName{Namespace: i.Namespace, Name: name}, secret); err != nil {
		err = fmt.Errorf("reading bootstrap Secret %s: %w", name, err)
		if apierrors.IsNotFound(err) {
			return nil, &malformedError{err}
		}
		return nil, err
	}
	return secret, nil
}
