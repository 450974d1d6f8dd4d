// SPDX-License-Identifier: Apache-2.0

// Package world runs a whole platform on one machine: real control planes for a management cluster and its guests, real
// Cluster API, a cloud of kwok nodes, a registry with real payloads, a node agent that runs the management cluster's
// pods, and AutoNode's operator. The demo and the end-to-end tests share it.
package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/clusterapi"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/ec2"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/infrastructure"
	"github.com/autonode-io/autonode/test/world/nodeagent"
	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
	"github.com/autonode-io/autonode/test/world/registry"
	"github.com/autonode-io/autonode/test/world/room"
)

// Management is the name of the management cluster, of its context and of its kubeconfig.
const Management = "management"

// DefaultGuest is the guest of a world that names none.
const DefaultGuest = "blue"

// How Cluster API runs.
const (
	// ClusterAPITuned may ask API servers for much more than Cluster API does as it ships.
	ClusterAPITuned = "tuned"
	// ClusterAPIUnlimited also reconciles objects as often as they change, not at most once a second.
	ClusterAPIUnlimited = "unlimited"
	// ClusterAPIDefaults is Cluster API as it ships.
	ClusterAPIDefaults = "defaults"
)

// CheckClusterAPI returns an error that names the ways if this isn't one.
func CheckClusterAPI(way string) error {
	ways := []string{ClusterAPITuned, ClusterAPIUnlimited, ClusterAPIDefaults}
	if !slices.Contains(ways, way) {
		return fmt.Errorf("%q is no way to run Cluster API; there are %s", way, strings.Join(ways, ", "))
	}
	return nil
}

// What machines are made on, by Cluster API.
const (
	// InfrastructureKwok is the world's own infrastructure provider.
	InfrastructureKwok = "kwok"
	// InfrastructureAWS is Cluster API Provider AWS, in the region of Config.AWS.
	InfrastructureAWS = "aws"
)

// Config of Start.
type Config struct {
	// Dir is the world's folder. What an earlier world left there is replaced.
	Dir string
	// Guests are the names of the guest clusters. Default: DefaultGuest, or none with Adopted.
	Guests []string
	// Adopted are guests of another world whose objects may be moved to this one. Their control planes run on in that other world, which has to
	// end after this one.
	Adopted []*controlplane.Cluster
	// SharedNamespace is the control-plane namespace of all guests, and of their HostedClusters; the operator still needs rights there. Empty:
	// each guest has one of its own, and HostedClusters are in hosting.Namespace.
	SharedNamespace string
	// WithoutOperator doesn't run the operator, and so no Karpenter, so that others can be tried. The HostedClusters and
	// the payloads are there nevertheless, unless there is no source to make them from.
	WithoutOperator bool
	// WithoutAutoNode is a management cluster on which AutoNode has never been: it has neither the operator nor CRDs, HostedClusters or payloads
	// of it, and needs no source. Whoever installs AutoNode does so as on any management cluster, with images from Registry. Guests approve no
	// certificates by themselves, and their Clusters consent to HostedClusters of their names in the namespace of hosting.Namespace.
	WithoutAutoNode bool
	// NextMinor lets guests be upgraded to NextMinorKubernetes, for which there is a payload then. The first such world on a machine builds that
	// version's API server; the controller manager and the scheduler stay as they are.
	NextMinor bool
	// Audit lets the API servers write down what AutoNode's ServiceAccounts ask them for; see World.AuditLog.
	Audit bool
	// AuditAllBut lets them instead record all requests but those of these users: those who measure.
	AuditAllBut []string
	// Profiles lets API servers and Cluster API serve profiles of themselves; see World.ClusterAPIProfiles.
	Profiles bool
	// ClusterAPI is ClusterAPITuned, ClusterAPIUnlimited or ClusterAPIDefaults. Default: ClusterAPITuned.
	ClusterAPI string
	// AWS is a region of the world's own, with the EC2 API on loopback; see World.EC2. Nil: there is none, but ec2.Sample with
	// InfrastructureAWS.
	AWS *ec2.Config
	// Infrastructure is InfrastructureKwok or InfrastructureAWS. Default: InfrastructureKwok.
	Infrastructure string
	// Source is the folder of AutoNode's source, which its programs are built from. Default: $AUTONODE_SOURCE, else the
	// source tree that the working directory is in.
	Source string
	// Progress reports what is being waited for; nil reports nothing.
	Progress *progress.Printer
	// Hypervisor runs the cloud's machines for real, and guests then have what `kubeadm join` reads. Default: machines are kwok nodes.
	Hypervisor infrastructure.RealMachines
}

