// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
)

// FieldOwner is the field owner of the provider's writes in the management cluster.
const FieldOwner = client.FieldOwner("karpenter-clusterapi")

var (
	// ErrNotFound means that a NodeClaim has no Machine and no other objects left.
	ErrNotFound = errors.New("no Machine")
	// ErrTaken means that another owner has an object with the NodeClaim's name.
	ErrTaken = errors.New("an object of that name belongs to another owner")
	// ErrReplaced is an ErrTaken of which the owner was an earlier NodeClaim of the same name.
	ErrReplaced = fmt.Errorf("%w, an earlier NodeClaim", ErrTaken)
	// ErrPaused means that the Cluster is paused, so the provider writes nothing. A retry succeeds once it resumes.
	ErrPaused = errors.New("the Cluster is paused")
	// ErrLeftover means that the provider is deleting an object of an earlier attempt. A retry succeeds afterwards.
	ErrLeftover = errors.New("an earlier attempt's object is being removed")
)

// Config of a Provider.
type Config struct {
	// Management reads from a cache that has this package's indexes; it holds the cluster's Machines.
	Management client.Client
	// Live reads from the API server, where the cache may lag behind the provider's own writes.
	Live client.Reader
	// Namespace is the control-plane namespace.
	Namespace string
	// ClusterName of the CAPI Cluster. The provider never reads or writes an object of another one.
	ClusterName string
	// Tokens mints the bootstrap tokens that machines join with.
	Tokens bootstraptoken.Minter
	// CACertHashes pin the guest's certificate authorities for machines that join it. Without them the bootstrap
	// provider renders all bootstrap data.
	CACertHashes []string
	// ChildKinds returns the kinds of infrastructure machines and bootstrap configs. Delete looks in each for objects
	// of a NodeClaim that has no Machine.
	ChildKinds func(ctx context.Context) []schema.GroupVersionKind
	// IsReplacement reports whether a NodeClaim replaces a node that runs until then, so that no pod waits for it. If nil, none does.
	IsReplacement func(nodeClaim string) bool
	// Infrastructure reads infrastructure machines from a cache. If nil, only the API server's answers count.
	Infrastructure Infrastructure
}

// concurrentCreates is the concurrency limit of Create.
const concurrentCreates = 100

// hiccup is the back-off of Create after a transient fault. A NodeClaim whose launch fails is replaced after ten seconds
// or more.
var hiccup = wait.Backoff{Steps: 3, Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.2}

// Karpenter schedules no pod while a launch is under way, so a Create that hangs, such as at a webhook that doesn't answer,
// has to end.
const (
	// CreateTimeout is how long Create tries, without its wait at the concurrency limit. An API server that has to make
	// many Machines at once answers within seconds.
	CreateTimeout = 15 * time.Second
	// hiccupLimit is how long an attempt may have taken that is repeated.
	hiccupLimit = 2 * time.Second
)

// Provider creates, finds and deletes the Machines of one cluster.
type Provider struct {
	Config
	creates *semaphore.Weighted
	// deleted has the UIDs of Machines whose deletion the API server has accepted. Karpenter calls Delete every five
	// seconds; behind an API server with slow watches each call would be two more writes.
	deleted *utilcache.Expiring
	// told has the UIDs of Machines that Cluster API was told not to drain.
	told    *utilcache.Expiring
	telling singleflight.Group
	// gone has the UIDs of deleted NodeClaims that have no object left. Karpenter calls Delete more than once, and each answer
	// costs a request per kind.
	gone *utilcache.Expiring
	// completed has the infrastructure references of deleted Machines by the UID of their NodeClaim.
	completed *utilcache.Expiring
}

// New returns a provider.
func New(config Config) *Provider {
	return &Provider{
		Config: config, creates: semaphore.NewWeighted(concurrentCreates),
		deleted: utilcache.NewExpiring(), told: utilcache.NewExpiring(), gone: utilcache.NewExpiring(), completed: utilcache.NewExpiring(),
	}
}

// Owns reports whether this provider made an object for this cluster. A person's copy of one has the same labels, and
// another name.
func (p *Provider) Owns(object client.Object) bool {
	labels := object.GetLabels()
	return object.GetNamespace() == p.Namespace &&
		labels[clusterv1.ClusterNameLabel] == p.ClusterName &&
		v1alpha1.MadeForNodeClaim(object)
}

