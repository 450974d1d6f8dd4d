// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/printer"
)

// Annotation is on a Machine while it is being adopted: a Record.
const Annotation = "autonode.io/adoption"

// Values of a Record's step: what the command does next, or has begun. A Machine with StepRelease or StepBind can return to its MachineSet
// until a NodeClaim is bound to it.
const (
	// StepRelease removes the Machine from its MachineSet.
	StepRelease = "release"
	// StepBind gives it a NodeClaim.
	StepBind = "bind"
)

// Record is a Machine's progress, and what each later step and the way back need.
type Record struct {
	Step              string `json:"step,omitempty"`
	MachineDeployment string `json:"machineDeployment"`
	MachineSet        string `json:"machineSet,omitempty"`
	// Owners and Selected are the owner references and the labels that release removes.
	Owners   []metav1.OwnerReference `json:"owners,omitempty"`
	Selected map[string]string       `json:"selected,omitempty"`

	// NodePool, ExpireAfter and Required, which are labels, are the NodeClaim's.
	NodePool    string            `json:"nodePool"`
	ExpireAfter string            `json:"expireAfter"`
	Required    map[string]string `json:"required,omitempty"`
	// Offering are the labels, and Facts the annotations, that Karpenter's Machines have.
	Offering map[string]string `json:"offering,omitempty"`
	Facts    map[string]string `json:"facts,omitempty"`
}

func (r Record) instanceType() string { return r.Offering[corev1.LabelInstanceTypeStable] }
func (r Record) zone() string         { return r.Offering[corev1.LabelTopologyZone] }

func recordOf(m *clusterv1.Machine) (r Record, ok bool) {
	return r, json.Unmarshal([]byte(m.Annotations[Annotation]), &r) == nil
}

// step is one of a batch. Each can be repeated after an interruption at any write.
type step struct {
	doing string
	take  func(a *adoption, ctx context.Context, batch []*member) error
}

var (
	forward = []step{
		{"announcing the adoption", (*adoption).announce},
		{"pausing the MachineSet", (*adoption).pauseSet},
		{"removing Machines from their MachineSet", (*adoption).release},
		{"lowering the replicas", (*adoption).scale},
		{"resuming the MachineSet", (*adoption).resumeSet},
		{"pausing Karpenter", (*adoption).pauseKarpenter},
		{"binding NodeClaims", (*adoption).bind},
		{"resuming Karpenter", (*adoption).resumeKarpenter},
	}
	backward = []step{
		{"pausing the MachineSet", (*adoption).pauseSet},
		{"returning Machines to their MachineSet", (*adoption).restore},
		{"raising the replicas", (*adoption).scale},
		{"resuming the MachineSet", (*adoption).resumeSet},
		{"removing the announcement", (*adoption).forget},
	}
)

// waitTimeout bounds a wait for a controller.
const waitTimeout = 2 * time.Minute

// await polls until done, and then says what it waited for.
func await(ctx context.Context, what string, done func(ctx context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, waitTimeout, true, done)
	if wait.Interrupted(err) {
		return fmt.Errorf("waited in vain for %s", what)
	}
	return err
}

// change reads an object and patches what do changes, unless it changes nothing.
func change(ctx context.Context, c client.Client, object client.Object, do func() error) error {
	kind, err := c.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return fmt.Errorf("reading %s %s: %w", kind.Kind, object.GetName(), err)
		}
		before, ok := object.DeepCopyObject().(client.Object)
		if err := do(); err != nil || !ok || equality.Semantic.DeepEqual(before, object) {
			return err
		}
		if err := c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("patching %s %s: %w", kind.Kind, object.GetName(), err)
		}
		return nil
	})
}

// each changes the Machines of a batch.
func (a *adoption) each(ctx context.Context, batch []*member, do func(m *member) error) error {
	for _, m := range batch {
		if err := change(ctx, a.management, m.Machine, func() error { return do(m) }); err != nil {
			return err
		}
	}
	return nil
}

// record writes a Machine's record.
func (m *member) record(step string) error {
	m.Step = step
	text, err := json.Marshal(m.Record)
	if err == nil {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, Annotation, string(text))
	}
	return err
}

