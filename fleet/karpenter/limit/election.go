// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Election is Karpenter's leader-election Lease, which outlives its processes.
type Election struct {
	Config  *rest.Config
	Options *options.Options
}

var _ Memory = Election{}

// IsFirst reports whether no process but this one was ever elected; false if that isn't known.
func (e Election) IsFirst(ctx context.Context) (bool, error) {
	if e.Options.DisableLeaderElection {
		return false, nil
	}
	_, lease, err := e.lease(ctx)
	if err != nil {
		return false, err
	}
	return ptr.Deref(lease.Spec.LeaseTransitions, 0) == 0, nil
}

// Governed implements Memory. Without an election nothing is remembered.
func (e Election) Governed(ctx context.Context) (bool, error) {
	if e.Options.DisableLeaderElection {
		return false, nil
	}
	_, lease, err := e.lease(ctx)
	if err != nil {
		return false, err
	}
	return lease.Annotations[v1alpha1.LeasedAnnotation] == "true", nil
}

// Remember implements Memory. It fails if the elector renews the Lease at the same time.
func (e Election) Remember(ctx context.Context, governed bool) error {
	if e.Options.DisableLeaderElection {
		return nil
	}
	leases, lease, err := e.lease(ctx)
	if err != nil || (lease.Annotations[v1alpha1.LeasedAnnotation] == "true") == governed {
		return err
	}
	delete(lease.Annotations, v1alpha1.LeasedAnnotation)
	if governed {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.LeasedAnnotation, "true")
	}
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the lease: %w", err)
	}
	return nil
}

func (e Election) lease(ctx context.Context) (coordinationclient.LeaseInterface, *coordinationv1.Lease, error) {
	leases, err := coordinationclient.NewForConfig(e.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the lease: %w", err)
	}
	in := leases.Leases(e.Options.LeaderElectionNamespace)
	lease, err := in.Get(ctx, e.Options.LeaderElectionName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the lease: %w", err)
	}
	return in, lease, nil
}
