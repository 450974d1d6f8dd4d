// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/utils/cel"
	"sigs.k8s.io/kwok/pkg/utils/gotpl"
	"sigs.k8s.io/kwok/pkg/utils/informer"
)

// kwok is the three controllers that make a kubelet.
type kwok struct {
	nodes  *controllers.NodeController
	pods   *controllers.PodController
	leases *controllers.NodeLeaseController
}

// registerTypes lets the library by which kwok compiles its stages know all types before several guests' controllers do that at once: it
// keeps them in a map without a lock (github.com/wzshiming/easycel v0.6.0, typeValueMap).
var registerTypes = sync.OnceValue(func() error {
	for _, self := range []any{(*corev1.Node)(nil), (*corev1.Pod)(nil), map[string]any{}} {
		if _, err := cel.NewEnvironment(cel.EnvironmentConfig{
			Types: cel.DefaultTypes, Conversions: cel.DefaultConversions, Funcs: maps.Clone(cel.DefaultFuncs),
			Methods: maps.Clone(cel.FuncsToMethods(cel.DefaultFuncs)), Vars: map[string]any{"self": self},
		}); err != nil {
			return fmt.Errorf("registering the types of kwok's stages: %w", err)
		}
	}
	return nil
})

func (f *Fleet) newKwok(config Config) (*kwok, error) {
	if err := registerTypes(); err != nil {
		return nil, err
	}
	nodeStages, err := nodeStages()
	if err != nil {
		return nil, err
	}
	podStages, err := podStages()
	if err != nil {
		return nil, err
	}
	k := &kwok{}
	k.leases, err = controllers.NewNodeLeaseController(controllers.NodeLeaseControllerConfig{
		Clock:                clock.RealClock{},
		TypedClient:          config.Guest,
		HolderIdentity:       config.Identity,
		LeaseDurationSeconds: uint(leaseDuration / time.Second),
		LeaseParallelism:     parallelism,
		RenewInterval:        leaseDuration / 4,
		RenewIntervalJitter:  0.04,
		GetLease: func(node string) (*coordinationv1.Lease, bool) {
			return getter[*coordinationv1.Lease]{f.leases.GetStore()}.GetWithNamespace(node, corev1.NamespaceNodeLease)
		},
		MutateLeaseFunc: f.ownLease,
	})
	if err != nil {
		return nil, fmt.Errorf("building kwok's lease controller: %w", err)
	}
	k.nodes, err = controllers.NewNodeController(controllers.NodeControllerConfig{
		Clock:                clock.RealClock{},
		TypedClient:          config.Guest,
		Lifecycle:            nodeStages,
		PlayStageParallelism: parallelism,
		OnNodeManagedFunc: func(node string) {
			k.leases.TryHold(node)
			f.podSync.Add(node)
		},
		OnNodeUnmanagedFunc: k.leases.ReleaseHold,
	})
	if err != nil {
		return nil, fmt.Errorf("building kwok's node controller: %w", err)
	}
	k.pods, err = controllers.NewPodController(controllers.PodControllerConfig{
		Clock:                clock.RealClock{},
		TypedClient:          config.Guest,
		NodeCacheGetter:      getter[*corev1.Node]{f.nodes.GetStore()},
		NodeGetFunc:          f.node,
		CIDR:                 podCIDR,
		Lifecycle:            podStages,
		FuncMap:              gotpl.FuncMap{"PodIPsWith": f.podIPs},
		PlayStageParallelism: parallelism,
	})
	if err != nil {
		return nil, fmt.Errorf("building kwok's pod controller: %w", err)
	}
	return k, nil
}

func (k *kwok) start(ctx context.Context, nodes <-chan informer.Event[*corev1.Node], pods <-chan informer.Event[*corev1.Pod]) error {
	if err := k.leases.Start(ctx); err != nil {
		return fmt.Errorf("starting kwok's lease controller: %w", err)
	}
	if err := k.nodes.Start(ctx, nodes); err != nil {
		return fmt.Errorf("starting kwok's node controller: %w", err)
	}
	if err := k.pods.Start(ctx, pods); err != nil {
		return fmt.Errorf("starting kwok's pod controller: %w", err)
	}
	return nil
}

// ownLease makes a lease go away with its Node.
func (f *Fleet) ownLease(lease *coordinationv1.Lease) error {
	if node := f.Node(lease.Name); node != nil && len(lease.OwnerReferences) == 0 {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return nil
}

// handler hands an informer's events on in kwok's terms.
func handler[T any](handle func(informer.EventType, T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { handle(informer.Added, object.(T)) },
		UpdateFunc: func(_, object any) { handle(informer.Modified, object.(T)) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			handle(informer.Deleted, object.(T))
		},
	}
}

func send[T runtime.Object](stop <-chan struct{}, events chan<- informer.Event[T], kind informer.EventType, object T) {
	select {
	case events <- informer.Event[T]{Type: kind, Object: object}:
	case <-stop:
	}
}

// logWriter hands on kwok's log lines, which are JSON.
type logWriter struct{ logger logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	var parsed struct {
		Message string `json:"msg"`
		Error   string `json:"err"`
		Node    string `json:"node"`
		Pod     string `json:"pod"`
	}
	if json.Unmarshal(line, &parsed) != nil {
		parsed.Message = strings.TrimSpace(string(line))
	}
	for _, harmless := range []string{" not found", "connection refused", context.Canceled.Error()} {
		if strings.HasSuffix(parsed.Error, harmless) {
			// What was to be ended has ended, the API server is being restarted (the watches report that once), or the fleet ends.
			return len(line), nil
		}
	}
	w.logger.Info("kwok reported a problem", "problem", parsed.Message, "error", parsed.Error, "Node", parsed.Node, "Pod", parsed.Pod)
	return len(line), nil
}

// getter is a store in kwok's terms.
type getter[T any] struct{ store toolscache.Store }

func (g getter[T]) Get(key string) (T, bool) {
	object, exists, err := g.store.GetByKey(key)
	if err != nil || !exists {
		var zero T
		return zero, false
	}
	return object.(T), true
}

func (g getter[T]) GetWithNamespace(name, namespace string) (T, bool) {
	return g.Get(namespace + "/" + name)
}

func (g getter[T]) List() []T { return all[T](g.store.List()) }

func all[T any](objects []any) []T {
	list := make([]T, 0, len(objects))
	for _, object := range objects {
		list = append(list, object.(T))
	}
	return list
}
