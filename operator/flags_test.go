// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/operator"
)

// TestCheckArguments has command lines, whose arguments begin with two dashes.
func TestCheckArguments(t *testing.T) {
	for line, want := range map[string]string{
		"--registry-networks=10.20.0.0/16":                                     "",
		"--hosted-cluster-selector=example.com/shard=a":                        "",
		"--payload-signatures=off":                                             "",
		"--registry-network=10.20.0.0/16":                                      "unknown flag: --registry-network",
		"--registry-networks=10.20.0.0":                                        `networks of registries: "10.20.0.0" is no network such as 10.0.0.0/8`,
		"--guest-networks=all":                                                 `networks of guests: "all" is no network such as 10.0.0.0/8`,
		"--drain-timeout=30":                                                   `invalid argument "30" for "--drain-timeout" flag: time: missing unit in duration "30"`,
		"--drain-timeout=-1m":                                                  "the drain timeout -1m0s is negative",
		"--guest-timeout=-1m":                                                  "the timeout of calls to guests -1m0s is negative",
		"--guest-token-lifetime=1m":                                            "the guest token's lifetime 1m0s is less than 10m0s, which API servers demand",
		"--karpenter-image=registry.example/karpenter:1":                       "--karpenter-image: ",
		"--payload-signatures=on":                                              `payload signatures: "on" isn't a policy; use off, warn or enforce`,
		"--payload-signatures=warn":                                            "payload signatures: policy warn needs a file of public keys, or files of identities and of a trusted root",
		"--payload-identities-file=/etc/keys/identities.yaml":                  "",
		"--payload-signatures=warn --payload-identities-file=/identities.yaml": "payload signatures: keyless signatures need both a file of identities and one of a trusted root",
		"--payload-signatures=warn --payload-trusted-root-file=/root.json":     "payload signatures: keyless signatures need both a file of identities and one of a trusted root",
		"--log-level=loud":                                                     `--log-level: "loud" is none of debug, info, error`,
		"--log-format=xml":                                                     `--log-format: "xml" is none of auto, json, text`,
		"debug":                                                                `"debug" isn't a flag`,
		"--hosted-cluster-selector=(a":                                         `--hosted-cluster-selector "(a" isn't a label selector such as example.com/shard=a`,
		"--hosted-cluster-selector=a=b --leader-elect=false":                   "--hosted-cluster-selector needs --leader-elect",
		"--lease-name=Mine":                                                    `--lease-name "Mine"`,
		"--leader-election-namespace=":                                         "--leader-election-namespace is empty",
		"--leader-elect-retry-period=-1s":                                      "--leader-elect-retry-period -1s is negative",
		"--leader-elect-retry-period=10s":                                      "--leader-elect-renew-deadline 10s leaves no time for a second attempt: it has to be longer than 12s, which is 1.2 times --leader-elect-retry-period",
		"--leader-elect-lease-duration=10s":                                    "--leader-elect-lease-duration 10s has to be longer than --leader-elect-renew-deadline 10s",
		"--leader-elect-lease-duration=900ms --leader-elect-renew-deadline=800ms --leader-elect-retry-period=1ms": "--leader-elect-lease-duration 900ms is less than a second",
	} {
		t.Run("When the arguments are "+line+", it should say what the operator reports", func(t *testing.T) {
			g, err := NewWithT(t), operator.CheckArguments(strings.Fields(line))
			if want == "" {
				g.Expect(err).To(Succeed())
				return
			}
			g.Expect(err).To(MatchError(HavePrefix(want)))
		})
	}

	t.Run("When an option is wrong, the operator should not run", func(t *testing.T) {
		err := operator.Run(t.Context(), clusters.Management.Config, operator.Options{RetryPeriod: -time.Second})
		NewWithT(t).Expect(err).To(MatchError("--leader-elect-retry-period -1s is negative"))
	})
}

func TestCheckSettings(t *testing.T) {
	for content, want := range map[string]string{"logLevel: debug\n": "", "logs: debug\n": "unknown field", "logLevel: loud\n": "loud", "resources: [1]": "resources"} {
		t.Run("When the settings are "+content+", it should say what the operator reports", func(t *testing.T) {
			g, err := NewWithT(t), operator.CheckSettings([]byte(content))
			if want == "" {
				g.Expect(err).To(Succeed())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
}