// Paused reports whether the Cluster is paused, by its spec or by the annotation. The provider then writes nothing,
// because clusterctl may be moving the objects. A Cluster that doesn't exist isn't paused.
func (p *Provider) Paused(ctx context.Context) (bool, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.ClusterName}
	if err := p.Management.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	return annotations.IsPaused(cluster, cluster), nil
}

func (p *Provider) ownsFor(object client.Object, uid types.UID) bool {
	return p.Owns(object) && object.GetLabels()[v1alpha1.NodeClaimUIDLabel] == string(uid)
}

// Create creates the objects of a plan and returns the Machine. It waits at the concurrency limit, and then ends within
// CreateTimeout. Called again for the same NodeClaim, after a crash at any step, it continues and still creates one
// Machine; the decisions of an earlier call win over the plan. The error is a *RejectedError if a retry can't help.
func (p *Provider) Create(ctx context.Context, plan Plan) (machine *clusterv1.Machine, err error) {
	if err := p.creates.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("waiting for other machines to be created: %w", err)
	}
	defer p.creates.Release(1)
	ctx, cancel := context.WithTimeout(ctx, CreateTimeout)
	defer cancel()
	var began time.Time
	isBrief := func(err error) bool { return passes(err) && time.Since(began) < hiccupLimit }
	// OnError's own error isn't used: it is nil if the attempt's error is that the context has ended.
	_ = retry.OnError(hiccup, isBrief, func() error {
		began = time.Now()
		machine, err = p.create(ctx, plan)
		return err
	})
	return machine, err
}

// passes reports whether a fault is transient.
func passes(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}

func (p *Provider) create(ctx context.Context, plan Plan) (*clusterv1.Machine, error) {
	objects, err := Build(plan)
	if err != nil {
		return nil, err
	}
	if annotations.IsPaused(plan.Cluster, plan.Cluster) {
		return nil, fmt.Errorf("creating Machine %s: %w", klog.KObj(objects.Machine), ErrPaused)
	}
	switch machine, err := p.ForNodeClaim(ctx, plan.NodeClaim.UID); {
	case err == nil && machine.Name != objects.Machine.Name:
		return machine, nil // a moved Cluster has another UID, and its Machines other names than new ones
	case err != nil && !errors.Is(err, ErrNotFound):
		return nil, err
	}
	infrastructure, machine, err := p.createChild(ctx, objects.Infrastructure, plan.NodeClaim)
	if err == nil && machine == nil && objects.Bootstrap != nil {
		machine, err = p.createBootstrap(ctx, plan, objects, infrastructure)
	}
	if err == nil && machine == nil {
		machine, err = p.createMachine(ctx, plan, objects, infrastructure)
	}
	if err != nil {
		return nil, err
	}
	if !sameOffering(machine, infrastructure) {
		// A replica that has lost its Lease in the middle of a Create made this Machine, and this one the infrastructure
		// machine. The node would be neither replica's choice.
		if err := p.delete(ctx, machine); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("creating Machine %s: %w", klog.KObj(machine), ErrLeftover)
	}
	return machine, nil
}

// createMachine creates the Machine, or finds the one of another attempt.
func (p *Provider) createMachine(ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured) (*clusterv1.Machine, error) {
	machine := objects.Machine
	err := p.Management.Create(ctx, machine, FieldOwner)
	if refusesTaints(err) && len(machine.Spec.Taints) > 0 {
		// The feature gate was turned off after the MachineDeployment had got its taints. The node registers with them
		// all the same.
		log.FromContext(ctx).Info("the management cluster refuses spec.taints; creating the Machine without", "Machine", klog.KObj(machine), "error", err.Error())
		machine.Spec.Taints = nil
		err = p.Management.Create(ctx, machine, FieldOwner)
	}
	switch {
	case err == nil:
		p.own(ctx, plan.NodeClaim.Name, machine, infrastructure)
	case apierrors.IsAlreadyExists(err):
		machine, err = p.getLive(ctx, objects.Machine.Name, plan.NodeClaim.UID)
	}
	if err != nil {
		return nil, fmt.Errorf("creating Machine %s: %w", klog.KObj(objects.Machine), rejected(err))
	}
	return machine, nil
}

// createBootstrap creates the machine's bootstrap Secret, or the config from which the bootstrap provider makes one. It
// returns the Machine if that exists already.
func (p *Provider) createBootstrap(ctx context.Context, plan Plan, objects *Objects, infrastructure *unstructured.Unstructured) (*clusterv1.Machine, error) {
	rendered, err := p.renderBootstrap(ctx, plan, objects, infrastructure)
	if err != nil || rendered {
		return nil, err
	}
	if err := p.giveToken(ctx, objects.Bootstrap); err != nil {
		return nil, err
	}
	config, machine, err := p.createChild(ctx, objects.Bootstrap, plan.NodeClaim)
	if err != nil || machine != nil {
		return machine, err
	}
	fixToken(objects.Machine, tokenOf(config))
	return nil, nil //nolint:nilnil // it is made, and the Machine isn't yet
}

