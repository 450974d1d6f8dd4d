// SPDX-License-Identifier: Apache-2.0

// Package clusterapi installs Cluster API's core, its kubeadm bootstrap provider, and others in the management cluster: the real
// managers, with their real webhooks.
package clusterapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/process"
)

const (
	loopback  = "127.0.0.1"
	stopGrace = 3 * time.Second
)

// Provider is one of Cluster API's managers.
type Provider struct {
	// Name for clusterctl, also the prefix of its webhook configurations.
	Name string
	// Program is its path, Manifests a folder with its crds/ and webhooks.yaml.
	Program   string
	Manifests string
	// Args and Env are beside those that every provider gets: a kubeconfig, and the addresses of its webhooks and its health.
	Args, Env []string
	// Labels of its CRDs that declare which contract each of its versions follows.
	Labels map[string]string
}

// provider is a Provider with what the world chose for it.
type provider struct {
	Provider
	// tunable: it has the flags of Cluster API's own managers. shipped: it runs with the values of those that it ships with. unlimited: it
	// reconciles an object as often as it changes.
	tunable, shipped, unlimited bool

	webhookPort int
	healthPort  int
	profiles    string // address, empty for none
	serving     pki.Pair
	caBundle    []byte
}

// core is the name of Cluster API's own provider, which reconciles Machines.
const core = "cluster-api"

// Config of New.
type Config struct {
	controlplane.Host
	Management *controlplane.Cluster
	// Shipped runs Cluster API as it ships. Otherwise it may ask API servers for more, and serves only the versions of its kinds that are
	// stored.
	Shipped bool
	// Unlimited lets it reconcile an object as often as it changes, too, with as many workers as it ships with.
	Unlimited bool
	// Others are run beside Cluster API's own, as they ship.
	Others []Provider
}

// ClusterAPI is Cluster API in the management cluster.
type ClusterAPI struct {
	cfg       Config
	client    client.Client
	providers []*provider
	crds      []*apiextensionsv1.CustomResourceDefinition
}

// New chooses ports, makes certificates and reads the manifests. Nothing runs yet.
func New(cfg Config) (*ClusterAPI, error) {
	a := &ClusterAPI{cfg: cfg, providers: []*provider{
		{tunable: true, Provider: Provider{
			Name:      core,
			Program:   cfg.Programs.ClusterAPI(),
			Manifests: cfg.Programs.ClusterAPIManifests(),
			Args:      []string{"--remote-connection-grace-period=50s"},
		}},
		{tunable: true, Provider: Provider{
			Name:      "bootstrap-kubeadm",
			Program:   cfg.Programs.KubeadmBootstrap(),
			Manifests: cfg.Programs.KubeadmBootstrapManifests(),
			Labels:    map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"},
		}},
	}}
	for _, other := range cfg.Others {
		a.providers = append(a.providers, &provider{Provider: other})
	}
	for _, p := range a.providers {
		p.shipped, p.unlimited = cfg.Shipped, cfg.Unlimited
		var err error
		if p.webhookPort, err = cfg.Ports.Next(); err != nil {
			return nil, err
		}
		if p.healthPort, err = cfg.Ports.Next(); err != nil {
			return nil, err
		}
		if cfg.Profiles {
			profilePort, err := cfg.Ports.Next()
			if err != nil {
				return nil, err
			}
			p.profiles = loopback + ":" + strconv.Itoa(profilePort)
			p.Args = append(slices.Clone(p.Args), "--profiler-address="+p.profiles)
		}
		if p.serving, err = cfg.Management.CA.Server(p.Name, loopback); err != nil {
			return nil, err
		}
		p.caBundle = cfg.Management.CA.Certificate
		crds, err := p.crds()
		if err != nil {
			return nil, err
		}
		a.crds = append(a.crds, crds...)
	}
	return a, nil
}

// Profiles is the address where Cluster API's core manager serves profiles of itself, empty unless Host.Profiles is set.
func (a *ClusterAPI) Profiles() string { return a.providers[0].profiles }

// InstallCRDs installs the CRDs of Cluster API together with others. The management cluster must be ready.
func (a *ClusterAPI) InstallCRDs(ctx context.Context, others ...*apiextensionsv1.CustomResourceDefinition) error {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("building a scheme: %w", err)
	}
	if err := admissionregistrationv1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("building a scheme: %w", err)
	}
	var err error
	if a.client, err = client.New(a.cfg.Management.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("connecting to %s: %w", a.cfg.Management.Name, err)
	}
	all := slices.Concat(others, a.crds)
	for i, c := range all {
		if _, ok := c.Labels[clusterv1.ProviderNameLabel]; ok { // clusterctl init labels what it installs, and moves objects of these kinds only
			all[i] = c.DeepCopy()
			all[i].Labels[clusterctlv1.ClusterctlLabel] = ""
		}
	}
	return crd.Install(ctx, a.client, all...)
}