// World is a running world.
type World struct {
	cfg        Config
	dir        layout
	programs   programs.Set
	processes  *process.Supervisor
	ports      *port.Claims
	unlock     func()
	management *controlplane.Cluster
	guests     []*controlplane.Cluster
	hosting    *hosting.Platform
	clusterAPI *clusterapi.ClusterAPI

	// awsPrograms are there with InfrastructureAWS, ec2 with Config.AWS.
	awsPrograms programs.AWS
	ec2         *ec2.Server

	nodeAgent *nodeagent.Agent
	registry  *registry.Registry
	// autonode is nil when there is no source to make it from.
	autonode *autonode

	mu    sync.Mutex
	state State
	// parts run inside the world's own process, and logFiles are open until all have stopped.
	parts    []part
	logFiles []*os.File
	// operatorLogs are of those that StartOperator started.
	operatorLogs []string

	stopping sync.Once
	stopErr  error
}

// apiServerSuffix ends the names of the processes that serve a Kubernetes API.
const apiServerSuffix = "-kube-apiserver"

var guestName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,29}[a-z0-9])?$`)

func (c *Config) complete(ctx context.Context) error {
	if c.Progress == nil {
		c.Progress = progress.New(nil)
	}
	if len(c.Guests) == 0 && len(c.Adopted) == 0 {
		c.Guests = []string{DefaultGuest}
	}
	c.Guests = slices.Clone(c.Guests)
	seen := map[string]bool{Management: true}
	for _, adopted := range c.Adopted {
		seen[adopted.Name] = true
	}
	for _, name := range c.Guests {
		if !guestName.MatchString(name) {
			return fmt.Errorf("guest %q: a name is at most 31 lower case letters, digits and dashes, and begins with a letter", name)
		}
		if seen[name] {
			return fmt.Errorf("guest %q: the name is taken", name)
		}
		seen[name] = true
	}
	c.ClusterAPI = cmp.Or(c.ClusterAPI, ClusterAPITuned)
	if err := CheckClusterAPI(c.ClusterAPI); err != nil {
		return err
	}
	c.Infrastructure = cmp.Or(c.Infrastructure, InfrastructureKwok)
	switch {
	case c.Infrastructure != InfrastructureKwok && c.Infrastructure != InfrastructureAWS:
		return fmt.Errorf("%q is no infrastructure; %s and %s are", c.Infrastructure, InfrastructureKwok, InfrastructureAWS)
	case c.Infrastructure == InfrastructureAWS && c.AWS == nil:
		region := ec2.Sample("v"+InitialRelease, "v"+UpgradedRelease)
		c.AWS = &region
	}
	if c.Dir == "" {
		return errors.New("a world needs a folder")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("finding the world's folder: %w", err)
	}
	c.Dir = dir
	if c.WithoutAutoNode {
		c.Source = ""
		return nil
	}
	if c.Source, err = findSource(ctx, c.Source); err != nil && !(c.WithoutOperator && errors.Is(err, errNoSource)) {
		return err
	}
	return nil
}

// Start builds what isn't built yet, starts a world and returns when it is ready. ctx bounds the start only; Stop must be
// called. When Start returns an error, nothing runs any more.
func Start(ctx context.Context, cfg Config) (*World, error) {
	if err := cfg.complete(ctx); err != nil {
		return nil, err
	}
	if err := room.Check(1 + len(cfg.Guests)); err != nil {
		return nil, err
	}
	w := &World{cfg: cfg, dir: layout(cfg.Dir), ports: port.New()}
	var err error
	if w.unlock, err = w.dir.prepare(); err != nil {
		return nil, err
	}
	if w.programs, err = programs.Ensure(ctx, programs.Options{Progress: cfg.Progress}); err != nil {
		w.unlock()
		return nil, err
	}
	if cfg.NextMinor {
		if w.programs, err = w.programs.WithNextMinor(ctx, programs.Options{Progress: cfg.Progress}); err != nil {
			w.unlock()
			return nil, err
		}
	}
	if cfg.Infrastructure == InfrastructureAWS {
		if w.awsPrograms, err = programs.EnsureAWS(ctx, programs.Options{Progress: cfg.Progress}); err != nil {
			w.unlock()
			return nil, err
		}
	}
	if cfg.Source != "" {
		w.autonode = &autonode{source: cfg.Source, versions: []string{InitialRelease, UpgradedRelease}}
		if cfg.NextMinor {
			w.autonode.versions = append(w.autonode.versions, NextMinorRelease)
		}
	}
	w.state = newState(cfg)
	if w.processes, err = process.NewSupervisor(w.dir.logs(), w.record); err != nil {
		w.unlock()
		return nil, err
	}
	task := cfg.Progress.Task("Starting the world: "+strings.Join(append([]string{Management}, cfg.Guests...), ", "), "")
	if err := w.start(ctx, task); err != nil {
		task.Fail()
		return nil, errors.Join(err, w.Stop())
	}
	w.setPhase(PhaseReady)
	task.End("ready in " + progress.Duration(task.Elapsed()))
	return w, nil
}

// Stop stops everything and returns when nothing of the world runs any more. The logs stay.
func (w *World) Stop() error {
	w.stopping.Do(func() {
		w.setPhase(PhaseStopping)
		// From the outside in: whoever talks to an API server goes before it.
		var errs []error
		if w.hosting != nil {
			errs = append(errs, w.hosting.Stop())
		}
		errs = append(errs, w.stopParts())
		var etcd, servers, clients []*process.Process
		for _, p := range w.processes.List() {
			switch {
			case p.Name == "etcd":
				etcd = append(etcd, p)
			case strings.HasSuffix(p.Name, apiServerSuffix):
				servers = append(servers, p)
			default:
				clients = append(clients, p)
			}
		}
		for _, group := range [][]*process.Process{clients, servers, etcd} {
			process.StopAll(group...)
		}
		w.processes.Stop()
		if w.autonode != nil {
			w.autonode.release()
		}
		w.ports.Close()
		errs = append(errs, w.dir.clean())
		w.unlock()
		w.stopErr = errors.Join(errs...)
	})
	return w.stopErr
}

// Failed delivers the first process that ended by itself.
func (w *World) Failed() <-chan error { return w.processes.Failed() }

// Dir is the world's folder.
func (w *World) Dir() string { return w.cfg.Dir }

// LogDir is the folder of the logs.
func (w *World) LogDir() string { return w.dir.logs() }

// AuditLog is the file with the requests of AutoNode's ServiceAccounts to a cluster, if Config.Audit: of the operator
// and Karpenter in Management, of Karpenter in a guest. With Config.AuditAllBut it has the requests of all other users.
func (w *World) AuditLog(cluster string) string { return w.dir.auditLog(cluster) }

// PodLogDir is the folder of the logs of the management cluster's pods while the world runs: a folder for each pod, with one for each container.
func (w *World) PodLogDir() string { return w.dir.podLogs() }

// OperatorLogs are the logs of the operators that StartOperator started, each once.
func (w *World) OperatorLogs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.operatorLogs)
}

// Kubectl is the path of a kubectl of the world's version.
func (w *World) Kubectl() string { return w.programs.Kubectl() }

// Management is the management cluster.
func (w *World) Management() *controlplane.Cluster { return w.management }

// ClusterAPIProfiles is the address where Cluster API's core manager serves profiles of itself, if Config.Profiles.
func (w *World) ClusterAPIProfiles() string { return w.clusterAPI.Profiles() }

// Guests are the world's own guest clusters.
func (w *World) Guests() []*controlplane.Cluster { return slices.Clone(w.guests) }

// Adopted are guests of another world whose objects may be moved to this one.
func (w *World) Adopted() []*controlplane.Cluster { return slices.Clone(w.cfg.Adopted) }

// EC2 is the API of the world's region of AWS, nil without Config.AWS.
func (w *World) EC2() *ec2.Server { return w.ec2 }

// Agent runs the management cluster's pods.
func (w *World) Agent() *nodeagent.Agent { return w.nodeAgent }

// Registry holds images and payloads.
func (w *World) Registry() *registry.Registry { return w.registry }

// Release is the reference of a payload by digest, such as that of InitialRelease; empty if the world has none.
func (w *World) Release(version string) string {
	if w.autonode == nil {
		return ""
	}
	return w.autonode.releases[version]
}

// ComponentImage is the image of Karpenter, by digest, that a payload names.
func (w *World) ComponentImage(version string) string {
	if w.autonode == nil {
		return ""
	}
	return w.autonode.karpenterImages[version]
}

// DefaultImage is the image of Karpenter, by digest, of the operator's default release.
func (w *World) DefaultImage() string {
	if w.autonode == nil {
		return ""
	}
	return w.autonode.defaultImage
}

// Guest returns a guest cluster, or nil if there is none of that name. It may be an adopted one.
func (w *World) Guest(name string) *controlplane.Cluster {
	for _, guest := range slices.Concat(w.guests, w.cfg.Adopted) {
		if guest.Name == name {
			return guest
		}
	}
	return nil
}

// Kubeconfig is the path of an administrator's kubeconfig for a cluster: Management or a guest.
func (w *World) Kubeconfig(cluster string) string { return w.dir.kubeconfig(cluster) }

// UpgradeControlPlane replaces a guest's API server by one of another version, by asking the hosting platform for it,
// and returns when it runs and the HostedControlPlane reports it.
func (w *World) UpgradeControlPlane(ctx context.Context, guest, version string) error {
	return UpgradeControlPlane(ctx, w.management.RESTConfig(), guest, version)
}

// UpgradeControlPlane is World.UpgradeControlPlane for a world in another process.
func UpgradeControlPlane(ctx context.Context, management *rest.Config, guest, version string) error {
	client, err := hosting.NewClient(management)
	if err != nil {
		return err
	}
	return hosting.Upgrade(ctx, client, guest, version)
}
