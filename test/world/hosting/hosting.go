// SPDX-License-Identifier: Apache-2.0

// Package hosting stands in for the platform that hosts control planes, such as HyperShift: for each guest it keeps
// the control-plane namespace, the Cluster API Cluster and its control plane object, the Secrets that Cluster API's
// contract requests, and the HostedCluster. It upgrades a guest when its HostedControlPlane requests another version.
package hosting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/autonode-io/autonode/api/v1beta1"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/test/world/controlplane"
	controlplanev1 "github.com/autonode-io/autonode/test/world/infrastructure/api/controlplane/v1beta1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/process"
)

const (
	// Namespace holds the HostedClusters.
	Namespace = "clusters"
	// PullSecret is the name of the Secret that pulls payloads, beside the HostedClusters.
	PullSecret = "pull-secret"

	podRange     = "10.244.0.0/16"
	serviceRange = "10.96.0.0/16"
	// upgradeTimeout is the timeout of one restart of an API server.
	upgradeTimeout = 10 * time.Minute
)

// ControlPlaneNamespace is the control-plane namespace of a guest.
func ControlPlaneNamespace(guest string) string { return Namespace + "-" + guest }

// Config of New.
type Config struct {
	Management *controlplane.Cluster
	Guests     []*controlplane.Cluster
	// Adopted are guests of other platforms, whose objects may arrive here. Until they do, there are none of them.
	Adopted []*controlplane.Cluster
	// SharedNamespace is the namespace of all guests' Clusters and HostedClusters, as users of plain Cluster API have them. Empty: each
	// guest has a control-plane namespace of its own.
	SharedNamespace string
	// SelfApproving guests approve the client certificates of their nodes by themselves; see AdmitNodes.
	SelfApproving bool
	// Infrastructure is that of a guest's Cluster. Default: a KwokCluster, with its machine templates.
	Infrastructure func(namespace string, guest *controlplane.Cluster) Infrastructure
	// Logger gets the controller's logs.
	Logger logr.Logger
}

// Infrastructure of a guest.
type Infrastructure struct {
	// Cluster is what the Cluster's infrastructureRef names. Where it has a status, the platform writes that too: it is what the
	// contract calls externally managed.
	Cluster *unstructured.Unstructured
	// Templates are made after it.
	Templates []client.Object
}

// kwok is the infrastructure of the world's own cloud.
func kwok(namespace string, guest *controlplane.Cluster, prefix string) (Infrastructure, error) {
	cluster := kwokCluster(namespace, guest.Name)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cluster)
	if err != nil {
		return Infrastructure{}, fmt.Errorf("encoding KwokCluster %s: %w", cluster.Name, err)
	}
	infrastructure := Infrastructure{Cluster: &unstructured.Unstructured{Object: content}}
	infrastructure.Cluster.SetGroupVersionKind(infrav1.GroupVersion.WithKind("KwokCluster"))
	unstructured.RemoveNestedField(infrastructure.Cluster.Object, "status")
	for _, template := range machineTemplates(namespace, guest.Name, prefix) {
		infrastructure.Templates = append(infrastructure.Templates, template)
	}
	return infrastructure, nil
}

// namespace is the control-plane namespace of a guest.
func (c *Config) namespace(guest string) string {
	return cmp.Or(c.SharedNamespace, ControlPlaneNamespace(guest))
}

// home is the namespace of the HostedClusters.
func (c *Config) home() string { return cmp.Or(c.SharedNamespace, Namespace) }

// prefix precedes the names of a guest's templates, of which each has its own in a shared namespace.
func (c *Config) prefix(guest string) string {
	if c.SharedNamespace == "" {
		return ""
	}
	return TemplatePrefix(guest)
}

// TemplatePrefix precedes the names of a guest's templates in a shared namespace.
func TemplatePrefix(guest string) string { return guest + "-" }

// Platform is the running stand-in.
type Platform struct {
	management client.Client
	guests     map[string]*controlplane.Cluster // by name
	config     Config
	stop       context.CancelFunc
	stopped    chan error
}

