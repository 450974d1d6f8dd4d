// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
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
	// One that somebody has made from a copy has the labels too.
	list.Items = slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !v1alpha1.MadeForNodeClaim(&m) })
	slices.SortFunc(list.Items, func(a, b clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// reap deletes Machines that no NodeClaim stands for, and waits until they are gone.
func (t *Teardown) reap(ctx context.Context, machines []clusterv1.Machine, d drain) (scope.Result, error) {
	if err := t.deleteMachines(ctx, machines); err != nil {
		return scope.Result{}, err
	}
	message := fmt.Sprintf("%d %s to be deleted by Cluster API: %s", len(machines), plural(len(machines), "Machine is", "Machines are"), names(machines, 3))
	if d.phase == stopped {
		message += "; " + t.outlook(d)
	}
	return scope.Result{Wait: true, Message: message, Reason: d.reason(), RequeueAfter: d.within(t.Clock.Now(), lookEvery)}, nil
}

// deleteMachines tells Cluster API not to drain: either Karpenter has done so, or nobody can.
func (t *Teardown) deleteMachines(ctx context.Context, machines []clusterv1.Machine) error {
	for i := range machines {
		machine := &machines[i]
		before := machine.DeepCopy()
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeNodeDrainingAnnotation, "")
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")
		if len(before.Annotations) != len(machine.Annotations) {
			if err := t.Management.Patch(ctx, machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("excluding Machine %s from draining: %w", klog.KObj(machine), err)
			}
		}
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		if err := t.Management.Delete(ctx, machine, client.Preconditions{UID: &machine.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Machine %s: %w", klog.KObj(machine), err)
		}
		log.FromContext(ctx).Info("Deleted a Machine", "Machine", klog.KObj(machine))
	}
	return nil
}

// guestIsGone is true when the management cluster has neither the Cluster nor its kubeconfig any more, asked of the API server.
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

// giveUp stops waiting for Karpenter: it writes down what is left, deletes the Machines through the management cluster, and, where
// the guest can be reached, removes the finalizers that only Karpenter would.
func (t *Teardown) giveUp(ctx context.Context, s *scope.Scope, machines []clusterv1.Machine, claims []karpv1.NodeClaim, d drain) error {
	why := fmt.Sprintf("Karpenter didn't remove its nodes within %s, and %s more by force", d.timeout, patience(d.timeout))
	if s.Guest == nil {
		why = unreachable(s, fmt.Sprintf("the deletion waited for it for %s", d.timeout))
	}
	if err := t.record(ctx, s, why, machines, claims); err != nil {
		return err
	}
	if err := t.deleteMachines(ctx, machines); err != nil {
		return err
	}
	for i := range claims {
		claim := &claims[i]
		if err := release(ctx, s.Guest, claim); err != nil {
			return err
		}
		if claim.Status.NodeName == "" {
			continue
		}
		node := &corev1.Node{}
		switch err := s.Guest.Live.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("reading node %s in the guest: %w", claim.Status.NodeName, err)
		default:
			if err := release(ctx, s.Guest, node); err != nil {
				return err
			}
		}
	}
	return nil
}

// release deletes an object in the guest and removes Karpenter's finalizer from it. Its Machine is deleted already.
func release(ctx context.Context, guest *scope.Guest, object client.Object) error {
	if object.GetDeletionTimestamp().IsZero() {
		if err := guest.Live.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %T %s in the guest: %w", object, object.GetName(), err)
		}
	}
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.RemoveFinalizer(object, karpv1.TerminationFinalizer) {
		return nil
	}
	if err := guest.Live.Patch(ctx, object, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing %T %s in the guest: %w", object, object.GetName(), err)
	}
	log.FromContext(ctx).Info("Removed Karpenter's finalizer", "object", klog.KObj(object))
	return nil
}

// record writes the ConfigMap, once for each drain, before anything is given up. It belongs to nobody, so that it outlives the HostedCluster; it lies
// beside the Machines that it is about.
func (t *Teardown) record(ctx context.Context, s *scope.Scope, why string, machines []clusterv1.Machine, claims []karpv1.NodeClaim) error {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.AbandonedConfigMap}
	started := t.begun(s).UTC().Format(time.RFC3339)
	existing := &corev1.ConfigMap{}
	switch err := t.Live.Get(ctx, key, existing); {
	case err == nil && existing.Data["hostedClusterUID"] == string(s.HostedCluster.UID) && existing.Data["drainStarted"] == started:
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading ConfigMap %s: %w", key, err)
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
			"time":             t.Clock.Now().UTC().Format(time.RFC3339),
			"reason":           why,
			"machines":         describeMachines(machines),
			"nodeClaims":       describeClaims(claims),
		},
	}
	if s.Profile.Unattended != nil {
		record.Data["unattended"] = s.Profile.Unattended(s.ClusterKey().Name) + "\n"
	}
	if err := t.Apply.Objects(ctx, t.Management, nil, record); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Gave up waiting for nodes to drain", "ConfigMap", key, "machines", len(machines))
	what := fmt.Sprintf("%d %s deleted without a drain", len(machines), plural(len(machines), "Machine is", "Machines are"))
	if s.Profile.Unattended != nil {
		what = "machines may be left that nobody removes"
	}
	t.Recorder.Eventf(s.HostedCluster, nil, corev1.EventTypeWarning, v1beta1.AbandonedReason, "Drain", "%s; %s: see ConfigMap %s", why, what, key)
	return nil
}

// describeMachines is one line for each Machine: its name, its NodeClaim, its provider ID.
func describeMachines(machines []clusterv1.Machine) string {
	var b strings.Builder
	for i := range machines {
		m := &machines[i]
		fmt.Fprintf(&b, "%s nodeClaim=%s providerID=%s\n", m.Name, m.Labels[v1alpha1.NodeClaimLabel], m.Spec.ProviderID)
	}
	return b.String()
}

func describeClaims(claims []karpv1.NodeClaim) string {
	var b strings.Builder
	for i := range claims {
		fmt.Fprintf(&b, "%s node=%s", claims[i].Name, claims[i].Status.NodeName)
		if id := claims[i].Status.ProviderID; id != "" {
			fmt.Fprintf(&b, " providerID=%s", id)
		}
		b.WriteByte('\n')
	}
	return b.String()
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
