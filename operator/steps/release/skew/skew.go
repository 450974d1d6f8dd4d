// SPDX-License-Identifier: Apache-2.0

// Package skew reports whether a payload fits its guest cluster: the API server's version, and the stored versions of
// its CRDs.
package skew

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/lru"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/payload"
)

const (
	// MaxAhead is how many minor versions a payload may be ahead of the API server. Nodes are never ahead: they wait for the control
	// plane. But that is upgraded one minor version at a time, so a payload that is further ahead isn't this upgrade's.
	MaxAhead = 1
	// Recheck is the interval between requests for the API server's version, which can't be watched.
	Recheck = 30 * time.Second
)

// Misfit is why a payload can't be used.
type Misfit struct{ Reason, Message string }

// Config is what New needs.
type Config struct {
	// Versions knows the guests' API servers' versions.
	Versions *guest.Versions
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Checker compares payloads with guests.
type Checker struct {
	Config
	// fitted remembers what was found to fit, by the HostedCluster.
	fitted lru.Cache[types.UID, fit]
}

// fit is a payload that fitted the guest at the end of one connection.
type fit struct {
	digest     string
	connection *rest.Config
	at         time.Time
}

// New returns a Checker that remembers nothing.
func New(config Config) *Checker {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Checker{Config: config, fitted: lru.New[types.UID, fit](1 << 14)}
}

// Misfit returns nil for a payload that can be used in s.Guest. It rechecks a fitting payload every Recheck, and any
// other on each call.
func (c *Checker) Misfit(ctx context.Context, s *scope.Scope, release *payload.Release, component payload.Component) (*Misfit, error) {
	uid, now := s.HostedCluster.UID, c.Clock.Now()
	before, _ := c.fitted.Get(uid)
	fits := before.digest == release.Digest && before.connection == s.Guest.Config
	if fits && now.Sub(before.at) < Recheck {
		return nil, nil
	}
	misfit, err := c.compare(ctx, s, component)
	switch {
	case err != nil && fits:
		return nil, nil // what can't be asked is no news
	case err != nil:
		return nil, err
	case misfit != nil:
		misfit.Message = fmt.Sprintf("payload %s: %s", release.Version, misfit.Message)
		c.fitted.Remove(uid)
		return misfit, nil
	}
	c.fitted.Add(uid, fit{digest: release.Digest, connection: s.Guest.Config, at: now})
	return nil, nil
}

func (c *Checker) compare(ctx context.Context, s *scope.Scope, component payload.Component) (*Misfit, error) {
	nodes, err := component.NodeVersion()
	if err != nil {
		return nil, err
	}
	server, err := c.Versions.Server(ctx, s, func(_ string, age time.Duration) bool { return age >= Recheck })
	if err != nil {
		return nil, err
	}
	if message := apart(nodes, server); message != "" {
		return &Misfit{Reason: v1beta1.VersionSkewReason, Message: message}, nil
	}
	stored, err := crd.StoredBeyond(ctx, s, component.CRDs)
	if err != nil {
		return nil, err
	}
	if len(stored) > 0 {
		return &Misfit{Reason: v1beta1.StoredVersionMissingReason, Message: strings.Join(stored, "; ")}, nil
	}
	return nil, nil
}

// apart returns why nodes of one version don't fit an API server of another. It ignores the build after the patch
// number.
func apart(nodes, server string) string {
	n, errN := version.ParseGeneric(nodes)
	s, errS := version.ParseGeneric(server)
	if errN != nil || errS != nil {
		return "" // the malformed version is reported elsewhere
	}
	switch {
	case n.Major() != s.Major():
		return fmt.Sprintf("its nodes run Kubernetes %s and the guest's API server %s, which is another major version; choose a payload for that", plain(n), plain(s))
	case n.Minor() > s.Minor()+MaxAhead:
		return fmt.Sprintf("its nodes run Kubernetes %s, and the guest's API server, now at %s, has to reach %d.%d before; "+
			"upgrade the control plane one minor version at a time, or choose a payload of %d.%d at most",
			plain(n), plain(s), n.Major(), n.Minor()-MaxAhead, s.Major(), s.Minor()+MaxAhead)
	case n.Minor()+guest.MaxBehind < s.Minor():
		return fmt.Sprintf("its nodes run Kubernetes %s, more than %d minor versions behind the guest's API server at %s; choose a payload of %d.%d at least",
			plain(n), guest.MaxBehind, plain(s), s.Major(), s.Minor()-guest.MaxBehind)
	}
	return ""
}

func plain(v *version.Version) string {
	return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch())
}
