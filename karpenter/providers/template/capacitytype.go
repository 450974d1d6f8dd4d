// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strconv"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
)

// CapacityTypes returns the capacity types of the template's offerings: those that a catalog offers, both if a patch writes the chosen one
// into the machine, otherwise the one of the template itself.
func (s *Template) CapacityTypes() []string {
	switch {
	case s.IsCatalogs():
		var offered []string
		for i := range s.Offerings {
			if !slices.Contains(offered, s.Offerings[i].CapacityType) {
				offered = append(offered, s.Offerings[i].CapacityType)
			}
		}
		return offered
	case s.CapacityType != "":
		return []string{s.CapacityType}
	case s.SpotPrice != nil || s.Patches.Refers(patch.CapacityType):
		return []string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot}
	}
	return []string{karpv1.CapacityTypeOnDemand}
}

// checkCapacityType rejects a template that would offer spot machines and make on-demand ones, or the reverse: only a patch
// makes one template's machines both. Without a patch, CapacityType becomes that of the kind's own fields.
func (s *Template) checkCapacityType() *InvalidError {
	patched := s.Patches.Refers(patch.CapacityType)
	annotated := s.CapacityType
	if annotated == "" && !patched {
		s.CapacityType = s.kindCapacityType
	}
	switch {
	case annotated != "" && patched:
		return &InvalidError{Source: s.Source, Key: "annotation " + v1alpha1.CapacityTypeAnnotation, Value: annotated,
			Problem: "goes with a patch that writes the capacity type; remove one of them"}
	case annotated != "" && s.kindCapacityType != "" && annotated != s.kindCapacityType:
		return &InvalidError{Source: s.Source, Key: "annotation " + v1alpha1.CapacityTypeAnnotation, Value: annotated,
			Problem: fmt.Sprintf("contradicts the template, which makes %s machines%s; change one of them", s.kindCapacityType, s.kindSays())}
	case s.SpotPrice != nil && !patched && s.CapacityType != karpv1.CapacityTypeSpot:
		remedy := fmt.Sprintf("if the template itself makes spot machines, set annotation %s to spot", v1alpha1.CapacityTypeAnnotation)
		if s.kindCapacityType != "" {
			remedy = fmt.Sprintf("make the template spot, which makes %s machines%s", s.kindCapacityType, s.kindSays())
		}
		return &InvalidError{Source: s.Source, Key: "annotation " + v1alpha1.SpotPriceAnnotation,
			Value: strconv.FormatFloat(*s.SpotPrice, 'f', -1, 64),
			Problem: fmt.Sprintf("declares spot machines, and nothing makes them spot: write the variable capacityType into the machine by "+
				"annotation %s, or, %s",
				v1alpha1.InfrastructurePatchesAnnotation, remedy)}
	}
	return nil
}

// kindSays names the field that declares the capacity type.
func (s *Template) kindSays() string {
	if s.kindCapacityField == "" {
		return ""
	}
	return " by " + s.kindCapacityField
}
