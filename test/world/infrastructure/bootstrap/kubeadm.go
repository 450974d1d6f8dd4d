// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"

	kubeadm "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
	"sigs.k8s.io/yaml"
)

// readJoinConfiguration reads kubeadm's configuration file: its first document. kubeadm ignores others when it joins.
func readJoinConfiguration(content string) (*kubeadm.JoinConfiguration, error) {
	join := &kubeadm.JoinConfiguration{}
	if err := yaml.Unmarshal([]byte(content), join); err != nil {
		return nil, fmt.Errorf("JoinConfiguration: %w", err)
	}
	if wanted := kubeadm.GroupVersion.WithKind("JoinConfiguration"); join.GroupVersionKind() != wanted {
		return nil, fmt.Errorf("apiVersion %q and kind %q: %s is wanted", join.APIVersion, join.Kind, wanted)
	}
	if join.Patches != nil {
		return nil, errors.New("patches: the world's machines don't apply patches of kubeadm")
	}
	return join, nil
}
