// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/events"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/explain"
	fleet "github.com/autonode-io/autonode/fleet/karpenter"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
	"github.com/autonode-io/autonode/karpenter/operator"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// extensions are those of Karpenter: each goes with its line and its folder.
var extensions = []operator.Extend{
	fleet.Extend,
}

// explainTimeout bounds how long the first lists of the management cluster take. A kind that may not be read never ends them.
const explainTimeout = 30 * time.Second

// simulation reads both clusters, writes to neither, and returns Karpenter core on what it has read. Without the management cluster,
// instance types are what the status of the node classes reports. The simulation reads the management cluster until stop.
func (o *Options) simulation(ctx context.Context) (simulation *explain.Simulation, stop func(), err error) {
	// What Karpenter would log is in the answer.
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	config, err := o.Guest.Config()
	if err != nil {
		return nil, nil, err
	}
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return nil, nil, fmt.Errorf("registering node classes: %w", err)
	}
	ctx = log.IntoContext(ctx, logr.Discard())
	guestConfig := readOnlyConfig(config)
	guest, err := cluster.NewClient(guestConfig, clientgoscheme.Scheme)
	if err != nil {
		return nil, nil, err
	}
	if o.Management.Chosen() {
		return o.simulationWithManagement(ctx, guestConfig, guest)
	}
	_, core, err := simulatedOptions(&appsv1.Deployment{}, "", map[string]string{"cluster-name": "unknown", "namespace": "unknown"})
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := explain.Read(ctx, guest)
	if err != nil {
		return nil, nil, err
	}
	provider, approximate := explain.ReportedBy(snapshot)
	simulation, err = explain.New(ctx, explain.Config{
		Guest: snapshot, CloudProvider: provider, Options: core, Clock: clock.RealClock{}, Failures: failuresOf(snapshot.Events),
		Approximate: approximate, Missing: unread(snapshot),
	})
	return simulation, func() {}, err
}

func (o *Options) simulationWithManagement(ctx context.Context, guestConfig *rest.Config, reader client.Reader) (
	simulation *explain.Simulation, stop func(), err error,
) {
	config, err := o.Management.Config()
	if err != nil {
		return nil, nil, err
	}
	namespace, deployment, err := o.controlPlane(ctx)
	if err != nil {
		return nil, nil, err
	}
	managementConfig := readOnlyConfig(config)
	management, err := client.New(managementConfig, client.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the management cluster %s: %w", managementConfig.Host, err)
	}
	running, err := runningKarpenter(ctx, management, namespace, deployment)
	if err != nil {
		return nil, nil, err
	}
	files, err := os.MkdirTemp("", "autonode")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(files) }() // the system empties its folder for temporary files
	settings, err := mountedFiles(ctx, management, running, files)
	if err != nil {
		return nil, nil, err
	}
	opts, core, err := simulatedOptions(running, namespace, settings)
	if err != nil {
		return nil, nil, err
	}
	ctx = options.ToContext(ctx, core)
	started, err := startProviders(ctx, guestConfig, managementConfig, opts)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			started.stop()
		}
	}()
	problems, err := started.resolve(ctx, reader)
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := explain.Read(ctx, reader)
	if err != nil {
		return nil, nil, err
	}
	simulation, err = explain.New(ctx, explain.Config{
		Guest: snapshot, CloudProvider: started.CloudProvider, Options: core, Clock: clock.RealClock{}, Failures: failuresOf(snapshot.Events),
		Missing: slices.Concat(problems, unread(snapshot)),
		Methods: started.Methods, Vacate: started.Vacate,
	})
	return simulation, started.stop, err
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
	*operator.Providers
	skew *skewed
	stop func()
}

