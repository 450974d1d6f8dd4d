// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/explain"
)

// marks are labels and annotations of Machines, and taints of nodes, that prevent an adoption.
var marks = []struct{ key, reason string }{
	{clusterv1.MachineControlPlaneLabel, "it is of a control plane"},
	{clusterv1.MachinePoolNameLabel, "it is of a MachinePool"},
	{clusterv1.ClusterTopologyOwnedLabel, "it is of a ClusterClass's topology"},
	{clusterv1.PausedAnnotation, "it is paused"},
	{clusterv1.DeleteMachineAnnotation, "the Cluster Autoscaler, or a person, has chosen it for deletion"},
	{"ToBeDeletedByClusterAutoscaler", "the Cluster Autoscaler removes its node"},
	{"DeletionCandidateOfClusterAutoscaler", "the Cluster Autoscaler has marked its node"},
}

// adoption is one run of the command.
type adoption struct {
	*Options
	management, guest client.Client
	deployment        *clusterv1.MachineDeployment
	set               *clusterv1.MachineSet // the only one with Machines; nil for none
	machines          []clusterv1.Machine   // of the Cluster
	cluster           *clusterv1.Cluster
	hostedCluster     *v1beta1.HostedCluster
	pool              *karpv1.NodePool
	class             *v1alpha1.ClusterAPINodeClass
	deadline          time.Time // of the binding: before Karpenter resumes
	id, until         string    // what this run writes into the pauses of the MachineSet and of Karpenter
}

// member is a Machine of the MachineDeployment.
type member struct {
	*clusterv1.Machine
	refusal, expiry    string
	offering, required map[string]string // labels of the Machine and of its NodeClaim
}

func (m *member) bound() bool { return m.Labels[v1alpha1.NodeClaimUIDLabel] != "" }
func (a *adoption) isOwned(m *member) bool {
	return a.set != nil && metav1.IsControlledBy(m.Machine, a.set)
}
func isPaused(set *clusterv1.MachineSet) bool {
	return set != nil && strings.HasPrefix(set.Annotations[clusterv1.PausedAnnotation], pausedBy)
}

// listMachines returns how many Machines the MachineSet has.
func (a *adoption) listMachines(ctx context.Context) (owned int32, err error) {
	list := &clusterv1.MachineList{}
	err = a.management.List(ctx, list, client.InNamespace(a.deployment.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: a.deployment.Spec.ClusterName})
	a.machines = list.Items
	for i := range a.machines {
		if a.isOwned(&member{Machine: &a.machines[i]}) {
			owned++
		}
	}
	return owned, err
}

func (a *adoption) readManagement(ctx context.Context, key client.ObjectKey) error {
	a.deployment, a.cluster = &clusterv1.MachineDeployment{}, &clusterv1.Cluster{}
	sets, hosted := &clusterv1.MachineSetList{}, &v1beta1.HostedClusterList{}
	if err := cmp.Or(a.management.Get(ctx, key, a.deployment), a.management.List(ctx, sets, client.InNamespace(key.Namespace)),
		a.management.List(ctx, hosted)); err != nil {
		return fmt.Errorf("reading MachineDeployment %s: %w", key, err)
	}
	sets.Items = slices.DeleteFunc(sets.Items, func(set clusterv1.MachineSet) bool {
		return !metav1.IsControlledBy(&set, a.deployment) || !isPaused(&set) && ptr.Deref(set.Spec.Replicas, 0) == 0
	})
	if len(sets.Items) > 0 {
		a.set = &sets.Items[0]
	}
	owned, err := a.listMachines(ctx)
	of := client.ObjectKey{Namespace: key.Namespace, Name: a.deployment.Spec.ClusterName}
	if err := cmp.Or(err, a.management.Get(ctx, of, a.cluster)); err != nil {
		return fmt.Errorf("reading Cluster %s and its Machines: %w", of, err)
	}
	i := slices.IndexFunc(hosted.Items, func(h v1beta1.HostedCluster) bool {
		return h.ControlPlaneNamespace() == of.Namespace && h.ClusterName() == of.Name
	})
	_, topology := a.deployment.Labels[clusterv1.ClusterTopologyOwnedLabel]
	switch wanted := ptr.Deref(a.deployment.Spec.Replicas, 1); {
	case i < 0:
		return fmt.Errorf("no HostedCluster manages Cluster %s: turn AutoNode on first", of)
	case topology:
		return fmt.Errorf("the topology of Cluster %s would restore the replicas of MachineDeployment %s: drain it", of, key)
	case annotations.IsPaused(a.cluster, a.deployment) || ptr.Deref(a.deployment.Spec.Paused, false) || a.deployment.DeletionTimestamp != nil:
		return fmt.Errorf("MachineDeployment %s or its Cluster is paused or being deleted", key)
	case len(sets.Items) > 1 || !isPaused(a.set) && (wanted != owned || a.set != nil && wanted != *a.set.Spec.Replicas):
		return fmt.Errorf("MachineDeployment %s is rolling out or scaling: it wants %d Machines and has %d", key, wanted, owned)
	}
	if a.hostedCluster = &hosted.Items[i]; isPaused(a.set) {
		return nil // whatever holds the rest, the MachineSet goes on
	}
	return a.allowed()
}

