// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs Kubernetes control planes as local processes: kube-apiserver, kube-controller-manager and
// kube-scheduler for each cluster, and one etcd for all.
package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/programs"
)

const (
	loopback = "127.0.0.1"

	serviceRange = "10.96.0.0/16"
	// serviceIP is the first address of serviceRange: the Service "kubernetes".
	serviceIP = "10.96.0.1"

	// stopGrace is short: an API server stops listening at once, finishes its requests, and then waits up to a minute for
	// watches that won't end.
	stopGrace = 2 * time.Second

	// adminGroup has every permission, without RBAC.
	adminGroup = "system:masters"
)

// Host runs the processes and keeps their files.
type Host struct {
	Programs  programs.Set
	Processes *process.Supervisor
	Ports     *port.Claims
	// Dir has a folder of keys and certificates for each cluster.
	Dir string
	// Profiles lets programs serve profiles of themselves, under /debug/pprof.
	Profiles bool
}

// Config of one cluster.
type Config struct {
	Host
	// Name of the cluster, also that of its context in kubeconfigs.
	Name string
	// Version of the API server, such as v1.36.2.
	Version string
	// Audit configures the API server's audit log; by default there is none.
	Audit Audit
	// Discoverable lets anonymous clients read cluster-info, with which `kubeadm join` begins, and nothing else.
	Discoverable bool
}

// Cluster is a running control plane.
type Cluster struct {
	// Name of the cluster.
	Name string
	// URL of the API server.
	URL string
	// Port of the API server on the loopback address.
	Port int
	// CA has signed the API server's certificate and signs its clients'.
	CA *pki.Authority

	host  Host
	etcd  *Etcd
	dir   string
	admin pki.Pair
	audit Audit
	// discoverable is Config.Discoverable.
	discoverable bool

	mu        sync.Mutex
	version   string
	apiServer *process.Process
	others    []*process.Process
	starts    []Start
}

// Start of an API server: from when its process began until it was ready.
type Start struct{ Begun, Ready time.Time }

// Starts are all starts of the cluster's API server so far.
func (c *Cluster) Starts() []Start {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.starts)
}

