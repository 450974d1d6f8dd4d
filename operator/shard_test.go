// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/operator"
)

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct {
		options operator.Options
		want    string
	}{
		"When the selector can't be parsed, it should name the flag and show a selector": {
			options: operator.Options{LeaderElection: true, HostedClusterSelector: "shard in a"},
			want:    `--hosted-cluster-selector "shard in a" isn't a label selector such as example.com/shard=a`,
		},
		"When there is a selector without an election, it should say why that can't be": {
			options: operator.Options{HostedClusterSelector: "shard=a"},
			want:    "--hosted-cluster-selector needs --leader-elect",
		},
		"When the Lease's name is none, it should say so": {
			options: operator.Options{LeaderElection: true, LeaderElectionNamespace: "autonode-system", LeaseName: "Mine"},
			want:    `--lease-name "Mine"`,
		},
		"When the Lease has no namespace, it should name the flag": {
			options: operator.Options{LeaderElection: true},
			want:    "--leader-election-namespace is empty",
		},
		"When a leader may go on for as long as others wait, it should name both flags": {
			options: operator.Options{LeaseDuration: time.Minute, RenewDeadline: time.Minute},
			want:    "--leader-elect-lease-duration 1m0s has to be longer than --leader-elect-renew-deadline 1m0s",
		},
		"When a leader has no time for a second attempt, it should name both flags": {
			options: operator.Options{RetryPeriod: 10 * time.Second},
			want:    "--leader-elect-renew-deadline 10s leaves no time for a second attempt: it has to be longer than 12s, which is 1.2 times --leader-elect-retry-period",
		},
		"When the time between attempts is negative, it should name the flag": {
			options: operator.Options{RetryPeriod: -time.Second},
			want:    "--leader-elect-retry-period -1s is negative",
		},
		"When a Lease is shorter than it can say, it should name the flag": {
			options: operator.Options{LeaseDuration: 900 * time.Millisecond, RenewDeadline: 800 * time.Millisecond, RetryPeriod: time.Millisecond},
			want:    "--leader-elect-lease-duration 900ms is less than a second",
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(operator.Run(t.Context(), clusters.Management.Config, test.options)).To(MatchError(ContainSubstring(test.want)))
		})
	}
}
