// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/payload"
)

const (
	// maxAhead is how many minor versions a payload may be ahead of the API server. Nodes are never ahead: they wait for the control
	// plane. But that is upgraded one minor version at a time, so a payload that is further ahead isn't this upgrade's.
	maxAhead = 1
	// recheck is the interval between requests for the API server's version, which can't be watched.
	recheck = 30 * time.Second
)

// skew checks whether payloads fit their guest clusters: the API server's version, and the stored versions of its CRDs.
type skew struct {
	versions *guest.Versions
	clock    clock.PassiveClock
	// fitted remembers payloads that fit, by the HostedCluster.
	fitted lru.Cache[types.UID, fit]
}

// fit is a payload that fitted the guest at the end of one connection.
type fit struct {
	digest     string
	connection *rest.Config
	at         time.Time
}

func newSkew(versions *guest.Versions, clock clock.PassiveClock) *skew {
	return &skew{versions: versions, clock: clock, fitted: lru.New[types.UID, fit](1 << 14)}
}

// check returns nil for a payload that can be used in s.Guest, and a *failedError for one that can't. It rechecks a fitting payload every
// recheck, and any other on each call.
func (c *skew) check(ctx context.Context, s *scope.Scope, release *payload.Release, component payload.Component) error {
	uid, now := s.HostedCluster.UID, c.clock.Now()
	before, _ := c.fitted.Get(uid)
	fits := before.digest == release.Digest && before.connection == s.Guest.Config
	if fits && now.Sub(before.at) < recheck {
		return nil
	}
	reason, message, err := c.compare(ctx, s, component)
	switch {
	case err != nil && fits:
		return nil // what can't be asked is no news
	case err != nil:
		return err
	case reason != "":
		c.fitted.Remove(uid)
		return &failedError{reason: reason, message: fmt.Sprintf("release %s: %s", release.Version, message), retryAfter: recheck}
	}
	c.fitted.Add(uid, fit{digest: release.Digest, connection: s.Guest.Config, at: now})
	return nil
}

// compare returns why a payload doesn't fit; no reason if it does.
func (c *skew) compare(ctx context.Context, s *scope.Scope, component payload.Component) (reason, message string, err error) {
	nodes, err := component.NodeVersion()
	if err != nil {
		return "", "", err
	}
	server, err := c.versions.Server(ctx, s, func(_ string, age time.Duration) bool { return age >= recheck })
	if err != nil {
		return "", "", err
	}
	if message := apart(nodes, server); message != "" {
		return v1beta1.VersionSkewReason, message, nil
	}
	stored, err := crd.StoredBeyond(ctx, s, component.CRDs)
	if err != nil || len(stored) == 0 {
		return "", "", err
	}
	return v1beta1.StoredVersionMissingReason, strings.Join(stored, "; "), nil
}

// apart returns why nodes of one version don't fit an API server of another. It ignores the build after the patch
// number.
func apart(nodes, server string) string {
	n, errN := utilversion.ParseGeneric(nodes)
	s, errS := utilversion.ParseGeneric(server)
	if errN != nil || errS != nil {
		return "" // the malformed version is reported elsewhere
	}
	switch {
	case n.Major() != s.Major():
		return fmt.Sprintf("its nodes run Kubernetes %s and the guest's API server %s, which is another major version; choose a payload for that",
			plain(n), plain(s))
	case n.Minor() > s.Minor()+maxAhead:
		return fmt.Sprintf("its nodes run Kubernetes %s, and the guest's API server, now at %s, has to reach %d.%d before; "+
			"upgrade the control plane one minor version at a time, or choose a payload of %d.%d at most",
			plain(n), plain(s), n.Major(), n.Minor()-maxAhead, s.Major(), s.Minor()+maxAhead)
	case n.Minor()+guest.MaxBehind < s.Minor():
		return fmt.Sprintf("its nodes run Kubernetes %s, more than %d minor versions behind the guest's API server at %s; choose a payload of "+
			"%d.%d at least",
			plain(n), guest.MaxBehind, plain(s), s.Major(), s.Minor()-guest.MaxBehind)
	}
	return ""
}

func plain(v *utilversion.Version) string {
	return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
}