// refusesTaints reports whether the API server rejected a Machine for its spec.taints.
func refusesTaints(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "spec.taints" || strings.HasPrefix(cause.Field, "spec.taints[")
	})
}

// createChild creates an infrastructure machine or a bootstrap config and returns it, or the one of an earlier attempt.
// If the NodeClaim's Machine exists too, it returns that as well.
func (p *Provider) createChild(ctx context.Context, child *unstructured.Unstructured, nodeClaim *karpv1.NodeClaim) (*unstructured.Unstructured, *clusterv1.Machine, error) {
	made, machine, err := p.createOrFind(ctx, child, nodeClaim)
	if err != nil {
		return nil, nil, fmt.Errorf("creating %s %s: %w", child.GetKind(), klog.KObj(child), rejected(err))
	}
	return made, machine, nil
}

func (p *Provider) createOrFind(ctx context.Context, child *unstructured.Unstructured, nodeClaim *karpv1.NodeClaim) (*unstructured.Unstructured, *clusterv1.Machine, error) {
	created := child.DeepCopy()
	err := p.Management.Create(ctx, created, FieldOwner)
	if !apierrors.IsAlreadyExists(err) {
		return created, nil, err
	}
	existing := &unstructured.Unstructured{}
	existing.SetGroupVersionKind(child.GroupVersionKind())
	if err := p.Live.Get(ctx, client.ObjectKeyFromObject(child), existing); err != nil {
		return nil, nil, fmt.Errorf("reading existing objects: %w", err)
	}
	if !p.ownsFor(existing, nodeClaim.UID) {
		return nil, nil, p.taken(existing)
	}
	machine, err := p.findLive(ctx, nodeClaim)
	switch {
	case err == nil:
		return existing, machine, nil
	case !errors.Is(err, ErrNotFound):
		return nil, nil, err
	}
	if existing.GetDeletionTimestamp() == nil && sameForm(existing, child) {
		return existing, nil, nil
	}
	// A template or an offering has changed since an earlier attempt, which created this object only.
	if err := p.delete(ctx, existing); err != nil {
		return nil, nil, err
	}
	return nil, nil, ErrLeftover
}

// sameOffering reports whether a Machine and its infrastructure machine were made from the same source for the same offering.
// Nothing changes these labels and annotations later.
func sameOffering(machine *clusterv1.Machine, infrastructure *unstructured.Unstructured) bool {
	for _, key := range machineLabelKeys {
		if machine.Labels[key] != infrastructure.GetLabels()[key] {
			return false
		}
	}
	return machine.Annotations[v1alpha1.TemplateSourceAnnotation] == infrastructure.GetAnnotations()[v1alpha1.TemplateSourceAnnotation]
}

// sameForm reports whether an existing object was made from the wanted one's template, for the same offering, version
// and images.
func sameForm(existing, wanted *unstructured.Unstructured) bool {
	for _, key := range machineLabelKeys {
		if existing.GetLabels()[key] != wanted.GetLabels()[key] {
			return false
		}
	}
	for _, key := range []string{
		v1alpha1.TemplateHashAnnotation, v1alpha1.BootstrapHashAnnotation, v1alpha1.NodeClassHashAnnotation,
		v1alpha1.NodeVersionAnnotation, v1alpha1.NodeImagesHashAnnotation,
		clusterv1.TemplateClonedFromNameAnnotation, clusterv1.TemplateClonedFromGroupKindAnnotation,
	} {
		if existing.GetAnnotations()[key] != wanted.GetAnnotations()[key] {
			return false
		}
	}
	return true
}

// Annotate sets annotations of a Machine that is shared with the cache. While the Cluster is paused it writes nothing.
func (p *Provider) Annotate(ctx context.Context, machine *clusterv1.Machine, annotations map[string]string) error {
	paused, err := p.Paused(ctx)
	if err != nil || paused {
		return err
	}
	patched := machine.DeepCopy()
	for key, value := range annotations {
		metav1.SetMetaDataAnnotation(&patched.ObjectMeta, key, value)
	}
	if err := p.Management.Patch(ctx, patched, client.MergeFrom(machine), FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotating Machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}
