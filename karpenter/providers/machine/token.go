// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
)

// discovery is where a KubeadmConfig says how its machine finds the cluster and authenticates for the first time.
var (
	discovery         = []string{"spec", "joinConfiguration", "discovery"}
	bootstrapToken    = append(discovery[:3:3], "bootstrapToken", "token")
	tlsBootstrapToken = append(discovery[:3:3], "tlsBootstrapToken")
	discoveryFile     = append(discovery[:3:3], "file")
)

// giveToken mints the bootstrap token that a machine joins with and writes it into its bootstrap config, unless the template says how the
// machine joins, or the config is of a kind that takes no token. Cluster API's bootstrap provider leaves a token alone that is there, and makes
// one otherwise: sometimes two, and only the second one is written down.
func (p *Provider) giveToken(ctx context.Context, config *unstructured.Unstructured) error {
	if config == nil || !KnownBootstrap(config.GroupVersionKind().Group, config.GetKind()) || joinsByItself(config) {
		return nil
	}
	token, err := p.Tokens.Mint(ctx, config.GetName(), bootstraptoken.Lifetime)
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(config.Object, token, bootstrapToken...); err != nil {
		return fmt.Errorf("writing the bootstrap token into %s %s: %w", config.GetKind(), config.GetName(), err)
	}
	return nil
}

func joinsByItself(config *unstructured.Unstructured) bool {
	if _, found, _ := unstructured.NestedMap(config.Object, discoveryFile...); found {
		return true
	}
	return tokenOf(config) != ""
}

// tokenOf returns the bootstrap token that a machine authenticates with; empty where its config names none. As for kubeadm, the one for TLS
// bootstrapping precedes.
func tokenOf(config *unstructured.Unstructured) string {
	for _, path := range [][]string{tlsBootstrapToken, bootstrapToken} {
		if token, found, err := unstructured.NestedString(config.Object, path...); err == nil && found && token != "" {
			return token
		}
	}
	return ""
}

// fixToken writes the public part of the token that a machine joins with on its Machine, before that is made: it is the only one that the
// operator accepts from it.
func fixToken(machine *clusterv1.Machine, token string) {
	if id, ok := bootstraptoken.ID(token); ok {
		annotations := maps.Clone(machine.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.BootstrapTokenIDAnnotation] = id
		machine.Annotations = annotations
	}
}
