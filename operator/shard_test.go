// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"testing"

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
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(operator.Run(t.Context(), clusters.Management.Config, test.options)).To(MatchError(ContainSubstring(test.want)))
		})
	}
}
