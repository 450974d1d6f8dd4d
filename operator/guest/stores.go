// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/guest/store"
)

// lostInterval is how long watches may outlive a connection that clustercache has closed without an event, as it does
// for a deleted Cluster.
const lostInterval = 10 * time.Second

// opened is the store of one connection.
type opened struct {
	*store.Store
	connection *rest.Config // one for each connection
}

// store returns the store of a connection.
func (c *Connections) store(cluster client.ObjectKey, connection *rest.Config, live client.Client) *store.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.stores[cluster]; ok && known.connection == connection {
		return known.Store
	}
	c.close(cluster)
	s := store.New(store.Config{Guest: connection, Live: live, Codecs: c.codecs, Kinds: c.kinds, Timeout: c.timeout})
	if c.shut {
		s.Close()
	}
	c.stores[cluster] = &opened{s, connection}
	return s
}

// close ends a connection's watches. c.mu is held.
func (c *Connections) close(cluster client.ObjectKey) {
	if known, ok := c.stores[cluster]; ok {
		known.Close()
		delete(c.stores, cluster)
	}
}

// closeLost ends the watches of connections that clustercache has closed, until ctx ends. Then it ends all connections:
// otherwise they would outlive a manager that ends before its process.
func (c *Connections) closeLost(ctx context.Context) error {
	ticker := time.NewTicker(lostInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.closeOthers(func(cluster client.ObjectKey, connection *rest.Config) bool {
				current, err := c.clusters.GetRESTConfig(ctx, cluster)
				return err == nil && current == connection
			})
		case <-ctx.Done():
			if connections, ok := c.clusters.(interface{ Shutdown() }); ok {
				connections.Shutdown()
			}
			c.mu.Lock()
			c.shut = true
			c.mu.Unlock()
			c.closeOthers(func(client.ObjectKey, *rest.Config) bool { return false })
			return nil
		}
	}
}

func (c *Connections) closeOthers(stands func(client.ObjectKey, *rest.Config) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cluster, known := range c.stores {
		if !stands(cluster, known.connection) {
			c.close(cluster)
		}
	}
}
