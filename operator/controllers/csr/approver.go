// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// Guests returns connections to guests.
type Guests interface {
	// Guest returns the guest of a HostedCluster; nil while it isn't connected. A non-zero requeueAfter means that the guest is
	// unresponsive: send it nothing before then.
	Guest(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (g *scope.Guest, requeueAfter time.Duration, err error)
}

var _ Guests = (*guest.Connections)(nil)

// Config is the input of New.
type Config struct {
	// Management reads HostedClusters, and Machines as MachineCache keeps them, from the cache.
	Management client.Client
	// Live reads from the management cluster's API server.
	Live client.Reader
	// Recorder writes events on HostedClusters.
	Recorder events.EventRecorder
	// Profiles select the providers whose nodes' requests are handled.
	Profiles provider.Profiles
	// Infrastructure declares which addresses a kind's machines decide themselves. Without it none is known to.
	Infrastructure infrastructure.Kinds
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Approver approves and denies the certificate requests of all guests.
type Approver struct {
	Config
	guests  Guests
	ledger  *ledger
	foreign *foreign
	limiter *limiter
	// signatures are those of requests that are known.
	signatures *signatures
	// groups of the node classes whose NodeClaims count.
	groups sets.Set[string]
}

var _ reconcile.TypedReconciler[Key] = (*Approver)(nil)

// New returns an Approver. SetUp starts it.
func New(config Config) *Approver {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	groups := sets.New[string]()
	for _, profile := range config.Profiles {
		if profile.ApprovesCertificates {
			groups.Insert(profile.NodeClass.Group)
		}
	}
	return &Approver{
		Config: config, ledger: newLedger(), foreign: newForeign(config.Clock), limiter: newLimiter(config.Clock), groups: groups,
		signatures: newSignatures((*x509.CertificateRequest).CheckSignature),
	}
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch

// SetUp adds the controller to the manager.
func (a *Approver) SetUp(ctx context.Context, mgr manager.Manager, guests Guests) error {
	a.guests = guests
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, nodeNameIndex, nodeNames(a.Infrastructure)); err != nil {
		return fmt.Errorf("indexing Machines by the names of their nodes: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, addressIndex, addresses); err != nil {
		return fmt.Errorf("indexing Machines by their addresses: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, tokenIndex, tokens); err != nil {
		return fmt.Errorf("indexing Machines by their bootstrap tokens: %w", err)
	}
	c, err := ctrlcontroller.NewTyped("certificatesigningrequest", mgr, ctrlcontroller.TypedOptions[Key]{
		Reconciler:              a,
		MaxConcurrentReconciles: workers,
	})
	if err != nil {
		return fmt.Errorf("setting up the controller of certificate requests: %w", err)
	}
	for _, from := range []source.TypedSource[Key]{
		&a.limiter.queue,
		a.ledger,
		source.TypedKind(mgr.GetCache(), &clusterv1.Machine{}, a.onMachine()),
		source.TypedKind(mgr.GetCache(), &v1beta1.HostedCluster{}, a.onHostedCluster()),
		source.TypedKind(mgr.GetCache(), &clusterv1.Cluster{}, a.onCluster()),
	} {
		if err := c.Watch(from); err != nil {
			return fmt.Errorf("setting up the controller of certificate requests: %w", err)
		}
	}
	return nil
}

func statePaused(hostedCluster *v1beta1.HostedCluster) bool {
	return hostedCluster.Status.AutoNode != nil && hostedCluster.Status.AutoNode.State == v1beta1.AutoNodeStatePaused
}

// paused reports whether requests have to wait. During a clusterctl move, Machines may already be in the other
// management cluster.
func (a *Approver) paused(ctx context.Context, hostedCluster *v1beta1.HostedCluster, key client.ObjectKey) (bool, error) {
	if statePaused(hostedCluster) {
		return true, nil
	}
	cluster := &clusterv1.Cluster{}
	switch err := a.Management.Get(ctx, key, cluster); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the Cluster: %w", err)
	}
	return annotations.IsPaused(cluster, cluster), nil
}

// Reconcile handles one request, within its guest's concurrency limit.
func (a *Approver) Reconcile(ctx context.Context, key Key) (result reconcile.Result, err error) {
	ok, requeueAfter := a.limiter.acquire(key)
	if !ok {
		return reconcile.Result{RequeueAfter: requeueAfter}, nil
	}
	t := &observed{}
	defer func() {
		if requeueAfter := a.limiter.release(key, t.finding, t.backoff); requeueAfter > 0 {
			result.RequeueAfter = requeueAfter
		}
	}()
	result.RequeueAfter, err = a.reconcile(ctx, key, t)
	return result, err
}

// observed is the guest's state, as handling a request showed it: see limiter.release.
type observed struct {
	finding finding
	backoff time.Duration
}

func (a *Approver) reconcile(ctx context.Context, key Key, t *observed) (requeueAfter time.Duration, err error) {
	hostedCluster := &v1beta1.HostedCluster{}
	if err := a.Management.Get(ctx, key.HostedCluster, hostedCluster); err != nil {
		if apierrors.IsNotFound(err) {
			a.ledger.forget(key)
			t.finding = gone
		}
		return 0, client.IgnoreNotFound(err)
	}
	cluster, ok := guest.ClusterKey(hostedCluster)
	if !ok {
		return 0, nil
	}
	g, backoff, err := a.guests.Guest(ctx, hostedCluster)
	switch {
	case err != nil:
		return 0, err
	case g == nil && backoff > 0:
		t.finding, t.backoff = unresponsive, backoff
		return 0, nil
	case g == nil:
		t.finding = gone // the next connection lists all requests
		return 0, nil
	}
	object := &certificatesv1.CertificateSigningRequest{}
	if err := g.Cached.Get(ctx, client.ObjectKey{Name: key.Name}, object); err != nil {
		if apierrors.IsNotFound(err) {
			a.ledger.forget(key)
		}
		return 0, client.IgnoreNotFound(err)
	}
	j := &evaluation{hostedCluster: hostedCluster, cluster: cluster, guest: g}
	if decided(object) {
		a.ledger.forget(key)
		if err := a.noteForeign(ctx, hostedCluster, cluster, object); err != nil {
			return 0, err
		}
		if node, byNode := (request{CertificateSigningRequest: object}).requester(); byNode {
			a.ledger.enqueueUndecided(cluster, node) // one that came after it may be next
		}
		return 0, nil
	}
	j.request = verified(object, a.signatures.check)
	if node, byNode := j.request.requester(); byNode && !a.ledger.remembers(cluster, key) {
		a.ledger.enqueueUndecided(cluster, node) // those that it supersedes
	}
	a.ledger.keep(cluster, key, j.request.nodes())
	if paused, err := a.paused(ctx, hostedCluster, cluster); paused || err != nil {
		return 0, err
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues(
		"HostedCluster", klog.KObj(hostedCluster), "CertificateSigningRequest", klog.KObj(object), "signer", object.Spec.SignerName))
	requeueAfter, err = a.decide(ctx, key, j)
	switch {
	case err != nil && ctx.Err() == nil && outage.Lost(g, err):
		t.finding = unresponsive
		log.FromContext(ctx).Info("The guest doesn't answer; the request waits", "error", err.Error())
		return 0, nil
	case err == nil && j.answered:
		t.finding = answers
	}
	return requeueAfter, err
}

// evaluation is one request and the inputs of its validation.
type evaluation struct {
	hostedCluster *v1beta1.HostedCluster
	cluster       client.ObjectKey
	guest         *scope.Guest
	request       request
	// answered: the guest has stored a decision.
	answered bool
}

// decide returns the requeue interval, if only time can change the decision.
func (a *Approver) decide(ctx context.Context, key Key, j *evaluation) (requeueAfter time.Duration, err error) {
	decision, err := a.validate(ctx, j)
	if err != nil {
		return 0, err
	}
	if decision.action == approved {
		if conflicting := a.grant(key, j, decision.machine); conflicting != "" {
			// The cache lacks an approval of a moment ago.
			worker := decision.worker
			if decision = *alreadyRequested(conflicting); !j.request.bootstraps() {
				decision = *laterRequest(conflicting, liveFor)
			}
			if worker {
				decision.action = waiting
			}
		}
	}
	switch decision.action {
	case ignored, waiting:
		a.await(key, j, decision)
		if a.ledger.shouldNotify(j.cluster, key) {
			a.count(j, decision)
			if decision.action == waiting {
				log.FromContext(ctx).Info("Waiting with a certificate request", "reason", decision.reason, "message", decision.message)
			}
		}
		return decision.requeueAfter, nil
	case approved:
		// A failed write may have been stored, so the grant stays.
		return 0, a.write(ctx, j, certificatesv1.CertificateApproved, decision)
	default:
		return 0, a.write(ctx, j, certificatesv1.CertificateDenied, decision)
	}
}

// grant reserves a key that only one request at a time may have. It returns the name of the request that has it already.
func (a *Approver) grant(key Key, j *evaluation, machine types.UID) (conflicting string) {
	node, _ := j.request.subject()
	index := ownRequest(j.request.Spec.SignerName, node)
	if j.request.bootstraps() { // an earlier machine may have had the name
		index = firstCertificate(node) + "/" + string(machine)
	}
	return a.ledger.grant(grantKey{key.HostedCluster, index}, key.Name, j.request.UID, a.Clock.Now())
}

// validate reads the inputs from the caches, and reads them again from the API servers before it denies.
func (a *Approver) validate(ctx context.Context, j *evaluation) (decision, error) {
	e, err := a.gather(ctx, j, false)
	if err != nil {
		return decision{}, err
	}
	v := validate(j.request, e, a.Clock.Now())
	if v.action != denied {
		return v, nil
	}
	if e, err = a.gather(ctx, j, true); err != nil {
		return decision{}, err
	}
	return validate(j.request, e, a.Clock.Now()), nil
}

// write stores the decision in the request.
func (a *Approver) write(ctx context.Context, j *evaluation, condition certificatesv1.RequestConditionType, v decision) error {
	object := j.request.DeepCopy()
	now := metav1.NewTime(a.Clock.Now())
	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: v.reason, Message: v.message, LastUpdateTime: now, LastTransitionTime: now,
	})
	if err := j.guest.Live.SubResource("approval").Update(ctx, object); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			j.answered = true
			return nil // it has changed, and comes here again
		}
		return fmt.Errorf("writing the decision on certificate request %s: %w", object.Name, err)
	}
	j.answered = true
	a.count(j, v)
	if v.action == approved {
		log.FromContext(ctx).Info("Approved a certificate request", "subject", j.request.content.Subject.CommonName)
		return nil
	}
	log.FromContext(ctx).Info("Denied a certificate request", "reason", v.reason, "message", v.message)
	a.Recorder.Eventf(j.hostedCluster, nil, corev1.EventTypeWarning, v.reason, denyAction,
		"denied certificate request %s in the guest: %s", object.Name, v.message)
	if v.requester != nil {
		a.notifyMachine(ctx, j, v)
	}
	return nil
}

