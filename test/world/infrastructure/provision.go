// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// provision brings the machine to run and reports it to Cluster API.
func (r *machineReconciler) provision(ctx context.Context, i *instance) (started bool, result reconcile.Result, err error) {
	not := func(reason, format string, args ...any) {
		i.provisioned(metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
	}
	if i.Status.StartTime.IsZero() {
		switch {
		case i.machine == nil:
			not(infrav1.ReasonWaitingForMachine, "no Machine owns this KwokMachine yet; one whose spec.infrastructureRef names it will")
			return false, result, nil
		case i.cluster == nil || i.cluster.Status.Initialization.InfrastructureProvisioned == nil ||
			!*i.cluster.Status.Initialization.InfrastructureProvisioned:
			not(infrav1.ReasonWaitingForCluster, "the infrastructure of Cluster %s isn't provisioned", i.guest.Name)
			return false, result, nil
		case i.machine.Spec.Bootstrap.DataSecretName == nil:
			not(infrav1.ReasonWaitingForBootstrapData, "Machine %s has no spec.bootstrap.dataSecretName yet", i.machine.Name)
			return false, result, nil
		}
		if problem := i.place(); problem != "" {
			not(infrav1.ReasonInvalidFailureDomain, "%s", problem)
			return false, result, nil
		}
	}
	switch adoptable := i.Spec.ProviderID != "" && r.hypervisor == nil; { // a hypervisor identifies its machines by the UIDs of their objects
	case !i.Status.StartTime.IsZero():
	case adoptable:
		if err := r.adopt(ctx, i); err != nil {
			not(infrav1.ReasonGuestUnreachable, "the machine runs already, and its Node can't be read: %v", err)
			return false, reconcile.Result{RequeueAfter: guestRetry}, nil
		}
	default:
		if i.faults.noCapacity.include(i.Status.FailureDomain, string(i.Spec.CapacityType)) {
			i.Status.RequestTime = metav1.MicroTime{}
			not(infrav1.ReasonInsufficientCapacity, "%s", i.noCapacityMessage())
			return false, result, nil
		}
		if i.Status.RequestTime.IsZero() {
			i.Status.RequestTime = metav1.NewMicroTime(i.now)
		}
		if wait := i.Status.RequestTime.Add(delay(i.Spec.ProvisioningDelay, r.provisioningDelay)).Sub(i.now); wait > 0 {
			not(infrav1.ReasonProvisioning, "the machine is starting")
			return false, reconcile.Result{RequeueAfter: wait}, nil
		}
		i.Status.StartTime = metav1.NewMicroTime(i.now)
	}
	controllerutil.AddFinalizer(i.KwokMachine, infrav1.MachineFinalizer)
	if i.Status.Initialization.Provisioned == nil {
		if left := i.faults.lateProviderID.left(i.Status.StartTime.Time, i.now); left != 0 {
			not(infrav1.ReasonProviderIDPending, "the machine runs, but its provider ID isn't known yet")
			return true, reconcile.Result{RequeueAfter: max(0, left)}, nil
		}
		provisioned := true
		i.Status.Initialization.Provisioned = &provisioned
	}
	address, err := r.address(ctx, i)
	if err != nil {
		return true, result, fmt.Errorf("giving the machine an address: %w", err)
	}
	i.Spec.ProviderID = i.providerID()
	i.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineInternalIP, Address: address},
		{Type: clusterv1.MachineHostName, Address: i.hostname()},
	}
	if i.past(i.faults.terminated) {
		not(infrav1.ReasonInstanceTerminated, "the fault terminated is set")
	} else {
		i.provisioned(metav1.ConditionTrue, infrav1.ReasonProvisioned, "")
	}
	return true, result, nil
}

// place chooses the zone: the one that the Machine or, failing that, a label requests, else any.
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

// noCapacityMessage is EC2's.
func (i *instance) noCapacityMessage() string {
	what := i.instanceType() + " " + string(i.Spec.CapacityType)
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

// delay returns the delay of a machine: its own, else the provider's.
func delay(own *metav1.Duration, fallback time.Duration) time.Duration {
	if own != nil {
		return own.Duration
	}
	return fallback
}
