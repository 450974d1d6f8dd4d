// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// NodeNames returns the names that a Machine's node has as a rule: the Machine's, or that of its infrastructure machine.
func NodeNames(m *clusterv1.Machine) []string {
	return v1alpha1.NodeNames(m.Name, m.Spec.InfrastructureRef.Name)
}

// ObjectNames returns the names that a NodeClaim's Machine, infrastructure machine and node may have: that of its instance while the
// Cluster exists, and its own, which earlier versions gave some or all of them, and bootstrap configs have.
func (p *Provider) ObjectNames(ctx context.Context, nodeClaim string) ([]string, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.ClusterName}
	switch err := p.Management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return []string{nodeClaim}, nil
	case err != nil:
		return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	return []string{v1alpha1.InstanceName(cluster.UID, nodeClaim), nodeClaim}, nil
}

// isBootstrap reports whether a kind is a bootstrap provider's, whose objects have the NodeClaim's name.
func isBootstrap(kind schema.GroupVersionKind) bool {
	return strings.HasPrefix(kind.Group, "bootstrap.")
}
