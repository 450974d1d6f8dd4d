// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
)

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

// ownerTimeout limits the patch that sets the owner: a launch succeeds without it.
const ownerTimeout = 2 * time.Second

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
	objects, err := Build(plan)
	if err != nil {
		return nil, err
	}
	if annotations.IsPaused(plan.Cluster, plan.Cluster) {
		return nil, fmt.Errorf("creating Machine %s: %w", klog.KObj(objects.Machine), ErrPaused)
	}
	// A moved Cluster has another UID, and its Machines other names than new ones.
	moved, err := p.ForNodeClaim(ctx, plan.NodeClaim.UID)
	if err == nil && moved.Name != objects.Machine.Name || err != nil && !errors.Is(err, ErrNotFound) {
		return moved, err
	}
	var began time.Time
	// OnError's own error isn't used: it is nil if the attempt's error is that the context has ended.
	_ = retry.OnError(hiccup, func(err error) bool { return isTransient(err) && time.Since(began) < hiccupLimit }, func() error {
		began = time.Now()
		machine, err = p.create(ctx, plan, objects)
		return err
	})
	return machine, err
}

func isTransient(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}

func (p *Provider) create(ctx context.Context, plan Plan, objects *Objects) (*clusterv1.Machine, error) {
	infrastructure, machine, err := p.createChild(ctx, objects.Infrastructure, objects.Machine.Name, plan.NodeClaim.UID)
	token := ""
	if err == nil && machine == nil && objects.Bootstrap != nil {
		token, err = p.prepareBootstrap(ctx, plan, objects, infrastructure)
	}
	if err == nil && machine == nil && objects.Bootstrap != nil {
		var config *unstructured.Unstructured
		config, machine, err = p.createChild(ctx, objects.Bootstrap, objects.Machine.Name, plan.NodeClaim.UID)
		token = tokenOf(config)
	}
	if err == nil && machine == nil {
		if id, ok := bootstraptoken.ID(token); ok {
			// The operator accepts no other token from the machine.
			metav1.SetMetaDataAnnotation(&objects.Machine.ObjectMeta, v1alpha1.BootstrapTokenIDAnnotation, id)
		}
		machine, err = p.createMachine(ctx, plan.NodeClaim, objects.Machine, infrastructure)
	}
	if err == nil && !sameOffering(machine, infrastructure) {
		// A replica that has lost its Lease in the middle of a Create made this Machine, and this one the infrastructure
		// machine. The node would be neither replica's choice.
		err = cmp.Or(p.delete(ctx, machine), fmt.Errorf("creating Machine %s: %w", klog.KObj(machine), ErrLeftover))
	}
	if err != nil {
		return nil, err
	}
	return machine, nil
}

// createChild creates an infrastructure machine or a bootstrap config and returns it, or the one of an earlier attempt.
// If the NodeClaim's Machine exists too, by its name, it returns that as well.
func (p *Provider) createChild(
	ctx context.Context, child *unstructured.Unstructured, name string, nodeClaim types.UID,
) (made *unstructured.Unstructured, machine *clusterv1.Machine, err error) {
	made = child.DeepCopy()
	if err = p.Management.Create(ctx, made, FieldOwner); apierrors.IsAlreadyExists(err) {
		made, machine, err = p.findChild(ctx, child, name, nodeClaim)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("creating %s %s: %w", child.GetKind(), klog.KObj(child), rejected(err))
	}
	return made, machine, nil
}

// findChild returns the object that an earlier attempt created, and the NodeClaim's Machine if that exists too. Without a Machine, it
// deletes an object that differs from the wanted one.
func (p *Provider) findChild(
	ctx context.Context, child *unstructured.Unstructured, name string, nodeClaim types.UID,
) (*unstructured.Unstructured, *clusterv1.Machine, error) {
	existing := &unstructured.Unstructured{}
	existing.SetGroupVersionKind(child.GroupVersionKind())
	if err := p.Live.Get(ctx, client.ObjectKeyFromObject(child), existing); err != nil {
		return nil, nil, fmt.Errorf("reading existing objects: %w", err)
	}
	if !p.ownsFor(existing, nodeClaim) {
		return nil, nil, p.taken(existing)
	}
	machine, err := p.getLive(ctx, name, nodeClaim)
	if errors.Is(err, ErrNotFound) {
		machine, err = nil, nil
		if existing.GetDeletionTimestamp() != nil || !sameForm(existing, child) {
			// A template or an offering has changed since an earlier attempt, which created this object only.
			err = cmp.Or(p.delete(ctx, existing), ErrLeftover)
		}
	}
	return existing, machine, err
}

