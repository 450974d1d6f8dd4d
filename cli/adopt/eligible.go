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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/cli/explain"
)

// autoscalerTaints are those of nodes that the Cluster Autoscaler removes, or may remove.
var autoscalerTaints = []string{"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"}

// member is a Machine of the MachineDeployment.
type member struct {
	*clusterv1.Machine
	Record
	// refusal is why it can't be adopted.
	refusal string
}

// candidates are the Machines of the MachineSet, in the order of their names, with the reason if one can't be adopted.
func (a *adoption) candidates(ctx context.Context) ([]*member, error) {
	owned := a.owned(a.set)
	if len(owned) == 0 {
		return nil, nil
	}
	wanted, set := ptr.Deref(a.deployment.Spec.Replicas, 1), ptr.Deref(a.set.Spec.Replicas, 1)
	if _, paused := a.set.Annotations[clusterv1.PausedAnnotation]; !paused && (wanted != set || int(wanted) != len(owned)) {
		return nil, fmt.Errorf("MachineDeployment %s is scaling: it wants %d Machines and has %d; wait until they agree", a.key, wanted, len(owned))
	}
	owned = slices.DeleteFunc(owned, func(m *clusterv1.Machine) bool { return m.Annotations[Annotation] != "" })
	slices.SortFunc(owned, func(x, y *clusterv1.Machine) int { return strings.Compare(x.Name, y.Name) })
	nodes, claims := &corev1.NodeList{}, &karpv1.NodeClaimList{}
	if err := a.guest.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	if err := a.guest.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	byName, taken := map[string]*corev1.Node{}, map[string]bool{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range claims.Items {
		taken[claims.Items[i].Name] = claims.Items[i].Annotations[v1alpha1.AdoptedAnnotation] == ""
	}
	var all, adoptable []*member
	used := a.pool.Status.Resources.DeepCopy()
	for _, m := range a.unfinished() {
		if node := byName[m.Status.NodeRef.Name]; node != nil {
			used = resources.Merge(used, node.Status.Capacity, corev1.ResourceList{resources.Node: *resources.Quantity("1")})
		}
	}
	for _, m := range owned {
		c := &member{Machine: m, Record: Record{NodePool: a.pool.Name, MachineDeployment: a.key.Name}}
		all = append(all, c)
		node := byName[m.Status.NodeRef.Name]
		c.refusal = cmp.Or(unfit(m, node), a.otherBootstrap(m))
		if c.refusal == "" && taken[m.Name] {
			c.refusal = "the guest has another NodeClaim of its name"
		}
		if c.refusal == "" {
			c.refusal = a.offer(c, node)
		}
		if c.refusal != "" {
			continue
		}
		if a.Machines > 0 && len(adoptable) == a.Machines {
			c.refusal = fmt.Sprintf("--machines is %d", a.Machines)
			continue
		}
		sum := resources.Merge(used, node.Status.Capacity, corev1.ResourceList{resources.Node: *resources.Quantity("1")})
		if err := a.pool.Spec.Limits.ExceededBy(sum); err != nil {
			c.refusal = fmt.Sprintf("limits of NodePool %s: %s", a.pool.Name, err)
			continue
		}
		adoptable, used = append(adoptable, c), sum
	}
	return all, a.expire(adoptable)
}

// unfit returns why a Machine or its node can't be adopted into any NodePool.
func unfit(m *clusterv1.Machine, node *corev1.Node) string {
	has := func(key string) bool {
		_, label := m.Labels[key]
		_, annotated := m.Annotations[key]
		return label || annotated
	}
	switch {
	case has(clusterv1.MachineControlPlaneLabel):
		return "it is of a control plane"
	case has(clusterv1.MachinePoolNameLabel):
		return "it is of a MachinePool"
	case has(clusterv1.ClusterTopologyOwnedLabel):
		return "it is of a ClusterClass's topology"
	case has(clusterv1.DeleteMachineAnnotation):
		return "the annotation " + clusterv1.DeleteMachineAnnotation + " chooses it for deletion, as the Cluster Autoscaler does"
	case has(clusterv1.PausedAnnotation):
		return "it is paused"
	case has(v1alpha1.NodeClaimUIDLabel):
		return "it has a NodeClaim"
	case m.Status.Phase != string(clusterv1.MachinePhaseRunning) || node == nil:
		return "it isn't running, or has no node"
	case node.Spec.ProviderID == "" || node.Spec.ProviderID != m.Spec.ProviderID:
		return "its node has another provider ID"
	case node.Labels[karpv1.NodePoolLabelKey] != "":
		return "its node has NodePool " + node.Labels[karpv1.NodePoolLabelKey]
	}
	for _, taint := range node.Spec.Taints {
		if slices.Contains(autoscalerTaints, taint.Key) {
			return "the Cluster Autoscaler has marked its node: taint " + taint.Key
		}
	}
	return ""
}

// otherBootstrap returns a reason if a Machine boots in another way than nodes of the node class do. A node class without a bootstrap boots
// Machines as their MachineDeployments do.
func (a *adoption) otherBootstrap(m *clusterv1.Machine) string {
	wanted, own := a.class.Spec.Bootstrap, m.Spec.Bootstrap.ConfigRef
	if wanted == nil {
		return ""
	}
	kind, secret := "", wanted.DataSecretName
	if ref := wanted.ConfigTemplateRef; ref != nil {
		kind = strings.TrimSuffix(ref.Kind, clusterv1.TemplateSuffix)
	}
	if own.Kind != kind || own.Kind == "" && ptr.Deref(m.Spec.Bootstrap.DataSecretName, "") != secret {
		return fmt.Sprintf("it boots from %s, and nodes of node class %s from %s", cmp.Or(own.Kind, "a Secret"), a.class.Name,
			cmp.Or(kind, "Secret "+secret))
	}
	return ""
}

// offer finds the offering of a Machine, as the node class reports it, and returns why the NodePool can't have it.
func (a *adoption) offer(c *member, node *corev1.Node) string {
	sources := []schema.GroupKind{{Group: clusterv1.GroupVersion.Group, Kind: "MachineDeployment"}, c.Spec.InfrastructureRef.GroupKind()}
	sources[1].Kind += clusterv1.TemplateSuffix
	names := []string{a.key.Name, a.deployment.Spec.Template.Spec.InfrastructureRef.Name}
	own, source := node.Labels[corev1.LabelInstanceTypeStable], ""
	var found *v1alpha1.TemplateStatus
	for i := range a.class.Status.Templates {
		t := &a.class.Status.Templates[i]
		if own != "" && own != t.InstanceType {
			continue
		}
		if n := slices.Index([]string{sources[0].Kind + "/" + names[0], sources[1].Kind + "/" + names[1]}, t.Source); n >= 0 {
			found, source = t, sources[n].String()+"/"+names[n]
			break
		}
		if found == nil && own != "" {
			found = t
		}
	}
	if found == nil {
		return fmt.Sprintf("node class %s offers no instance type %s", a.class.Name, cmp.Or(own, "of "+names[0]+" or "+names[1]))
	}
	zone := cmp.Or(node.Labels[corev1.LabelTopologyZone], c.Spec.FailureDomain)
	if zone != "" && len(found.Zones) > 0 && !slices.Contains(found.Zones, zone) {
		return fmt.Sprintf("node class %s offers instance type %s in %s, not in zone %s", a.class.Name, found.InstanceType, strings.Join(found.Zones, ", "), zone)
	}
	capacityType := karpv1.CapacityTypeOnDemand
	if found.Price == "" && found.SpotPrice != "" {
		capacityType = karpv1.CapacityTypeSpot
	}
	c.Offering, c.Facts = map[string]string{
		corev1.LabelInstanceTypeStable: found.InstanceType, karpv1.CapacityTypeLabelKey: capacityType, karpv1.NodePoolLabelKey: a.pool.Name,
	}, map[string]string{v1alpha1.PriceAnnotation: cmp.Or(found.Price, found.SpotPrice), v1alpha1.MachineSizeAnnotation: sizeOf(found, capacityType)}
	if source != "" {
		c.Facts[v1alpha1.TemplateSourceAnnotation] = source
	}
	switch {
	case zone != "":
		c.Offering[corev1.LabelTopologyZone] = zone
	case len(found.Zones) < 2:
		c.Facts[v1alpha1.OfferingZoneAnnotation] = strings.Join(append(found.Zones, capacity.DefaultZone)[:1], "")
	}
	return a.required(c, node, found)
}

// required returns which requirement or taint of the NodePool a node lacks.
func (a *adoption) required(c *member, node *corev1.Node, found *v1alpha1.TemplateStatus) string {
	spec, labels, own := a.pool.Spec.Template.Spec, map[string]string{}, maps.Clone(node.Labels)
	for key, of := range explain.ReportedType(found).Requirements {
		if of.Len() == 1 {
			labels[key] = of.Any()
		}
	}
	maps.Copy(own, a.pool.Spec.Template.Labels)
	maps.Copy(own, c.Offering)
	maps.Copy(labels, own)
	wanted := karpscheduling.NewNodeSelectorRequirementsWithMinValues(spec.Requirements...)
	if err := karpscheduling.NewLabelRequirements(labels).Compatible(wanted); err != nil {
		return fmt.Sprintf("requirements of NodePool %s: %s", a.pool.Name, err)
	}
	for _, taint := range spec.Taints {
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value }) {
			return fmt.Sprintf("its node lacks taint %s of NodePool %s", taint.ToString(), a.pool.Name)
		}
	}
	// Core compares them with the NodePool's requirements. Karpenter adds its own.
	c.Required = map[string]string{}
	maps.Copy(c.Required, a.pool.Spec.Template.Labels)
	for key := range wanted {
		if value, ok := own[key]; ok && !strings.HasPrefix(key, v1alpha1.Group+"/") {
			c.Required[key] = value
		}
	}
	return ""
}

