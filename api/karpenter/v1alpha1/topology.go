// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// reservedDomains are of labels that mean something to Kubernetes, Karpenter or its provider.
var reservedDomains = []string{"kubernetes.io", "karpenter.sh", Group}

// TopologyKeyProblems returns the problems of the topology keys of CSI drivers, each with its key. Operator and
// Karpenter both ask it, so that Karpenter starts with every setting that the operator accepts.
func TopologyKeyProblems(zone, region []string) (problems []string) {
	for _, key := range slices.Concat(zone, region) {
		domain, _, _ := strings.Cut(key, "/")
		switch messages := validation.IsQualifiedName(key); {
		case len(messages) > 0:
			problems = append(problems, fmt.Sprintf("%q is not the key of a label: %s", key, strings.Join(messages, "; ")))
		case slices.ContainsFunc(reservedDomains,
			func(reserved string) bool { return domain == reserved || strings.HasSuffix(domain, "."+reserved) }):
			problems = append(problems, fmt.Sprintf("%q is a label of Kubernetes or Karpenter, not of a CSI driver", key))
		}
	}
	for _, key := range zone {
		if slices.Contains(region, key) {
			problems = append(problems, fmt.Sprintf("%q is a key of zones and of regions; it can be only one", key))
		}
	}
	return problems
}
