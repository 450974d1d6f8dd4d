// SPDX-License-Identifier: Apache-2.0

// Package machine creates, finds and deletes the Cluster API Machine of a NodeClaim with its infrastructure machine and
// bootstrap config.
//
// Every object has the NodeClaim's name, behind a hash, and its UID as a label. So each step can be repeated after a crash, and the
// provider never takes an object of another cluster or of a person for its own.
package machine

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Provider creates, finds and deletes the Machines of one cluster.
type Provider struct {
	Config
	creates *semaphore.Weighted
	// deleted has the UIDs of Machines whose deletion the API server has accepted. Karpenter calls Delete every five
	// seconds; behind an API server with slow watches each call would be two more writes.
	deleted *utilcache.Expiring
	// drained has the UIDs of Machines that are annotated as drained.
	drained   *utilcache.Expiring
	annotates singleflight.Group
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
		deleted: utilcache.NewExpiring(), drained: utilcache.NewExpiring(), gone: utilcache.NewExpiring(), completed: utilcache.NewExpiring(),
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

// Annotate sets annotations of a Machine that is shared with the cache. While the Cluster is paused it writes nothing.
func (p *Provider) Annotate(ctx context.Context, machine *clusterv1.Machine, annotations map[string]string) error {
	return p.patch(ctx, machine, func(patched *clusterv1.Machine) {
		for key, value := range annotations {
			metav1.SetMetaDataAnnotation(&patched.ObjectMeta, key, value)
		}
	})
}

// patch changes a Machine that is shared with the cache. While the Cluster is paused it writes nothing.
func (p *Provider) patch(ctx context.Context, machine *clusterv1.Machine, change func(*clusterv1.Machine)) error {
	paused, err := p.Paused(ctx)
	if err != nil || paused {
		return err
	}
	patched := machine.DeepCopy()
	change(patched)
	if err := p.Management.Patch(ctx, patched, client.MergeFrom(machine), FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patching Machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}

// RequestReboot annotates a Machine that is shared with the cache, so that a MachineHealthCheck has it rebooted.
func (p *Provider) RequestReboot(ctx context.Context, machine *clusterv1.Machine, operationID string) error {
	if machine.Annotations[v1alpha1.RebootAnnotation] == operationID {
		return nil
	}
	return p.Annotate(ctx, machine, map[string]string{clusterv1.RemediateMachineAnnotation: "", v1alpha1.RebootAnnotation: operationID})
}

// RebootRequested reports whether a Machine is annotated for a reboot.
func RebootRequested(machine *clusterv1.Machine) bool {
	_, requested := machine.Annotations[v1alpha1.RebootAnnotation]
	return requested
}

// EndReboot removes the annotations of RequestReboot: the MachineHealthCheck takes the Machine for healthy, and deletes the remediation.
// While the Cluster is paused it writes nothing.
func (p *Provider) EndReboot(ctx context.Context, machine *clusterv1.Machine) error {
	return p.patch(ctx, machine, func(patched *clusterv1.Machine) {
		delete(patched.Annotations, clusterv1.RemediateMachineAnnotation)
		delete(patched.Annotations, v1alpha1.RebootAnnotation)
	})
}
