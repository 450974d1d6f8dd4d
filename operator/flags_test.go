// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/operator"
)

func TestCheckArguments(t *testing.T) {
	for argument, want := range map[string]string{
		"--registry-networks=10.20.0.0/16":                    "",
		"--hosted-cluster-selector=example.com/shard=a":       "",
		"--payload-signatures=off":                            "",
		"--registry-network=10.20.0.0/16":                     "unknown flag: --registry-network",
		"--registry-networks=10.20.0.0":                       `networks of registries: "10.20.0.0" is no network such as 10.0.0.0/8`,
		"--guest-networks=all":                                `networks of guests: "all" is no network such as 10.0.0.0/8`,
		"--drain-timeout=30":                                  `invalid argument "30" for "--drain-timeout" flag: time: missing unit in duration "30"`,
		"--drain-timeout=-1m":                                 "the drain timeout -1m0s is negative",
		"--guest-timeout=-1m":                                 "the timeout of calls to guests -1m0s is negative",
		"--guest-token-lifetime=1m":                           "the guest token's lifetime 1m0s is less than 10m0s, which API servers demand",
		"--leader-elect-retry-period=-1s":                     "--leader-elect-retry-period -1s is negative",
		"--karpenter-image=registry.example/karpenter:1":      "--karpenter-image: ",
		"--payload-signatures=on":                             `payload signatures: "on" isn't a policy; use off, warn or enforce`,
		"--payload-signatures=warn":                           "payload signatures: policy warn needs a file of public keys, or files of identities and of a trusted root",
		"--payload-identities-file=/etc/keys/identities.yaml": "",
		"--log-level=loud":                                    `--log-level: "loud" is none of debug, info, error`,
		"--log-format=xml":                                    `--log-format: "xml" is none of auto, json, text`,
		"debug":                                               `"debug" isn't a flag`,
	} {
		t.Run("When the argument is "+argument+", it should say what the operator reports", func(t *testing.T) {
			g, err := NewWithT(t), operator.CheckArguments([]string{argument})
			if want == "" {
				g.Expect(err).To(Succeed())
				return
			}
			g.Expect(err).To(MatchError(HavePrefix(want)))
		})
	}
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
