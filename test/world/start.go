// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/autonode-io/autonode/test/world/clusterapi"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/infrastructure"
	"github.com/autonode-io/autonode/test/world/nodeagent"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
	"github.com/autonode-io/autonode/test/world/registry"
)

// NodeName is the name of the management cluster's node.
const NodeName = "world"

const (
	// crashBackOff is shorter than a kubelet's, because people and tests wait for it.
	crashBackOff    = time.Second
	crashBackOffMax = 5 * time.Minute
	// podGrace is the pods' grace period when the world stops.
	podGrace = 5 * time.Second
	// operatorTimeout is the timeout of the operator's first rollout: it reports nothing about the operator's speed.
	operatorTimeout = 10 * time.Minute
)

// latch is closed when a stage is done.
type latch chan struct{}

// stages start the world's parts, each as soon as what it needs is there.
type stages struct {
	group *errgroup.Group
	task  *progress.Task
}

// run starts a stage after others and returns the latch that it opens. A stage without a name isn't shown.
func (s *stages) run(ctx context.Context, name string, f func(context.Context) error, after ...latch) latch {
	done := make(latch)
	s.group.Go(func() error {
		for _, l := range after {
			select {
			case <-l:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		err := func() error {
			if name == "" {
				return f(ctx)
			}
			return s.task.Run(name, func() error { return f(ctx) })
		}()
		if err == nil {
			close(done)
		}
		return err
	})
	return done
}

func (w *World) start(ctx context.Context, task *progress.Task) error {
	// A process that ends while others wait for it would cost them their timeout.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-w.processes.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	group, groupCtx := errgroup.WithContext(ctx)
	if err := w.plan(groupCtx, &stages{group: group, task: task}); err != nil {
		cancel(err)
	}
	err := group.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// plan has the dependencies of the parts.
func (w *World) plan(ctx context.Context, s *stages) error {
	host := controlplane.Host{Programs: w.programs, Processes: w.processes, Ports: w.ports, Dir: w.dir.clusters(), Profiles: w.cfg.Profiles}
	var built latch
	if w.autonode != nil {
		built = s.run(ctx, "AutoNode's programs", w.autonode.build)
	}
	var etcd *controlplane.Etcd
	etcdReady := s.run(ctx, "etcd", func(ctx context.Context) (err error) {
		etcd, err = controlplane.StartEtcd(ctx, host)
		return err
	})

	newCluster := func(name string) (*controlplane.Cluster, error) {
		cluster, err := controlplane.New(controlplane.Config{
			Host: host, Name: name, Version: programs.KubernetesVersion, Audit: w.audit(name),
			Discoverable: w.cfg.Hypervisor != nil && name != Management,
		})
		if err != nil {
			return nil, err
		}
		kubeconfig, err := cluster.AdminKubeconfig()
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(w.dir.kubeconfig(name), kubeconfig, 0o600); err != nil {
			return nil, fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
		}
		return cluster, nil
	}
	var err error
	if w.management, err = newCluster(Management); err != nil {
		return err
	}
	for _, name := range w.cfg.Guests {
		guest, err := newCluster(name)
		if err != nil {
			return err
		}
		w.guests = append(w.guests, guest)
	}
	startCluster := func(cluster *controlplane.Cluster) latch {
		return s.run(ctx, cluster.Name+" API server", func(ctx context.Context) error {
			if err := cluster.Start(ctx, etcd); err != nil {
				return err
			}
			return cluster.StartControllers()
		}, etcdReady)
	}
	managementReady := startCluster(w.management)
	var guestsReady []latch
	for _, guest := range w.guests {
		guestsReady = append(guestsReady, s.run(ctx, "", func(ctx context.Context) error {
			if err := hosting.AdmitNodes(ctx, guest, w.cfg.WithoutOperator); err != nil || w.cfg.Hypervisor == nil {
				return err
			}
			return hosting.AdmitKubeadm(ctx, guest)
		}, startCluster(guest)))
	}

	if w.cfg.AWS != nil {
		if err := w.startAWS(ctx); err != nil {
			return err
		}
	}
	clusterAPI, err := clusterapi.New(clusterapi.Config{
		Host: host, Management: w.management, Shipped: w.cfg.ClusterAPI == ClusterAPIDefaults, Unlimited: w.cfg.ClusterAPI == ClusterAPIUnlimited,
		Others: w.otherProviders(),
	})
	if err != nil {
		return err
	}
	w.clusterAPI = clusterAPI
	crdsReady := s.run(ctx, "CRDs", func(ctx context.Context) error {
		crds, err := infrastructure.CRDs()
		if err != nil {
			return err
		}
		if w.autonode != nil {
			ours, err := crd.Read(filepath.Join(w.autonode.source, "manifests", "crds"))
			if err != nil {
				return err
			}
			crds = append(crds, ours...)
		}
		return clusterAPI.InstallCRDs(ctx, crds...)
	}, managementReady)
	clusterAPIReady := s.run(ctx, "Cluster API "+programs.ClusterAPIVersion, clusterAPI.Start, crdsReady)

	s.run(ctx, "infrastructure provider", w.startInfrastructure, crdsReady)
	s.run(ctx, "node agent", w.startNodeAgent, managementReady)
	registryReady := s.run(ctx, "registry", w.startRegistry)

	w.hosting = hosting.New(hosting.Config{
		Management: w.management, Guests: w.guests, Adopted: w.cfg.Adopted, SelfApproving: w.cfg.WithoutOperator, Logger: w.logger("hosting"),
		Infrastructure: w.infrastructure(), SharedNamespace: w.cfg.SharedNamespace,
	})
	hosted := s.run(ctx, "", w.hosting.Start, clusterAPIReady)
	s.run(ctx, "guests in Cluster API", w.hosting.WaitReady, append(guestsReady, hosted)...)

	if w.autonode == nil {
		return nil
	}
	published := s.run(ctx, "payloads", func(ctx context.Context) error { return w.autonode.publish(ctx, w.registry) }, built, registryReady)
	s.run(ctx, "HostedClusters", func(ctx context.Context) error {
		return w.hosting.CreateHostedClusters(ctx, w.Release(InitialRelease), w.registry.DockerConfigJSON())
	}, published, hosted)
	if w.cfg.WithoutOperator {
		return nil
	}
	s.run(ctx, "operator", func(ctx context.Context) error {
		if err := w.autonode.install(ctx, w); err != nil {
			return err
		}
		return w.autonode.waitAvailable(ctx, w)
	}, published, crdsReady)
	return nil
}

func (w *World) startInfrastructure(ctx context.Context) error {
	provider, err := infrastructure.Start(ctx, infrastructure.Config{
		Management: w.management.RESTConfig(),
		Logger:     w.logger("infrastructure"),
		Hypervisor: w.cfg.Hypervisor,
	})
	if err != nil {
		return fmt.Errorf("starting the infrastructure provider: %w", err)
	}
	w.addPart(Component{Name: "infrastructure provider", About: "cloud of kwok nodes", Log: w.dir.log("infrastructure")}, provider.Stop)
	return nil
}

func (w *World) startRegistry(ctx context.Context) error {
	// The registry would end with the context of the start.
	r, err := registry.Start(context.WithoutCancel(ctx), w.dir.registry())
	if err != nil {
		return err
	}
	w.registry = r
	w.addPart(Component{Name: "registry", Address: r.Host(), About: "payloads and images"}, r.Close)
	return nil
}

func (w *World) startNodeAgent(ctx context.Context) error {
	agent, err := nodeagent.Start(ctx, nodeagent.Config{
		Management:  w.management.RESTConfig(),
		NodeName:    NodeName,
		Dir:         w.dir.nodeAgent(),
		Ports:       w.ports,
		LogClientCA: w.management.CA.Certificate,
		BackOffBase: crashBackOff,
		BackOffMax:  crashBackOffMax,
		StopGrace:   podGrace,
		Logger:      w.logger("node-agent"),
	})
	if err != nil {
		return fmt.Errorf("starting the node agent: %w", err)
	}
	w.nodeAgent = agent
	w.addPart(Component{Name: "node agent", About: "runs the pods of " + Management, Log: w.dir.log("node-agent")},
		func() error {
			agent.Stop()
			return nil
		})
	return nil
}

// part runs inside the world's own process.
type part struct {
	Component
	stop func() error
}

func (w *World) addPart(component Component, stop func() error) {
	component.PID = os.Getpid()
	w.mu.Lock()
	w.parts = append(w.parts, part{component, stop})
	w.mu.Unlock()
	w.record()
}

// stopParts stops all parts, the last started first.
func (w *World) stopParts() error {
	w.mu.Lock()
	parts, logFiles := slices.Clone(w.parts), slices.Clone(w.logFiles)
	w.mu.Unlock()
	var errs []error
	for _, part := range slices.Backward(parts) {
		if err := part.stop(); err != nil {
			errs = append(errs, fmt.Errorf("stopping the %s: %w", part.Name, err))
		}
	}
	for _, file := range logFiles {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}
