// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"fmt"
	"strconv"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/autonode-io/autonode/operator/scope"
)

type pause struct {
	paused  bool
	message string
	// resumesAfter is zero if only a user can end the pause.
	resumesAfter time.Duration
}

// pause reports whether nothing may be changed: because of spec.pausedUntil, or because Cluster API is paused.
func (r *Reconciler) pause(s *scope.Scope) pause {
	if until := ptr.Deref(s.HostedCluster.Spec.PausedUntil, ""); until != "" {
		if p := parsePausedUntil(until, r.clock.Now()); p.paused {
			return p
		}
	}
	if annotations.HasPaused(s.HostedCluster) {
		return pause{paused: true, message: "paused by an annotation of the HostedCluster; remove cluster.x-k8s.io/paused to go on"}
	}
	if s.Cluster != nil && (ptr.Deref(s.Cluster.Spec.Paused, false) || annotations.HasPaused(s.Cluster)) {
		return pause{paused: true, message: fmt.Sprintf("Cluster %s is paused; unpause it to go on", s.ClusterKey())}
	}
	return pause{}
}

func parsePausedUntil(until string, now time.Time) pause {
	if b, err := strconv.ParseBool(until); err == nil {
		return pause{paused: b, message: "paused by spec.pausedUntil; remove it to go on"}
	}
	t, err := time.Parse(time.RFC3339, until)
	if err != nil {
		// The author wanted a pause; continuing could make the changes that the pause is meant to prevent.
		return pause{paused: true, message: fmt.Sprintf("paused, because spec.pausedUntil %q is neither true, false nor a time in RFC 3339; "+
			"correct or remove it", until)}
	}
	if remaining := t.Sub(now); remaining > 0 {
		return pause{paused: true, message: "paused until " + t.Format(time.RFC3339) + " by spec.pausedUntil", resumesAfter: remaining}
	}
	return pause{}
}
