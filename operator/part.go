// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseName is that of an operator that looks after all HostedClusters; one with a selector appends a hash of it.
const leaseName = "autonode-operator"

// part is which HostedClusters an operator looks after, and the Lease that one of its replicas has to hold.
type part struct {
	selector labels.Selector
	lease    client.ObjectKey
	// holder is the same; without a name there is no election, and other operators can't see whether this one runs.
	holder client.ObjectKey
}

// divide reads the options that are about it. Its errors name the flags of autonode-operator.
func divide(options Options) (part, error) {
	selector, err := labels.Parse(options.HostedClusterSelector)
	if err != nil {
		return part{}, fmt.Errorf("--hosted-cluster-selector %q isn't a label selector such as example.com/shard=a: %w", options.HostedClusterSelector, err)
	}
	name := leaseName
	if !selector.Empty() {
		if !options.LeaderElection {
			return part{}, errors.New("--hosted-cluster-selector needs --leader-elect: by its Lease other operators know whether this one still runs")
		}
		// Requirements are sorted, so that what selects the same in another order has the same Lease.
		name += fmt.Sprintf("-%x", sha256.Sum256([]byte(selector.String())))[:9]
	}
	name = cmp.Or(options.LeaseName, name)
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return part{}, fmt.Errorf("--lease-name %q: %s", name, errs[0])
	}
	if options.LeaderElection && options.LeaderElectionNamespace == "" {
		return part{}, errors.New("--leader-election-namespace is empty: name the namespace of the operator's Lease")
	}
	p := part{selector: selector, lease: client.ObjectKey{Namespace: options.LeaderElectionNamespace, Name: name}}
	if options.LeaderElection {
		p.holder = p.lease
	}
	return p, nil
}
