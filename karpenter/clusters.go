// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
)

// managementConfig leads to the management cluster: by its own kubeconfig if there is one, else by what this program is
// given anyway, its KUBECONFIG or its service account.
func managementConfig(opts Options) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if opts.ManagementKubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", opts.ManagementKubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	return config, nil
}

// setEnvironment says what Karpenter core takes from the environment. It has to come after managementConfig: core finds the
// guest by the same means as that finds the management cluster.
func setEnvironment(opts Options) error {
	if opts.GuestKubeconfig != "" {
		if _, err := os.Stat(opts.GuestKubeconfig); err != nil {
			return fmt.Errorf("finding the guest cluster: %w", err)
		}
		if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, opts.GuestKubeconfig); err != nil {
			return fmt.Errorf("finding the guest cluster: %w", err)
		}
	}
	for name, value := range map[string]string{
		"LEADER_ELECTION_NAMESPACE": opts.Namespace,
		// Several clusters may share a namespace, and one Lease would let only one of them have nodes.
		"LEADER_ELECTION_NAME": "karpenter-leader-election-" + opts.ClusterName,
	} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting up the leader election: %w", err)
		}
	}
	return nil
}
