// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// Versions caches the versions of the guests' API servers. A version changes without any object changing, so it can't
// be watched.
type Versions struct {
	clock clock.PassiveClock
	ask   func(ctx context.Context, guest *rest.Config) (string, error)
	known lru.Cache[types.UID, serverVersion] // by the HostedCluster's UID
}

// maxVersion is the maximum length of a reported version, in bytes: it becomes part of messages.
const maxVersion = 128

// serverVersion is an API server's reported version.
type serverVersion struct {
	version string
	asked   time.Time
}

// NewVersions returns an empty cache. A nil clock is the real one, and a nil ask uses discovery.
func NewVersions(clk clock.PassiveClock, ask func(ctx context.Context, guest *rest.Config) (string, error)) *Versions {
	if clk == nil {
		clk = clock.RealClock{}
	}
	if ask == nil {
		ask = discoverVersion
	}
	return &Versions{clock: clk, ask: ask, known: lru.New[types.UID, serverVersion](1 << 14)}
}

// Server returns the version of a guest's API server, without a leading v. It queries the API server again if stale returns
// true for the cached version and its age.
func (v *Versions) Server(ctx context.Context, s *scope.Scope, stale func(known string, age time.Duration) bool) (string, error) {
	uid := s.HostedCluster.UID
	if known, ok := v.known.Get(uid); ok && !stale(known.version, v.clock.Since(known.asked)) {
		return known.version, nil
	}
	answer, err := v.ask(ctx, s.Guest.Config)
	if err != nil {
		return "", fmt.Errorf("asking the guest's API server for its version: %w", message.Error(err))
	}
	if quoted := message.Quote(answer); len(answer) > maxVersion || quoted != answer {
		return "", fmt.Errorf("the guest's API server reports version %s, which isn't one", message.Quoted(answer))
	}
	now := serverVersion{version: strings.TrimPrefix(answer, "v"), asked: v.clock.Now()}
	v.known.Add(uid, now)
	return now.version, nil
}

func discoverVersion(ctx context.Context, config *rest.Config) (string, error) {
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", err
	}
	defer utilnet.CloseIdleConnectionsFor(connection.Transport)
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, connection)
	if err != nil {
		return "", err
	}
	data, err := d.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	info := apiversion.Info{}
	if err := json.Unmarshal(data, &info); err != nil {
		return "", err
	}
	return info.GitVersion, nil
}

// PlainVersion removes the build: v1.36.3+0a1b2c is 1.36.3.
func PlainVersion(v string) string {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	return v
}

// CompareVersions orders plain versions. A malformed version precedes all others.
func CompareVersions(a, b string) int {
	x, errX := utilversion.ParseSemantic(a)
	y, errY := utilversion.ParseSemantic(b)
	switch {
	case errX != nil && errY != nil:
		return strings.Compare(a, b)
	case errX != nil:
		return -1
	case errY != nil:
		return 1
	case x.LessThan(y):
		return -1
	case y.LessThan(x):
		return 1
	}
	return 0
}

// MaxBehind is the number of minor versions by which a kubelet may be behind its API server.
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const MaxBehind = 3

// Unsupported reports whether an API server is too new for nodes of a version. Unknown versions are supported.
func Unsupported(node, server string) bool {
	n, errN := utilversion.ParseSemantic(node)
	s, errS := utilversion.ParseSemantic(server)
	return errN == nil && errS == nil && n.Major() == s.Major() && n.Minor()+MaxBehind < s.Minor()
}
