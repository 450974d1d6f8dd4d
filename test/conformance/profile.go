// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/test/profile"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// cpuProfile is the path of a CPU profile of five seconds. 'go tool pprof' adds up the profiles of a phase.
const cpuProfile = "/debug/pprof/profile?seconds=5"

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
func newProfiler(dir string, w *localworld.World, guest, karpenter string) (*profiler, error) {
	p := &profiler{dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder for profiles: %w", err)
	}
	for name, address := range map[string]string{"cluster-api": w.ClusterAPIProfiles(), "karpenter": karpenter} {
		if address != "" {
			p.targets = append(p.targets, profileTarget{name, http.DefaultClient, "http://" + address + cpuProfile})
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
		p.targets = append(p.targets, profileTarget{cluster.Name + "-kube-apiserver", client, config.Host + cpuProfile})
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
				if err := profile.Fetch(ctx, target.client, target.url, file); err != nil {
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
