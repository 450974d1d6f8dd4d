// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/operator/scope"
)

// serverVersion is what an API server said about itself.
type serverVersion struct {
	version string
	asked   time.Time
}

// serverVersion returns the guest API server's version. An API server isn't downgraded, so it is asked again only while it is
// older than what the nodes are to run, and at most every recheck, unless Karpenter has noticed an upgrade: it never gives nodes a
// version (newest) that exceeds the API server's.
func (st *Status) serverVersion(ctx context.Context, s *scope.Scope, desired, newest string) (string, error) {
	uid := s.HostedCluster.UID
	if entry, ok := st.versions.Get(uid); ok {
		known, ok := entry.(serverVersion)
		if ok && (compare(known.version, desired) >= 0 || st.Clock.Since(known.asked) < recheck && compare(newest, known.version) <= 0) {
			return known.version, nil
		}
	}
	v, err := st.ServerVersion(ctx, s.Guest.Config)
	if err != nil {
		return "", fmt.Errorf("asking the guest's API server for its version: %w", err)
	}
	st.versions.Add(uid, serverVersion{version: plain(v), asked: st.Clock.Now()})
	return plain(v), nil
}

func discoverVersion(ctx context.Context, config *rest.Config) (string, error) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", err
	}
	data, err := d.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	info := apimachineryversion.Info{}
	if err := json.Unmarshal(data, &info); err != nil {
		return "", err
	}
	return info.GitVersion, nil
}
