// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Ranks of refusals: what is nearest to a fit comes first.
const (
	rankUnavailable = iota
	rankOffering
	rankResources
	rankLimits
	rankRequirements
	rankOther
)

// nodePool reports whether a NodePool can launch a node for one pod.
func (s *Simulation) nodePool(ctx context.Context, nodePool *karpv1.NodePool, pod *corev1.Pod) NodePoolAnswer {
	answer := NodePoolAnswer{Name: nodePool.Name}
	if answer.Reason = s.unusable(nodePool); answer.Reason != "" {
		return answer
	}
	instanceTypes, err := s.cloudProvider.GetInstanceTypes(ctx, nodePool)
	if err != nil {
		if _, undecorated := s.undecorated.GetInstanceTypes(ctx, nodePool); undecorated != nil {
			err = undecorated // without what Karpenter core adds
		}
		answer.Reason = "its instance types aren't known: " + sentence(err)
		return answer
	}
	answer.InstanceTypes = len(instanceTypes)
	if len(instanceTypes) == 0 {
		ref := nodePool.Spec.Template.Spec.NodeClassRef
		answer.Reason = fmt.Sprintf("its node class %s offers no instance type; see `kubectl describe %s %s`", ref.Name,
			strings.ToLower(ref.Kind), ref.Name)
		return answer
	}
	results, err := s.schedule(ctx, s.Guest.withNodePool(nodePool), s.cloudProvider, pod)
	if claim := launching(results.NewNodeClaims, pod.UID); err == nil && claim != nil {
		accepted := acceptedOf(claim)
		answer.Fits, answer.AcceptedCount, answer.Accepted = true, len(accepted), accepted[:min(len(accepted), maxNames)]
		answer.Reason = english.Plural(len(accepted), "instance type fits", "instance types fit")
		answer.Refused = s.refused(nodePool, pod, instanceTypes, claim, claim.Requirements, claim.Spec.Resources.Requests)
		return answer
	}
	if err == nil {
		err = errorOf(results.PodErrors, pod.UID)
	}
	var filtered scheduling.InstanceTypeFilterError
	switch {
	case err == nil:
		answer.Reason = "the pod fits on an existing node"
	case errors.As(err, &filtered) || strings.Contains(err.Error(), "filtered out all") || strings.Contains(err.Error(), "exceed limits"):
		requirements, requests := s.probe(ctx, nodePool, pod, instanceTypes)
		answer.Refused = s.refused(nodePool, pod, instanceTypes, nil, requirements, requests)
		answer.Reason = fmt.Sprintf("none of %s fits", english.Plural(len(instanceTypes), "instance type", ""))
		if len(answer.Refused) > 0 {
			if answer.Refused[0].rank == rankUnavailable {
				answer.Reason = fmt.Sprintf("of %s, none that fits can be launched now", english.Plural(len(instanceTypes), "instance type", ""))
			}
			answer.Reason += ": " + answer.Refused[0].Reason
		}
	default:
		answer.Reason = sentence(err)
	}
	return answer
}

// unusable returns why Karpenter launches nothing for pending pods from a NodePool.
func (s *Simulation) unusable(nodePool *karpv1.NodePool) string {
	ready := nodePool.StatusConditions().Get(status.ConditionReady)
	switch ref := nodePool.Spec.Template.Spec.NodeClassRef; {
	case nodePool.DeletionTimestamp != nil:
		return "it is being deleted"
	case !nodepoolutils.IsManaged(nodePool, s.cloudProvider):
		return fmt.Sprintf("its node class is of kind %s, whose instance types this program doesn't know", ref.Kind)
	case nodepoolutils.IsStatic(nodePool):
		return "it is static (spec.replicas): it keeps a number of nodes and launches none for pending pods"
	case !ready.IsTrue():
		if why := s.reported(ref.Name, status.ConditionReady); why != "" {
			return fmt.Sprintf("its node class %s isn't ready: %s", ref.Name, why)
		}
		return fmt.Sprintf("it isn't ready: %s", cmp.Or(messageOf(ready), "it has no condition Ready yet"))
	}
	return ""
}

