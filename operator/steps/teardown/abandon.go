// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/operator/scope"
)

// machines lists the Machines that Karpenter made for the cluster, sorted by name.
func (t *Teardown) machines(ctx context.Context, reader client.Reader, s *scope.Scope) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := reader.List(ctx, list,
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
	if err := t.deleteMachines(ctx, machines, false); err != nil {
		return scope.Result{}, err
	}
	message := fmt.Sprintf("%d %s to be deleted by Cluster API: %s", len(machines),
		english.PluralWord(len(machines), "Machine is", "Machines are"), names(machines, 3))
	if d.phase == stopped {
		message += "; " + t.outlook(d)
	}
	return scope.Result{Wait: true, Message: message, Reason: d.reason(), RequeueAfter: d.within(t.Clock.Now(), relistInterval)}, nil
}

// deleteMachines deletes Machines without a drain by Cluster API: either Karpenter has drained them, or the guest is
// unreachable. Abandoned ones wait for no hook and no pause: nothing would end their costs. It continues after an error.
func (t *Teardown) deleteMachines(ctx context.Context, machines []clusterv1.Machine, abandoned bool) error {
	var errs []error
	for i := range machines {
		errs = append(errs, t.deleteMachine(ctx, &machines[i], abandoned))
	}
	return errors.Join(errs...)
}

// delays reports whether an annotation keeps Cluster API from deleting a Machine.
func delays(key, _ string) bool {
	return key == clusterv1.PausedAnnotation || strings.HasPrefix(key, clusterv1.PreDrainDeleteHookAnnotationPrefix) ||
		strings.HasPrefix(key, clusterv1.PreTerminateDeleteHookAnnotationPrefix)
}

func (t *Teardown) deleteMachine(ctx context.Context, machine *clusterv1.Machine, abandoned bool) error {
	before := machine.DeepCopy()
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeNodeDrainingAnnotation, "")
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")
	if abandoned {
		maps.DeleteFunc(machine.Annotations, delays)
	}
	if !maps.Equal(before.Annotations, machine.Annotations) {
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

// end ends a drain after its deadline through the management cluster, which no guest can block: it stops Karpenter, so that nothing more is
// launched, records the rest, and deletes the Machines. It tries once to remove the objects in the guest, and records those that the guest
// refuses to delete.
func (t *Teardown) end(ctx context.Context, s *scope.Scope, m *memory) (scope.Result, error) {
	why := fmt.Sprintf("Karpenter didn't remove its nodes within %s, and %s more by force", t.drainOf(s).timeout,
		gracePeriod(t.drainOf(s).timeout))
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
	if err := t.abandon(ctx, s, why); err != nil {
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

// abandon records the Machines that are left, and deletes them.
func (t *Teardown) abandon(ctx context.Context, s *scope.Scope, why string) error {
	machines, err := t.machines(ctx, t.Live, s)
	if err != nil {
		return err
	}
	if len(machines) > 0 || s.Guest == nil {
		if err := t.record(ctx, s, why, findings{machines: describeMachines(machines)}); err != nil {
			return err
		}
	}
	return t.deleteMachines(ctx, machines, true)
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