// allowed returns an error unless Karpenter runs, is paused, or starts after a pause, or while another run may pause it. Nodes of another
// version than the release's don't matter.
func (a *adoption) allowed() error {
	state := ptr.Deref(a.hostedCluster.Status.AutoNode, v1beta1.AutoNodeStatus{State: "off"}).State
	if state == v1beta1.AutoNodeStateUpgrading && meta.IsStatusConditionTrue(a.hostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled) {
		state = v1beta1.AutoNodeStateEnabled
	}
	switch of, _, paused := strings.Cut(a.hostedCluster.Annotations[PauseAnnotation], "="); {
	case paused && of != a.deployment.Name:
		return fmt.Errorf("the adoption of MachineDeployment %s isn't complete: run that first", of)
	case state != v1beta1.AutoNodeStateEnabled && state != v1beta1.AutoNodeStatePaused && state != v1beta1.AutoNodeStateProgressing:
		return fmt.Errorf("AutoNode of HostedCluster %s is %s; wait until it is Enabled", a.hostedCluster.Name, state)
	}
	return nil
}

func (a *adoption) readGuest(ctx context.Context) error {
	pools := &karpv1.NodePoolList{}
	if err := a.guest.List(ctx, pools); err != nil {
		return fmt.Errorf("listing NodePools: %w", err)
	}
	found, err := cluster.Named(pools.Items, "NodePool", a.NodePool, func(p *karpv1.NodePool) string { return p.Name })
	if err == nil && (len(found) != 1 || found[0].DeletionTimestamp != nil || found[0].Spec.Template.Spec.NodeClassRef == nil) {
		err = fmt.Errorf("the guest has %d NodePools: choose one with --nodepool that isn't being deleted", len(pools.Items))
	}
	if err != nil {
		return err
	}
	a.pool, a.class = &found[0], &v1alpha1.ClusterAPINodeClass{}
	return a.guest.Get(ctx, client.ObjectKey{Name: a.pool.Spec.Template.Spec.NodeClassRef.Name}, a.class)
}

// members are the Machines of an interrupted run, then those of the MachineSet by name, with the reason if one can't be adopted.
func (a *adoption) members(ctx context.Context) (members []*member, err error) {
	for i := range a.machines {
		m := &member{Machine: &a.machines[i]}
		if m.DeletionTimestamp == nil && (recordOf(m.Machine).MachineDeployment == a.deployment.Name || a.isOwned(m)) {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(x, y *member) int {
		return cmp.Or(strings.Compare(recordOf(y.Machine).Step, recordOf(x.Machine).Step), strings.Compare(x.Name, y.Name))
	})
	count, used, pools := 0, a.pool.Status.Resources, a.pool.Spec.Template.Spec.ExpireAfter.Duration
	for i, m := range members {
		m.expiry = cmp.Or(a.ExpireAfter, karpv1.Never)
		if a.ExpireAfter == "" && pools != nil {
			m.expiry = (*pools + time.Duration(float64(*pools)*float64(i)/float64(len(members)))).Truncate(time.Second).String()
		}
		node := &corev1.Node{}
		if err := a.guest.Get(ctx, client.ObjectKey{Name: cmp.Or(m.Status.NodeRef.Name, m.Name)}, node); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the node of Machine %s: %w", m.Name, err)
		}
		sum := resources.Merge(used, node.Status.Capacity, corev1.ResourceList{resources.Node: *resources.Quantity("1")})
		switch exceeded := a.pool.Spec.Limits.ExceededBy(sum); {
		case m.bound() && recordOf(m.Machine).Step != "": // only its parts may be missing
		case a.Machines > 0 && count == a.Machines:
			m.refusal = fmt.Sprintf("--machines is %d", a.Machines)
		case exceeded != nil:
			m.refusal = fmt.Sprintf("limits of NodePool %s: %s", a.pool.Name, exceeded)
		default:
			m.refusal = a.unfit(ctx, m, node)
		}
		if m.refusal == "" {
			count, used = count+1, sum
		}
	}
	return members, nil
}