// Start starts the managers and returns when they are ready and their webhooks are configured. All CRDs must be there:
// each manager watches kinds of the other.
func (a *ClusterAPI) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range a.providers {
		group.Go(func() error { return a.start(ctx, p) })
	}
	return group.Wait()
}

func (a *ClusterAPI) start(ctx context.Context, p *provider) error {
	dir := filepath.Join(a.cfg.Dir, p.Name)
	kubeconfig, err := a.cfg.Management.Kubeconfig(p.Name, "system:masters")
	if err != nil {
		return err
	}
	if err := controlplane.WriteKeys(dir, map[string][]byte{
		"kubeconfig": kubeconfig, "tls.crt": p.serving.Certificate, "tls.key": p.serving.Key,
	}); err != nil {
		return err
	}
	manager, err := a.cfg.Processes.Start(process.Spec{
		Name:    p.Name,
		Path:    p.Program,
		Env:     append([]string{"KUBECONFIG=" + filepath.Join(dir, "kubeconfig")}, p.Env...),
		Address: p.url(""),
		Grace:   stopGrace,
		Args: append([]string{
			"--webhook-cert-dir=" + dir,
			"--webhook-port=" + strconv.Itoa(p.webhookPort),
			"--health-addr=" + loopback + ":" + strconv.Itoa(p.healthPort),
			"--diagnostics-address=0", "--insecure-diagnostics",
		}, slices.Concat(p.Args, p.tuning())...),
	})
	if err != nil {
		return err
	}
	health := fmt.Sprintf("http://%s:%d/readyz", loopback, p.healthPort)
	if err := manager.Wait(ctx, process.Answers(nil, health)); err != nil {
		return err
	}
	// Last, because until the manager answers they would refuse every object.
	webhooks, err := p.webhooks()
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		if err := a.client.Create(ctx, webhook); err != nil {
			return fmt.Errorf("creating the webhooks of %s: %w", p.Name, err)
		}
	}
	return nil
}

// tuning is what the world sets differently from what the provider ships with.
func (p *provider) tuning() []string {
	if !p.tunable {
		return nil
	}
	// The CRDs are new: there is nothing to migrate.
	flags := []string{"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields"}
	if p.shipped {
		return flags
	}
	flags = append(flags,
		// As it ships: 100 and 200 in the management cluster, 20 and 30 in each guest.
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--clustercache-client-qps=500", "--clustercache-client-burst=1000",
	)
	if p.unlimited {
		// As it ships, it reconciles an object at most once a second; a launch and a removal need two reconciles of a Machine each.
		return append(flags, "--feature-gates=ReconcilerRateLimiting=false")
	}
	if p.Name == core {
		// As it ships: 10. On two cores so many passes at once outrun the cache that each begins with, and conflict with the
		// status that the last one wrote; see docs/internals/upstream/machine-status-conflicts.md.
		flags = append(flags, "--machine-concurrency=4")
	}
	return flags
}

func (p *provider) url(path string) string {
	return fmt.Sprintf("https://%s:%d%s", loopback, p.webhookPort, path)
}

// crds reads the provider's CRDs and adds what its kustomization would. Unless it is as it ships, only the version that is stored is
// served: an API server keeps a watch cache of each that is, and has the manager convert every change of every object for it. Nothing
// here reads the older ones.
func (p *provider) crds() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	crds, err := crd.Read(filepath.Join(p.Manifests, "crds"))
	if err != nil {
		return nil, err
	}
	for _, c := range crds {
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels["cluster.x-k8s.io/provider"] = p.Name
		for key, value := range p.Labels {
			c.Labels[key] = value
		}
		for i := range c.Spec.Versions {
			c.Spec.Versions[i].Served = c.Spec.Versions[i].Storage || p.shipped && c.Spec.Versions[i].Served
		}
		c.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: ptr.To(p.url("/convert")), CABundle: p.caBundle},
				ConversionReviewVersions: []string{"v1"},
			},
		}
	}
	return crds, nil
}

// webhooks reads the provider's webhook configurations and puts its address in place of a Service.
func (p *provider) webhooks() ([]client.Object, error) {
	data, err := os.ReadFile(filepath.Join(p.Manifests, "webhooks.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the webhooks of %s: %w", p.Name, err)
	}
	rewrite := func(c *admissionregistrationv1.WebhookClientConfig) {
		c.URL, c.CABundle, c.Service = ptr.To(p.url(ptr.Deref(c.Service.Path, "/"))), p.caBundle, nil
	}
	scheme := runtime.NewScheme()
	if err := admissionregistrationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building a scheme: %w", err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []client.Object
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the webhooks of %s: %w", p.Name, err)
		}
		decoded, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("reading the webhooks of %s: %w", p.Name, err)
		}
		switch config := decoded.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for i := range config.Webhooks {
				rewrite(&config.Webhooks[i].ClientConfig)
			}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for i := range config.Webhooks {
				rewrite(&config.Webhooks[i].ClientConfig)
			}
		}
		object := decoded.(client.Object)
		object.SetName(p.Name + "-" + object.GetName())
		objects = append(objects, object)
	}
}
