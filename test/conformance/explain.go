// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// explanation is why a spec of the regression suite can't pass in a guest whose Karpenter the operator runs.
type explanation struct {
	spec string
	// failure is part of what the spec says then: any other failure isn't explained.
	failure string
	// why is one sentence for the documentation, with the test that shows the behavior instead.
	why string
}

var explanations = []explanation{
	{
		spec:    "NodeClaim StandaloneNodeClaim should delete a NodeClaim if it references a NodeClass that isn't Ready",
		failure: "the status of a node class is what Karpenter found, and belongs to the platform",
		why: "As the guest's admin the spec writes the status of a node class, which the policy `nodeclasses.autonode.io` denies. " +
			"`karpenter/cloudprovider`: `TestCreateErrors` shows the behavior.",
	},
	{
		spec:    "NodeClaim StandaloneNodeClaim should succeed to garbage collect an Instance that was launched by a NodeClaim but has no Instance mapping",
		failure: "the status of a NodeClaim tells its machine and belongs to the platform",
		why: "As the guest's admin the spec writes another provider ID into the status of a NodeClaim, which the policy `nodeclaims.autonode.io` denies. " +
			"`karpenter/controllers/nodeclaim`: `TestIdentity` shows the behavior.",
	},
}

// explained returns why a result isn't a pass, if that is known and the failure is the known one.
func explained(provider string, result Result) (explanation, bool) {
	if provider != ClusterAPI || result.Passed {
		return explanation{}, false
	}
	i := slices.IndexFunc(explanations, func(e explanation) bool {
		return e.spec == result.Spec && strings.Contains(result.Failure, e.failure)
	})
	if i < 0 {
		return explanation{}, false
	}
	return explanations[i], true
}

// outdated names the explanations that a run of all specs of the regression suite has no use for.
func outdated(specs []string, results Results) []error {
	var errs []error
	for _, e := range explanations {
		result, ran := results.find(e.spec)
		switch {
		case !slices.Contains(specs, e.spec):
			errs = append(errs, fmt.Errorf("explains no spec of the suite: %s", e.spec))
		case ran && result.Passed && !results.isOlder(result):
			errs = append(errs, fmt.Errorf("passes and needs no explanation: %s", e.spec))
		}
	}
	return errs
}
