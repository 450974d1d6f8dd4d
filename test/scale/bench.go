// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/payload"
	"github.com/autonode-io/autonode/test/profile"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/port"
	"github.com/autonode-io/autonode/test/world/process"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
	"github.com/autonode-io/autonode/test/world/registry"
)

const (
	// operatorUser is the operator in all API servers.
	operatorUser = "autonode-operator"
	// operatorNamespace has its Lease.
	operatorNamespace = "autonode-system"
	leaseName         = "autonode-operator"
	// namespace of the HostedClusters, and the name of their pull secret.
	namespace  = "clusters"
	pullSecret = "pull-secret"
	// release is what the guests run already, so that every node would be up to date.
	release   = "1.36.3"
	loopback  = "127.0.0.1"
	stopGrace = 5 * time.Second
)

// bench is one measurement.
type bench struct {
	cfg       Config
	programs  programs.Set
	processes *process.Supervisor
	printer   *progress.Printer

	ports      *port.Claims
	management *controlplane.Cluster
	guests     []*controlplane.Cluster
	client     client.Client
	registry   *registry.Registry
	image      string
	operator   *process.Process
	pprof      string
	tenants    *tenants
	sick       *sick
	hostile    *hostileGuest // nil for none
	logs       []*auditLog   // the management cluster's first
	settling   [2]*counts

	mu      sync.Mutex
	stopped []func() // in reverse
}

func (b *bench) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.stopped) - 1; i >= 0; i-- {
		b.stopped[i]()
	}
}

func (b *bench) onStop(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = append(b.stopped, f)
}

// start starts everything but the operator.
func (b *bench) start(ctx context.Context) error {
	b.ports = port.New()
	host := controlplane.Host{Programs: b.programs, Processes: b.processes, Ports: b.ports, Dir: filepath.Join(b.cfg.Dir, "clusters")}
	etcd, err := controlplane.StartEtcd(ctx, host)
	if err != nil {
		return err
	}
	newCluster := func(name string) (*controlplane.Cluster, *auditLog, error) {
		log := filepath.Join(b.cfg.Dir, name+"-audit.log")
		cluster, err := controlplane.New(controlplane.Config{
			Host: host, Name: name, Version: programs.KubernetesUpgradedVersion, Audit: controlplane.Audit{Users: []string{operatorUser}, File: log},
		})
		return cluster, newAuditLog(log), err
	}
	var clusters []*controlplane.Cluster
	for i := range b.cfg.APIServers + 1 {
		name := "management"
		if i > 0 {
			name = fmt.Sprintf("guests-%d", i)
		}
		cluster, log, err := newCluster(name)
		if err != nil {
			return err
		}
		clusters = append(clusters, cluster)
		b.logs = append(b.logs, log)
	}
	b.management, b.guests = clusters[0], clusters[1:]
	b.logs[0].aside = isHostile
	if b.cfg.HostileNodes > 0 {
		b.hostile = &hostileGuest{nodes: b.cfg.HostileNodes}
		if b.hostile.cluster, b.hostile.log, err = newCluster(hostileName); err != nil {
			return err
		}
		clusters = append(clusters, b.hostile.cluster)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, cluster := range clusters {
		group.Go(func() error { return cluster.Start(groupCtx, etcd) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, guest := range b.guests {
		if err := shareRollout(ctx, guest); err != nil {
			return err
		}
	}

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("registering kinds: %w", err)
		}
	}
	if b.client, err = client.New(b.management.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("connecting to the management cluster: %w", err)
	}
	definitions, err := crd.Read(b.cfg.Definitions)
	if err != nil {
		return err
	}
	if err := crd.Install(ctx, b.client, append(definitions, platformDefinitions()...)...); err != nil {
		return err
	}
	if err := b.publish(ctx); err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pullSecret}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: b.registry.DockerConfigJSON()},
		},
	} {
		if err := b.client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	if b.sick, err = b.newSick(); err != nil {
		return err
	}
	return b.watch(scheme)
}

