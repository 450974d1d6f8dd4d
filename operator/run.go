// SPDX-License-Identifier: Apache-2.0

// Package operator runs Karpenter for hosted clusters: one process for all of them.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	fleet "github.com/autonode-io/autonode/fleet/operator"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/controllers/csr"
	"github.com/autonode-io/autonode/operator/controllers/hostedcluster"
	"github.com/autonode-io/autonode/operator/controllers/instancetypecatalog"
	"github.com/autonode-io/autonode/operator/controllers/machines"
	"github.com/autonode-io/autonode/operator/controllers/shard"
	operatorundecodable "github.com/autonode-io/autonode/operator/controllers/undecodable"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/metrics"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
	"github.com/autonode-io/autonode/operator/steps/nodeupgrade"
	"github.com/autonode-io/autonode/operator/steps/policy"
	"github.com/autonode-io/autonode/operator/steps/references"
	"github.com/autonode-io/autonode/operator/steps/release"
	"github.com/autonode-io/autonode/operator/steps/release/pullsecret"
	"github.com/autonode-io/autonode/operator/steps/sleep"
	"github.com/autonode-io/autonode/operator/steps/status"
	"github.com/autonode-io/autonode/operator/steps/teardown"
	"github.com/autonode-io/autonode/payload"
)

// Defaults of the Lease, which are controller-runtime's.
const (
	DefaultLeaseDuration = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetryPeriod   = 2 * time.Second
)

// Options are the settings of the command line. Zero values are the defaults, but an empty address serves nothing.
type Options struct {
	// MetricsAddress and ProbeAddress are addresses to listen on, such as ":8080"; "0" and "" serve nothing.
	MetricsAddress, ProbeAddress string
	// PprofAddress serves profiles of the operator without authentication; "0" and "" serve nothing.
	PprofAddress string
	// LeaderElection lets one of several replicas work, by a Lease in LeaderElectionNamespace.
	LeaderElection          bool
	LeaderElectionNamespace string
	// LeaseDuration is how long other replicas wait for a leader that no longer renews the Lease, RenewDeadline how long a leader goes on that
	// can't renew it, RetryPeriod the time between its attempts. Zero is DefaultLeaseDuration, DefaultRenewDeadline and DefaultRetryPeriod.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// LeaseName is the name of that Lease; empty is one that depends on HostedClusterSelector, so that operators in one namespace are
	// elected for each selector.
	LeaseName string
	// HostedClusterSelector is a label selector of this operator's HostedClusters; empty selects all. It doesn't see
	// any others.
	HostedClusterSelector string
	// GuestTokenLifetime is how long a token of Karpenter's for its guest cluster is valid.
	GuestTokenLifetime time.Duration
	// DrainTimeout is how long nodes may drain where the HostedCluster doesn't say it.
	DrainTimeout time.Duration
	// Workers is how many HostedClusters are reconciled at a time; zero is hostedcluster.Workers.
	Workers int
	// GuestTimeout is how long a call to a guest may take; zero is guest.DefaultTimeout.
	GuestTimeout time.Duration
	// GuestNetworks are the networks, beside public ones, that guests' API servers may be in, comma-separated; empty for none. The
	// management cluster's API server is no guest unless its address is listed as a network of one, such as 10.96.0.1/32.
	GuestNetworks string
	// GuestBudget bounds the bytes that each guest may send; zero is egress.Budget's default.
	GuestBudget egress.Budget
	// GuestBounds limit the objects that are kept of each guest; zero is store.Bounds' default.
	GuestBounds store.Bounds
	// TemplateGroups are the API groups that templates of machines and of their bootstrap may be of, comma-separated; empty is
	// clusterapi.DefaultGroups.
	TemplateGroups string
	// RegistryNetworks are the networks, beside public ones, that registries may be in, with their mirrors, token servers and redirects;
	// comma-separated, empty for none.
	RegistryNetworks string
	// RegistryCAFile has PEM certificates of authorities that registries are trusted by beside the system's; empty for none.
	RegistryCAFile string
	// Karpenter is the platform's settings for every Karpenter.
	Karpenter component.Settings
	// Infrastructure are the profiles of infrastructure kinds, as ReadProfiles returns them; nil is the built-in ones.
	Infrastructure infrastructure.Kinds
	// KarpenterImage is Karpenter's image in the default release, by digest, and Version the operator's; an empty image is no default release.
	KarpenterImage, Version string
	// PayloadSignatures is the policy for signatures of payloads: SignaturesOff, SignaturesWarn or SignaturesEnforce; empty is off.
	PayloadSignatures string
	// PayloadKeysFile holds the PEM public keys that sign payloads.
	PayloadKeysFile string
	// PayloadIdentitiesFile is a YAML list of identities that sign payloads keyless; it needs PayloadTrustedRootFile.
	PayloadIdentitiesFile string
	// PayloadTrustedRootFile is the Sigstore trusted root, in JSON, for PayloadIdentitiesFile.
	PayloadTrustedRootFile string
	// GuestConnectRetry is how long to wait after a guest couldn't be reached.
	GuestConnectRetry time.Duration

	// SkipNameValidation lets several operators run in one process, as tests do.
	SkipNameValidation bool
	// MetricsRegistry is where the metrics of hosted clusters are registered; nil is controller-runtime's. Several operators in one
	// process need one each.
	MetricsRegistry prometheus.Registerer
}