// probe finds out with the scheduler what a node for the pod would have to be like, with instance types of any size that are always
// available. Without an answer it is what the pod and the NodePool say.
func (s *Simulation) probe(ctx context.Context, nodePool *karpv1.NodePool, pod *corev1.Pod,
	instanceTypes []*karpcloudprovider.InstanceType) (
	karpscheduling.Requirements, corev1.ResourceList,
) {
	unlimited := nodePool.DeepCopy()
	unlimited.Spec.Limits = nil
	largest := make([]*karpcloudprovider.InstanceType, len(instanceTypes))
	for i, it := range instanceTypes {
		largest[i] = boundless(it, resources.RequestsForPods(pod))
	}
	provider := resolved{s.cloudProvider, map[string]offered{nodePool.Name: {instanceTypes: largest}}}
	results, err := s.schedule(ctx, s.Guest.withNodePool(unlimited), provider, pod)
	if claim := launching(results.NewNodeClaims, pod.UID); err == nil && claim != nil {
		return claim.Requirements, claim.Spec.Resources.Requests
	}
	requirements := karpscheduling.NewRequirements(scheduling.NewNodeClaimTemplate(nodePool).Requirements.Values()...)
	requirements.Add(karpscheduling.NewStrictPodRequirements(pod).Values()...)
	return requirements, resources.RequestsForPods(pod)
}

// boundless returns an instance type that has room for anything and whose offerings are all available.
func boundless(it *karpcloudprovider.InstanceType, requests corev1.ResourceList) *karpcloudprovider.InstanceType {
	large := withOfferings(it, func(o *karpcloudprovider.Offering) {
		o.Available, o.ReservationCapacity = true, max(1, o.ReservationCapacity)
	})
	large.Capacity, large.Overhead = corev1.ResourceList{}, &karpcloudprovider.InstanceTypeOverhead{}
	large.VolumeAttachmentLimits = nil
	for _, list := range []corev1.ResourceList{it.Capacity, requests} {
		for name := range list {
			large.Capacity[name] = *resource.NewQuantity(math.MaxInt64/1000, resource.DecimalSI)
		}
	}
	return large
}

// refused returns, for each instance type that isn't in claim, why it can't be the pod's node: the first of Karpenter core's checks that
// it fails.
func (s *Simulation) refused(nodePool *karpv1.NodePool, pod *corev1.Pod, instanceTypes []*karpcloudprovider.InstanceType,
	claim *scheduling.NodeClaim,
	requirements karpscheduling.Requirements, requests corev1.ResourceList,
) []Refusal {
	accepted := map[string]bool{}
	if claim != nil {
		for _, it := range claim.InstanceTypeOptions {
			accepted[it.Name] = true
		}
	}
	available := resources.Subtract(corev1.ResourceList(nodePool.Spec.Limits), s.cluster.NodePoolResourcesFor(nodePool.Name))
	found, short := refusals{}, map[corev1.ResourceName][]*karpcloudprovider.InstanceType{}
	for _, it := range instanceTypes {
		if accepted[it.Name] {
			continue
		}
		key, over, lacking := unmet(it, requirements), exceeds(it, nodePool, available), lacks(it, requests)
		switch {
		case key != "":
			found.add(rankRequirements, requirementReason(key, requirements, pod), it.Name)
		case over != "":
			found.add(rankLimits, over, it.Name)
		case lacking != "":
			short[lacking] = append(short[lacking], it)
		default:
			rank, reason := s.unoffered(nodePool, it, requirements)
			found.add(rank, reason, it.Name)
		}
	}
	for lacking, types := range short {
		reason := s.shortage(lacking, nodePool, pod, requirements, requests, types)
		for _, it := range types {
			found.add(rankResources, reason, it.Name)
		}
	}
	return found.sorted()
}

// unmet returns a label for which an instance type has none of the wanted values.
func unmet(it *karpcloudprovider.InstanceType, requirements karpscheduling.Requirements) string {
	for _, key := range slices.Sorted(maps.Keys(requirements)) {
		if it.Requirements.Intersects(karpscheduling.NewRequirements(requirements[key])) != nil {
			return key
		}
	}
	return ""
}

func requirementReason(key string, requirements karpscheduling.Requirements, pod *corev1.Pod) string {
	by := "the NodePool requires"
	if karpscheduling.NewPodRequirements(pod).Has(key) {
		by = "the pod requires"
	}
	wanted := strings.TrimPrefix(requirements.Get(key).String(), key+" ")
	return fmt.Sprintf("%s %s %s", by, key, wanted)
}

