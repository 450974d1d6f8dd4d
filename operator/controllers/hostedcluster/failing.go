// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// hiccup is how long reconciliations may fail before AutoNodeEnabled reports it, which publishes an event and may
// fire an alert. An API server that restarts or elects a leader takes about that long. The first retries come within
// milliseconds, so their number means nothing.
const hiccup = 5 * time.Second

// failing tracks which HostedClusters have failed to reconcile, and since when. The zero value is empty. Losing an
// entry, as after a restart, or keeping it too long, as while another operator holds the HostedCluster, is harmless:
// an error is reported a little later or earlier.
type failing struct {
	since sync.Map // of time.Time by client.ObjectKey
}

// lasts records an error, and returns true from the second in a row on if the first is a hiccup ago.
func (f *failing) lasts(hostedCluster *v1beta1.HostedCluster, now time.Time) bool {
	since, loaded := f.since.LoadOrStore(client.ObjectKeyFromObject(hostedCluster), now)
	first, ok := since.(time.Time)
	return loaded && ok && now.Sub(first) >= hiccup
}

// ended records that there was no error.
func (f *failing) ended(hostedCluster *v1beta1.HostedCluster) {
	f.since.Delete(client.ObjectKeyFromObject(hostedCluster))
}
