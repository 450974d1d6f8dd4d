// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	guestscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/explain"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/lenient"
)

// ErrWrite is the error of every request of Explain's that would change a cluster. None is sent.
var ErrWrite = errors.New("explaining doesn't write")

// explainTimeout bounds how long the first lists of the management cluster take. A kind that may not be read never ends them.
const explainTimeout = 30 * time.Second

// ExplainConfig says what to explain with.
type ExplainConfig struct {
	Guest *rest.Config
	// Management cluster. Without it, instance types are what the status of the node classes says.
	Management *rest.Config
	// Namespace is the control-plane namespace.
	Namespace string
	// Deployment of Karpenter there, whose settings are simulated. Empty is the only one of the namespace.
	Deployment string
	Clock      clock.Clock
}

// Explain reads both clusters, writes to neither, and returns Karpenter core on what it has read.
func Explain(ctx context.Context, config ExplainConfig) (*explain.Simulation, error) {
	if err := v1alpha1.AddToScheme(guestscheme.Scheme); err != nil {
		return nil, fmt.Errorf("registering node classes: %w", err)
	}
	ctx = log.IntoContext(ctx, logr.Discard())
	guestConfig := readOnlyConfig(config.Guest)
	guestObjects := (&reporter{}).guestObjects()
	guestObjects.Wrap(guestConfig)
	guest, err := client.New(guestConfig, client.Options{Scheme: guestscheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest cluster %s: %w", guestConfig.Host, err)
	}
	if config.Management != nil {
		return explainWithManagement(ctx, config, guestConfig, guest, guestObjects)
	}
	opts, err := simulatedOptions(&appsv1.Deployment{}, config.Namespace, map[string]string{"cluster-name": "unknown", "namespace": "unknown"})
	if err != nil {
		return nil, err
	}
	snapshot, err := explain.Read(ctx, guest)
	if err != nil {
		return nil, err
	}
	provider, missing := explain.ReportedBy(snapshot)
	return explain.New(ctx, explain.Config{
		Guest: snapshot, CloudProvider: provider, Options: opts.core, Clock: config.Clock, Missing: append(missing, unread(snapshot)...),
	})
}

func explainWithManagement(
	ctx context.Context, config ExplainConfig, guestConfig *rest.Config, reader client.Reader, guestObjects *lenient.Decoder,
) (*explain.Simulation, error) {
	managementConfig := readOnlyConfig(config.Management)
	management, err := client.New(managementConfig, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster %s: %w", managementConfig.Host, err)
	}
	running, err := runningKarpenter(ctx, management, config)
	if err != nil {
		return nil, err
	}
	files, err := os.MkdirTemp("", "autonode")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(files) }() // the system empties its folder for temporary files
	settings, err := mountedFiles(ctx, management, running, files)
	if err != nil {
		return nil, err
	}
	opts, err := simulatedOptions(running, config.Namespace, settings)
	if err != nil {
		return nil, err
	}
	ctx = options.ToContext(ctx, opts.core)
	started, err := startProviders(ctx, guestConfig, managementConfig, guestObjects, opts, config.Clock)
	if err != nil {
		return nil, err
	}
	defer started.stop()
	problems, err := started.resolve(ctx, reader)
	if err != nil {
		return nil, err
	}
	snapshot, err := explain.Read(ctx, reader)
	if err != nil {
		return nil, err
	}
	return explain.New(ctx, explain.Config{
		Guest: snapshot, CloudProvider: started.providers.cloudProvider, Options: opts.core, Clock: config.Clock, Missing: append([]string{
			"Offerings that failed a short time ago are known to Karpenter's process alone. " +
				"Those that the node class or the CapacityLease reports are taken into account",
		}, slices.Concat(problems, unread(snapshot))...),
	})
}

// runningKarpenter reads Karpenter's Deployment. A namespace that clusters share has one for each.
func runningKarpenter(ctx context.Context, management client.Reader, config ExplainConfig) (*appsv1.Deployment, error) {
	running, key := &appsv1.Deployment{}, client.ObjectKey{Namespace: config.Namespace, Name: cmp.Or(config.Deployment, v1beta1.KarpenterComponent)}
	err := management.Get(ctx, key, running)
	if err == nil {
		return running, nil
	}
	missing := fmt.Errorf("namespace %s of the management cluster has no Deployment %s; "+
		"name the control-plane namespace of this guest, or leave out the management cluster", key.Namespace, key.Name)
	switch {
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading Karpenter's Deployment in namespace %s: %w", config.Namespace, err)
	case config.Deployment != "":
		return nil, missing
	}
	all := &appsv1.DeploymentList{}
	if err := management.List(ctx, all, client.InNamespace(config.Namespace), client.HasLabels{v1beta1.ClusterNameLabel}); err != nil {
		return nil, missing
	}
	var names []string
	for i := range all.Items {
		if deployment := &all.Items[i]; deployment.Name == v1beta1.SharedNames(deployment.Labels[v1beta1.ClusterNameLabel]).Karpenter {
			names, running = append(names, deployment.Name), deployment
		}
	}
	switch len(names) {
	case 0:
		return nil, missing
	case 1:
		return running, nil
	}
	return nil, fmt.Errorf("clusters share namespace %s of the management cluster, with the Deployments %s; choose a cluster with --hosted-cluster",
		config.Namespace, strings.Join(names, ", "))
}