// announce writes what release takes from each Machine.
func (a *adoption) announce(ctx context.Context, batch []*member) error {
	return a.each(ctx, batch, func(m *member) error {
		if m.Step != "" {
			return nil
		}
		if !metav1.IsControlledBy(m.Machine, a.set) {
			return fmt.Errorf("MachineSet %s doesn't own Machine %s any more", a.set.Name, m.Name)
		}
		m.MachineSet, m.Owners, m.Selected = a.set.Name, m.OwnerReferences, map[string]string{}
		for _, key := range append(slices.Collect(maps.Keys(a.set.Spec.Selector.MatchLabels)), setLabels...) {
			if value, ok := m.Labels[key]; ok && key != clusterv1.ClusterNameLabel {
				m.Selected[key] = value
			}
		}
		return m.record(StepRelease)
	})
}

// setLabels make a Machine and its parts a MachineSet's.
var setLabels = []string{clusterv1.MachineDeploymentNameLabel, clusterv1.MachineSetNameLabel, clusterv1.MachineDeploymentUniqueLabel}

// pausedFor begins the value of the annotation by which the command pauses a MachineSet. The replicas that remain follow.
const pausedFor = "autonode adopt, replicas "

// held returns the MachineSet's replicas after the pause; false unless this command has paused it.
func (a *adoption) held() (replicas int32, held bool) {
	if a.set == nil {
		return 0, false
	}
	n, err := fmt.Sscanf(a.set.Annotations[clusterv1.PausedAnnotation], pausedFor+"%d", &replicas)
	return replicas, n == 1 && err == nil
}

// releasing reports whether the MachineSet has to be changed for a batch: it owns a Machine, or shall own one that it doesn't.
func (a *adoption) releasing(batch []*member) bool {
	_, held := a.held()
	return held || slices.ContainsFunc(batch, func(m *member) bool { return a.Undo != metav1.IsControlledBy(m.Machine, a.set) })
}

func (a *adoption) pauseSet(ctx context.Context, batch []*member) error {
	if a.set == nil && a.Undo && len(batch) > 0 {
		a.set = &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: a.key.Namespace, Name: batch[0].MachineSet}}
	}
	if a.set == nil || !a.releasing(batch) {
		return nil
	}
	err := change(ctx, a.management, a.set, func() error {
		text, paused := a.set.Annotations[clusterv1.PausedAnnotation]
		if _, held := a.held(); held {
			return nil
		} else if paused {
			return fmt.Errorf("MachineSet %s is paused (%s); unpause it", a.set.Name, text)
		}
		remain := ptr.Deref(a.set.Spec.Replicas, 1)
		for _, m := range batch {
			if metav1.IsControlledBy(m.Machine, a.set) && !a.Undo {
				remain--
			}
		}
		metav1.SetMetaDataAnnotation(&a.set.ObjectMeta, clusterv1.PausedAnnotation, fmt.Sprint(pausedFor, remain))
		return nil
	})
	if err != nil {
		return err
	}
	return await(ctx, "condition Paused of MachineSet "+a.set.Name, func(ctx context.Context) (bool, error) {
		err := a.management.Get(ctx, client.ObjectKeyFromObject(a.set), a.set)
		return meta.IsStatusConditionTrue(a.set.Status.Conditions, clusterv1.PausedCondition), err
	})
}

