// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"

	"github.com/autonode-io/autonode/karpenter/core/methods"
)

// Config of a Simulation.
type Config struct {
	Guest *Snapshot
	// CloudProvider has the instance types. Nothing is ever created or deleted with it.
	CloudProvider karpcloudprovider.CloudProvider
	// Options of the Karpenter that is simulated.
	Options *options.Options
	Clock   clock.Clock
	// Methods of disruption come before Karpenter core's. A nil one is left out.
	Methods []func(methods.Core) disruption.Method
	// Vacate is that of methods.TerminateFirstConfig; nil if it isn't known.
	Vacate func(ctx context.Context, nodeClaim *karpv1.NodeClaim) (context.Context, methods.Full, bool)
	// Failures are the offerings that have failed.
	Failures []Failure
	// Missing is what isn't known, and what to do about it. Every answer that depends on instance types repeats it.
	Missing []string
	// Approximate means that less is known of instance types here than in Karpenter. Answers repeat it that may be other ones therefore: that
	// a pod fits nowhere, that a node stays.
	Approximate []string
}

// Simulation is Karpenter core on a snapshot.
type Simulation struct {
	Config
	cloudProvider karpcloudprovider.CloudProvider
	// undecorated is cloudProvider without NodeOverlays. Karpenter core adds no words to its errors.
	undecorated resolved
	cluster     *state.Cluster
	cost        *cost.ClusterCost
	recorder    *recorder
	// missingOfNodes is what isn't known for answers about nodes.
	missingOfNodes []string
}

// New feeds a snapshot to Karpenter core.
func New(ctx context.Context, config Config) (*Simulation, error) {
	var missingOfNodes []string
	if config.Options.FeatureGates.NodeRepair && len(config.CloudProvider.RepairPolicies()) == 0 {
		withoutRepair := *config.Options
		withoutRepair.FeatureGates.NodeRepair = false
		config.Options = &withoutRepair
		missingOfNodes = []string{"Which node conditions are repaired isn't known without the management cluster (--management-kubeconfig)"}
	}
	s := &Simulation{Config: config, recorder: &recorder{}, missingOfNodes: missingOfNodes}
	ctx = s.context(ctx)
	s.undecorated = s.resolve(ctx, list[*karpv1.NodePool](config.Guest))
	overlays := nodeoverlay.NewInstanceTypeStore()
	s.cloudProvider = overlay.Decorate(s.undecorated, config.Guest, overlays)
	repairs, err := health.NewRepairPolicyMatcher(ctx, s.cloudProvider)
	if err != nil {
		return nil, fmt.Errorf("reading the repair policies: %w", err)
	}
	s.cluster = state.NewCluster(config.Clock, config.Guest, s.cloudProvider, state.WithRepairPolicyMatcher(repairs))
	s.cost = cost.NewClusterCost(ctx, s.cloudProvider, config.Guest)
	if config.Options.FeatureGates.NodeOverlay {
		// It reports NodePools whose instance types aren't known, which are reported below as well.
		_, _ = nodeoverlay.NewController(config.Clock, config.Guest, s.undecorated, overlays, s.cluster).Reconcile(ctx, reconcile.Request{})
	}
	for _, feed := range []struct {
		list  client.ObjectList
		state reconcile.Reconciler
	}{
		{&karpv1.NodePoolList{}, informer.NewNodePoolController(config.Guest, s.cloudProvider, s.cluster, s.cost)},
		{&karpv1.NodeClaimList{}, informer.NewNodeClaimController(config.Guest, s.cloudProvider, s.cluster, s.cost)},
		{&corev1.NodeList{}, informer.NewNodeController(config.Guest, s.cluster)},
		{&corev1.PodList{}, informer.NewPodController(config.Guest, s.cluster)},
		{&appsv1.DaemonSetList{}, informer.NewDaemonSetController(config.Guest, s.cluster)},
	} {
		gvk, err := kindOf(feed.list)
		if err != nil {
			return nil, err
		}
		for _, object := range config.Guest.objects[gvk] {
			_, err := feed.state.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
			switch {
			case apierrors.IsNotFound(err) && gvk.Kind == "NodeClaim": // the state has the NodeClaim; the costs of its NodePool can't be tracked
				gone := fmt.Sprintf("NodePool %s doesn't exist: Karpenter disrupts none of its nodes, and their costs don't count",
					object.GetLabels()[karpv1.NodePoolLabelKey])
				if !slices.Contains(s.Missing, gone) {
					s.Missing = append(slices.Clip(s.Missing), gone)
				}
			case err != nil:
				return nil, fmt.Errorf("reading %s %s: %w", gvk.Kind, object.GetName(), err)
			}
		}
	}
	return s, nil
}

// context has what Karpenter core expects of it. Its logs would repeat what the answers say.
func (s *Simulation) context(ctx context.Context) context.Context {
	return log.IntoContext(options.ToContext(ctx, s.Options), logr.Discard())
}

