// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseName is that of an operator that looks after all HostedClusters; one with a selector appends a hash of it.
const leaseName = "autonode-operator"

// shardOptions are which HostedClusters an operator looks after, and the Lease that one of its replicas has to hold.
type shardOptions struct {
	selector labels.Selector
	lease    client.ObjectKey
	// holder is the same; without a name there is no election, and other operators can't see whether this one runs.
	holder client.ObjectKey
	// election has the three durations of the Lease only.
	election leaderelection.LeaderElectionConfig
}

// parseShard reads the options that are about it. Its errors name the flags of autonode-operator.
func parseShard(options Options) (shardOptions, error) {
	selector, err := labels.Parse(options.HostedClusterSelector)
	if err != nil {
		return shardOptions{}, fmt.Errorf("--hosted-cluster-selector %q isn't a label selector such as example.com/shard=a: %w",
			options.HostedClusterSelector, err)
	}
	name := leaseName
	if !selector.Empty() {
		if !options.LeaderElection {
			return shardOptions{}, errors.New("--hosted-cluster-selector needs --leader-elect: by its Lease other operators know whether this " +
				"one still runs")
		}
		// Requirements are sorted, so that the same requirements in another order have the same Lease.
		name += fmt.Sprintf("-%x", sha256.Sum256([]byte(selector.String())))[:9]
	}
	name = cmp.Or(options.LeaseName, name)
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return shardOptions{}, fmt.Errorf("--lease-name %q: %s", name, errs[0])
	}
	if options.LeaderElection && options.LeaderElectionNamespace == "" {
		return shardOptions{}, errors.New("--leader-election-namespace is empty: name the namespace of the operator's Lease")
	}
	election, err := parseElection(options)
	if err != nil {
		return shardOptions{}, err
	}
	s := shardOptions{selector: selector, lease: client.ObjectKey{Namespace: options.LeaderElectionNamespace, Name: name}, election: election}
	if options.LeaderElection {
		s.holder = s.lease
	}
	return s, nil
}

// parseElection reads the durations of the Lease. The relations among them are client-go's rule, which it states without the flags.
func parseElection(options Options) (leaderelection.LeaderElectionConfig, error) {
	c := leaderelection.LeaderElectionConfig{
		LeaseDuration: cmp.Or(options.LeaseDuration, DefaultLeaseDuration),
		RenewDeadline: cmp.Or(options.RenewDeadline, DefaultRenewDeadline),
		RetryPeriod:   cmp.Or(options.RetryPeriod, DefaultRetryPeriod),
	}
	switch shortest := time.Duration(leaderelection.JitterFactor * float64(c.RetryPeriod)); {
	case c.RetryPeriod < 0:
		return c, fmt.Errorf("--leader-elect-retry-period %s is negative", c.RetryPeriod)
	case c.RenewDeadline <= shortest:
		return c, fmt.Errorf("--leader-elect-renew-deadline %s leaves no time for a second attempt: it has to be longer than %s, which is %g "+
			"times --leader-elect-retry-period", c.RenewDeadline, shortest, leaderelection.JitterFactor)
	case c.LeaseDuration <= c.RenewDeadline:
		return c, fmt.Errorf("--leader-elect-lease-duration %s has to be longer than --leader-elect-renew-deadline %s: else two replicas "+
			"work at a time",
			c.LeaseDuration, c.RenewDeadline)
	case c.LeaseDuration < time.Second:
		return c, fmt.Errorf("--leader-elect-lease-duration %s is less than a second, the resolution of a Lease", c.LeaseDuration)
	}
	return c, nil
}