func unread(snapshot *explain.Snapshot) []string {
	var missing []string
	for kind, err := range snapshot.Unread {
		missing = append(missing, fmt.Sprintf("Objects of kind %s can't be read: %s", kind, err))
	}
	slices.Sort(missing)
	return missing
}

// startedProviders follow both clusters until stop.
type startedProviders struct {
	*providers
	guest *operator.Operator
	skew  *skewed
	stop  func()
}

// startProviders connects the providers as Run does, without controllers.
func startProviders(
	ctx context.Context, guestConfig, managementConfig *rest.Config, guestObjects *lenient.Decoder, opts simulated, clk clock.Clock,
) (*startedProviders, error) {
	topologyKeys, err := opts.own.topologyKeys()
	if err != nil {
		return nil, err
	}
	wellknown.Normalize(topologyKeys)
	mgr, err := manager.New(guestConfig, manager.Options{
		Scheme: guestscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		BaseContext: func() context.Context { return ctx }, Cache: cache.Options{NewInformer: guestObjects.NewInformer},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest cluster %s: %w", guestConfig.Host, err)
	}
	skew := &skewed{Clock: clk}
	guest := &operator.Operator{Manager: mgr, EventRecorder: discard{}, Clock: skew, InstanceTypeStore: nodeoverlay.NewInstanceTypeStore()}
	management, err := newManagement(managementConfig, opts.own, nil)
	if err != nil {
		return nil, err
	}
	if err := management.addTo(ctx, guest); err != nil {
		return nil, err
	}
	p, err := newProviders(ctx, guest, management, opts.own)
	if err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mgr.Start(runCtx) // its caches aren't synchronized then
	}()
	started := &startedProviders{providers: p, guest: guest, skew: skew, stop: func() { cancel(); <-ended }}
	wait, cancelWait := context.WithTimeout(ctx, explainTimeout)
	defer cancelWait()
	if !mgr.GetCache().WaitForCacheSync(wait) || !management.GetCache().WaitForCacheSync(wait) {
		started.stop()
		return nil, fmt.Errorf("reading Machines and Clusters of namespace %s took longer than %s: "+
			"check your rights with `kubectl -n %s auth can-i list machines.cluster.x-k8s.io`",
			opts.own.Namespace, explainTimeout, opts.own.Namespace)
	}
	return started, nil
}

// resolve brings the providers to where Karpenter's are: the guest's version, the lease, the templates, and what is in back-off. It returns why
// templates can't be used.
func (s *startedProviders) resolve(ctx context.Context, guest client.Reader) (problems []string, err error) {
	if _, err := s.versions.Tracker.Reconcile(ctx); err != nil {
		return nil, fmt.Errorf("asking the guest's version: %w", err)
	}
	if _, err := s.capacity.Step(ctx); err != nil {
		return nil, err
	}
	if s.capacity.Status() != nil {
		// A new process waits until requests of its predecessor have had their effect. This one launches nothing.
		s.skew.ahead.Store(int64(capacity.InFlight))
		if _, err := s.capacity.Step(ctx); err != nil {
			return nil, err
		}
	}
	classes := &v1alpha1.ClusterAPINodeClassList{}
	if err := guest.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("listing node classes: %w", err)
	}
	for i := range classes.Items {
		class := &classes.Items[i]
		// It waits until the Machines have been counted. If that fails, GetInstanceTypes of the class's NodePools says so.
		_, _ = s.instanceTypes.List(ctx, class)
		listing, err := s.instanceTypes.Refresh(ctx, class)
		if err != nil {
			return nil, fmt.Errorf("reading the templates of node class %s: %w", class.Name, err)
		}
		problems = append(problems, problemsOf(class.Name, listing)...)
		if listing.Snapshot == nil {
			continue
		}
		for _, template := range class.Status.Templates {
			if template.Unavailable != v1alpha1.TemplateBackOff {
				continue
			}
			for _, it := range listing.Snapshot.InstanceTypes {
				for _, o := range it.Offerings {
					if it.Name == template.InstanceType {
						s.unavailable.Mark(offering.KeyOf(it.Name, o), "Reported")
					}
				}
			}
		}
	}
	if status := s.capacity.Status(); status != nil {
		for _, u := range status.Unavailable {
			s.unavailable.Mark(offering.Key{InstanceType: u.InstanceType, Zone: u.Zone, CapacityType: u.CapacityType}, u.Reason)
		}
	}
	return problems, nil
}