// unfit returns why the NodePool can't have a Machine or its node.
func (a *adoption) unfit(ctx context.Context, m *member, node *corev1.Node) string {
	if m.Status.Phase != string(clusterv1.MachinePhaseRunning) || node.Spec.ProviderID == "" || node.Spec.ProviderID != m.Spec.ProviderID {
		return "it isn't running, or its node isn't known"
	}
	if node.Labels[karpv1.NodePoolLabelKey] != "" || m.bound() {
		return "it is Karpenter's"
	}
	for _, mark := range marks {
		_, label := m.Labels[mark.key]
		_, annotated := m.Annotations[mark.key]
		if label || annotated || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == mark.key }) {
			return mark.reason
		}
	}
	if wanted, own := a.class.Spec.Bootstrap, m.Spec.Bootstrap; wanted != nil {
		kind, secret := "", ptr.Deref(own.DataSecretName, "")
		if wanted.ConfigTemplateRef != nil {
			kind, secret = strings.TrimSuffix(wanted.ConfigTemplateRef.Kind, clusterv1.TemplateSuffix), ""
		}
		if own.ConfigRef.Kind != kind || secret != wanted.DataSecretName {
			return fmt.Sprintf("it boots in another way than nodes of node class %s", a.class.Name)
		}
	}
	if refusal := a.offer(m, node); refusal != "" {
		return refusal
	}
	// The API server checks the NodeClaim.
	if err := a.guest.Create(ctx, a.claimOf(m), client.DryRunAll); client.IgnoreAlreadyExists(err) != nil {
		return err.Error()
	}
	return ""
}

// offer finds the offering of a Machine in the node class's status, and returns which requirement of the NodePool it doesn't meet. A node's
// label is the guest's, so it isn't believed where the Machine's own template is offered.
func (a *adoption) offer(m *member, node *corev1.Node) string {
	own, template := node.Labels[corev1.LabelInstanceTypeStable], a.deployment.Spec.Template.Spec.InfrastructureRef
	templates, sources := a.class.Status.Templates, []string{"MachineDeployment/" + a.deployment.Name, template.Kind + "/" + template.Name}
	i := slices.IndexFunc(templates, func(t v1alpha1.TemplateStatus) bool { return slices.Contains(sources, t.Source) })
	if i < 0 {
		i = slices.IndexFunc(templates, func(t v1alpha1.TemplateStatus) bool { return own == t.InstanceType })
	}
	if i < 0 || own != "" && own != templates[i].InstanceType {
		return fmt.Sprintf("node class %s offers no instance type %s", a.class.Name, cmp.Or(own, "of template "+template.Name))
	}
	found, capacityType := &templates[i], karpv1.CapacityTypeOnDemand
	zone := cmp.Or(node.Labels[corev1.LabelTopologyZone], m.Spec.FailureDomain)
	if zone != "" && len(found.Zones) > 0 && !slices.Contains(found.Zones, zone) {
		return fmt.Sprintf("node class %s offers instance type %s in other zones than %s", a.class.Name, found.InstanceType, zone)
	}
	if found.Price == "" && found.SpotPrice != "" {
		capacityType = karpv1.CapacityTypeSpot
	}
	m.offering = map[string]string{
		corev1.LabelInstanceTypeStable: found.InstanceType, karpv1.CapacityTypeLabelKey: capacityType, karpv1.NodePoolLabelKey: a.pool.Name,
	}
	if zone != "" {
		m.offering[corev1.LabelTopologyZone] = zone
	}
	labels, known := map[string]string{}, map[string]string{}
	for key, of := range explain.ReportedType(found).Requirements {
		if of.Len() == 1 {
			known[key] = of.Any()
		}
	}
	for _, more := range []map[string]string{node.Labels, a.pool.Spec.Template.Labels, m.offering} {
		maps.Copy(labels, more)
	}
	maps.Copy(known, labels)
	wanted := karpscheduling.NewNodeSelectorRequirementsWithMinValues(a.pool.Spec.Template.Spec.Requirements...)
	if err := karpscheduling.NewLabelRequirements(known).Compatible(wanted); err != nil {
		return fmt.Sprintf("requirements of NodePool %s: %s", a.pool.Name, err)
	}
	// Core compares the NodeClaim's labels with the requirements. Karpenter adds its own.
	m.required = map[string]string{}
	maps.Copy(m.required, a.pool.Spec.Template.Labels)
	for key := range wanted {
		if value, ok := labels[key]; ok && !strings.HasPrefix(key, v1alpha1.Group+"/") {
			m.required[key] = value
		}
	}
	return ""
}

// claimOf returns the NodeClaim of a Machine.
func (a *adoption) claimOf(m *member) *karpv1.NodeClaim {
	claim := a.pool.Spec.Template.ToNodeClaim()
	claim.Name, claim.Labels = m.Name, map[string]string{
		karpv1.NodePoolLabelKey: a.pool.Name, karpv1.NodeDoNotSyncTaintsLabelKey: "true",
		karpv1.NodeClassLabelKey(claim.Spec.NodeClassRef.GroupKind()): a.class.Name,
	}
	maps.Copy(claim.Labels, m.required)
	claim.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true", v1alpha1.AdoptedAnnotation: a.deployment.Name}
	claim.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: a.pool.Name, UID: a.pool.UID, BlockOwnerDeletion: ptr.To(true),
	}}
	claim.Spec.ExpireAfter = karpv1.NillableDuration{Raw: fmt.Appendf(nil, "%q", m.expiry)}
	claim.Spec.StartupTaints, claim.Spec.Requirements = nil, []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{m.offering[corev1.LabelInstanceTypeStable]},
	}}
	return claim
}
