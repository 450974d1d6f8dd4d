// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// steps are those of a batch. Each can be repeated after an interruption at any write.
var steps = []struct {
	doing string
	take  func(a *adoption, ctx context.Context, batch []*member) error
}{
	{"pausing the MachineSet", (*adoption).pauseSet},
	{"removing Machines from the MachineSet", (*adoption).release},
	{"lowering the replicas", (*adoption).scale},
	{"resuming the MachineSet", (*adoption).resumeSet},
	{"pausing Karpenter", (*adoption).pauseKarpenter},
	{"creating NodeClaims", (*adoption).bind},
	{"resuming Karpenter", (*adoption).resumeKarpenter},
}

const (
	// Annotation is on a Machine that is being adopted: a Record.
	Annotation = "autonode.io/adoption"
	// PauseAnnotation is on a HostedCluster that the command pauses: MachineDeployment=spec.pausedUntil=previous spec.pausedUntil.
	PauseAnnotation = "autonode.io/adoption-pause"

	// pausedBy begins the value of Cluster API's annotation on the MachineSet. The run's ID follows.
	pausedBy = "autonode-adopt-"
	// pauseFor is how long an interrupted command leaves Karpenter paused, and margin its end, in which nothing is bound: clocks differ.
	pauseFor, margin = 5 * time.Minute, time.Minute
)

// setLabels make a Machine and its parts a MachineSet's.
var setLabels = []string{clusterv1.MachineDeploymentNameLabel, clusterv1.MachineSetNameLabel, clusterv1.MachineDeploymentUniqueLabel}

// Record announces a step, release or bind, and has the owners and labels that release removes.
type Record struct {
	Step, MachineDeployment string
	Owners                  []metav1.OwnerReference
	Labels                  map[string]string
}

func recordOf(m *clusterv1.Machine) (r Record) {
	_ = json.Unmarshal([]byte(m.Annotations[Annotation]), &r) // it has no step then
	return r
}

// announce writes a Machine's record.
func (a *adoption) announce(ctx context.Context, m *member, r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return change(ctx, a.management, m.Machine, func() { metav1.SetMetaDataAnnotation(&m.ObjectMeta, Annotation, string(text)) })
}

// await polls an object of the management cluster until done.
func (a *adoption) await(ctx context.Context, object client.Object, what string, done func() bool) error {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		err := a.management.Get(ctx, client.ObjectKeyFromObject(object), object)
		return err == nil && done(), err
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("waited in vain for %s", what)
	}
	return err
}

// change reads an object and patches what do changes, unless it changes nothing.
func change(ctx context.Context, c client.Client, object client.Object, do func()) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		before, ok := object.DeepCopyObject().(client.Object)
		if do(); !ok || equality.Semantic.DeepEqual(before, object) {
			return nil
		}
		return c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

func (a *adoption) pauseSet(ctx context.Context, batch []*member) error {
	if !isPaused(a.set) && !slices.ContainsFunc(batch, a.isOwned) {
		return nil
	}
	if _, paused := a.set.Annotations[clusterv1.PausedAnnotation]; paused && !isPaused(a.set) {
		return fmt.Errorf("MachineSet %s is paused: unpause it", a.set.Name)
	}
	if err := change(ctx, a.management, a.set, func() {
		metav1.SetMetaDataAnnotation(&a.set.ObjectMeta, clusterv1.PausedAnnotation, a.id)
	}); err != nil {
		return err
	}
	return a.await(ctx, a.set, "condition Paused of MachineSet "+a.set.Name, func() bool {
		return meta.IsStatusConditionTrue(a.set.Status.Conditions, clusterv1.PausedCondition)
	})
}

// holds returns an error if another run has paused the MachineSet since, and so continues this one.
func (a *adoption) holds(ctx context.Context) error {
	err := a.management.Get(ctx, client.ObjectKeyFromObject(a.set), a.set)
	if err == nil && a.set.Annotations[clusterv1.PausedAnnotation] != a.id {
		err = fmt.Errorf("another run has taken MachineSet %s over", a.set.Name)
	}
	return err
}

