// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leases reports by their Leases whether other operators still run.
type leases struct {
	live  client.Reader
	clock clock.PassiveClock

	mu   sync.Mutex
	seen map[client.ObjectKey]sighting
}

// sighting is when a Lease was first seen in its current state. Its own times are from another machine's clock.
type sighting struct {
	resourceVersion string
	at              time.Time
}

// Operators that divide HostedClusters are in one namespace.
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=autonode-system,resources=leases,verbs=get

// validFor returns how long the Lease of a name of the form namespace/name may still be valid; zero if it has no holder.
// A name of another form has no Lease.
func (l *leases) validFor(ctx context.Context, name string) (time.Duration, error) {
	namespace, name, ok := strings.Cut(name, "/")
	if !ok {
		return 0, nil
	}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	lease := &coordinationv1.Lease{}
	if err := l.live.Get(ctx, key, lease); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("reading the Lease of the operator that holds the HostedCluster: %w", err)
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" { // released, as an operator does when it ends
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seen, ok := l.seen[key]
	if !ok || seen.resourceVersion != lease.ResourceVersion {
		seen = sighting{resourceVersion: lease.ResourceVersion, at: l.clock.Now()}
		l.seen[key] = seen
	}
	duration := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	return max(0, seen.at.Add(duration).Sub(l.clock.Now())), nil
}