// startProviders connects the providers as Karpenter does, without controllers.
func startProviders(ctx context.Context, guestConfig, managementConfig *rest.Config, opts operator.Options) (*startedProviders, error) {
	wellknown.Normalize(opts.Parsed.TopologyKeys)
	mgr, err := autonodemanager.New(guestConfig, manager.Options{
		Scheme: clientgoscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		BaseContext: func() context.Context { return ctx },
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest cluster %s: %w", guestConfig.Host, err)
	}
	skew := &skewed{Clock: clock.RealClock{}}
	guest := &coreoperator.Operator{Manager: mgr, EventRecorder: discard{}, Clock: skew, InstanceTypeStore: nodeoverlay.NewInstanceTypeStore()}
	management, err := operator.NewManagement(managementConfig, opts, nil)
	if err != nil {
		return nil, err
	}
	if err := management.AddTo(ctx, guest); err != nil {
		return nil, err
	}
	p, err := operator.NewProviders(ctx, guest, management, opts, true, extensions...)
	if err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mgr.Start(runCtx) // its caches aren't synchronized then
	}()
	started := &startedProviders{Providers: p, skew: skew, stop: func() { cancel(); <-ended }}
	wait, cancelWait := context.WithTimeout(ctx, explainTimeout)
	defer cancelWait()
	if !mgr.GetCache().WaitForCacheSync(wait) || !management.GetCache().WaitForCacheSync(wait) {
		started.stop()
		return nil, fmt.Errorf("reading Machines and Clusters of namespace %s took longer than %s: "+
			"check your rights with `kubectl -n %s auth can-i list machines.cluster.x-k8s.io`",
			opts.Namespace, explainTimeout, opts.Namespace)
	}
	return started, nil
}

// resolve brings the providers to where Karpenter's are: the guest's version, the lease, the templates, and what is in back-off. It
// returns why templates can't be used.
func (s *startedProviders) resolve(ctx context.Context, guest client.Reader) (problems []string, err error) {
	if _, err := s.Versions.Tracker.Reconcile(ctx); err != nil {
		return nil, fmt.Errorf("asking the guest's version: %w", err)
	}
	for _, follow := range s.Follow {
		if err := follow(ctx, s.skew.advance); err != nil {
			return nil, err
		}
	}
	classes := &v1alpha1.ClusterAPINodeClassList{}
	if err := guest.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("listing node classes: %w", err)
	}
	for i := range classes.Items {
		class := &classes.Items[i]
		// It waits until the Machines have been counted. If that fails, GetInstanceTypes of the class's NodePools reports it.
		_, _ = s.InstanceTypes.List(ctx, class)
		listing, err := s.InstanceTypes.Refresh(ctx, class)
		if err != nil {
			return nil, fmt.Errorf("reading the templates of node class %s: %w", class.Name, err)
		}
		problems = append(problems, problemsOf(class.Name, listing)...)
		if listing.Snapshot == nil {
			continue
		}
		for _, template := range class.Status.Templates {
			if template.Unavailable != v1alpha1.TemplateBackOff && template.Unavailable != v1alpha1.TemplateQuota {
				continue
			}
			for _, it := range listing.Snapshot.InstanceTypes {
				for _, o := range it.Offerings {
					if it.Name == template.InstanceType {
						s.Unavailable.Mark(offering.KeyOf(it.Name, o), "Reported")
					}
				}
			}
		}
	}
	return problems, nil
}

// problemsOf reports why a node class offers less than it selects, or nothing.
func problemsOf(class string, listing *instancetype.Listing) []string {
	errs := slices.Concat([]error{listing.ClusterErr, listing.Found.BootstrapErr}, listing.Found.SelectorErrs,
		listing.Found.Unreadable, listing.Unversioned)
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

// skewed is a clock that is ahead.
type skewed struct {
	clock.Clock
	ahead atomic.Int64
}

func (s *skewed) advance(by time.Duration) { s.ahead.Add(int64(by)) }

// Now implements clock.PassiveClock.
func (s *skewed) Now() time.Time { return s.Clock.Now().Add(time.Duration(s.ahead.Load())) }

// Since implements clock.PassiveClock.
func (s *skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// discard publishes nothing.
type discard struct{}

// Publish implements events.Recorder.
func (discard) Publish(...events.Event) {}
