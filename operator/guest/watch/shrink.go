// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/message"
)

// Limits of a guest's object in the cache. The guest's admin creates objects as large as its API server accepts.
const (
	// maxMetadata limits an object's labels and its annotations, each, in bytes. Of larger ones only retainedDomains stay.
	maxMetadata = 8 << 10
	// maxOwners limits owner references, finalizers, conditions and stored versions, each.
	maxOwners = 32
	// maxTemplates limits the templates with an older image in a node class's status, in bytes.
	maxTemplates = 32 << 10
	// maxBudgets is the limit in the CRD, which the guest's admin can raise.
	maxBudgets = 50
	// maxText limits a text of a status that the operator counts or compares.
	maxText = 512
)

// retainedDomains are the domains of keys that the operator reads.
var retainedDomains = []string{"autonode.io", "app.kubernetes.io", "karpenter.sh", "karpenter.cluster.x-k8s.io", "karpenter.k8s.aws"}

// shrink keeps the fields of an object that the operator reads, in memory of its own. Whatever the guest's admin puts into it, it
// takes less than 100 KiB.
func shrink(object any) (any, error) {
	switch o := object.(type) {
	case *apiextensionsv1.CustomResourceDefinition:
		*o = apiextensionsv1.CustomResourceDefinition{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta,
			Status: apiextensionsv1.CustomResourceDefinitionStatus{
				Conditions: first(o.Status.Conditions, func(c *apiextensionsv1.CustomResourceDefinitionCondition) {
					c.Type, c.Status, c.Reason, c.Message = start(c.Type), start(c.Status), start(c.Reason), start(c.Message)
				}),
				StoredVersions: first(o.Status.StoredVersions, func(v *string) { *v = start(*v) }),
			}}
	case *corev1.Node:
		*o = corev1.Node{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta, Spec: corev1.NodeSpec{ProviderID: start(o.Spec.ProviderID)},
			Status: corev1.NodeStatus{
				Capacity: corev1.ResourceList{corev1.ResourceCPU: short(o.Status.Capacity[corev1.ResourceCPU])},
				NodeInfo: corev1.NodeSystemInfo{KubeletVersion: start(o.Status.NodeInfo.KubeletVersion)},
			}}
		o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil
		o.Labels = map[string]string{karpv1.NodePoolLabelKey: start(o.Labels[karpv1.NodePoolLabelKey])}
	case *karpv1.NodeClaim:
		claim := karpv1.NodeClaim{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta}
		if ref := o.Spec.NodeClassRef; ref != nil {
			claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: start(ref.Group), Kind: start(ref.Kind), Name: start(ref.Name)}
		}
		claim.Status.NodeName = start(o.Status.NodeName)
		claim.Status.Conditions = first(o.Status.Conditions, shrinkCondition)
		*o = claim
	case *karpv1.NodePool:
		pool := karpv1.NodePool{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta}
		pool.Spec.Replicas = o.Spec.Replicas
		if nodes, ok := o.Spec.Limits[resources.Node]; ok {
			pool.Spec.Limits = karpv1.Limits{resources.Node: short(nodes)}
		}
		pool.Spec.Disruption.Budgets = slices.Clone(o.Spec.Disruption.Budgets[:min(len(o.Spec.Disruption.Budgets), maxBudgets)])
		for i := range pool.Spec.Disruption.Budgets {
			shrinkBudget(&pool.Spec.Disruption.Budgets[i])
		}
		*o = pool
	case *v1alpha1.ClusterAPINodeClass:
		class := v1alpha1.ClusterAPINodeClass{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta}
		class.Spec.Version, class.Status.Version = start(o.Spec.Version), start(o.Status.Version)
		class.Status.Templates = older(o.Status.Templates)
		class.Status.Conditions = reported(o.Status.Conditions)
		class.Status.NodeUpgrade = shrinkUpgrade(o.Status.NodeUpgrade)
		*o = class
	}
	if accessor, ok := object.(metav1.ObjectMetaAccessor); ok {
		shrinkMetadata(accessor.GetObjectMeta())
	}
	return object, nil
}

