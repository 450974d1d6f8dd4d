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

// The paths of a CPU profile of five seconds, which 'go tool pprof' adds up over a phase, and of one of the heap after a garbage collection.
const (
	cpuProfile  = "/debug/pprof/profile?seconds=5"
	heapProfile = "/debug/pprof/heap?gc=1"
)

// profiler writes profiles of the measured processes. A nil profiler writes none.
type profiler struct {
	dir     string
	targets []profileTarget
}

type profileTarget struct {
	process string
	client  *http.Client
	server  string
}

// newProfiler profiles both API servers, Cluster API's core manager and, unless its address is empty, Karpenter.
func newProfiler(dir string, w *localworld.World, guest, karpenter string) (*profiler, error) {
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

// during writes CPU profiles of a phase until stop is called, and then one of each heap. It drops a slice that hasn't ended by then.
func (p *profiler) during(ctx context.Context, phase string) (stop func()) {
	if p == nil {
		return func() {}
	}
	slicing, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, target := range p.targets {
		all.Go(func() {
			for i := 1; slicing.Err() == nil; i++ {
				if !p.write(slicing, target, cpuProfile, fmt.Sprintf("%s-%s-%02d", phase, target.process, i)) {
					return
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
		for _, target := range p.targets {
			p.write(ctx, target, heapProfile, fmt.Sprintf("%s-%s-heap", phase, target.process))
		}
	}
}

// write reports whether it wrote the profile. It logs why not, unless the context has ended.
func (p *profiler) write(ctx context.Context, target profileTarget, path, name string) bool {
	err := profile.Fetch(ctx, target.client, target.server+path, filepath.Join(p.dir, name+".pprof"))
	if err != nil && ctx.Err() == nil {
		ctrl.Log.Error(err, "Profiling", "process", target.process)
	}
	return err == nil
}