// release removes Machines from their MachineSet. Cluster API then makes their Cluster the owner, which shows that its cache has the
// change: a MachineSet that resumed with an older one would delete Machines.
func (a *adoption) release(ctx context.Context, batch []*member) error {
	err := a.each(ctx, batch, func(m *member) error {
		if m.Step != StepRelease {
			return nil
		}
		m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool {
			return slices.ContainsFunc(m.Owners, func(was metav1.OwnerReference) bool { return was.UID == o.UID })
		})
		for key := range m.Selected {
			delete(m.Labels, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range batch {
		err := await(ctx, "Cluster API to make Cluster "+a.cluster.Name+" the owner of Machine "+m.Name, func(ctx context.Context) (bool, error) {
			err := a.management.Get(ctx, client.ObjectKeyFromObject(m.Machine), m.Machine)
			return slices.ContainsFunc(m.OwnerReferences, a.isCluster), err
		})
		if err != nil {
			return err
		}
	}
	return a.each(ctx, batch, func(m *member) error { return m.record(StepBind) })
}

func (a *adoption) isCluster(o metav1.OwnerReference) bool { return o.UID == a.cluster.UID }

// restore returns Machines to their MachineSet. They are paused until Cluster API has seen that, by the same reason as in release.
func (a *adoption) restore(ctx context.Context, batch []*member) error {
	err := a.each(ctx, batch, func(m *member) error {
		m.OwnerReferences = m.Owners
		maps.Copy(m.Labels, m.Selected)
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.PausedAnnotation, Annotation)
		return m.record(StepRelease)
	})
	if err != nil {
		return err
	}
	for _, m := range batch {
		err := await(ctx, "condition Paused of Machine "+m.Name, func(ctx context.Context) (bool, error) {
			err := a.management.Get(ctx, client.ObjectKeyFromObject(m.Machine), m.Machine)
			return meta.IsStatusConditionTrue(m.Status.Conditions, clusterv1.PausedCondition), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forget ends the way back.
func (a *adoption) forget(ctx context.Context, batch []*member) error {
	return a.each(ctx, batch, func(m *member) error {
		delete(m.Annotations, Annotation)
		if m.Annotations[clusterv1.PausedAnnotation] == Annotation {
			delete(m.Annotations, clusterv1.PausedAnnotation)
		}
		return nil
	})
}

// scale sets the MachineDeployment's replicas, and waits until the MachineSet has them.
func (a *adoption) scale(ctx context.Context, batch []*member) error {
	wanted, held := a.held()
	if !held {
		return nil
	}
	if err := change(ctx, a.management, a.deployment, func() error {
		if a.Undo {
			list := &clusterv1.MachineList{}
			if err := a.management.List(ctx, list, client.InNamespace(a.key.Namespace), client.MatchingLabels(a.set.Spec.Selector.MatchLabels)); err != nil {
				return fmt.Errorf("listing Machines of MachineSet %s: %w", a.set.Name, err)
			}
			wanted = max(ptr.Deref(a.deployment.Spec.Replicas, 1), int32(len(list.Items)))
		}
		a.deployment.Spec.Replicas = &wanted
		return nil
	}); err != nil {
		return err
	}
	printer.Printf(a.out, "%s  MachineDeployment %s has %d replicas\n", time.Now().Format(time.TimeOnly), a.key, wanted)
	what := fmt.Sprintf("MachineSet %s to want %d replicas; does a controller write MachineDeployment %s's?", a.set.Name, wanted, a.key)
	return await(ctx, what, func(ctx context.Context) (bool, error) {
		err := a.management.Get(ctx, client.ObjectKeyFromObject(a.set), a.set)
		return ptr.Deref(a.set.Spec.Replicas, 1) == wanted, err
	})
}

func (a *adoption) resumeSet(ctx context.Context, _ []*member) error {
	if _, held := a.held(); !held {
		return nil
	}
	return change(ctx, a.management, a.set, func() error {
		delete(a.set.Annotations, clusterv1.PausedAnnotation)
		return nil
	})
}

// bind gives each Machine a NodeClaim of its name. Once a Machine has the label with the NodeClaim's UID, it is Karpenter's.
func (a *adoption) bind(ctx context.Context, batch []*member) error {
	ctx, cancel := a.whilePaused(ctx)
	defer cancel()
	for _, m := range batch {
		if err := a.bindOne(ctx, m); err != nil {
			return fmt.Errorf("Machine %s: %w", m.Name, err)
		}
		printer.Printf(a.out, "%s  Machine %s has a NodeClaim\n", time.Now().Format(time.TimeOnly), m.Name)
	}
	return nil
}

func (a *adoption) bindOne(ctx context.Context, m *member) error {
	if err := a.management.Get(ctx, client.ObjectKeyFromObject(m.Machine), m.Machine); err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	if owner := metav1.GetControllerOf(m.Machine); owner != nil && !a.isCluster(*owner) {
		return fmt.Errorf("%s %s owns it", owner.Kind, owner.Name)
	}
	uid := types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel])
	if uid == "" {
		// Else Karpenter would take the node for one that joins, and evict its pods.
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Status.NodeRef.Name}}
		if err := change(ctx, a.guest, node, func() error {
			metav1.SetMetaDataLabel(&node.ObjectMeta, karpv1.NodeRegisteredLabelKey, "true")
			return nil
		}); err != nil {
			return err
		}
		claim, err := a.nodeClaim(ctx, m)
		if err != nil {
			return err
		}
		uid = claim.UID
	}
	// The Machine first: Karpenter would collect a part of a NodeClaim that has no Machine.
	if err := change(ctx, a.management, m.Machine, func() error {
		mark(m.Machine, m.Name, uid)
		for key, value := range m.Offering {
			metav1.SetMetaDataLabel(&m.ObjectMeta, key, value)
		}
		for key, value := range m.Facts {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value)
		}
		for i := range m.OwnerReferences {
			if a.isCluster(m.OwnerReferences[i]) {
				m.OwnerReferences[i].Controller = ptr.To(true)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, ref := range []clusterv1.ContractVersionedObjectReference{m.Spec.InfrastructureRef, m.Spec.Bootstrap.ConfigRef} {
		if ref.Name == "" {
			continue
		}
		mapping, err := a.management.RESTMapper().RESTMapping(ref.GroupKind())
		if err != nil {
			return fmt.Errorf("finding the version of %s: %w", ref.GroupKind(), err)
		}
		part := &unstructured.Unstructured{}
		part.SetGroupVersionKind(mapping.GroupVersionKind)
		part.SetNamespace(m.Namespace)
		part.SetName(ref.Name)
		if err := change(ctx, a.management, part, func() error { mark(part, m.Name, uid); return nil }); err != nil {
			return err
		}
	}
	return change(ctx, a.management, m.Machine, func() error { delete(m.Annotations, Annotation); return nil })
}

// mark makes an object of the management cluster a NodeClaim's.
func mark(object metav1.Object, nodeClaim string, uid types.UID) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.DeleteFunc(labels, func(key, _ string) bool { return slices.Contains(setLabels, key) })
	labels[v1alpha1.NodeClaimLabel], labels[v1alpha1.NodeClaimUIDLabel] = v1alpha1.NodeClaimLabelValue(nodeClaim), string(uid)
	annotations[v1alpha1.AdoptedAnnotation] = string(uid)
	if object.GetName() != nodeClaim || labels[v1alpha1.NodeClaimLabel] != nodeClaim {
		annotations[v1alpha1.NodeClaimNameAnnotation] = nodeClaim
	}
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
}

// nodeClaim creates the NodeClaim of a Machine, or finds that of an interrupted run.
func (a *adoption) nodeClaim(ctx context.Context, m *member) (*karpv1.NodeClaim, error) {
	claim, err := a.claimOf(m)
	if err != nil {
		return nil, err
	}
	err = a.guest.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		err = a.guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("creating its NodeClaim: %w", err)
	case claim.DeletionTimestamp != nil || claim.Annotations[v1alpha1.AdoptedAnnotation] == "":
		return nil, fmt.Errorf("the guest has another NodeClaim %s, or one that is being deleted", claim.Name)
	}
	return claim, nil
}

func (a *adoption) claimOf(m *member) (*karpv1.NodeClaim, error) {
	expiry, err := parseExpiry(m.ExpireAfter)
	if err != nil {
		return nil, err
	}
	if m.NodePool != a.pool.Name {
		return nil, fmt.Errorf("an interrupted run chose NodePool %s: add --nodepool %s, or --undo", m.NodePool, m.NodePool)
	}
	spec := a.pool.Spec.Template.Spec
	ref := spec.NodeClassRef
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Labels: map[string]string{
				karpv1.NodePoolLabelKey: a.pool.Name, karpv1.NodeClassLabelKey(ref.GroupKind()): ref.Name, karpv1.NodeDoNotSyncTaintsLabelKey: "true",
			},
			Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: "true", v1alpha1.AdoptedAnnotation: m.MachineDeployment},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: a.pool.Name, UID: a.pool.UID, BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: ref, Taints: spec.Taints, TerminationGracePeriod: spec.TerminationGracePeriod, ExpireAfter: expiry,
		},
	}
	maps.Copy(claim.Labels, m.Required)
	for _, key := range slices.Sorted(maps.Keys(m.Offering)) {
		if key != karpv1.NodePoolLabelKey {
			claim.Spec.Requirements = append(claim.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{m.Offering[key]},
			})
		}
	}
	return claim, nil
}