// problemsOf says why a node class offers less than it selects, or nothing.
func problemsOf(class string, listing *instancetype.Listing) []string {
	errs := slices.Concat([]error{listing.ClusterErr, listing.Found.BootstrapErr}, listing.Found.SelectorErrs, listing.Found.Unreadable, listing.Unversioned)
	for _, invalid := range listing.Found.Invalid {
		errs = append(errs, invalid)
	}
	var problems []string
	for _, err := range errs {
		if err != nil {
			problems = append(problems, fmt.Sprintf("Node class %s: %s", class, err))
		}
	}
	return problems
}

// simulated are the options of a running Karpenter.
type simulated struct {
	own  Options
	core *options.Options
}

// simulatedOptions reads the flags and variables of Karpenter's container. instead replaces flags.
func simulatedOptions(running *appsv1.Deployment, namespace string, instead map[string]string) (simulated, error) {
	known := newFlagSet(io.Discard)
	(&Options{}).AddFlags(known)
	(&options.Options{}).AddFlags(known)
	var args []string
	for _, container := range running.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			name := strings.ToLower(strings.ReplaceAll(variable.Name, "_", "-"))
			if variable.ValueFrom == nil && known.Lookup(name) != nil {
				args = append(args, fmt.Sprintf("--%s=%s", name, variable.Value))
			}
		}
		args = append(args, container.Args...)
	}
	for name, value := range instead {
		args = append(args, fmt.Sprintf("--%s=%s", name, value))
	}
	args = append(args, "--guest-kubeconfig=", "--management-kubeconfig=")
	if instead["namespace"] == "" {
		args = append(args, "--namespace="+namespace)
	}
	own, core, err := parseAll(args, io.Discard)
	if err != nil {
		return simulated{}, fmt.Errorf("reading the settings of Karpenter in namespace %s: %w; this program may be older than that Karpenter, "+
			"or it is another provider's: then leave out the management cluster", namespace, err)
	}
	return simulated{own: own, core: core}, nil
}

// mountedFiles writes the ConfigMaps that Karpenter reads as files into a folder, and returns the flags with their paths there.
func mountedFiles(ctx context.Context, management client.Reader, running *appsv1.Deployment, folder string) (map[string]string, error) {
	flags := map[string]string{}
	pod := &running.Spec.Template.Spec
	for _, container := range pod.Containers {
		for _, variable := range container.Env {
			mount := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(variable.Value) })
			if !strings.HasSuffix(variable.Name, "_FILE") || mount < 0 {
				continue
			}
			volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == container.VolumeMounts[mount].Name && v.ConfigMap != nil
			})
			if volume < 0 {
				continue
			}
			flag := strings.ToLower(strings.ReplaceAll(variable.Name, "_", "-"))
			flags[flag] = filepath.Join(folder, flag)
			content := &corev1.ConfigMap{}
			err := management.Get(ctx, client.ObjectKey{Namespace: running.Namespace, Name: pod.Volumes[volume].ConfigMap.Name}, content)
			if apierrors.IsNotFound(err) {
				continue // it need not exist
			}
			if err != nil {
				return nil, fmt.Errorf("reading ConfigMap %s: %w", pod.Volumes[volume].ConfigMap.Name, err)
			}
			if err := os.WriteFile(flags[flag], []byte(content.Data[filepath.Base(variable.Value)]), 0o600); err != nil {
				return nil, err
			}
		}
	}
	return flags, nil
}

// readOnlyConfig returns a configuration with which nothing can be written, whatever uses it.
func readOnlyConfig(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	// No client-side limit: there are few requests.
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnlyTransport{next} })
	return config
}

type readOnlyTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t readOnlyTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, ErrWrite)
	}
	return t.next.RoundTrip(request)
}

// skewed is a clock that is ahead.
type skewed struct {
	clock.Clock
	ahead atomic.Int64
}

// Now implements clock.PassiveClock.
func (s *skewed) Now() time.Time { return s.Clock.Now().Add(time.Duration(s.ahead.Load())) }

// Since implements clock.PassiveClock.
func (s *skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// discard publishes nothing.
type discard struct{}

// Publish implements events.Recorder.
func (discard) Publish(...events.Event) {}