const (
	// minTokenLifetime is the TokenRequest API's minimum.
	minTokenLifetime = 10 * time.Minute
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=autonode-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=autonode-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=list;watch

// Run runs the operator in the management cluster until ctx ends.
func Run(ctx context.Context, config *rest.Config, options Options) error {
	if err := options.Validate(); err != nil {
		return err
	}
	sharding, err := parseShard(options)
	if err != nil {
		return err
	}
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = v1beta1.ManagedByOperator
	config.QPS = -1 // the number of workers limits concurrent requests, and the API server's priority and fairness their rate

	if options.Infrastructure == nil {
		if options.Infrastructure, _, err = ReadProfiles(""); err != nil {
			return err
		}
	}
	reporter := operatorundecodable.New(scheme)
	reporter.Objects.Wrap(config)
	mgr, err := autonodemanager.New(config, manager.Options{
		Scheme:                        scheme,
		Cache:                         managementCache(sharding.selector, options.Infrastructure),
		Metrics:                       metricsserver.Options{BindAddress: orNone(options.MetricsAddress)},
		HealthProbeBindAddress:        orNone(options.ProbeAddress),
		PprofBindAddress:              orNone(options.PprofAddress),
		LeaderElection:                options.LeaderElection,
		LeaderElectionID:              sharding.lease.Name,
		LeaderElectionNamespace:       options.LeaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true, // the process ends with ctx
		LeaseDuration:                 &sharding.election.LeaseDuration,
		RenewDeadline:                 &sharding.election.RenewDeadline,
		RetryPeriod:                   &sharding.election.RetryPeriod,
		Controller:                    ctrlconfig.Controller{SkipNameValidation: ptr.To(options.SkipNameValidation)},
	})
	if err != nil {
		return fmt.Errorf("creating the manager: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("adding health checks: %w", err)
	}
	if err := controllers(ctx, mgr, options, sharding, reporter); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the manager: %w", err)
	}
	return nil
}

// extensions are features that some platforms don't need: each goes with its line and its folder.
var extensions = []func(manager.Manager, labels.Selector, events.EventRecorder, prometheus.Registerer) error{
	fleet.Extend,
}

// controllers adds everything that reconciles to the manager: one controller, whose steps do one job each, the connections to
// the guests, which the guest step brings, one controller for the certificate requests of all guests, one for catalogs, and those of
// extensions. Beside them, metrics only read.
func controllers(ctx context.Context, mgr manager.Manager, options Options, sharding shardOptions, reporter *operatorundecodable.Reporter,
) error {
	management, live := mgr.GetClient(), mgr.GetAPIReader()
	recorder := message.Recorder(mgr.GetEventRecorder(v1beta1.ManagedByOperator), clock.RealClock{})
	applier := apply.New()

	pullSecrets, err := pullsecret.New(ctx, mgr)
	if err != nil {
		return err
	}
	guestAddresses, err := egress.NewPolicy(options.GuestNetworks)
	if err != nil {
		return fmt.Errorf("networks of guests: %w", err)
	}
	if err := guestAddresses.Deny(ctx, mgr.GetConfig().Host); err != nil {
		return fmt.Errorf("finding the management cluster's own address: %w", err)
	}
	profiles := provider.NewProfiles(clusterapi.New(cmp.Or(options.TemplateGroups, clusterapi.DefaultGroups)), aws.New())
	requests := csr.New(csr.Config{
		Management: management, Live: live, Recorder: recorder, Profiles: profiles, Infrastructure: options.Infrastructure,
	})
	connections, err := guest.New(ctx, guest.Config{
		Manager: mgr, ConnectRetry: options.GuestConnectRetry, Timeout: options.GuestTimeout, Watches: []watch.Kind{requests.Watch()},
		Holder: shard.Identity(sharding.holder), Egress: guestAddresses, Budget: options.GuestBudget, Bounds: options.GuestBounds,
	})
	if err != nil {
		return err
	}
	if err := requests.SetUp(ctx, mgr, connections); err != nil {
		return err
	}
	if err := machines.New(machines.Config{
		Management: management, HostedClusters: connections.HostedClusters, Recorder: recorder,
	}).SetUp(mgr); err != nil {
		return err
	}
	if err := reporter.SetUp(mgr, operatorundecodable.Config{
		HostedClusters: connections.HostedClusters, Recorder: recorder, Registry: options.MetricsRegistry,
	}); err != nil {
		return err
	}
	registryAddresses, err := egress.NewPolicy(options.RegistryNetworks)
	if err != nil {
		return fmt.Errorf("networks of registries: %w", err)
	}
	if err := registryAddresses.Deny(ctx, mgr.GetConfig().Host); err != nil {
		return fmt.Errorf("finding the management cluster's own address: %w", err)
	}
	registries, err := release.NewTransport(options.RegistryCAFile, registryAddresses)
	if err != nil {
		return err
	}
	if err := instancetypecatalog.New(instancetypecatalog.Config{
		Management: management, Live: live, Recorder: recorder,
	}).SetUp(mgr); err != nil {
		return err
	}
	for _, extend := range extensions {
		if err := extend(mgr, sharding.selector, recorder, options.MetricsRegistry); err != nil {
			return err
		}
	}
	verifier, err := newVerifier(options)
	if err != nil {
		return err
	}
	byDefault, err := release.NewDefaultRelease(clusterapi.Component, options.KarpenterImage, options.Version)
	if err != nil {
		return fmt.Errorf("the default release: %w", err)
	}
	versions := guest.NewVersions(nil, nil)
	releases := release.New(release.Config{
		PullSecrets: pullSecrets, Versions: versions, Options: payload.Options{Transport: registries, Verifier: verifier},
		Default: byDefault, Nodes: live,
	})
	tokens := access.New(access.Config{
		Management: management, Live: live, Secrets: connections.Secrets(), Apply: applier,
		Clock: clock.RealClock{}, TokenLifetime: options.GuestTokenLifetime, SpreadsByDefault: options.Karpenter.SpreadsByDefault(),
	})
	templates, err := references.New(mgr)
	if err != nil {
		return err
	}
	karpenter := component.New(component.Config{
		Management: management, Applier: applier, Recorder: recorder, PullSecrets: pullSecrets, Settings: options.Karpenter, Templates: templates,
		SignedOnly: options.PayloadSignatures == SignaturesEnforce,
	})
	gates := featuregate.New(featuregate.Config{
		Management: management, Clock: clock.RealClock{}, Platform: options.Karpenter.FeatureGates,
		Allowed: options.Karpenter.HostedClusterFeatureGates,
	})
	ownership := shard.New(shard.Config{
		Management: management, Live: live, Selector: sharding.selector, Lease: sharding.holder, Released: connections.Release,
	})
	if err := mgr.Add(metrics.Serve(metrics.New(metrics.Config{
		Management: management, Holder: shard.Identity(sharding.holder),
		DrainTimeout: cmp.Or(options.DrainTimeout, teardown.DefaultDrainTimeout),
		Counters:     slices.Concat(release.Counters(), watch.Counters()),
	}), options.MetricsRegistry)); err != nil {
		return fmt.Errorf("adding the metrics: %w", err)
	}
	if err := mgr.Add(metrics.Serve(version.NewCollector(metrics.Namespace), options.MetricsRegistry)); err != nil {
		return fmt.Errorf("adding the build's metric: %w", err)
	}

	drain := teardown.New(teardown.Config{
		Management: management, Live: live, Apply: applier, Recorder: recorder, DrainTimeout: options.DrainTimeout,
	})
	_, err = hostedcluster.New(ctx, hostedcluster.Config{
		Manager:  mgr,
		Recorder: recorder,
		Shard:    ownership,
		Guests:   connections,
		Workers:  options.Workers,
		Applier:  applier,
		Profiles: profiles,
		Steps: []hostedcluster.Step{
			// First, so that a payload that doesn't fit the guest is never taken.
			{Step: connections, Modes: scope.On | scope.Draining, RunWhenBlocked: always},
			{Step: releases, Modes: scope.On, RunWhenBlocked: always},
			{Step: policy.New(policy.Config{Apply: applier}), Modes: scope.On | scope.Upkeep},
			{Step: gates, Modes: scope.On | scope.Upkeep, RunWhenBlocked: karpenterRuns}, // the next two apply what gates need
			{Step: crd.New(crd.Config{Apply: applier}), Modes: scope.On},
			{Step: tokens, Modes: scope.On | scope.Upkeep, RunWhenBlocked: karpenterRuns}, // a token expires whatever else is waited for
			{Step: nodeupgrade.New(nodeupgrade.Config{Management: management, Versions: versions}), Modes: scope.On},
			{Step: sleep.New(drain), Modes: scope.On, RunWhenBlocked: always},
			{Step: karpenter, Modes: scope.On | scope.Upkeep},
			{Step: karpenter.Replicas(), Modes: scope.On | scope.Upkeep | scope.Paused, RunWhenBlocked: karpenterRuns},
			{Step: nodeclass.New(nodeclass.Config{Apply: applier, Guest: connections.Guest}), Modes: scope.On | scope.Paused},
			{Step: drain, Modes: scope.Draining, RunWhenBlocked: always},
			{Step: status.New(status.Config{Versions: versions, ApprovedByOthers: requests.ApprovedByOthers}), Modes: scope.On | scope.Draining},
		},
		Sources:   []source.Source{connections.Source(), pullSecrets.Source(), releases.Source(), ownership.Source(), requests.Source()},
		Templates: templates.Events(),

		OperatorNamespace:      options.LeaderElectionNamespace,
		SharedCatalogNamespace: options.Karpenter.SharedCatalogNamespace,
	})
	return err
}

func always(*scope.Scope) bool { return true }

// karpenterRuns reports whether Karpenter was installed and its guest is reachable.
func karpenterRuns(s *scope.Scope) bool {
	return s.Guest != nil && s.Component != nil && len(s.Component.Status.Conditions) > 0
}

// Scheme has the kinds of both clusters that the operator reads and writes.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme,
		autonodev1alpha1.AddToScheme, watch.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}
	return scheme, nil
}

// managementCache holds the HostedClusters that the operator is to look after, of the common kinds only objects that operators made, and of
// Machines only the fields that identify nodes.
func managementCache(selector labels.Selector, kinds infrastructure.Kinds) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator})}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1beta1.HostedCluster{}:        {Label: selector},
			&appsv1.Deployment{}:            ours,
			&corev1.ConfigMap{}:             ours,
			&corev1.Pod{}:                   {Label: component.PodSelector, Transform: component.ShrinkPod},
			&corev1.Secret{}:                ours,
			&corev1.ServiceAccount{}:        ours,
			&networkingv1.NetworkPolicy{}:   ours,
			&policyv1.PodDisruptionBudget{}: ours,
			&rbacv1.Role{}:                  ours,
			&rbacv1.RoleBinding{}:           ours,
			&clusterv1.Machine{}:            csr.MachineCache(kinds),
			&v1alpha1.InstanceTypeCatalog{}: instancetypecatalog.Cache(),
		},
	}
}

func orNone(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