// exceeds returns why the NodePool's limits exclude an instance type, or "".
func exceeds(it *karpcloudprovider.InstanceType, nodePool *karpv1.NodePool, available corev1.ResourceList) string {
	for _, name := range slices.Sorted(maps.Keys(nodePool.Spec.Limits)) {
		limit, rest, capacity := nodePool.Spec.Limits[name], available[name], it.Capacity[name]
		if name == resources.Node {
			capacity = *resource.NewQuantity(1, resource.DecimalSI)
		}
		if capacity.Cmp(rest) > 0 {
			return fmt.Sprintf("over the NodePool's limit of %s %s, of which %s is unused", amount(name, limit), name, amount(name, rest))
		}
	}
	return ""
}

// lacks returns the first resource of which an instance type has too little in every group of its offerings, or "".
func lacks(it *karpcloudprovider.InstanceType, requests corev1.ResourceList) corev1.ResourceName {
	// Devices first, whose names have a slash: an instance type without them isn't near, whatever its CPU.
	names := slices.SortedFunc(maps.Keys(requests), func(a, b corev1.ResourceName) int {
		return cmp.Or(strings.Count(string(b), "/")-strings.Count(string(a), "/"), cmp.Compare(a, b))
	})
	for _, name := range names {
		if wanted := requests[name]; wanted.Cmp(largest(name, it)) > 0 {
			return name
		}
	}
	return ""
}

// largest allocatable amount of a resource among instance types.
func largest(name corev1.ResourceName, instanceTypes ...*karpcloudprovider.InstanceType) resource.Quantity {
	greatest := resource.Quantity{}
	for _, it := range instanceTypes {
		for _, group := range it.AllocatableOfferingsList() {
			if allocatable := group.Allocatable[name]; allocatable.Cmp(greatest) > 0 {
				greatest = allocatable
			}
		}
	}
	return greatest
}

func (s *Simulation) shortage(name corev1.ResourceName, nodePool *karpv1.NodePool, pod *corev1.Pod,
	requirements karpscheduling.Requirements, requests corev1.ResourceList, types []*karpcloudprovider.InstanceType,
) string {
	ceiling := largest(name, types...)
	if ceiling.IsZero() {
		return fmt.Sprintf("needs %s %s; they have none", amount(name, requests[name]), name)
	}
	daemons := ""
	if alone := resources.RequestsForPods(pod)[name]; alone.Cmp(ceiling) <= 0 { // only the DaemonSets make it too large
		greatest := resource.Quantity{}
		for _, set := range list[*appsv1.DaemonSet](s.Guest) {
			daemon := &corev1.Pod{Spec: set.Spec.Template.Spec}
			request := resources.RequestsForPods(daemon)[name]
			if request.Cmp(greatest) > 0 && karpscheduling.Taints(nodePool.Spec.Template.Spec.Taints).ToleratesPod(daemon) == nil &&
				requirements.Compatible(karpscheduling.NewStrictPodRequirements(daemon), karpscheduling.AllowUndefinedWellKnownLabels) == nil {
				greatest, daemons = request, fmt.Sprintf(" (%s for %s/%s)", amount(name, request), set.Namespace, set.Name)
			}
		}
	}
	return fmt.Sprintf("needs %s %s with DaemonSets%s; the largest has %s", amount(name, requests[name]), name, daemons, amount(name, ceiling))
}

// amount is a quantity as a person writes it.
func amount(name corev1.ResourceName, quantity resource.Quantity) string {
	if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
		return strings.ReplaceAll(humanize.IBytes(uint64(max(quantity.Value(), 0))), " ", "")
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", quantity.AsApproximateFloat64()), "0"), ".")
}