// publish pushes a payload, and nothing of what it names.
func (b *bench) publish(ctx context.Context) error {
	var err error
	if b.registry, err = registry.Start(context.WithoutCancel(ctx), filepath.Join(b.cfg.Dir, "registry")); err != nil {
		return err
	}
	b.onStop(func() { _ = b.registry.Close() })
	image, err := payload.Build(payload.Spec{Version: release, Components: []payload.ComponentSpec{{
		Name: "karpenter-clusterapi", Image: b.registry.Host() + "/autonode/karpenter-clusterapi@sha256:" + strings.Repeat("0", 64),
		Versions: map[string]string{payload.KubernetesVersion: release},
	}}})
	if err != nil {
		return fmt.Errorf("building the payload: %w", err)
	}
	b.image, err = b.registry.Push(ctx, "autonode/release:"+release, image)
	return err
}

// platformDefinitions define the kinds of Cluster API and of providers that the operator looks for, without schemas.
func platformDefinitions() []*apiextensionsv1.CustomResourceDefinition {
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, d := range []struct{ group, kind, plural, version string }{
		{"cluster.x-k8s.io", "Cluster", "clusters", "v1beta2"},
		{"cluster.x-k8s.io", "Machine", "machines", "v1beta2"},
		{"cluster.x-k8s.io", "MachineDeployment", "machinedeployments", "v1beta2"},
		{"infrastructure.cluster.x-k8s.io", "KwokMachine", "kwokmachines", "v1beta1"},
		{"infrastructure.cluster.x-k8s.io", "KwokMachineTemplate", "kwokmachinetemplates", "v1beta1"},
		{"bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"},
		{"bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate", "kubeadmconfigtemplates", "v1beta2"},
	} {
		definitions = append(definitions, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: d.plural + "." + d.group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: d.group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{
					Kind: d.kind, ListKind: d.kind + "List", Plural: d.plural, Singular: strings.ToLower(d.kind),
				},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: d.version, Served: true, Storage: true,
					Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
					Schema: &apiextensionsv1.CustomResourceValidation{
						OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
					},
				}},
			},
		})
	}
	return definitions
}

// startOperator returns when the operator holds its Lease and has had a moment to become idle.
func (b *bench) startOperator(ctx context.Context) error {
	kubeconfig, err := b.management.Kubeconfig(operatorUser, "system:masters")
	if err != nil {
		return err
	}
	path := filepath.Join(b.cfg.Dir, "operator.kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing the operator's kubeconfig: %w", err)
	}
	profiles, err := b.ports.Next()
	if err != nil {
		return err
	}
	b.pprof = fmt.Sprintf("%s:%d", loopback, profiles)
	if b.operator, err = b.processes.Start(process.Spec{
		Name: "autonode-operator", Path: b.cfg.Operator, Grace: stopGrace,
		Args: []string{
			"--kubeconfig=" + path, "--leader-election-namespace=" + operatorNamespace, "--lease-name=" + leaseName,
			"--guest-networks=127.0.0.0/8", "--registry-networks=127.0.0.0/8",
			"--metrics-bind-address=0", "--health-probe-bind-address=0", "--pprof-bind-address=" + b.pprof,
		},
	}); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{}
	if err := b.operator.Wait(ctx, func(ctx context.Context) error {
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: leaseName}, lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("it doesn't hold its Lease yet")
		}
		return nil
	}); err != nil {
		return err
	}
	return pause(ctx, 5*time.Second)
}

// profile writes a profile of the operator to a file of that name.
func (b *bench) profile(ctx context.Context, name, query string) error {
	return profile.Fetch(ctx, http.DefaultClient, "http://"+b.pprof+"/debug/pprof/"+name+query, filepath.Join(b.cfg.Dir, name+".pprof"))
}

// count counts what was asked since the last call, of the management cluster's API server and of the guests' together.
func (b *bench) count() (management, guests *counts, err error) {
	guests = newCounts()
	for i, log := range b.logs {
		c, err := log.next()
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			management = c
		} else {
			guests.add(c)
		}
	}
	return management, guests, nil
}