// nodeClassConditions are the conditions of a node class that the operator reads.
var nodeClassConditions = []string{status.ConditionReady, v1alpha1.ConditionOfferingsAvailable}

// reported returns the conditions of a node class that the operator reads, the first of each type.
func reported(conditions []status.Condition) (retained []status.Condition) {
	for _, conditionType := range nodeClassConditions {
		if i := slices.IndexFunc(conditions, func(c status.Condition) bool { return c.Type == conditionType }); i >= 0 {
			condition := conditions[i]
			shrinkCondition(&condition)
			retained = append(retained, condition)
		}
	}
	return retained
}

// shrinkUpgrade keeps what a HostedCluster's status may hold; nil for an upgrade in no phase.
func shrinkUpgrade(u *v1alpha1.NodeUpgradeStatus) *v1alpha1.NodeUpgradeStatus {
	if u == nil || u.Phase != v1alpha1.NodeUpgradeCanary && u.Phase != v1alpha1.NodeUpgradeRolling && u.Phase != v1alpha1.NodeUpgradeHalted {
		return nil
	}
	names := func(all []string) []string {
		all = slices.Clone(all[:min(len(all), 100)])
		return slices.DeleteFunc(all, func(name string) bool { return len(validation.IsQualifiedName(name)) > 0 })
	}
	shrunk := &v1alpha1.NodeUpgradeStatus{Image: start(u.Image), Version: message.CutUpTo(u.Version, 64), Phase: u.Phase,
		Canaries: names(u.Canaries), FailedNodes: names(u.FailedNodes), Message: message.Cut(u.Message)}
	if at := u.SoakStartTime.At(); !at.IsZero() {
		shrunk.SoakStartTime = ptr.To(scalar.NewTime(at).Stored())
	}
	return shrunk
}

func sameCondition(a, b status.Condition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ObservedGeneration == b.ObservedGeneration
}

// older returns the templates with an older image, up to maxTemplates bytes.
func older(templates []v1alpha1.TemplateStatus) (retained []v1alpha1.TemplateStatus) {
	rest := maxTemplates
	for i := range templates {
		t := &templates[i]
		if t.Image != v1alpha1.ImageOlder {
			continue
		}
		short := v1alpha1.TemplateStatus{
			Source: start(t.Source), InstanceType: start(t.InstanceType), Version: start(t.Version), Image: v1alpha1.ImageOlder,
		}
		if rest -= store.Size(short); rest < 0 {
			break
		}
		retained = append(retained, short)
	}
	return slices.Clip(retained)
}

func shrinkMetadata(o metav1.Object) {
	o.SetManagedFields(nil)
	o.SetGenerateName("")
	o.SetSelfLink("")
	o.SetLabels(bounded(o.GetLabels()))
	o.SetAnnotations(bounded(o.GetAnnotations()))
	if owners := o.GetOwnerReferences(); len(owners) > maxOwners {
		o.SetOwnerReferences(nil)
	} else if len(owners) > 0 {
		o.SetOwnerReferences(first(owners, func(r *metav1.OwnerReference) {
			r.APIVersion, r.Kind, r.Name, r.UID = start(r.APIVersion), start(r.Kind), start(r.Name), start(r.UID)
		}))
	}
	if finalizers := o.GetFinalizers(); len(finalizers) > 0 {
		o.SetFinalizers(first(finalizers, func(f *string) { *f = start(*f) }))
	}
}

func shrinkCondition(c *status.Condition) {
	c.Type, c.Status, c.Reason, c.Message = start(c.Type), start(c.Status), start(c.Reason), start(c.Message)
}