// provisioner of the simulated Karpenter, which sees the NodePools of a snapshot and the instance types of a cloud provider.
func (s *Simulation) provisioner(guest *Snapshot, provider karpcloudprovider.CloudProvider) *provisioning.Provisioner {
	devices := deviceallocation.NewController(guest)
	devices.Hydrate(context.Background())
	return provisioning.NewProvisioner(guest, s.recorder, provider, s.cluster, s.Clock, devices, virtualpods.NewVirtualPodCache(guest))
}

// schedule runs the scheduler as the provisioner does, for one pod and the NodePools of a snapshot.
func (s *Simulation) schedule(ctx context.Context, guest *Snapshot, provider karpcloudprovider.CloudProvider, pod *corev1.Pod) (
	scheduling.Results, error,
) {
	opts := []scheduling.Options{
		scheduling.DisableReservedCapacityFallback,
		scheduling.NumConcurrentReconciles(int(math.Ceil(float64(s.Options.CPURequests) / 1000))),
		scheduling.MinValuesPolicy(s.Options.MinValuesPolicy),
	}
	if s.Options.PreferencePolicy == options.PreferencePolicyIgnore {
		opts = append(opts, scheduling.IgnorePreferences)
	}
	pods := []*corev1.Pod{pod.DeepCopy()}
	scheduler, err := s.provisioner(guest, provider).NewScheduler(ctx, pods, s.cluster.DeepCopyNodes().Active(),
		sets.New[types.UID](), opts...)
	if err != nil {
		return scheduling.Results{}, err
	}
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		return scheduling.Results{}, err
	}
	return results.TruncateInstanceTypes(ctx, scheduling.MaxInstanceTypes), nil
}

// resolved is a cloud provider that makes and removes nothing, and whose instance types are those of one moment.
type resolved struct {
	karpcloudprovider.CloudProvider
	byNodePool map[string]offered
}

type offered struct {
	instanceTypes []*karpcloudprovider.InstanceType
	err           error
}

func (s *Simulation) resolve(ctx context.Context, nodePools []*karpv1.NodePool) resolved {
	r := resolved{s.CloudProvider, make(map[string]offered, len(nodePools))}
	for _, nodePool := range nodePools {
		if nodePool.Spec.Template.Spec.NodeClassRef == nil || !nodepoolutils.IsManaged(nodePool, s.CloudProvider) {
			continue
		}
		instanceTypes, err := s.CloudProvider.GetInstanceTypes(ctx, nodePool)
		r.byNodePool[nodePool.Name] = offered{s.launchable(nodePool, instanceTypes), err}
	}
	return r
}

// vacatedKey is the key of a context of Vacate.
type vacatedKey struct{}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (r resolved) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	if ctx.Value(vacatedKey{}) != nil {
		return r.CloudProvider.GetInstanceTypes(ctx, nodePool)
	}
	o, known := r.byNodePool[nodePool.Name]
	if !known {
		return nil, fmt.Errorf("the instance types of NodePool %s aren't known", nodePool.Name)
	}
	return o.instanceTypes, o.err
}

// Create implements cloudprovider.CloudProvider.
func (resolved) Create(context.Context, *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	return nil, ErrReadOnly
}

// Delete implements cloudprovider.CloudProvider.
func (resolved) Delete(context.Context, *karpv1.NodeClaim) error { return ErrReadOnly }

// IsDrifted implements cloudprovider.CloudProvider. The condition of a NodeClaim reports it.
func (resolved) IsDrifted(context.Context, *karpv1.NodeClaim) (karpcloudprovider.DriftReason, error) {
	return "", nil
}

// recorder keeps what Karpenter core would publish.
type recorder struct {
	mu        sync.Mutex
	published []events.Event
}

// Publish implements events.Recorder.
func (r *recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, published...)
}

// drain returns the messages about an object with one of these reasons, each once, and forgets all events.
func (r *recorder) drain(uid types.UID, reasons ...string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var messages []string
	for _, event := range r.published {
		object, ok := event.InvolvedObject.(client.Object)
		if ok && object.GetUID() == uid && slices.Contains(reasons, event.Reason) && !slices.Contains(messages, event.Message) {
			messages = append(messages, event.Message)
		}
	}
	r.published = nil
	return messages
}

// list returns the objects of a kind.
func list[T client.Object](s *Snapshot) []T {
	var found []T
	for _, objects := range s.objects {
		for _, object := range objects {
			each, ok := object.(T)
			if !ok {
				break
			}
			found = append(found, each)
		}
	}
	return found
}

// named returns the object of a kind without namespaces; nil for none.
func named[T client.Object](s *Snapshot, name string) (found T) {
	for _, object := range list[T](s) {
		if object.GetName() == name {
			return object
		}
	}
	return found
}