// New returns a Platform that does nothing yet. It opens no connection.
func New(cfg Config) *Platform {
	p := &Platform{config: cfg, guests: map[string]*controlplane.Cluster{}}
	for _, guest := range slices.Concat(cfg.Guests, cfg.Adopted) {
		p.guests[guest.Name] = guest
	}
	return p
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme,
		infrav1.AddToScheme, controlplanev1.AddToScheme, v1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	return scheme, nil
}

// Start creates every guest's objects and starts the controller. The CRDs of Cluster API and of the infrastructure
// provider must be there, and their webhooks must answer. The objects need some more time to become ready: see
// WaitReady.
func (p *Platform) Start(ctx context.Context) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	manager, err := autonodemanager.New(p.config.Management.RESTConfig(), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Logger:  p.config.Logger,
		// Reads of other kinds than the controller's are rare: no cache for them.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{
			&corev1.Secret{}, &corev1.Namespace{}, &clusterv1.Cluster{}, &v1beta1.HostedCluster{},
		}}},
		Cache:      cache.Options{ByObject: map[client.Object]cache.ByObject{&controlplanev1.HostedControlPlane{}: {}}},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return fmt.Errorf("building the hosting platform: %w", err)
	}
	p.management = manager.GetClient()
	if err := (&reconciler{management: p.management, guests: p.guests, namespace: p.config.namespace}).setUp(manager); err != nil {
		return err
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop, p.stopped = stop, make(chan error, 1)
	go func() { p.stopped <- manager.Start(runCtx) }()

	if err := p.ensureNamespace(ctx, p.config.home(), nil); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, guest := range p.config.Guests {
		group.Go(func() error {
			if err := p.host(ctx, guest); err != nil {
				return fmt.Errorf("hosting %s: %w", guest.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Stop stops the controller.
func (p *Platform) Stop() error {
	if p.stop == nil {
		return nil
	}
	p.stop()
	if err := <-p.stopped; err != nil {
		return fmt.Errorf("running the hosting platform: %w", err)
	}
	return nil
}

// host creates the objects of one guest. What the Cluster refers to comes first: Cluster API looks again only after 30
// seconds for what it doesn't find.
func (p *Platform) host(ctx context.Context, guest *controlplane.Cluster) error {
	namespace := p.config.namespace(guest.Name)
	// What runs beside a control plane has no more rights on its node than the strictest standard gives.
	if err := p.ensureNamespace(ctx, namespace, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}); err != nil {
		return err
	}
	var infrastructure Infrastructure
	if p.config.Infrastructure != nil {
		infrastructure = p.config.Infrastructure(namespace, guest)
	} else {
		var err error
		if infrastructure, err = kwok(namespace, guest, p.config.prefix(guest.Name)); err != nil {
			return err
		}
	}
	controlPlane, status := hostedControlPlane(namespace, guest), infrastructure.Cluster.DeepCopy()
	objects := append([]client.Object{controlPlane, infrastructure.Cluster}, infrastructure.Templates...)
	for _, object := range append(objects, kubeadmConfigTemplate(namespace, guest.Name, p.config.prefix(guest.Name), !p.config.SelfApproving)) {
		if err := p.management.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	if written, ok := status.Object["status"]; ok {
		infrastructure.Cluster.Object["status"] = written
		if err := p.management.Status().Update(ctx, infrastructure.Cluster); err != nil {
			return fmt.Errorf("writing the status of %s %s: %w", status.GetKind(), status.GetName(), err)
		}
	}
	secrets, err := clusterSecrets(controlPlane, guest)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if err := p.management.Create(ctx, secret); err != nil {
			return fmt.Errorf("creating Secret %s: %w", secret.Name, err)
		}
	}
	if err := p.management.Create(ctx, capiCluster(namespace, p.config.home(), guest, infrastructure.Cluster)); err != nil {
		return fmt.Errorf("creating Cluster %s: %w", guest.Name, err)
	}
	return nil
}

func (p *Platform) ensureNamespace(ctx context.Context, name string, labels map[string]string) error {
	err := p.management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Namespace %s: %w", name, err)
	}
	return nil
}

// WaitReady returns when Cluster API can make machines for every guest: the infrastructure is provisioned, the
// control plane is initialized, and Cluster API is connected to it.
func (p *Platform) WaitReady(ctx context.Context) error {
	for _, guest := range p.config.Guests {
		key := client.ObjectKey{Namespace: p.config.namespace(guest.Name), Name: guest.Name}
		if err := process.Poll(ctx, "Cluster "+key.String(), nil, nil, func(ctx context.Context) error {
			cluster := &clusterv1.Cluster{}
			if err := p.management.Get(ctx, key, cluster); err != nil {
				return err
			}
			for _, condition := range []string{
				clusterv1.ClusterInfrastructureReadyCondition, clusterv1.ClusterControlPlaneInitializedCondition,
				clusterv1.ClusterRemoteConnectionProbeCondition,
			} {
				if c := meta.FindStatusCondition(cluster.Status.Conditions, condition); c == nil {
					return fmt.Errorf("%s isn't reported", condition)
				} else if c.Status != metav1.ConditionTrue {
					return fmt.Errorf("%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message)
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// CreateHostedClusters creates the pull secret and every guest's HostedCluster, with AutoNode off. The HostedCluster CRD
// must be there.
func (p *Platform) CreateHostedClusters(ctx context.Context, release string, dockerConfig []byte) error {
	if len(p.config.Guests) == 0 {
		return nil
	}
	pullSecret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.config.home(), Name: PullSecret},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: dockerConfig},
	}
	if err := p.management.Create(ctx, pullSecret); err != nil {
		return fmt.Errorf("creating Secret %s/%s: %w", pullSecret.Namespace, PullSecret, err)
	}
	for _, guest := range p.config.Guests {
		hostedCluster := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.config.home(), Name: guest.Name},
			Spec: v1beta1.HostedClusterSpec{
				Release:    v1beta1.Release{Image: release},
				PullSecret: &corev1.LocalObjectReference{Name: PullSecret},
			},
		}
		if p.config.SharedNamespace != "" {
			hostedCluster.Spec.ControlPlaneNamespace = p.config.SharedNamespace
			hostedCluster.Spec.ControlPlaneNamespaceMode = v1beta1.ControlPlaneNamespaceShared
		}
		if err := p.management.Create(ctx, hostedCluster); err != nil {
			return fmt.Errorf("creating HostedCluster %s/%s: %w", hostedCluster.Namespace, guest.Name, err)
		}
	}
	return nil
}

// Upgrade requests another version of a guest's control plane and returns when it runs. It works on a world of another
// process, too: all it needs is access to the management cluster.
func Upgrade(ctx context.Context, management client.Client, guest, version string) error {
	key := client.ObjectKey{Namespace: ControlPlaneNamespace(guest), Name: guest}
	controlPlane := &controlplanev1.HostedControlPlane{}
	if err := management.Get(ctx, key, controlPlane); err != nil {
		return fmt.Errorf("reading HostedControlPlane %s: %w", key, err)
	}
	before := controlPlane.DeepCopy()
	controlPlane.Spec.Version = version
	if err := management.Patch(ctx, controlPlane, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("asking for %s in HostedControlPlane %s: %w", version, key, err)
	}
	generation := controlPlane.Generation
	var refused error
	err := process.Poll(ctx, fmt.Sprintf("%s to run %s", guest, version), nil, nil, func(ctx context.Context) error {
		if err := management.Get(ctx, key, controlPlane); err != nil {
			return err
		}
		available := condition(controlPlane)
		if available.ObservedGeneration >= generation {
			if controlPlane.Status.Version == version && available.Status == metav1.ConditionTrue {
				return nil
			}
			if available.Reason == reasonUnknownVersion {
				refused = fmt.Errorf("upgrading %s: %s", guest, available.Message)
				return nil
			}
		}
		return fmt.Errorf("HostedControlPlane %s: %s runs: %s", key, controlPlane.Status.Version, available.Message)
	})
	return errors.Join(err, refused)
}
