// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"fmt"
	"os"
	"time"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/operator"
)

// releaseTimeout limits the attempt to release the predecessor's Lease at startup.
const releaseTimeout = 5 * time.Second

// managementConfig returns the management cluster's configuration: its own kubeconfig, else this program's KUBECONFIG
// or service account.
func managementConfig(opts operator.Options) (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if opts.ManagementKubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", opts.ManagementKubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	return config, nil
}

// setEnvironment sets the environment variables that Karpenter core reads. Call it after managementConfig: core finds
// the guest in the way that finds the management cluster.
func setEnvironment(opts operator.Options) error {
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
		// Several clusters may share a namespace; each needs its own Lease.
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

// releasePredecessor releases this pod's Lease if a crashed container left it held. If that fails, the Lease expires.
func releasePredecessor(ctx context.Context, config *rest.Config, pod string) {
	opts := options.FromContext(ctx)
	if opts.DisableLeaderElection {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	released := false
	leases, err := coordinationclient.NewForConfig(config)
	if err == nil {
		released, err = leadership.Release(ctx, leases.Leases(opts.LeaderElectionNamespace), opts.LeaderElectionName, pod, clock.RealClock{})
	}
	switch logger := ctrl.Log.WithName("leadership"); {
	case err != nil:
		logger.Error(err, "releasing the lease of the previous container; waiting for it to expire")
	case released:
		logger.Info("released the lease of the previous container")
	}
}
