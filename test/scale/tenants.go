// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/process"
)

// concurrency of what the platform writes.
const concurrency = 32

// tenants has in which hosted clusters AutoNode is on.
type tenants struct {
	mu sync.Mutex
	// observed is the generation that each one's condition is about, and since when; nothing where AutoNode wasn't on yet.
	observed map[string]observation
}

type observation struct {
	generation int64
	since      time.Time
}

func (t *tenants) sees(hostedCluster *v1beta1.HostedCluster) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if condition := meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled); condition != nil &&
		condition.Status == metav1.ConditionTrue && condition.ObservedGeneration > t.observed[hostedCluster.Name].generation {
		t.observed[hostedCluster.Name] = observation{condition.ObservedGeneration, time.Now()}
	}
}

// watch follows HostedClusters, and does the Deployment controller's work: it reports about each Deployment that it is rolled out.
func (b *bench) watch(scheme *runtime.Scheme) error {
	b.tenants = &tenants{observed: map[string]observation{}}
	watched, err := cache.New(b.management.RESTConfig(), cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}: {Label: labels.SelectorFromSet(labels.Set{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator})},
		},
	})
	if err != nil {
		return fmt.Errorf("watching the management cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	deployments := make(chan *appsv1.Deployment, 2*b.cfg.Clusters+100)
	var running sync.WaitGroup
	b.onStop(func() { cancel(); running.Wait() })
	on := func(object client.Object, see func(any)) error {
		informer, err := watched.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, after any) { see(after) }})
		return err
	}
	if err := on(&v1beta1.HostedCluster{}, func(object any) {
		if hostedCluster, ok := object.(*v1beta1.HostedCluster); ok {
			b.tenants.sees(hostedCluster)
		}
	}); err != nil {
		return err
	}
	if err := on(&appsv1.Deployment{}, func(object any) {
		if deployment, ok := object.(*appsv1.Deployment); ok && deployment.Status.ObservedGeneration != deployment.Generation {
			deployments <- deployment
		}
	}); err != nil {
		return err
	}
	running.Go(func() { _ = watched.Start(ctx) })
	for range 8 {
		running.Go(func() {
			for {
				select {
				case deployment := <-deployments:
					b.rollOut(ctx, deployment)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return nil
}

func (b *bench) rollOut(ctx context.Context, deployment *appsv1.Deployment) {
	replicas := ptr.Deref(deployment.Spec.Replicas, 1)
	patch := fmt.Appendf(nil, `{"status":{"observedGeneration":%d,"replicas":%[2]d,"updatedReplicas":%[2]d,"readyReplicas":%[2]d,"availableReplicas":%[2]d}}`,
		deployment.Generation, replicas)
	err := b.client.Status().Patch(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: deployment.Name}},
		client.RawPatch(types.MergePatchType, patch))
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		b.printer.Println("rolling out a Deployment:", err)
	}
}

// createAll makes what a hosting platform has: for each name a namespace, a Cluster, its kubeconfig and a HostedCluster without AutoNode.
func (b *bench) createAll(ctx context.Context, names []string, kubeconfig func(i int) ([]byte, error)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, name := range names {
		group.Go(func() error {
			data, err := kubeconfig(i)
			if err != nil {
				return err
			}
			return b.create(ctx, name, data)
		})
	}
	return group.Wait()
}

func (b *bench) create(ctx context.Context, name string, kubeconfig []byte) error {
	own := namespace + "-" + name
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: own, Name: name, Annotations: map[string]string{v1beta1.ConsentAnnotation: namespace + "/" + name},
	}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: name + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: name}},
			Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig},
		},
		cluster,
		&v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: b.image}, PullSecret: &corev1.LocalObjectReference{Name: pullSecret}},
		},
	} {
		if err := b.client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	if err := b.client.Status().Update(ctx, cluster); err != nil {
		return fmt.Errorf("provisioning Cluster %s: %w", name, err)
	}
	return nil
}

// enableAll turns AutoNode on everywhere at once and returns how long each took, the fastest first.
func (b *bench) enableAll(ctx context.Context, names []string) ([]time.Duration, error) {
	began := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, name := range names {
		group.Go(func() error { return b.enable(groupCtx, name) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	took := map[string]time.Duration{}
	err := process.Poll(ctx, "AutoNode to be on", b.operator.Done(), func() error { return fmt.Errorf("the operator ended") }, func(context.Context) error {
		var missing []string
		for _, name := range names {
			observed := b.tenants.observation(name)
			if observed.generation == 0 {
				missing = append(missing, name)
				continue
			}
			took[name] = observed.since.Sub(began)
		}
		if len(missing) > 0 {
			return fmt.Errorf("it is missing in %d of %d, such as %s", len(missing), len(names), strings.Join(missing[:min(3, len(missing))], ", "))
		}
		return nil
	})
	return slices.Sorted(maps.Values(took)), err
}

// changeAll changes hosted clusters all at once and returns how long each took until the operator had looked after its guest again, the
// fastest first. Guests share objects, so what is changed is in the management cluster only.
func (b *bench) changeAll(ctx context.Context, names []string) ([]time.Duration, error) {
	began := time.Now()
	wanted := map[string]int64{}
	for _, name := range names {
		hostedCluster := &v1beta1.HostedCluster{}
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, hostedCluster); err != nil {
			return nil, fmt.Errorf("reading HostedCluster %s: %w", name, err)
		}
		before := hostedCluster.DeepCopy()
		hostedCluster.Spec.NodeDrain = &v1beta1.NodeDrain{Timeout: &scalar.Duration{Duration: time.Hour}}
		if err := b.client.Patch(ctx, hostedCluster, client.MergeFrom(before)); err != nil {
			return nil, fmt.Errorf("changing HostedCluster %s: %w", name, err)
		}
		wanted[name] = hostedCluster.Generation
	}
	took := map[string]time.Duration{}
	err := process.Poll(ctx, "changes to be made", b.operator.Done(), func() error { return fmt.Errorf("the operator ended") }, func(context.Context) error {
		for name, generation := range wanted {
			observed := b.tenants.observation(name)
			if observed.generation < generation {
				return fmt.Errorf("that of %s is missing", name)
			}
			took[name] = observed.since.Sub(began)
		}
		return nil
	})
	return slices.Sorted(maps.Values(took)), err
}

func (t *tenants) observation(name string) observation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.observed[name]
}

// reachable is what a hosted cluster reports about its guest.
func (b *bench) reachable(ctx context.Context, name string) (string, error) {
	hostedCluster := &v1beta1.HostedCluster{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, hostedCluster); err != nil {
		return "", fmt.Errorf("reading HostedCluster %s: %w", name, err)
	}
	condition := meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.GuestReachable)
	if condition == nil {
		return "nothing", nil
	}
	return fmt.Sprintf("%s=%s (%s): %s", condition.Type, condition.Status, condition.Reason, condition.Message), nil
}

// enable turns AutoNode on in one.
func (b *bench) enable(ctx context.Context, name string) error {
	before := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	after := before.DeepCopy()
	after.Spec.AutoNode = hosting.AutoNode(hosting.TemplatePool, hosting.BootstrapTemplate)
	if err := b.client.Patch(ctx, after, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("turning AutoNode on in %s: %w", name, err)
	}
	return nil
}