func shrinkBudget(b *karpv1.Budget) {
	b.Nodes = start(b.Nodes)
	if b.Schedule != nil {
		b.Schedule = ptr.To(start(*b.Schedule))
	}
	b.Reasons = first(b.Reasons, func(r *karpv1.DisruptionReason) { *r = start(*r) })
}

// first returns up to maxOwners elements in memory of their own.
func first[E any](list []E, shrink func(*E)) []E {
	if len(list) == 0 {
		return nil
	}
	retained := slices.Clone(list[:min(len(list), maxOwners)])
	for i := range retained {
		shrink(&retained[i])
	}
	return slices.Clip(retained)
}

// short returns a quantity that takes little memory.
func short(q resource.Quantity) resource.Quantity {
	if len(q.String()) <= scalar.MaxQuantity {
		return q
	}
	return *resource.NewQuantity(q.Value(), resource.DecimalSI)
}

// bounded returns metadata of up to maxMetadata bytes unchanged. Of larger metadata it keeps short values of
// retainedDomains.
func bounded(metadata map[string]string) map[string]string {
	size := 0
	for key, value := range metadata {
		size += len(key) + len(value)
	}
	if size <= maxMetadata {
		return metadata
	}
	retained, rest := map[string]string{}, maxMetadata
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		value := metadata[key]
		domain, _, _ := strings.Cut(key, "/")
		ours := slices.ContainsFunc(retainedDomains,
			func(retained string) bool { return domain == retained || strings.HasSuffix(domain, "."+retained) })
		if size := len(key) + len(value); ours && len(value) <= maxText && size <= rest {
			retained[strings.Clone(key)] = strings.Clone(value)
			rest -= size
		}
	}
	return retained
}

// start returns the beginning of a text, in memory of its own.
func start[S ~string](text S) S {
	if len(text) <= maxText {
		return text
	}
	return S(strings.Clone(string(text[:maxText])))
}

func specDiffers(before, after client.Object) bool {
	return before.GetGeneration() != after.GetGeneration() || !after.GetDeletionTimestamp().Equal(before.GetDeletionTimestamp())
}

// nodeClassDiffers ignores a node class's status except for the nodes' version and the conditions that the operator reads: Karpenter writes
// the status, and the guest's admin may in a loop.
func nodeClassDiffers(before, after client.Object) bool {
	if specDiffers(before, after) || !maps.Equal(before.GetLabels(), after.GetLabels()) ||
		!maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		len(before.GetFinalizers()) != len(after.GetFinalizers()) {
		return true
	}
	a, ok := before.(*v1alpha1.ClusterAPINodeClass)
	b, ok2 := after.(*v1alpha1.ClusterAPINodeClass)
	return ok && ok2 &&
		(a.Status.Version != b.Status.Version || !equality.Semantic.DeepEqual(a.Status.NodeUpgrade, b.Status.NodeUpgrade) ||
			!slices.EqualFunc(reported(a.Status.Conditions), reported(b.Status.Conditions), sameCondition))
}

// nodeDiffers ignores heartbeats.
func nodeDiffers(before, after client.Object) bool {
	a, ok := before.(*corev1.Node)
	b, ok2 := after.(*corev1.Node)
	return !ok || !ok2 ||
		!a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		!equality.Semantic.DeepEqual(a.Labels, b.Labels) ||
		!equality.Semantic.DeepEqual(a.Status, b.Status)
}

func nodeClaimDiffers(before, after client.Object) bool {
	a, ok := before.(*karpv1.NodeClaim)
	b, ok2 := after.(*karpv1.NodeClaim)
	return !ok || !ok2 ||
		!a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		a.Status.NodeName != b.Status.NodeName ||
		isDrifted(a) != isDrifted(b)
}

func isDrifted(claim *karpv1.NodeClaim) bool {
	for _, condition := range claim.Status.Conditions {
		if condition.Type == karpv1.ConditionTypeDrifted {
			return condition.Status == metav1.ConditionTrue
		}
	}
	return false
}
