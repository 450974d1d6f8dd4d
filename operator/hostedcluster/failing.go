// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// hiccup is how long reconciliations may fail before AutoNodeEnabled says so, which is an event and may be an alert. An API server that
// restarts, or elects a leader, takes about that; the first tries come within milliseconds of each other, so that their number tells nothing.
const hiccup = 5 * time.Second

// failing remembers which HostedClusters couldn't be reconciled, and since when. Its zero value remembers none. To forget one, as with a
// restart, or to remember it too long, as while another operator holds it, is harmless: an error is said a little later or earlier.
type failing struct {
	since sync.Map // of time.Time by client.ObjectKey
}

// lasts records an error, and returns true from the second in a row on if the first is a hiccup ago.
func (f *failing) lasts(hostedCluster *v1beta1.HostedCluster, now time.Time) bool {
	since, again := f.since.LoadOrStore(client.ObjectKeyFromObject(hostedCluster), now)
	first, ok := since.(time.Time)
	return again && ok && now.Sub(first) >= hiccup
}

// ended records that there was no error.
func (f *failing) ended(hostedCluster *v1beta1.HostedCluster) {
	f.since.Delete(client.ObjectKeyFromObject(hostedCluster))
}