// release removes Machines from their MachineSet. Cluster API then makes their Cluster the owner, so its cache has the change: a MachineSet
// that resumed with an older one would delete Machines.
func (a *adoption) release(ctx context.Context, batch []*member) error {
	for _, m := range batch {
		if !a.isOwned(m) {
			continue
		}
		record := Record{Step: "release", MachineDeployment: a.deployment.Name, Owners: m.OwnerReferences, Labels: map[string]string{}}
		for _, key := range append(slices.Collect(maps.Keys(a.set.Spec.Selector.MatchLabels)), setLabels...) {
			if value, ok := m.Labels[key]; ok && key != clusterv1.ClusterNameLabel {
				record.Labels[key] = value
			}
		}
		err := a.holds(ctx)
		if err == nil {
			err = a.announce(ctx, m, record)
		}
		if err == nil {
			err = change(ctx, a.management, m.Machine, func() {
				maps.DeleteFunc(m.Labels, func(key, _ string) bool { return record.Labels[key] != "" })
				m.OwnerReferences = nil
			})
		}
		if err != nil {
			return err
		}
	}
	for _, m := range batch {
		if err := a.await(ctx, m.Machine, "Cluster API to make the Cluster the owner of Machine "+m.Name, func() bool {
			return slices.ContainsFunc(m.OwnerReferences, a.isCluster)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (a *adoption) isCluster(o metav1.OwnerReference) bool { return o.UID == a.cluster.UID }

// scale sets the MachineDeployment's replicas to the Machines that remain, and waits until the MachineSet has them.
func (a *adoption) scale(ctx context.Context, _ []*member) error {
	if !isPaused(a.set) {
		return nil
	}
	remain, err := a.listMachines(ctx)
	if err != nil {
		return err
	}
	if err := a.holds(ctx); err != nil {
		return err
	}
	if err := change(ctx, a.management, a.deployment, func() { a.deployment.Spec.Replicas = &remain }); err != nil {
		return err
	}
	what := fmt.Sprintf("MachineSet %s to want %d replicas; does a controller write those of the MachineDeployment?", a.set.Name, remain)
	return a.await(ctx, a.set, what, func() bool { return ptr.Deref(a.set.Spec.Replicas, 1) == remain })
}

func (a *adoption) resumeSet(ctx context.Context, _ []*member) error {
	if !isPaused(a.set) {
		return nil
	}
	return change(ctx, a.management, a.set, func() {
		if a.set.Annotations[clusterv1.PausedAnnotation] == a.id {
			delete(a.set.Annotations, clusterv1.PausedAnnotation)
		}
	})
}

// pauseKarpenter pauses Karpenter, and waits until none of its pods is left.
func (a *adoption) pauseKarpenter(ctx context.Context, batch []*member) error {
	if len(batch) == 0 {
		return nil
	}
	hosted := a.hostedCluster
	if err := a.await(ctx, hosted, "AutoNode to be Enabled", func() bool { return a.allowed() == nil }); err != nil {
		return err
	}
	end := time.Now().Add(pauseFor)
	a.deadline = end.Add(-margin)
	if err := change(ctx, a.management, hosted, func() {
		until, previous := end.UTC().Format(time.RFC3339), ptr.Deref(hosted.Spec.PausedUntil, "")
		if written, was, again := a.pauseOf(); again && written == previous {
			previous = was
		}
		if already, err := time.Parse(time.RFC3339, previous); previous == "true" || err == nil && already.After(end) {
			until = previous
		}
		a.until = until
		metav1.SetMetaDataAnnotation(&hosted.ObjectMeta, PauseAnnotation, a.deployment.Name+"="+until+"="+previous)
		hosted.Spec.PausedUntil = &until
	}); err != nil {
		return err
	}
	// A reconciliation of before the pause could still start Karpenter.
	if err := a.await(ctx, hosted, "the operator to see the pause", func() bool {
		enabled := meta.FindStatusCondition(hosted.Status.Conditions, v1beta1.AutoNodeEnabled)
		return enabled != nil && enabled.ObservedGeneration >= hosted.Generation
	}); err != nil {
		return err
	}
	pods, running := &corev1.PodList{}, &appsv1.Deployment{}
	running.Namespace, running.Name = a.cluster.Namespace, hosted.Names().Karpenter
	return a.await(ctx, running, "Karpenter's pods in namespace "+running.Namespace+" to end", func() bool {
		labels := client.MatchingLabels(running.Spec.Selector.MatchLabels)
		return ptr.Deref(running.Spec.Replicas, 1) == 0 && a.management.List(ctx, pods, client.InNamespace(running.Namespace), labels) == nil &&
			len(pods.Items) == 0
	})
}

// pauseOf returns the values of spec.pausedUntil that the command has written and found; false if it hasn't paused Karpenter.
func (a *adoption) pauseOf() (written, previous string, paused bool) {
	fields := strings.SplitN(a.hostedCluster.Annotations[PauseAnnotation], "=", 3)
	if len(fields) < 3 || fields[0] != a.deployment.Name {
		return "", "", false
	}
	return fields[1], fields[2], true
}

// resumeKarpenter restores spec.pausedUntil, unless it has another value by now.
func (a *adoption) resumeKarpenter(ctx context.Context, _ []*member) error {
	return change(ctx, a.management, a.hostedCluster, func() {
		written, previous, paused := a.pauseOf()
		if !paused || a.until != "" && a.until != written {
			return // another run has paused it since
		}
		delete(a.hostedCluster.Annotations, PauseAnnotation)
		if ptr.Deref(a.hostedCluster.Spec.PausedUntil, "") == written {
			a.hostedCluster.Spec.PausedUntil = &previous
			if previous == "" {
				a.hostedCluster.Spec.PausedUntil = nil
			}
		}
	})
}

// bind gives each Machine a NodeClaim of its name, while Karpenter is paused.
func (a *adoption) bind(ctx context.Context, batch []*member) error {
	ctx, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	for _, m := range batch {
		if !m.bound() {
			if err := a.bindMachine(ctx, m); err != nil {
				return fmt.Errorf("adopting Machine %s: %w", m.Name, err)
			}
		}
		// Karpenter would collect parts whose NodeClaim has no Machine, so they follow.
		for _, ref := range []clusterv1.ContractVersionedObjectReference{m.Spec.InfrastructureRef, m.Spec.Bootstrap.ConfigRef} {
			if ref.Name == "" {
				continue
			}
			mapping, err := a.management.RESTMapper().RESTMapping(ref.GroupKind())
			if err != nil {
				return err
			}
			part := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": m.Namespace, "name": ref.Name}}}
			part.SetGroupVersionKind(mapping.GroupVersionKind)
			if err := change(ctx, a.management, part, func() { mark(part, m.Name, m.Labels[v1alpha1.NodeClaimUIDLabel]) }); err != nil {
				return err
			}
		}
		if err := change(ctx, a.management, m.Machine, func() { delete(m.Annotations, Annotation) }); err != nil {
			return err
		}
	}
	return nil
}

// bindMachine creates the NodeClaim, then binds the Machine to it by its UID.
func (a *adoption) bindMachine(ctx context.Context, m *member) error {
	if owner := metav1.GetControllerOf(m.Machine); owner != nil && !a.isCluster(*owner) {
		return fmt.Errorf("%s %s owns it", owner.Kind, owner.Name)
	}
	record := recordOf(m.Machine)
	record.Step = "bind"
	// Without the label Karpenter takes the node for one that joins, and evicts its pods.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Status.NodeRef.Name}}
	err := a.announce(ctx, m, record)
	if err == nil {
		err = change(ctx, a.guest, node, func() { metav1.SetMetaDataLabel(&node.ObjectMeta, karpv1.NodeRegisteredLabelKey, "true") })
	}
	if err != nil {
		return err
	}
	claim := a.claimOf(m)
	if err = a.guest.Create(ctx, claim); apierrors.IsAlreadyExists(err) {
		err = a.guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	}
	if err == nil && (claim.DeletionTimestamp != nil || claim.Status.ProviderID != "" ||
		claim.Annotations[v1alpha1.AdoptedAnnotation] != a.deployment.Name) {
		err = errors.New("the guest has another NodeClaim of its name, or one that is being deleted")
	}
	if err != nil {
		return err
	}
	return change(ctx, a.management, m.Machine, func() {
		mark(m.Machine, m.Name, string(claim.UID))
		maps.Copy(m.Labels, m.offering)
		for i := range m.OwnerReferences {
			m.OwnerReferences[i].Controller = ptr.To(a.isCluster(m.OwnerReferences[i]))
		}
	})
}

// mark makes an object of the management cluster a NodeClaim's.
func mark(object metav1.Object, nodeClaim, uid string) {
	labels, annotations := map[string]string{}, map[string]string{}
	maps.Copy(labels, object.GetLabels())
	maps.Copy(annotations, object.GetAnnotations())
	maps.DeleteFunc(labels, func(key, _ string) bool { return slices.Contains(setLabels, key) })
	labels[v1alpha1.NodeClaimLabel], labels[v1alpha1.NodeClaimUIDLabel] = v1alpha1.NodeClaimLabelValue(nodeClaim), uid
	annotations[v1alpha1.AdoptedAnnotation], annotations[v1alpha1.NodeClaimNameAnnotation] = uid, nodeClaim
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
}
