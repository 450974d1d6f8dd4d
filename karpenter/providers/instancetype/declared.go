// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// A label that templates declare is a fact of the machine, such as its kind of disk. Karpenter core finds instance types by it
// only where a type has a requirement on it, and takes a type without one for a type that may have any value.

// Differing is an instance type that a NodePool doesn't get because its templates differ in a label.
type Differing struct {
	InstanceType, Key string
	// One and Other are templates of the type of which exactly one meets the NodePool's requirement.
	One, Other template.Source
}

// declaredBy returns the keys of the templates' labels, but for those that every type has a requirement on.
func declaredBy(groups map[string][]*template.Template) sets.Set[string] {
	declared := sets.Set[string]{}
	for _, templates := range groups {
		for _, tmpl := range templates {
			for key := range tmpl.Labels {
				if !karpv1.WellKnownLabels.Has(key) {
					declared.Insert(key)
				}
			}
		}
	}
	return declared
}

// Declares reports whether a template that a node class selects has a label of this key; false while that isn't known.
func (p *Provider) Declares(nodeClass, key string) bool {
	declared, err := p.Declared(nodeClass)
	return err == nil && declared.Has(key)
}

// Declared are the keys of such labels. They are shared: don't modify them.
func (p *Provider) Declared(nodeClass string) (sets.Set[string], error) {
	snapshot, err := p.Cached(nodeClass)
	if err != nil {
		return nil, err
	}
	return snapshot.declared, nil
}

// lacksLabels reports whether a template of a type lacks a label that another template has, or the type's templates differ.
func (k *known) lacksLabels(instanceType string) bool {
	templates := k.groups[instanceType]
	return slices.ContainsFunc(templates, func(tmpl *template.Template) bool {
		for key := range k.declared {
			value, ok := tmpl.Labels[key]
			if first, has := templates[0].Labels[key]; !ok || !has || value != first {
				return true
			}
		}
		return false
	})
}

// maxChosen bounds the NodePools that a snapshot keeps: a guest's admin may create and delete any number.
const maxChosen = 1_000

// chosen are the instance types of one generation of a NodePool.
type chosen struct {
	generation    int64
	instanceTypes []*karpcloudprovider.InstanceType
	differing     []Differing
}

// Offered returns the instance types that a NodePool gets, as Tolerating and Meeting choose them, and those that Meeting leaves out.
// Karpenter requests them many times a second, so the answer is kept until the snapshot or the NodePool changes.
func (s *Snapshot) Offered(nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, []Differing) {
	if value, found := s.chosen.Load(nodePool.UID); found {
		if known, _ := value.(*chosen); known.generation == nodePool.Generation {
			return known.instanceTypes, known.differing
		}
	}
	spec := &nodePool.Spec.Template.Spec
	instanceTypes, differing := s.Meeting(s.Tolerating(spec.Taints, spec.StartupTaints), spec.Requirements)
	all := len(instanceTypes) == len(s.InstanceTypes) && len(s.InstanceTypes) > 0 && &instanceTypes[0] == &s.InstanceTypes[0]
	if !all && nodePool.Generation > 0 { // an object without a generation, which no API server has stored, may change unnoticed
		if s.retained.Add(1) > maxChosen {
			s.chosen.Clear()
			s.retained.Store(0)
		}
		s.chosen.Store(nodePool.UID, &chosen{nodePool.Generation, instanceTypes, differing})
	}
	return instanceTypes, differing
}

// Meeting returns those of the instance types all of whose templates meet a NodePool's requirements on declared labels, and the
// types that it leaves out because only some do. A type that machines have stays, without available offerings. Without such
// requirements, the common case, it returns the instance types themselves.
func (s *Snapshot) Meeting(instanceTypes []*karpcloudprovider.InstanceType, nodePool []karpv1.NodeSelectorRequirementWithMinValues,
) (meeting []*karpcloudprovider.InstanceType, differing []Differing) {
	if !slices.ContainsFunc(nodePool, func(r karpv1.NodeSelectorRequirementWithMinValues) bool { return s.declared.Has(r.Key) }) {
		return instanceTypes, nil
	}
	requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodePool...)
	meeting = make([]*karpcloudprovider.InstanceType, 0, len(instanceTypes))
	for _, it := range instanceTypes {
		fits, incompatible := s.split(it.Name, requirements)
		if r, ok := s.find(it.Name); ok && len(incompatible) > 0 {
			it = r.closed
		}
		if it != nil {
			meeting = append(meeting, it)
		}
		if len(fits) > 0 && len(incompatible) > 0 {
			key, _ := s.unmet(incompatible[0], requirements, nil)
			differing = append(differing,
				Differing{InstanceType: incompatible[0].InstanceType, Key: key, One: fits[0].Source, Other: incompatible[0].Source})
		}
	}
	return meeting, differing
}

// split returns the templates of a type that meet requirements on declared labels, and those that don't.
func (k *known) split(instanceType string, requirements karpscheduling.Requirements) (fits, incompatible []*template.Template) {
	for _, tmpl := range k.groups[instanceType] {
		if _, unmet := k.unmet(tmpl, requirements, nil); unmet {
			incompatible = append(incompatible, tmpl)
		} else {
			fits = append(fits, tmpl)
		}
	}
	return fits, incompatible
}

// unmet returns the first requirement on a declared label that a template's machine wouldn't meet. defaults are the labels that its
// node gets where the template has none.
func (k *known) unmet(tmpl *template.Template, requirements karpscheduling.Requirements, defaults map[string]string,
) (key string, unmet bool) {
	for _, key := range slices.Sorted(maps.Keys(requirements)) {
		if !k.declared.Has(key) {
			continue
		}
		value, has := tmpl.Labels[key]
		if !has {
			value, has = defaults[key]
		}
		requirement := requirements[key]
		switch {
		case has && !requirement.Has(value):
			return key, true
		case !has && demands(requirement):
			return key, true
		}
	}
	return "", false
}

// demands reports whether only a node with the label meets a requirement.
func demands(requirement *karpscheduling.Requirement) bool {
	operator := requirement.Operator() // Gt and Lt are Exists
	return operator == corev1.NodeSelectorOpIn || operator == corev1.NodeSelectorOpExists
}

// For returns the choice if its template's labels meet a NodeClaim's requirements, otherwise the cheapest available one of the same
// offering whose do.
func (k *known) For(choice Choice, nodeClaim *karpv1.NodeClaim, requirements karpscheduling.Requirements) (Choice, bool) {
	if _, unmet := k.unmet(choice.Template, requirements, nodeClaim.Labels); !unmet {
		return choice, true
	}
	for _, other := range choice.others {
		if _, unmet := k.unmet(other.Template, requirements, nodeClaim.Labels); !unmet && other.Offering.Launchable() {
			return *other, true
		}
	}
	return Choice{}, false
}

// before keeps a choice that has lost behind the one that has won, if their templates' labels differ.
func (c *Choice) before(lost *Choice) *Choice {
	if !maps.Equal(c.Template.Labels, lost.Template.Labels) {
		c.others = append(c.others, lost)
	}
	c.others = append(c.others, lost.others...)
	lost.others = nil
	slices.SortStableFunc(c.others, (*Choice).compare)
	return c
}
