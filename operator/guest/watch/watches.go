// SPDX-License-Identifier: Apache-2.0

// Package watch starts the watches of a guest, decides which objects are kept of it, and enqueues its HostedCluster for events.
package watch

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/guest/connection"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// Watches are the watches of all connections.
type Watches struct {
	*Queue
	others []Kind

	mu      sync.Mutex
	started map[client.ObjectKey]*started // by the Cluster
}

// started are the watches of one connection.
type started struct {
	hostedCluster types.NamespacedName // the first that needed it
	connection    *rest.Config         // one for each connection

	mu    sync.Mutex
	names sets.Set[string]
}

// New returns Watches of the kinds that the steps read, and of others.
func New(clk clock.PassiveClock, others []Kind) *Watches {
	return &Watches{Queue: newQueue(clk), others: others, started: map[client.ObjectKey]*started{}}
}

// Start starts the guest's watches of the kinds that it serves already, and reports whether all have started.
func (w *Watches) Start(ctx context.Context, s *scope.Scope, conn *connection.Guest, guest *scope.Guest) (bool, error) {
	name := client.ObjectKeyFromObject(s.HostedCluster)
	running := w.connected(s.ClusterKey(), name, conn.Config)
	running.mu.Lock()
	defer running.mu.Unlock()

	complete := true
	for _, kind := range watches(s.Profile) {
		// A HostedCluster that is recreated under another name gets its own handlers.
		handled := fmt.Sprintf("%s/%T/%s", name, kind.object, kind.object.GetObjectKind().GroupVersionKind().Kind)
		if running.names.Has(handled) {
			continue
		}
		if kind.crd != "" {
			switch served, err := isServed(ctx, guest, kind); {
			case err != nil:
				return false, err
			case !served:
				complete = false
				continue
			}
		}
		if err := conn.Store.Handle(kind.object, w.handler(name, kind)); err != nil {
			return false, fmt.Errorf("watching %T in the guest: %w", kind.object, message.Error(err))
		}
		running.names.Insert(handled)
	}
	if !complete {
		return false, nil
	}
	for _, other := range w.others {
		handled := fmt.Sprintf("%s/%T/other", name, other.Object)
		if running.names.Has(handled) || !other.For(s) {
			continue
		}
		if other.Index != "" {
			if err := conn.Store.Index(other.Object, other.Index, other.Extract); err != nil {
				return false, fmt.Errorf("indexing %T of the guest: %w", other.Object, message.Error(err))
			}
		}
		if err := conn.Store.Handle(other.Object, other.Handle(name)); err != nil {
			return false, fmt.Errorf("watching %T in the guest: %w", other.Object, message.Error(err))
		}
		running.names.Insert(handled)
	}
	return true, nil
}

// connected returns the watches of a connection.
func (w *Watches) connected(cluster client.ObjectKey, hostedCluster types.NamespacedName, connection *rest.Config) *started {
	w.mu.Lock()
	defer w.mu.Unlock()
	running, ok := w.started[cluster]
	if !ok || running.connection != connection {
		running = &started{hostedCluster: hostedCluster, connection: connection, names: sets.New[string]()}
		w.started[cluster] = running
		connectionsMade.For(hostedCluster).Inc()
	}
	return running
}

// Connection returns the config of the connection to a Cluster's guest; nil where nothing is watched.
func (w *Watches) Connection(cluster client.ObjectKey) *rest.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	if running, ok := w.started[cluster]; ok {
		return running.connection
	}
	return nil
}

// Lost forgets the watches of a connection that was lost, and counts it.
func (w *Watches) Lost(cluster client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if running, known := w.started[cluster]; known {
		connectionsLost.For(running.hostedCluster).Inc()
	}
	delete(w.started, cluster)
}

// Forget forgets the watches of a connection that isn't needed any more.
func (w *Watches) Forget(cluster client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.started, cluster)
}