// createMachine creates the Machine, or finds the one of another attempt.
func (p *Provider) createMachine(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, wanted *clusterv1.Machine, infrastructure *unstructured.Unstructured,
) (machine *clusterv1.Machine, err error) {
	machine, err = wanted, p.Management.Create(ctx, wanted, FieldOwner)
	if refusesTaints(err) && len(wanted.Spec.Taints) > 0 {
		// The feature gate was turned off after the MachineDeployment had got its taints. The node registers with them
		// all the same.
		log.FromContext(ctx).Info("the management cluster refuses spec.taints; creating the Machine without", "Machine", klog.KObj(wanted),
			"error", err.Error())
		wanted.Spec.Taints = nil
		err = p.Management.Create(ctx, wanted, FieldOwner)
	}
	switch {
	case err == nil:
		p.setOwner(ctx, nodeClaim.Name, machine, infrastructure)
	case apierrors.IsAlreadyExists(err):
		machine, err = p.getLive(ctx, wanted.Name, nodeClaim.UID)
	}
	if err != nil {
		return nil, fmt.Errorf("creating Machine %s: %w", klog.KObj(wanted), rejected(err))
	}
	return machine, nil
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

// sameOffering reports whether a Machine and its infrastructure machine were made from the same source for the same offering.
// Nothing changes these labels and annotations later.
func sameOffering(machine, infrastructure client.Object) bool {
	differs := func(key string) bool { return machine.GetLabels()[key] != infrastructure.GetLabels()[key] }
	return !slices.ContainsFunc(machineLabelKeys, differs) &&
		machine.GetAnnotations()[v1alpha1.TemplateSourceAnnotation] == infrastructure.GetAnnotations()[v1alpha1.TemplateSourceAnnotation]
}

// sameForm reports whether an existing object was made from the wanted one's template, for the same offering, version
// and images.
func sameForm(existing, wanted *unstructured.Unstructured) bool {
	return sameOffering(existing, wanted) && !slices.ContainsFunc([]string{
		v1alpha1.TemplateHashAnnotation, v1alpha1.BootstrapHashAnnotation, v1alpha1.NodeClassHashAnnotation,
		v1alpha1.NodeVersionAnnotation, v1alpha1.NodeImagesHashAnnotation,
		clusterv1.TemplateClonedFromNameAnnotation, clusterv1.TemplateClonedFromGroupKindAnnotation,
	}, func(key string) bool { return existing.GetAnnotations()[key] != wanted.GetAnnotations()[key] })
}

// setOwner makes a Machine the controller of its infrastructure machine: providers start no instance before it has one. Cluster API does
// the same in its second reconcile of the Machine, a second later or, where many machines come and go, when it gets to it, and finds
// nothing to do then. So a failure is none of the launch.
//
// It leaves a replacement to Cluster API, because nothing waits for that. One that failed within a second would even cost a machine:
// Karpenter core would launch another one for the pods of the node that stays (docs/internals/upstream/failed-replacements.md).
func (p *Provider) setOwner(ctx context.Context, nodeClaim string, machine *clusterv1.Machine, infrastructure *unstructured.Unstructured) {
	owned, waits := metav1.GetControllerOfNoCopy(infrastructure) != nil, machine.Spec.Bootstrap.DataSecretName == nil
	if owned || waits || p.IsReplacement != nil && p.IsReplacement(nodeClaim) {
		return // a machine that waits gets its bootstrap data from the bootstrap provider
	}
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	// It can't be applied to an object of another UID, or that has other owners by now.
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": infrastructure.GetUID()},
		{"op": "test", "path": "/metadata/ownerReferences", "value": infrastructure.GetOwnerReferences()},
		{"op": "add", "path": "/metadata/ownerReferences/-", "value": metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: machine.UID, Controller: ptr.To(true),
		}},
	})
	if err == nil {
		err = p.Management.Patch(ctx, infrastructure.DeepCopy(), client.RawPatch(types.JSONPatchType, patch), FieldOwner)
	}
	if err != nil {
		log.FromContext(ctx).V(1).Info("leaving it to Cluster API to make the Machine the owner of its infrastructure machine",
			"Machine", klog.KObj(machine), "kind", infrastructure.GetKind(), "error", err.Error())
	}
}

// RejectedError means that the management cluster has rejected an object of a plan: a quota, a policy, a webhook, its
// schema, or missing rights. The management cluster rejects the same plan again until a person changes one of these.
type RejectedError struct{ err error }

// Error is the API server's message.
func (e *RejectedError) Error() string { return e.err.Error() }

// Unwrap returns the API server's error.
func (e *RejectedError) Unwrap() error { return e.err }

// rejected returns a *RejectedError for an error by which an API server rejects an object, and any other error unchanged.
func rejected(err error) error {
	if isRejection(err) {
		return &RejectedError{err}
	}
	return err
}

func isRejection(err error) bool {
	if meta.IsNoMatchError(err) {
		return true // the kind isn't installed any more
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch code := answer.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false // a token is being renewed, two writes met, or the API server has too much to do
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