// New makes the keys of a cluster and chooses its port. Nothing runs yet.
func New(cfg Config) (*Cluster, error) {
	port, err := cfg.Ports.Next()
	if err != nil {
		return nil, err
	}
	authority, err := pki.NewAuthority(cfg.Name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Name:    cfg.Name,
		URL:     fmt.Sprintf("https://%s:%d", loopback, port),
		Port:    port,
		CA:      authority,
		host:    cfg.Host,
		dir:     filepath.Join(cfg.Dir, cfg.Name),
		version: cfg.Version,
		audit:   cfg.Audit,

		discoverable: cfg.Discoverable,
	}
	if c.admin, err = authority.Client("admin", adminGroup); err != nil {
		return nil, err
	}
	serving, err := authority.Server("kube-apiserver", loopback, serviceIP, "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return nil, err
	}
	kubelet, err := authority.Client("kube-apiserver-kubelet-client", adminGroup)
	if err != nil {
		return nil, err
	}
	signing, err := keyutil.MakeEllipticPrivateKeyPEM() // of service accounts' tokens
	if err != nil {
		return nil, err
	}
	controllerManager, err := c.Kubeconfig("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	scheduler, err := c.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	policy, err := auditPolicy(cfg.Audit)
	if err != nil {
		return nil, err
	}
	if err := WriteKeys(c.dir, map[string][]byte{
		auditPolicyFile: policy, authenticationFile: []byte(authentication),
		"ca.crt": authority.Certificate, "ca.key": authority.Key,
		"apiserver.crt": serving.Certificate, "apiserver.key": serving.Key,
		"kubelet-client.crt": kubelet.Certificate, "kubelet-client.key": kubelet.Key,
		"service-account.key":                signing,
		"kube-controller-manager.kubeconfig": controllerManager,
		"kube-scheduler.kubeconfig":          scheduler,
	}); err != nil {
		return nil, err
	}
	return c, nil
}

// Start starts the API server and returns when it is ready. StartControllers starts the rest.
func (c *Cluster) Start(ctx context.Context, etcd *Etcd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd = etcd
	return c.startAPIServer(ctx, c.version)
}

func (c *Cluster) startAPIServer(ctx context.Context, version string) error {
	begun := time.Now()
	path, err := c.host.Programs.APIServer(version)
	if err != nil {
		return err
	}
	p, err := c.host.Processes.Start(process.Spec{
		Name:    c.Name + "-kube-apiserver",
		Path:    path,
		Address: c.URL,
		Grace:   stopGrace,
		Args: append([]string{
			"--etcd-servers=" + c.etcd.url,
			"--etcd-cafile=" + c.etcd.caFile,
			"--etcd-certfile=" + c.etcd.certFile,
			"--etcd-keyfile=" + c.etcd.keyFile,
			"--etcd-prefix=/" + c.Name,
			"--bind-address=" + loopback,
			"--advertise-address=" + loopback,
			fmt.Sprintf("--secure-port=%d", c.Port),
			"--tls-cert-file=" + c.file("apiserver.crt"),
			"--tls-private-key-file=" + c.file("apiserver.key"),
			"--client-ca-file=" + c.file("ca.crt"),
			"--kubelet-client-certificate=" + c.file("kubelet-client.crt"),
			"--kubelet-client-key=" + c.file("kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--enable-bootstrap-token-auth=true",
			"--authorization-mode=Node,RBAC",
			// The second as on OpenShift: whoever names an owner that can't go before it may say when that goes.
			"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
			"--allow-privileged=true",
			"--service-cluster-ip-range=" + serviceRange,
			"--service-account-issuer=" + c.URL,
			"--service-account-key-file=" + c.file("service-account.key"),
			"--service-account-signing-key-file=" + c.file("service-account.key"),
			// A loopback address isn't allowed in the endpoints of the Service "kubernetes".
			"--endpoint-reconciler-type=none",
			fmt.Sprintf("--profiling=%t", c.host.Profiles),
		}, append(c.auditArgs(), c.anonymousArg())...),
	})
	if err != nil {
		return err
	}
	c.apiServer = p
	probe, err := probeClient(c.CA, c.admin)
	if err != nil {
		return err
	}
	defer probe.CloseIdleConnections()
	if err := p.Wait(ctx, process.Answers(probe, c.URL+"/readyz")); err != nil {
		return err
	}
	c.starts = append(c.starts, Start{Begun: begun, Ready: time.Now()})
	return nil
}

const (
	authenticationFile = "authentication.yaml"
	authentication     = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /api/v1/namespaces/kube-public/configmaps/cluster-info}]
`
)

func (c *Cluster) anonymousArg() string {
	if c.discoverable {
		return "--authentication-config=" + c.file(authenticationFile)
	}
	return "--anonymous-auth=false"
}

// StartControllers starts the controller manager and the scheduler. It doesn't wait: their effects show when they run.
func (c *Cluster) StartControllers() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spec := range []process.Spec{
		{
			Name: c.Name + "-kube-controller-manager",
			Path: c.host.Programs.ControllerManager(),
			Args: []string{
				"--kubeconfig=" + c.file("kube-controller-manager.kubeconfig"),
				// What needs a cloud is off. The bootstrap controllers are off by default, and Cluster API's bootstrap
				// tokens need them.
				"--controllers=*,bootstrap-signer-controller,token-cleaner-controller," +
					"-cloud-node-lifecycle-controller,-node-ipam-controller,-node-route-controller,-service-lb-controller," +
					"-persistentvolume-attach-detach-controller",
				// Each signer watches its files, and Linux limits the watchers of a user: only those of kubelets sign.
				"--cluster-signing-kubelet-client-cert-file=" + c.file("ca.crt"),
				"--cluster-signing-kubelet-client-key-file=" + c.file("ca.key"),
				"--cluster-signing-kubelet-serving-cert-file=" + c.file("ca.crt"),
				"--cluster-signing-kubelet-serving-key-file=" + c.file("ca.key"),
				"--root-ca-file=" + c.file("ca.crt"),
				"--service-account-private-key-file=" + c.file("service-account.key"),
				"--use-service-account-credentials=true",
				// The default throttle would add seconds to the start.
				"--kube-api-qps=500", "--kube-api-burst=1000",
				"--leader-elect=false",
				"--secure-port=0",
			},
		},
		{
			Name: c.Name + "-kube-scheduler",
			Path: c.host.Programs.Scheduler(),
			Args: []string{
				"--kubeconfig=" + c.file("kube-scheduler.kubeconfig"),
				"--kube-api-qps=500", "--kube-api-burst=1000",
				"--leader-elect=false",
				"--secure-port=0",
			},
		},
	} {
		spec.Grace = stopGrace
		p, err := c.host.Processes.Start(spec)
		if err != nil {
			return err
		}
		c.others = append(c.others, p)
	}
	return nil
}

// Version is that of the API server.
func (c *Cluster) Version() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// CanRun returns an error that wraps programs.ErrUnknownVersion if the API server has no build of this version.
func (c *Cluster) CanRun(version string) error {
	_, err := c.host.Programs.APIServer(version)
	return err
}

// Upgrade replaces the API server by one of another version, at the same address, and returns when it is ready.
// After an error the control plane may be down; calling again is safe.
func (c *Cluster) Upgrade(ctx context.Context, version string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == c.version {
		return nil
	}
	if err := c.CanRun(version); err != nil {
		return err
	}
	c.apiServer.Stop()
	if err := c.startAPIServer(ctx, version); err != nil {
		return fmt.Errorf("upgrading %s to %s: %w", c.Name, version, err)
	}
	c.version = version
	return nil
}

// StopAPIServer makes an outage: the API server goes, and etcd and the controllers stay. StartAPIServer ends it.
func (c *Cluster) StopAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiServer.Stop()
}

// StartAPIServer starts the API server that StopAPIServer has stopped, at the same address, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiServer.Stop()
	if err := c.startAPIServer(ctx, c.version); err != nil {
		return fmt.Errorf("starting the API server of %s: %w", c.Name, err)
	}
	return nil
}

// Stop stops the whole control plane.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	process.StopAll(c.others...)
	if c.apiServer != nil {
		c.apiServer.Stop()
	}
}