// unoffered returns why an instance type that would fit can't be launched.
func (s *Simulation) unoffered(nodePool *karpv1.NodePool, it *karpcloudprovider.InstanceType, requirements karpscheduling.Requirements) (
	rank int, reason string,
) {
	compatible := it.Offerings.Compatible(requirements)
	switch {
	case len(it.Offerings) == 0:
		return rankUnavailable, "it has no offerings"
	case len(compatible) == 0:
		zones, capacityTypes := requirements.Get(corev1.LabelTopologyZone), requirements.Get(karpv1.CapacityTypeLabelKey)
		return rankOffering, fmt.Sprintf("not offered in the required zone and capacity type: %s, %s", zones, capacityTypes)
	case len(compatible.Launchable()) == 0:
		if failures := s.failures(nodePool.Name, it.Name, compatible...); len(failures) > 0 {
			return rankUnavailable, strings.Join(failures, "; ")
		}
		return rankUnavailable, s.unavailable(nodePool.Spec.Template.Spec.NodeClassRef.Name, it.Name)
	}
	return rankOther, "excluded by minValues, a reservation, a host port or the pod's topology"
}

// reported is the message of a node class's condition that is False; empty for any other.
func (s *Simulation) reported(nodeClass, conditionType string) string {
	if class := named[*v1alpha1.ClusterAPINodeClass](s.Guest, nodeClass); class != nil {
		if c := class.StatusConditions(status.WithObservedOnly()).Get(conditionType); c.IsFalse() {
			return messageOf(c)
		}
	}
	return ""
}

// exhausted is what a node class reports while nothing of it can be launched; empty if something can.
func (s *Simulation) exhausted(nodeClass string) string {
	return s.reported(nodeClass, v1alpha1.ConditionOfferingsAvailable)
}

// unavailable returns what the node class reports of an instance type of which no event reports why it can't be launched.
func (s *Simulation) unavailable(nodeClass, instanceType string) string {
	exhausted := s.exhausted(nodeClass)
	if class := named[*v1alpha1.ClusterAPINodeClass](s.Guest, nodeClass); class != nil {
		for _, template := range class.Status.Templates {
			switch {
			case template.InstanceType != instanceType || template.Unavailable == "":
			case template.Unavailable == v1alpha1.TemplateBackOff:
				return cmp.Or(exhausted, unavailableText[template.Unavailable])
			case template.Unavailable == v1alpha1.TemplateQuota:
				return cmp.Or(quotas(class), unavailableText[template.Unavailable])
			default:
				return cmp.Or(unavailableText[template.Unavailable], template.Unavailable)
			}
		}
	}
	return cmp.Or(exhausted, "the node class doesn't report why; see `kubectl describe clusterapinodeclass "+nodeClass+"`")
}

// quotas is what a node class reports of exhausted quotas of the infrastructure; empty if it reports none.
func quotas(class *v1alpha1.ClusterAPINodeClass) string {
	c := class.StatusConditions(status.WithObservedOnly()).Get(v1alpha1.ConditionOfferingsAvailable)
	if c.IsFalse() || c != nil && c.Reason == v1alpha1.QuotaExhaustedReason {
		return messageOf(c)
	}
	return ""
}

var unavailableText = map[string]string{
	v1alpha1.TemplatePaused: "its source or the Cluster is paused",
	v1alpha1.TemplateFull:   "its source is at the size that its max-size annotation allows",
	v1alpha1.TemplateImageNewer: "its image has a newer Kubernetes than new nodes get; it launches once the release, its upgrade window " +
		"and the API server allow that",
	v1alpha1.TemplateNoBootstrap: "neither its source nor the node class has a bootstrap",
	v1alpha1.TemplateBackOff:     "all its offerings are in back-off; see `kubectl get events --field-selector involvedObject.kind=NodeClaim`",
	v1alpha1.TemplateQuota:       "a quota of the infrastructure is exhausted",
	v1alpha1.TemplateNoPrice:     "its catalog has no price for it",
	v1alpha1.TemplateNoZone:      "none of its catalog's zones is a failure domain of the Cluster",
}

// acceptedOf returns the instance types of a NodeClaim, cheapest first.
func acceptedOf(claim *scheduling.NodeClaim) []Accepted {
	var accepted []Accepted
	for _, it := range claim.InstanceTypeOptions {
		offerings := it.Offerings.Launchable().Compatible(claim.Requirements)
		if len(offerings) == 0 {
			continue
		}
		cheapest := offerings.Cheapest()
		accepted = append(accepted, Accepted{
			InstanceType: it.Name, Zone: cheapest.Zone(), CapacityType: cheapest.CapacityType(), Price: cheapest.Price,
		})
	}
	slices.SortFunc(accepted, func(a, b Accepted) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.InstanceType, b.InstanceType))
	})
	return accepted
}