const (
	// denyAction is the action of the events.
	denyAction = "DenyCertificate"
	// karpenterVersion is the API version of a NodeClaim.
	karpenterVersion = "karpenter.sh/v1"
)

// notifyMachine writes events on a Machine that asked for another's name, and on its NodeClaim: neither joins, and they are
// where a person looks. The guest's event has one name per Machine, so that a token is worth one event an hour.
func (a *Approver) notifyMachine(ctx context.Context, j *evaluation, v decision) {
	a.Recorder.Eventf(v.requester, nil, corev1.EventTypeWarning, v.reason, denyAction, "%s", v.message)
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: string(v.requester.UID) + "." + strings.ToLower(v.reason)},
		EventTime:  metav1.NewMicroTime(a.Clock.Now()),
		Regarding: corev1.ObjectReference{
			APIVersion: karpenterVersion, Kind: "NodeClaim",
			Name: v1alpha1.NodeClaimOf(v.requester), UID: types.UID(v.requester.Labels[v1alpha1.NodeClaimUIDLabel]),
		},
		Type: corev1.EventTypeWarning, Reason: v.reason, Action: denyAction, Note: v.message,
		ReportingController: v1beta1.ManagedByOperator, ReportingInstance: v1beta1.ManagedByOperator,
	}
	if err := j.guest.Live.Create(ctx, event); err != nil && !apierrors.IsAlreadyExists(err) {
		log.FromContext(ctx).Error(err, "writing an event on a NodeClaim", "NodeClaim", klog.KRef("", v1alpha1.NodeClaimOf(v.requester)))
	}
}

func (a *Approver) count(j *evaluation, v decision) {
	decisions.WithLabelValues(j.request.Spec.SignerName, string(v.action), v.reason).Inc()
}
