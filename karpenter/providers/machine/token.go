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

// discovery is the field of a KubeadmConfig with the machine's way to find the cluster and its first credential.
var (
	discovery         = []string{"spec", "joinConfiguration", "discovery"}
	bootstrapToken    = append(discovery[:3:3], "bootstrapToken", "token")
	tlsBootstrapToken = append(discovery[:3:3], "tlsBootstrapToken")
	discoveryFile     = append(discovery[:3:3], "file")
)

// giveToken mints the machine's bootstrap token and writes it into the bootstrap config, unless the template sets
// another way to join or the kind takes no token. Cluster API's bootstrap provider keeps an existing token. Otherwise
// it makes one, sometimes two, and records only the second.
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

// tokenOf returns the machine's bootstrap token, or "" if its config has none. As in kubeadm, the token for TLS
// bootstrapping comes first.
func tokenOf(config *unstructured.Unstructured) string {
	for _, path := range [][]string{tlsBootstrapToken, bootstrapToken} {
		if token, found, err := unstructured.NestedString(config.Object, path...); err == nil && found && token != "" {
			return token
		}
	}
	return ""
}

// fixToken records the public part of the bootstrap token on the Machine before its creation: the operator accepts no
// other token from the machine.
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
