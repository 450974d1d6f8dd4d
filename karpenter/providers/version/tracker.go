// SPDX-License-Identifier: Apache-2.0

package version

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/blang/semver/v4"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const (
	// Interval between two requests for the API server's version, which can't be watched.
	Interval = 10 * time.Second
	// SettlingAnswers is how many answers in a row have to name a newer version before it counts. While several API
	// servers are upgraded one by one, a load balancer may send a request to any of them, and nodes must not be newer
	// than the oldest. Forty answers over separate connections miss an old one of three API servers once in ten million
	// times.
	SettlingAnswers = 40
	// SettlingInterval is between two requests in that time.
	SettlingInterval = 500 * time.Millisecond
	// Settling is how long that takes.
	Settling = SettlingAnswers * SettlingInterval

	// timeout of one request.
	timeout = 10 * time.Second
)

// Tracker tracks the version of the guest's API server. It is a singleton controller.
type Tracker struct {
	discovery Discovery
	resolved  Resolved

	// before is the version resolved before this process started, once recalled; nil for none. Only Reconcile uses
	// it.
	before   *semver.Version
	recalled bool

	mu        sync.RWMutex
	server    *semver.Version
	reachable bool
	// newer is the newer version that is settling; nil if there is none.
	newer *semver.Version
	// answers in a row named it.
	answers int

	observers change.Notifier
}

// Discovery requests the API server's version. NewDiscovery returns one.
type Discovery interface {
	ServerVersion() (*apiversion.Info, error)
}

// Resolved returns the highest version that nodes were resolved to before this process started, or nil. No API server
// was older then.
type Resolved func(context.Context) (*semver.Version, error)

// ResolvedOf reads it from the node classes' status, which survives a restart. It ignores malformed versions.
func ResolvedOf(guest client.Reader) Resolved {
	return func(ctx context.Context) (*semver.Version, error) {
		classes := &v1alpha1.ClusterAPINodeClassList{}
		if err := guest.List(ctx, classes); err != nil {
			return nil, fmt.Errorf("listing node classes: %w", err)
		}
		var highest *semver.Version
		for i := range classes.Items {
			resolved, err := parse(classes.Items[i].Status.Version)
			if err == nil && (highest == nil || resolved.GT(*highest)) {
				highest = &resolved
			}
		}
		return highest, nil
	}
}

// NewTracker returns a tracker without a version until it is reconciled.
func NewTracker(discovery Discovery, resolved Resolved) *Tracker {
	return &Tracker{discovery: discovery, resolved: resolved}
}

// NewDiscovery opens a new connection for each request, so that a load balancer can choose another API server.
func NewDiscovery(config *rest.Config) (Discovery, error) {
	config = rest.CopyConfig(config)
	config.Timeout = timeout
	// client-go shares connections between clients of the same configuration, except for those with a dialer of their
	// own.
	config.Dial = (&net.Dialer{}).DialContext
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to ask the API server's version: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("connecting to ask the API server's version: %w", err)
	}
	return reconnecting{client, httpClient}, nil
}

type reconnecting struct {
	Discovery
	client *http.Client
}

func (r reconnecting) ServerVersion() (*apiversion.Info, error) {
	utilnet.CloseIdleConnectionsFor(r.client.Transport)
	return r.Discovery.ServerVersion()
}

// Server returns the API server's version, nil if unknown, and whether the API server answered the last request.
func (t *Tracker) Server() (version *semver.Version, reachable bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.server, t.reachable
}

// OnChange calls f, which must not block, whenever Server's result has changed.
func (t *Tracker) OnChange(f func()) { t.observers.Add(f) }

// Name of the controller.
func (t *Tracker) Name() string { return "guest.version" }

// Reconcile requests the version once. An unreachable API server is no error: the last version stays and is marked.
func (t *Tracker) Reconcile(ctx context.Context) (reconciler.Result, error) {
	if err := t.recall(ctx); err != nil {
		return reconciler.Result{}, err
	}
	server, err := t.ask()
	if err != nil {
		log.FromContext(ctx).V(1).Info("reading the API server's version", "error", err.Error())
	}
	if t.record(ctx, server) {
		return reconciler.Result{RequeueAfter: SettlingInterval}, nil
	}
	return reconciler.Result{RequeueAfter: Interval}, nil
}

// Register adds the tracker to the manager.
func (t *Tracker) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(t.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(t))
}

func (t *Tracker) ask() (*semver.Version, error) {
	info, err := t.discovery.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("reading the API server's version: %w", err)
	}
	parsed, err := parse(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("parsing the API server's version %q: %w", info.GitVersion, err)
	}
	return &parsed, nil
}

// recall reads the version resolved before this process started, once: a newer answer has to settle as it would
// without a restart.
func (t *Tracker) recall(ctx context.Context) error {
	if t.recalled {
		return nil
	}
	before, err := t.resolved(ctx)
	if err != nil {
		return err
	}
	t.before, t.recalled = before, true
	return nil
}

// record stores an answer, nil for none. It reports whether a newer version is settling.
func (t *Tracker) record(ctx context.Context, server *semver.Version) (settling bool) {
	t.mu.Lock()
	changed := t.reachable != (server != nil)
	t.reachable = server != nil
	if server != nil && t.server == nil && t.before != nil && server.GT(*t.before) {
		t.server, changed = t.before, true
	}
	if server != nil && t.counts(ctx, *server) {
		t.server, changed = server, true
		log.FromContext(ctx).Info("the API server's version is known", "version", server.String())
	}
	settling = t.newer != nil
	t.mu.Unlock()
	if changed {
		t.observers.Notify()
	}
	return settling
}

// counts reports whether an answer becomes the version: the first and an older one do at once, a newer one after it
// has been the only answer often enough. The first one is that of a cluster where no version was resolved before.
func (t *Tracker) counts(ctx context.Context, answer semver.Version) bool {
	if t.server == nil || answer.LTE(*t.server) {
		t.newer = nil
		return t.server == nil || !answer.EQ(*t.server)
	}
	if t.newer == nil || !t.newer.EQ(answer) {
		t.newer, t.answers = &answer, 1
		log.FromContext(ctx).Info("an API server answers with a newer version, which has to settle before it counts",
			"version", answer.String(), "current", t.server.String(), "while", Settling.String())
		return false
	}
	if t.answers++; t.answers < SettlingAnswers {
		return false
	}
	t.newer = nil
	return true
}
