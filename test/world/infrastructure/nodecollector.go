// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// nodeCollector deletes Nodes whose machine doesn't exist, as a cloud's controller-manager does. Cluster API deletes a Node
// with its Machine; this is for those that it doesn't know of, such as one that joined while its Machine was being deleted. While a Cluster
// is paused, its machines may be on their way to another management cluster.
type nodeCollector struct {
	management client.Reader
	guests     *guests
	logger     logr.Logger
	grace      time.Duration
	// since is the time at which a Node was first observed without its machine.
	since map[types.UID]time.Time
}

// Start collects until the context ends.
func (s *nodeCollector) Start(ctx context.Context) error {
	ticker := time.NewTicker(s.grace / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			s.collect(ctx, now)
		}
	}
}

func (s *nodeCollector) collect(ctx context.Context, now time.Time) {
	since := map[types.UID]time.Time{}
	for key, guest := range s.guests.all() {
		cluster := &clusterv1.Cluster{}
		if err := s.management.Get(ctx, key, cluster); err != nil || annotations.IsPaused(cluster, cluster) {
			continue
		}
		for _, node := range guest.fleet.Nodes() {
			machine, ours := strings.CutPrefix(node.Spec.ProviderID, infrav1.ProviderIDPrefix)
			namespace, name, ok := strings.Cut(machine, "/")
			if !ours || !ok || node.DeletionTimestamp != nil {
				continue
			}
			if err := s.management.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &infrav1.KwokMachine{}); !apierrors.IsNotFound(err) {
				continue
			}
			first, seen := s.since[node.UID]
			if !seen {
				first = now
			}
			since[node.UID] = first
			if now.Sub(first) < s.grace {
				continue
			}
			options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}}
			if err := guest.client.CoreV1().Nodes().Delete(ctx, node.Name, options); client.IgnoreNotFound(err) != nil {
				s.logger.Error(err, "Deleting a node whose machine doesn't exist", "Node", klog.KObj(node))
				continue
			}
			s.logger.Info("Deleted a node whose machine doesn't exist", "Node", klog.KObj(node), "providerID", node.Spec.ProviderID)
		}
	}
	s.since = since
}
