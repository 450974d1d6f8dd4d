// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// explanation is why a spec can't pass with AutoNode's provider.
type explanation struct {
	suite string
	spec  string
	// bare: neither can it pass without the operator.
	bare bool
	// failure is part of what the spec reports then: any other failure isn't explained.
	failure string
	// passes allows the spec to pass: it does if it writes before Karpenter does.
	passes bool
	// why is one sentence for the documentation, with the test that shows the behavior instead.
	why string
}

var explanations = append([]explanation{
	{
		suite:   Regression,
		spec:    "NodeClaim StandaloneNodeClaim should delete a NodeClaim if it references a NodeClass that isn't Ready",
		failure: "the status of a node class is what Karpenter found, and belongs to the platform",
		why: "As the guest's admin the spec writes the status of a node class, which the policy `nodeclasses.autonode.io` denies. " +
			"`karpenter/cloudprovider`: `TestCreateErrors` shows the behavior.",
	},
	{
		suite:   Regression,
		spec:    "NodeClaim StandaloneNodeClaim should succeed to garbage collect an Instance that was launched by a NodeClaim but has no Instance mapping",
		failure: "the status of a NodeClaim identifies its machine and belongs to the platform",
		why: "As the guest's admin the spec writes another provider ID into the status of a NodeClaim, which the policy `nodeclaims.autonode.io` denies. " +
			"`karpenter/controllers/nodeclaim`: `TestIdentity` shows the behavior.",
	},
	{
		suite:   Disruption,
		spec:    "Drift should update the nodepool-hash annotation on the nodepool and nodeclaim when the nodepool's nodepool-hash-version annotation does not match the controller hash version",
		failure: "of a NodeClaim identify its Machine and belong to the platform",
		why: "As the guest's admin the spec replaces all annotations of a NodeClaim, and so removes those that identify its Machine, which the policy `nodeclaims.autonode.io` denies. " +
			"It passes with `PROVIDER=bare`.",
	},
	{
		suite:   Regression,
		spec:    "StaticCapacity Deprovisioning should terminate empty nodes first, then nodes with least cost, then respect do-not-disrupt",
		failure: "holds a node class while nodes need it, and belongs to the platform",
		passes:  true,
		why: "As the guest's admin the spec updates a node class to what it was before Karpenter added its finalizer, which the policy `nodeclasses.autonode.io` denies. " +
			"It passes if Karpenter adds it later, and with `PROVIDER=bare`.",
	},
}, skipped()...)

// skipped are the specs that skip themselves.
func skipped() []explanation {
	var all []explanation
	for _, spec := range []string{
		"should provision a node per pod for a workload its owner is the selector for",
		"should provision a node per pod for a workload a Service is the selector for",
		"should pack pods the cluster's defaults don't apply to",
		"should default only the pods in a batch that declare no constraints of their own",
	} {
		all = append(all, explanation{
			suite: Regression, spec: "DefaultTopologySpreadConstraints " + spec, bare: true, failure: "cluster's kube-scheduler isn't configured with",
			why: "The spec looks for a kube-scheduler with Karpenter's own configuration in a Pod of the guest; a hosted control plane runs elsewhere.",
		})
	}
	for _, spec := range []string{
		"should reboot a node in place when repair matches a reboot policy",
		"should reboot twice, then replace, when the fault persists across reboots",
		"should keep a pod that can't be evicted on the node through the reboot",
		"should not reboot more nodes at once than the disruption budget allows",
	} {
		all = append(all, explanation{
			suite: Disruption, spec: "Reboot " + spec, bare: true, failure: "reboot specs require --reboot-condition",
			why: "The spec needs infrastructure that reboots machines, and that of the suite has none; AutoNode leaves that to a MachineHealthCheck of the platform. " +
				"`karpenter/cloudprovider`: `TestReboot` shows the behavior.",
		})
	}
	for _, status := range []string{"False", "Unknown"} {
		all = append(all, explanation{
			suite: Disruption, spec: "Repair Kubelet conditions Conditions Node Ready " + status, bare: true, failure: "requires the KWOK provider",
			why: "The spec is for the kwok provider only; `TestRepair` shows the behavior.",
		})
	}
	return all
}

// explained returns why a result isn't a pass, if that is known and the failure is the known one.
func explained(provider string, result Result) (explanation, bool) {
	if result.Passed {
		return explanation{}, false
	}
	i := slices.IndexFunc(explanations, func(e explanation) bool {
		return (provider == ClusterAPI || provider == Bare && e.bare) && e.spec == result.Spec && strings.Contains(result.Failure, e.failure)
	})
	if i < 0 {
		return explanation{}, false
	}
	return explanations[i], true
}

// outdated names the explanations that suites have no use for. The results are of the guests that the operator runs.
func outdated(suites, specs []string, results Results) []error {
	var errs []error
	for _, e := range explanations {
		if !slices.Contains(suites, e.suite) {
			continue
		}
		result, ran := results.find(e.spec)
		switch {
		case !slices.Contains(specs, e.spec):
			errs = append(errs, fmt.Errorf("explains no spec of the suite: %s", e.spec))
		case ran && result.Passed && !e.passes && !results.isOlder(result):
			errs = append(errs, fmt.Errorf("passes and needs no explanation: %s", e.spec))
		}
	}
	return errs
}