func sizeOf(t *v1alpha1.TemplateStatus, capacityType string) string {
	cpu, memory := t.CPU.Amount(), t.Memory.Amount()
	m := capacity.Priced{Machine: capacity.Machine{
		Offering: capacity.Offering{CapacityType: capacityType}, VCPUs: max(cpu.MilliValue(), 0), Memory: max(memory.Value(), 0),
	}, Price: annotation.ParsePrice(cmp.Or(t.Price, t.SpotPrice)), OnDemand: annotation.ParsePrice(t.Price)}
	for name, quantity := range t.GPU {
		if amount := quantity.Amount(); strings.HasSuffix(name, "/gpu") {
			m.GPUs += max(amount.Value(), 0)
		}
	}
	return annotation.FormatMachineSize(m)
}

// expire decides when each NodeClaim expires: after the time of the NodePool and an even share of it, so that they don't expire together.
func (a *adoption) expire(adoptable []*member) error {
	expiry, err := parseExpiry(a.ExpireAfter)
	if err != nil {
		return err
	}
	pools := a.pool.Spec.Template.Spec.ExpireAfter.Duration
	for i, c := range adoptable {
		each := expiry
		if a.ExpireAfter == "" && pools != nil {
			each.Duration = ptr.To((*pools + time.Duration(float64(*pools)*float64(i)/float64(len(adoptable)))).Truncate(time.Second))
		}
		c.ExpireAfter = karpv1.Never
		if each.Duration != nil {
			c.ExpireAfter = each.String()
		}
	}
	return nil
}

// unfinished are the Machines of an interrupted run.
func (a *adoption) unfinished() (all []*member) {
	for i := range a.machines {
		m := &a.machines[i]
		record, ok := recordOf(m)
		if ok && record.MachineDeployment == a.key.Name && m.DeletionTimestamp == nil {
			all = append(all, &member{Machine: m, Record: record})
		}
	}
	return all
}
