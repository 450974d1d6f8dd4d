// SPDX-License-Identifier: Apache-2.0

package version

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/blang/semver/v4"
	apiversion "k8s.io/apimachinery/pkg/version"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Interval between two looks at the API server's version. It changes without any object changing, so it can't be watched.
const Interval = 10 * time.Second

// Tracker knows the version of the guest's API server. It is a singleton controller.
type Tracker struct {
	discovery Discovery

	mu        sync.RWMutex
	server    *semver.Version
	reachable bool
	observers []func()
}

// Discovery asks the API server; discovery.DiscoveryInterface does.
type Discovery interface {
	ServerVersion() (*apiversion.Info, error)
}

// NewTracker returns a tracker that knows nothing until it is reconciled.
func NewTracker(discovery Discovery) *Tracker { return &Tracker{discovery: discovery} }

// Server returns what the API server last said, or nil if it never did, and whether it answered when it was last asked.
func (t *Tracker) Server() (version *semver.Version, reachable bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.server, t.reachable
}

// OnChange calls f, which must not block, whenever what Server returns has changed.
func (t *Tracker) OnChange(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observers = append(t.observers, f)
}

// Name of the controller.
func (t *Tracker) Name() string { return "guest.version" }

// Reconcile asks once. That the API server can't be reached isn't an error here: the last version stays, marked.
func (t *Tracker) Reconcile(ctx context.Context) (reconciler.Result, error) {
	server, err := t.ask()
	if err != nil {
		log.FromContext(ctx).V(1).Info("the API server doesn't tell its version", "error", err.Error())
	}
	t.record(ctx, server)
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

func (t *Tracker) record(ctx context.Context, server *semver.Version) {
	t.mu.Lock()
	changed := t.reachable != (server != nil)
	t.reachable = server != nil
	if server != nil && (t.server == nil || !t.server.EQ(*server)) {
		t.server, changed = server, true
		log.FromContext(ctx).Info("the API server's version is known", "version", server.String())
	}
	observers := t.observers
	t.mu.Unlock()
	if changed {
		for _, f := range observers {
			f()
		}
	}
}
