// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// profileSlice is the duration of one CPU profile. 'go tool pprof' adds up the profiles of a phase.
const profileSlice = 5 * time.Second

// profiler writes CPU profiles of the measured processes. A nil profiler writes none.
type profiler struct {
	dir     string
	targets []profileTarget
}

type profileTarget struct {
	process string
	client  *http.Client
	url     string
}

// newProfiler profiles both API servers, Cluster API's core manager and, unless its address is empty, Karpenter.
func newProfiler(dir string, w *world.World, guest, karpenter string) (*profiler, error) {
	p := &profiler{dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder for profiles: %w", err)
	}
	for name, address := range map[string]string{"cluster-api": w.ClusterAPIProfiles(), "karpenter": karpenter} {
		if address != "" {
			p.targets = append(p.targets, profileTarget{name, http.DefaultClient, "http://" + address})
		}
	}
	for _, cluster := range []*controlplane.Cluster{w.Management(), w.Guest(guest)} {
		config, err := benchAccess(cluster)
		if err != nil {
			return nil, err
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("connecting to %s: %w", cluster.Name, err)
		}
		p.targets = append(p.targets, profileTarget{cluster.Name + "-kube-apiserver", client, config.Host})
	}
	return p, nil
}

// during profiles a phase until stop is called. It drops a slice that hasn't ended by then.
func (p *profiler) during(ctx context.Context, phase string) (stop func()) {
	if p == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, target := range p.targets {
		all.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				file := filepath.Join(p.dir, fmt.Sprintf("%s-%s-%02d.pprof", phase, target.process, i))
				if err := target.profile(ctx, file); err != nil {
					if ctx.Err() == nil {
						ctrl.Log.Error(err, "Profiling", "process", target.process)
					}
					return
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

func (t profileTarget) profile(ctx context.Context, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", t.url, int(profileSlice/time.Second)), nil)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	response, err := t.client.Do(request)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("reading a profile: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking for a profile: %s", response.Status)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("writing a profile: %w", err)
	}
	return nil
}
